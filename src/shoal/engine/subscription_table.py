"""The subscription table of a matcher: the filters of all clients, in one index.

Owns the ids in the index, which belong to it alone and are used again. A client has a *seat*; its filters are known by
the client's own numbers. The table keeps the filters in their wire form too, because another matcher may get them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.engine.configuration import ODD, Configuration, checksum, seed_of
from shoal.engine.filter_arena import FilterArena, widened
from shoal.engine.filter_numbers import FilterNumbers, as_numbers, is_number
from shoal.engine.links import Found
from shoal.engine.messages import Event, Refused
from shoal.engine.seat_groups import SeatGroups
from shoal.errors import EventError, FilterError, IndexFullError
from shoal.filters.events import attributes_too_large
from shoal.filters.index.background import THREADS, Background
from shoal.filters.index.index import Index
from shoal.filters.index.wire_table import wire_table
from shoal.limits import Limits

NO_ATTRIBUTES: Final = b"\x80"
"""An event without attributes."""
FEW: Final = 128
"""So many filters are inserted and removed one by one. More are a segment of the index of their own, at first."""
SETTLED_AT_ONCE: Final = 10_000
"""So many filters are merged in some milliseconds."""
PARTS_FEW: Final = 4
"""Parts of the index that are not worth waiting for: while filters come and go there may always be more than one."""
FREE_SHARE_MAX: Final = 0.4
"""If a larger share of the ids of a large table is free, the table is packed."""
PARTS_WORTH_A_FILTER: Final = 8
"""An event that is matched in so many more parts of the index than one costs about as much as a filter in a merge."""


class NoRoom(Refused, frozen=True, array_like=True, tag=3):
    """A filter that is refused for want of room here; another matcher may have some. Clients see no difference."""


class Rows(NamedTuple):
    """Some filters, in columns."""

    clients: list[int]
    numbers: list[int]
    wires: list[bytes]
    checksums: npt.NDArray[np.uint64]


class Owner(NamedTuple):
    """One of the matchers of a configuration."""

    configuration: Configuration
    place: int


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


class Matched(NamedTuple):
    """What a batch of events matches."""

    found: list[Found]
    rejected: dict[int, str]
    """Events that cannot be read, by place, and why."""


class SubscriptionTable:
    """The filters of all clients. A filter takes about 50 bytes here, besides those of the index and its wire form."""

    def __init__(self, limits: Limits, background: Background = THREADS) -> None:
        self._limits = limits
        self._index = Index(background)
        self._numbers = FilterNumbers()
        self._arena = FilterArena()
        self._checksum_of = np.zeros(0, np.uint32)
        """By id."""
        self._size = 0
        """Ids that were used so far are below this."""
        self._free = np.zeros(0, np.int64)
        """Ids that can be used again: the first `_free_count` of these."""
        self._free_count = 0
        self._seats: dict[int, int] = {}
        """By client."""
        self._client_of = np.zeros(0, np.int64)
        self._filters_of = np.zeros(0, np.int64)
        """By seat."""
        self._free_seats: list[int] = []
        self._groups = SeatGroups()
        self._unsettled = 0.0
        """What the parts of the index have cost since they were merged last, in filters of a merge."""
        self._is_packing = False

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def nbytes(self) -> int:
        """Bytes of index and columns."""
        columns = self._checksum_of, self._free, self._client_of, self._filters_of
        return self._index.nbytes + self._numbers.nbytes + self._arena.nbytes + sum(each.nbytes for each in columns)

    @property
    def size(self) -> int:
        """All ids are below this."""
        return self._size

    def rows(self, first: int, last: int) -> Rows:
        """The filters with ids from `first` to before `last`."""
        ids = self._arena.used(first, min(last, self._size))
        seats, numbers = self._numbers.seats_and_numbers(ids)
        return Rows(
            self._client_of[seats].tolist(),
            numbers,
            self._arena.wires(ids),
            self._checksum_of[ids].astype(np.uint64),
        )

    def present(self, client: int, numbers: Iterable[int]) -> list[int]:
        """Those of some filters of a client that are here."""
        seat = self._seats.get(client)
        if seat is None:
            return []
        given = as_numbers(numbers)
        here: list[int] = given[self._numbers.find(seat, given) >= 0].tolist()
        return here

    def numbers(self, client: int) -> list[int]:
        """The numbers of a client's filters."""
        seat = self._seats.get(client)
        if seat is None:
            return []
        found: list[int] = self._numbers.numbers(seat, int(self._filters_of[seat])).tolist()
        return found

    # Changes

    def remove(self, client: int, numbers: Iterable[int]) -> None:
        """Removes those of a client's filters that are here."""
        seat = self._seats.get(client)
        if seat is None:
            return
        ids = self._numbers.take_out(seat, as_numbers(numbers))
        if len(ids):
            if len(ids) <= FEW:
                for id in ids.tolist():
                    self._index.remove(id)
            else:
                self._index.remove_many(ids)
            self._unsettled += len(ids)
            self._arena.drop(ids)
            self._filters_of[seat] -= len(ids)
            self._free = widened(self._free, self._free_count + len(ids))
            self._free[self._free_count : self._free_count + len(ids)] = ids
            self._free_count += len(ids)
        self._leave_if_empty(client, seat)

    def insert(self, client: int, filters: Sequence[tuple[int, bytes]]) -> list[Refused]:
        """Inserts those filters of a client that are not here; returns those that are refused."""
        return self.insert_many({client: filters}).get(client, [])

    def insert_many(self, filters: Mapping[int, Sequence[tuple[int, bytes]]]) -> dict[int, list[Refused]]:
        """Inserts those filters that are not here, by client; returns those that are refused. All of them come into the
        index together: that takes less than client by client."""
        refused: dict[int, list[Refused]] = {}
        new: list[tuple[int, int, list[tuple[int, bytes]]]] = []
        total = 0
        for client, some in filters.items():
            if some:
                seat = self._seat(client)
                fitting, refused[client] = self._fitting(seat, some, total)
                new.append((client, seat, fitting))
                total += len(fitting)
        try:
            self._insert_all([(seat, some) for _, seat, some in new])
        except FilterError:  # nothing was inserted
            for client, seat, some in new:
                for one in some:
                    try:
                        self._insert_all([(seat, [one])])
                    except FilterError as error:
                        kind = NoRoom if isinstance(error, IndexFullError) else Refused
                        refused[client].append(kind(one[0], str(error)))
        for client, seat, _ in new:
            self._leave_if_empty(client, seat)
        return refused

    def _fitting(
        self, seat: int, filters: Sequence[tuple[int, bytes]], before: int
    ) -> tuple[list[tuple[int, bytes]], list[Refused]]:
        """Those filters of a client that are not here and have room, after some others; and those that are refused."""
        given = dict(filters)
        most = self._limits.engine_letter_bytes_max
        refused = [Refused(number, "its number is too large") for number in given if not is_number(number)]
        refused += [
            Refused(number, f"it takes {len(wire)} bytes, more than engine_letter_bytes_max={most}")
            for number, wire in given.items()
            if len(wire) > most and is_number(number)
        ]
        for one in refused:
            del given[one.number]
        here = self._numbers.find(seat, as_numbers(given)).tolist()
        new = [one for one, id in zip(given.items(), here, strict=True) if id < 0]
        limits = self._limits
        rooms = {
            "engine_client_filters_max": limits.engine_client_filters_max - int(self._filters_of[seat]),
            "engine_filters_max": limits.engine_filters_max - len(self) - before,
        }
        least = min(rooms, key=lambda name: rooms[name])
        room = max(rooms[least], 0)
        if len(new) > room:
            reason = f"the engine has no room for it: {least} is {getattr(limits, least)}"
            refused += [NoRoom(number, reason) for number, _ in new[room:]]
        return new[:room], refused

    def _insert_all(self, new: Sequence[tuple[int, list[tuple[int, bytes]]]]) -> None:
        """Inserts all filters, by seat, or none."""
        wires = [wire for _, some in new for _, wire in some]
        if not wires:
            return
        used_again = min(self._free_count, len(wires))
        fresh = np.arange(self._size, self._size + len(wires) - used_again)
        ids = np.concatenate([self._free[self._free_count - used_again : self._free_count], fresh])
        if len(wires) <= FEW:
            self._insert_few(ids.tolist(), wires)
        else:
            self._index.insert_many(ids, wire_table(wires))
        self._unsettled += len(ids)
        self._free_count -= used_again
        self._size += len(fresh)
        self._numbers.make_room(self._size, len(self._client_of))
        self._arena.make_room(self._size)
        self._checksum_of = widened(self._checksum_of, self._size)
        self._arena.put(ids, wires)
        self._checksum_of[ids] = np.fromiter(map(checksum, wires), np.uint32, len(wires))
        first = 0
        for seat, some in new:
            self._numbers.add(seat, ids[first : first + len(some)], as_numbers(number for number, _ in some))
            self._filters_of[seat] += len(some)
            first += len(some)

    def _insert_few(self, ids: list[int], wires: list[bytes]) -> None:
        """Inserts all of some filters into the index, or none."""
        for done, (id, wire) in enumerate(zip(ids, wires, strict=True)):
            try:
                self._index.insert_wire(id, wire)
            except FilterError:
                for other in ids[:done]:
                    self._index.remove(other)
                raise

    @property
    def is_sparse(self) -> bool:
        """Whether `pack` is to be called: very many filters have ended, or another matcher has them now."""
        is_large = self._size >= self._limits.engine_packed_filters_min
        return self._is_packing or (is_large and self._free_count > FREE_SHARE_MAX * self._size)

    def pack(self) -> None:
        """Moves some filters with the highest ids to lower free ids. When no id is free any more, the columns shrink.
        The index drops ended filters by itself, when they are more than half of a segment."""
        if not self._is_packing:
            self._is_packing = True
            self._free[: self._free_count][::-1].sort()  # the lowest ids are used first
        first = max(self._size - self._limits.engine_slice_filters_max, len(self))
        rows = self.rows(first, self._size)
        filters: dict[int, list[tuple[int, bytes]]] = {}
        for client, number, wire in zip(rows.clients, rows.numbers, rows.wires, strict=True):
            filters.setdefault(client, []).append((number, wire))
        for client, some in filters.items():
            self.remove(client, [number for number, _ in some])
        free = self._free[: self._free_count]
        self._free = free[free < first]
        self._free_count, self._size = len(self._free), first
        self.insert_many(filters)
        if self._size == len(self):
            self._is_packing = False
            self._numbers.narrow(self._size)
            self._arena.narrow(self._size)
            self._checksum_of = self._checksum_of[: self._size].copy()
            self._free = np.zeros(0, np.int64)

    def settle(self) -> None:
        """Does now what the first match after many changes would do."""
        self._index.settle()
        self._index.match_many(wire_table([NO_ATTRIBUTES]))

    def settle_soon(self) -> bool:
        """The same, but what takes long is done in the background: then it is False, and the caller asks again."""
        if len(self) > SETTLED_AT_ONCE and self._index.parts > PARTS_FEW:
            self._index.begin_settling()
            return False
        if len(self) <= SETTLED_AT_ONCE:
            self._index.settle()
        self._index.match_many(wire_table([NO_ATTRIBUTES]))
        return True

    # Seats

    def _seat(self, client: int) -> int:
        """The seat of a client, which gets one if it has none."""
        seat = self._seats.get(client)
        if seat is None:
            seat = self._free_seats.pop() if self._free_seats else len(self._seats)
            self._client_of = widened(self._client_of, seat + 1)
            self._filters_of = widened(self._filters_of, seat + 1)
            self._numbers.make_room(self._size, len(self._client_of))
            self._seats[client] = seat
            self._client_of[seat] = client
        return seat

    def _leave_if_empty(self, client: int, seat: int) -> None:
        if not self._filters_of[seat]:
            del self._seats[client]
            self._free_seats.append(seat)

    # Matching

    def match(self, events: Sequence[Event], only: Owner | None = None) -> Matched:
        """The clients whose filters the events match. With `only`, the filters of other matchers do not count."""
        attributes = [event.attributes for event in events]
        try:
            self._check_sizes(attributes)
            return Matched(self._found(attributes, only), {})
        except EventError:
            return self._match_one_by_one(attributes, only)

    def _check_sizes(self, events: list[bytes]) -> None:
        """Clients check their events. One that does not could stop the engine for a second with a single event."""
        largest = max(map(len, events), default=0)
        if largest > self._limits.attributes_bytes_max:
            raise attributes_too_large(largest, self._limits)

    def _match_one_by_one(self, events: list[bytes], only: Owner | None) -> Matched:
        """Some events cannot be matched, which only the index knows for certain: it also reads what a decoder skips,
        such as the first of two values of an attribute."""
        found: list[Found] = []
        rejected: dict[int, str] = {}
        for at, event in enumerate(events):
            try:
                self._check_sizes([event])
                found += [(at, client, numbers) for _, client, numbers in self._found([event], only)]
            except EventError as error:
                rejected[at] = str(error)
        return Matched(found, rejected)

    def _found(self, events: list[bytes], only: Owner | None) -> list[Found]:
        matches = self._index.match_many(wire_table(events))
        self._settle_if_it_pays(len(events))
        offsets, ids = matches.offsets, matches.ids
        if only is not None:
            own = owners(only.configuration, self._checksum_of[ids].astype(np.uint64)) == only.place
            offsets, ids = np.concatenate([[0], np.cumsum(own)])[offsets], ids[own]
        return self._groups.group(offsets, ids, self._numbers.names, self._client_of)

    def _settle_if_it_pays(self, events: int) -> None:
        """Merges all parts of the index in the background, when they have cost about as much as that will."""
        parts = self._index.parts
        self._unsettled += events * max(parts - 1, 0) / PARTS_WORTH_A_FILTER
        if parts > 1 and self._unsettled >= len(self) and self._index.begin_settling():
            self._unsettled = 0.0
