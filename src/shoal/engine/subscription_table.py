"""The subscription table of a matcher: the filters of all clients, in one index.

Owns the ids in the index, which belong to it alone and are used again. A client has a *seat*; its filters are known by
the client's own numbers. The table keeps the filters in their wire form too, because another matcher may get them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.engine.configuration import ODD, Configuration, checksum, seed_of
from shoal.engine.messages import Event, Refused
from shoal.engine.seat_groups import SeatGroups, Seats
from shoal.errors import EventError, FilterError
from shoal.filters.events import decode_any_event
from shoal.filters.index.index import Index, Matches
from shoal.filters.index.wire_table import wire_table
from shoal.limits import Limits

ROWS_FIRST: Final = 16
NO_ATTRIBUTES: Final = b"\x80"
"""An event without attributes."""


class Rows(NamedTuple):
    """Some filters, in columns."""

    clients: list[int]
    numbers: list[int]
    wires: list[bytes]
    checksums: npt.NDArray[np.uint64]


def owners(configuration: Configuration, checksums: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    """`Configuration.owner` for many filters: places in `matchers`."""
    if len(configuration.matchers) == 1:
        return np.zeros(len(checksums), np.intp)
    weights = []
    for name in configuration.matchers:
        mixed = (checksums ^ np.uint64(seed_of(name))) * np.uint64(ODD)
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(ODD)
        weights.append(mixed ^ (mixed >> np.uint64(29)))
    places: npt.NDArray[np.intp] = np.stack(weights).argmax(axis=0)
    return places


class SubscriptionTable:
    """The filters of all clients."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._index = Index()
        self._clients: dict[int, dict[int, int]] = {}
        """By client: the id of each of its numbers."""
        self._free: list[int] = []
        self._wires: list[bytes | None] = []
        """By id."""
        self._seat_of = np.zeros(ROWS_FIRST, np.int64)
        self._number_of = np.zeros(ROWS_FIRST, np.int64)
        self._checksum_of = np.zeros(ROWS_FIRST, np.uint64)
        self._groups = SeatGroups()
        self._filters = 0

    def __len__(self) -> int:
        return self._filters

    @property
    def nbytes(self) -> int:
        """Bytes of index and arrays."""
        return self._index.nbytes + self._seat_of.nbytes + self._number_of.nbytes + self._checksum_of.nbytes

    @property
    def size(self) -> int:
        """All ids are below this."""
        return len(self._wires)

    def rows(self, first: int, last: int) -> Rows:
        """The filters with ids from `first` to before `last`."""
        wires = self._wires[first:last]
        ids = np.array([first + at for at, wire in enumerate(wires) if wire is not None], np.intp)
        return Rows(
            self._seat_of[ids].tolist(),
            self._number_of[ids].tolist(),
            [wire for wire in wires if wire is not None],
            self._checksum_of[ids],
        )

    def has(self, client: int, number: int) -> bool:
        """Whether a filter is here."""
        return number in self._clients.get(client, ())

    def numbers(self, client: int) -> list[int]:
        """The numbers of a client's filters."""
        return list(self._clients.get(client, ()))

    # Changes

    def remove(self, client: int, numbers: Iterable[int]) -> None:
        """Removes those of a client's filters that are here."""
        own = self._clients.get(client)
        if own is None:
            return
        ids = [own.pop(number) for number in dict.fromkeys(numbers) if number in own]
        if ids:
            self._index.remove_many(ids)
            self._free += ids
            self._filters -= len(ids)
            for id in ids:
                self._wires[id] = None
        if not own:
            del self._clients[client]

    def insert(self, client: int, filters: Sequence[tuple[int, bytes]]) -> list[Refused]:
        """Inserts those filters of a client that are not here; returns those that are refused."""
        own = self._clients.setdefault(client, {})
        refused = self._insert(client, own, [one for one in dict(filters).items() if one[0] not in own])
        if not own:
            del self._clients[client]
        return refused

    def _insert(self, client: int, own: dict[int, int], new: list[tuple[int, bytes]]) -> list[Refused]:
        refused: list[Refused] = []
        limits = self._limits
        rooms = {
            "engine_client_filters_max": limits.engine_client_filters_max - len(own),
            "engine_filters_max": limits.engine_filters_max - self._filters,
        }
        least = min(rooms, key=lambda name: rooms[name])
        room = max(rooms[least], 0)
        if len(new) > room:
            reason = f"the engine has no room for it: {least} is {getattr(limits, least)}"
            refused += [Refused(number, reason) for number, _ in new[room:]]
            new = new[:room]
        if not new:
            return refused
        try:
            self._insert_all(client, own, new)
        except FilterError as error:
            if len(new) == 1:
                return [*refused, Refused(new[0][0], str(error))]
            for one in new:
                refused += self._insert(client, own, [one])
        return refused

    def _insert_all(self, client: int, own: dict[int, int], new: list[tuple[int, bytes]]) -> None:
        if len(self._free) < len(new):
            used = len(self._wires)
            more = max(ROWS_FIRST, len(new), used // 8)
            self._free += range(used + more - 1, used - 1, -1)
            self._wires += [None] * more
            if used + more > len(self._seat_of):
                self._seat_of = np.resize(self._seat_of, 2 * (used + more))
                self._number_of = np.resize(self._number_of, 2 * (used + more))
                self._checksum_of = np.resize(self._checksum_of, 2 * (used + more))
        ids = self._free[-len(new) :]
        numbers = [number for number, _ in new]
        self._index.insert_many(ids, wire_table([wire for _, wire in new]))
        self._seat_of[ids] = client
        self._number_of[ids] = numbers
        self._checksum_of[ids] = [checksum(wire) for _, wire in new]
        for id, (_, wire) in zip(ids, new, strict=True):
            self._wires[id] = wire
        del self._free[-len(new) :]
        self._filters += len(ids)
        own.update(zip(numbers, ids, strict=True))

    def settle(self) -> None:
        """Does now what the first match after many changes would do."""
        self._index.settle()
        self._index.match_many(wire_table([NO_ATTRIBUTES]))

    # Matching

    def match(self, events: Sequence[Event]) -> list[Seats | str]:
        """For each event the clients whose filters it matches; or why it cannot be read."""
        try:
            return list(self._by_seat(self._index.match_many(wire_table([event.attributes for event in events]))))
        except EventError:
            return self._match_valid(events)

    def _match_valid(self, events: Sequence[Event]) -> list[Seats | str]:
        """Some events cannot be read: they are found one by one, the others are matched together."""
        found: list[Seats | str] = []
        valid: list[int] = []
        for at, event in enumerate(events):
            found.append([])
            try:
                decode_any_event(event.attributes)
                valid.append(at)
            except EventError as error:
                found[at] = str(error)
        table = wire_table([events[at].attributes for at in valid])
        for at, seats in zip(valid, self._by_seat(self._index.match_many(table)), strict=True):
            found[at] = seats
        return found

    def _by_seat(self, matches: Matches) -> Iterable[Seats]:
        clients, numbers = self._seat_of[matches.ids], self._number_of[matches.ids]
        return self._groups.group(matches.offsets, clients, numbers, len(self._clients))
