"""The matcher: the filters of all clients, and the clients whose filters an event matches.

Owns the subscription table. A client has a *seat*; its filters are known by the client's own numbers. The ids in the
index belong to the matcher alone and are used again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from shoal.engine.access_point import Change, Emitted
from shoal.engine.messages import FromEngine, InForce, Refused
from shoal.engine.seat_groups import SeatGroups, Seats
from shoal.errors import EventError, FilterError
from shoal.filters.events import decode_any_event
from shoal.filters.index.index import Index, Matches
from shoal.filters.index.wire_table import wire_table
from shoal.limits import Limits
from shoal.rules import ALL_RULES, Rules

ROWS_FIRST: Final = 1024


class Matched(NamedTuple):
    """What an event matched: clients, each with the numbers of its filters."""

    emitted: Emitted
    seats: Seats


class Rejection(NamedTuple):
    """An event that cannot be read."""

    emitted: Emitted
    reason: str


class Matcher:
    """The filters of all clients, in one index."""

    def __init__(self, limits: Limits, rules: Rules = ALL_RULES) -> None:
        self._limits = limits
        self._rules = rules
        self._index = Index()
        self._clients: dict[int, dict[int, int]] = {}
        """By client: the id of each of its numbers."""
        self._free: list[int] = []
        self._seat_of = np.zeros(ROWS_FIRST, np.int64)
        self._number_of = np.zeros(ROWS_FIRST, np.int64)
        self._groups = SeatGroups()
        self._used = 0
        self._filters = 0

    def __len__(self) -> int:
        return self._filters

    @property
    def nbytes(self) -> int:
        """Bytes of index and table."""
        return self._index.nbytes + self._seat_of.nbytes + self._number_of.nbytes

    # Changes

    def change(self, change: Change) -> list[FromEngine]:
        """Applies a change; returns what the client is told."""
        own = self._clients.setdefault(change.client, {})
        gone = [number for number in change.removed if number in own]
        if change.presented:
            listed = {number for number, _ in change.added}
            gone += [number for number in own if number not in listed]
        self._remove(own, gone)
        new = [(number, wire) for number, wire in change.added if number not in own]
        refused = self._insert(change.client, own, new)
        if not own:
            del self._clients[change.client]
        numbers = [number for number, _ in change.added if number in own]
        return [*([InForce(change.conversation, numbers)] if numbers else []), *refused]

    def forget(self, client: int) -> None:
        """A client is gone."""
        own = self._clients.pop(client, None)
        if own is not None:
            self._remove(own, list(own))

    def _remove(self, own: dict[int, int], numbers: Sequence[int]) -> None:
        ids = [own.pop(number) for number in dict.fromkeys(numbers)]
        if ids:
            self._index.remove_many(ids)
            self._free += ids
            self._filters -= len(ids)

    def _insert(self, client: int, own: dict[int, int], new: list[tuple[int, bytes]]) -> list[FromEngine]:
        refused: list[FromEngine] = []
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
        while len(self._free) < len(new):
            self._free += range(self._used + ROWS_FIRST - 1, self._used - 1, -1)
            self._used += ROWS_FIRST
        if self._used > len(self._seat_of):
            self._seat_of = np.resize(self._seat_of, 2 * self._used)
            self._number_of = np.resize(self._number_of, 2 * self._used)
        ids = self._free[-len(new) :]
        numbers = [number for number, _ in new]
        self._seat_of[ids] = client
        self._number_of[ids] = numbers
        self._index.insert_many(ids, wire_table([wire for _, wire in new]))
        del self._free[-len(new) :]
        self._filters += len(ids)
        own.update(zip(numbers, ids, strict=True))

    # Matching

    def match(self, events: list[Emitted]) -> Iterator[Matched | Rejection]:
        """What each event matched, in order."""
        try:
            matches = self._index.match_many(wire_table([each.event.attributes for each in events]))
        except EventError:
            yield from self._match_valid(events)
        else:
            yield from self._by_seat(events, matches)

    def _match_valid(self, events: list[Emitted]) -> Iterator[Matched | Rejection]:
        """Some events cannot be read: they are found one by one, the others are matched together."""
        problems: dict[int, str] = {}
        for each in events:
            try:
                decode_any_event(each.event.attributes)
            except EventError as error:
                problems[each.position] = str(error)
        valid = [each for each in events if each.position not in problems]
        table = wire_table([each.event.attributes for each in valid])
        found = iter(self._by_seat(valid, self._index.match_many(table)))
        for each in events:
            yield Rejection(each, problems[each.position]) if each.position in problems else next(found)

    def _by_seat(self, events: list[Emitted], matches: Matches) -> Iterator[Matched]:
        clients, numbers = self._seat_of[matches.ids], self._number_of[matches.ids]
        seats = self._groups.group(matches.offsets, clients, numbers, len(self._clients))
        return map(Matched, events, seats)
