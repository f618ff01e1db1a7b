"""Matches by client: the kernel gives what a dictionary gives, in the order of the matches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.messages import unpack
from shoal.engine.seat_groups import SeatGroups

SEATS = 40
CLIENT_OF = np.array([seat * 2**40 + 7 for seat in range(SEATS)], np.int64)
EVENTS = st.lists(st.lists(st.tuples(st.integers(0, SEATS - 1), st.integers(1, 2**32 - 1)), max_size=12), max_size=8)

Clients = npt.NDArray[np.int64]
Events = list[list[tuple[int, int]]]


def grouped(groups: SeatGroups, events: Events, client_of: Clients) -> list[tuple[int, int, list[int]]]:
    pairs = [pair for event in events for pair in event]
    offsets = np.cumsum([0, *map(len, events)], dtype=np.int64)
    names = np.array([0, *(seat << 32 | number for seat, number in pairs)], np.uint64)
    found = groups.group(offsets, np.arange(1, len(pairs) + 1, dtype=np.uint32), names, client_of)
    return [(place, client, [*unpack(numbers)]) for place, client, numbers in found]


def wanted(events: Events, client_of: Clients) -> list[tuple[int, int, list[int]]]:
    result: list[tuple[int, int, list[int]]] = []
    for place, event in enumerate(events):
        seats: dict[int, list[int]] = {}
        for seat, number in event:
            seats.setdefault(seat, []).append(number)
        result += [(place, int(client_of[seat]), numbers) for seat, numbers in seats.items()]
    return result


@given(batches=st.lists(EVENTS, max_size=4))
@settings(max_examples=60, deadline=None)
def test_each_client_gets_its_numbers_in_order(batches: list[Events]) -> None:
    groups = SeatGroups()
    for events in batches:
        assert grouped(groups, events, CLIENT_OF) == wanted(events, CLIENT_OF)


def test_seats_that_come_later() -> None:
    groups = SeatGroups()
    few, many = CLIENT_OF[:2], np.arange(5000, dtype=np.int64) * 3
    assert grouped(groups, [[(1, 4), (0, 5), (1, 6)]], few) == [(0, few[1], [4, 6]), (0, few[0], [5])]
    everyone: Events = [[(seat, 7 * seat) for seat in range(5000)], [(5, 1), (5, 2)], []]
    assert grouped(groups, everyone, many) == wanted(everyone, many)
