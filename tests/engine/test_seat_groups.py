"""Matches by client: the kernel gives what a dictionary gives, in the order of the matches."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.seat_groups import SLOTS_FIRST, SeatGroups

CLIENTS = st.one_of(st.integers(1, 5), st.integers(1, 2**48))
EVENTS = st.lists(st.lists(st.tuples(CLIENTS, st.integers(1, 2**40)), max_size=12), max_size=8)


def grouped(groups: SeatGroups, events: list[list[tuple[int, int]]], clients: int) -> list[dict[int, list[int]]]:
    pairs = [pair for event in events for pair in event]
    offsets = np.cumsum([0, *map(len, events)], dtype=np.int64)
    columns = np.array([client for client, _ in pairs], np.int64), np.array([number for _, number in pairs], np.int64)
    found = [*groups.group(offsets, *columns, clients)]
    assert all(len(seats) == len(dict(seats)) for seats in found)
    return [dict(seats) for seats in found]


def wanted(events: list[list[tuple[int, int]]]) -> list[dict[int, list[int]]]:
    result: list[dict[int, list[int]]] = []
    for event in events:
        seats: dict[int, list[int]] = {}
        for client, number in event:
            seats.setdefault(client, []).append(number)
        result.append(seats)
    return result


@given(batches=st.lists(EVENTS, max_size=4))
@settings(max_examples=60, deadline=None)
def test_each_client_gets_its_numbers_in_order(batches: list[list[list[tuple[int, int]]]]) -> None:
    groups = SeatGroups()
    for events in batches:
        assert grouped(groups, events, 64) == wanted(events)


def test_more_clients_than_slots() -> None:
    groups = SeatGroups()
    many = [[(client, 7 * client) for client in range(1, 3 * SLOTS_FIRST)], [(5, 1)], []]
    assert grouped(groups, many[1:], 1) == wanted(many[1:])
    assert grouped(groups, many, 3 * SLOTS_FIRST) == wanted(many)
    assert grouped(groups, many, 3 * SLOTS_FIRST) == wanted(many)
