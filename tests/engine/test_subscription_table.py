"""The subscription table: what it holds after any changes is what a dictionary would hold, in a few bytes for each."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.configuration import checksum
from shoal.engine.filter_arena import HOLES_FREE, FilterArena
from shoal.engine.messages import Event, unpack
from shoal.engine.subscription_table import SubscriptionTable
from shoal.filters import encode_event, parse
from shoal.limits import DEFAULT_LIMITS

_encode = msgspec.msgpack.Encoder().encode
KEYS = 5
CLIENTS = st.sampled_from([1, 2, 3, 2**48 - 1])
NUMBERS = st.lists(st.integers(1, 30), max_size=12)
CHANGES = st.lists(st.tuples(st.booleans(), CLIENTS, NUMBERS), max_size=25)
SOON_PACKED = msgspec.structs.replace(DEFAULT_LIMITS, engine_packed_filters_min=4, engine_slice_filters_max=3)
"""Small tables are packed, a few filters at once."""


def wire(number: int) -> bytes:
    return _encode(parse(f"key = {number % KEYS} and x >= {number}"))


def event(key: int, x: int = 1000) -> Event:
    return Event(1, 0, encode_event({"key": key, "x": x}), b"")


@given(CHANGES)
@settings(max_examples=80, deadline=None)
def test_the_table_holds_what_a_dictionary_holds(changes: list[tuple[bool, int, list[int]]]) -> None:
    table = SubscriptionTable(SOON_PACKED)
    model: dict[tuple[int, int], bytes] = {}
    for added, client, numbers in changes:
        if added:
            assert table.insert(client, [(number, wire(number)) for number in numbers]) == []
            model |= {(client, number): wire(number) for number in numbers}
        else:
            table.remove(client, numbers)
            model = {place: one for place, one in model.items() if place not in {(client, each) for each in numbers}}
        if table.is_sparse:
            table.pack()
    assert len(table) == len(model)
    rows = table.rows(0, table.size)
    held = zip(zip(rows.clients, rows.numbers, strict=True), rows.wires, strict=True)
    assert sorted(held) == sorted(model.items())
    assert rows.checksums.tolist() == [checksum(one) for one in rows.wires]
    for client in {client for _, client, _ in changes}:
        own = sorted(number for owner, number in model if owner == client)
        assert sorted(table.numbers(client)) == own
        assert table.present(client, range(40)) == own
    matched = table.match([event(key) for key in range(KEYS)])
    assert not matched.rejected
    found = {(place, client, number) for place, client, numbers in matched.found for number in unpack(numbers)}
    assert found == {(number % KEYS, client, number) for client, number in model}
    assert len({(place, client) for place, client, _ in matched.found}) == len(matched.found), "one copy for a client"


def test_rows_are_those_of_a_range_of_ids() -> None:
    table = SubscriptionTable(DEFAULT_LIMITS)
    table.insert(7, [(number, wire(number)) for number in range(100)])
    table.remove(7, range(0, 100, 2))
    parts = [table.rows(first, first + 30) for first in range(0, table.size, 30)]
    assert sorted(number for part in parts for number in part.numbers) == [*range(1, 100, 2)]


def test_ids_are_used_again_and_holes_are_closed() -> None:
    table = SubscriptionTable(DEFAULT_LIMITS)
    for turn in range(200):
        numbers = range(100 * turn, 100 * turn + 100)
        assert table.insert(1, [(number, wire(number)) for number in numbers]) == []
        table.remove(1, numbers[:-1])
    assert table.size < 500, "200 filters are left, and 100 came at a time"
    assert sorted(table.numbers(1)) == [100 * turn + 99 for turn in range(200)]
    rows = table.rows(0, table.size)
    assert [wire(number) for number in rows.numbers] == rows.wires


def pack_all(table: SubscriptionTable) -> int:
    """Packs a table as long as it is sparse; returns in how many steps. All filters are there all the time."""
    steps, count = 0, len(table)
    while table.is_sparse:
        table.pack()
        steps += 1
        assert len(table) == count
    return steps


def test_a_table_that_has_lost_most_filters_is_packed_and_becomes_as_small_as_a_new_one() -> None:
    """A matcher that had given half of a million filters to another one kept its memory."""
    table, new = SubscriptionTable(SOON_PACKED), SubscriptionTable(DEFAULT_LIMITS)
    for client in (1, 2):
        table.insert(client, [(number, wire(number)) for number in range(2000)])
        new.insert(client, [(number, wire(number)) for number in range(0, 2000, 4)])
    assert pack_all(table) == 0
    for client in (1, 2):
        table.remove(client, [number for number in range(2000) if number % 4])
    assert pack_all(table) == 1000, "three ids at a time"
    assert table.size == 1000
    table.settle()
    new.settle()
    assert table.nbytes < 1.2 * new.nbytes
    assert [sorted(table.numbers(client)) for client in (1, 2)] == [[*range(0, 2000, 4)]] * 2
    table.remove(1, range(2000))
    table.remove(2, range(2000))
    assert pack_all(table) > 0
    assert (len(table), table.size) == (0, 0)


def test_the_arena_moves_filters_together_when_many_have_gone() -> None:
    arena = FilterArena()
    arena.make_room(4000)
    ids = arena.used(0, 0) + 0
    ids.resize(4000)
    ids[:] = range(4000)
    arena.put(ids, [bytes([id % 256]) * 50 for id in range(4000)])
    full = arena.nbytes
    arena.drop(ids[ids % 10 != 0])
    assert arena.nbytes < full - 4000 * 50 + 400 * 50 + HOLES_FREE + 4000 * 50 // 4
    left = arena.used(0, 4000)
    assert left.tolist() == [*range(0, 4000, 10)]
    assert arena.wires(left) == [bytes([id % 256]) * 50 for id in range(0, 4000, 10)]


def test_a_number_that_no_filter_can_have_is_refused() -> None:
    table = SubscriptionTable(DEFAULT_LIMITS)
    refused = table.insert(1, [(2**32, wire(1)), (5, wire(5))])
    assert [one.number for one in refused] == [2**32]
    table.remove(1, [2**64 - 1])
    assert table.numbers(1) == [5]
    assert table.present(1, [2**64 - 1, 5]) == [5]


def test_an_event_that_cannot_be_read_is_named_with_its_place() -> None:
    table = SubscriptionTable(DEFAULT_LIMITS)
    table.insert(1, [(1, wire(1))])
    matched = table.match([event(1), Event(2, 0, b"\xc1", b""), event(1)])
    assert list(matched.rejected) == [1]
    assert [place for place, _, _ in matched.found] == [0, 2]


@pytest.mark.parametrize("clients", [1, 1000])
def test_a_filter_takes_few_bytes(clients: int) -> None:
    table = SubscriptionTable(DEFAULT_LIMITS)
    count = 40_000
    wires = [wire(number) for number in range(count)]
    for client in range(clients):
        table.insert(client, [(number, wires[number]) for number in range(client, count, clients)])
    table.settle()
    assert table.nbytes < count * (len(wires[-1]) + 200)
