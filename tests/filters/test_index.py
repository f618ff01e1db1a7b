"""The index finds exactly the filters that match, through inserts, removes and merges."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.filters import strategies

from shoal.errors import EventError, FilterError
from shoal.filters.filter import Filter
from shoal.filters.index import Index, WireTable, event_table, filter_table
from shoal.filters.index import segment_layout as layout
from shoal.filters.index.segment_store import SegmentStore
from shoal.filters.language import parse
from shoal.filters.values import Event

"""The first test compiles the kernels, unless they are in the cache."""

SETTINGS = settings(max_examples=40, deadline=None)
MANY = settings(max_examples=25, deadline=None)


def expected(held: dict[int, Filter], event: Event) -> list[int]:
    return sorted(number for number, each in held.items() if each.matches(event))


def found(index: Index, event: Event) -> list[int]:
    """What the index finds, the same in all forms."""
    ids = sorted(index.match(event).tolist())
    slices = index.match_slices(event)
    assert sorted(np.concatenate([np.empty(0, np.uint32), *slices]).tolist()) == ids
    assert slices.count == len(ids)
    table = event_table([event, event])
    matches = index.match_many(table)
    assert [sorted(matches[row].tolist()) for row in range(2)] == [ids, ids]
    assert index.count_many(table) == 2 * len(ids)
    size = max(ids, default=0) + 1
    bits = np.unpackbits(index.match_bitmap(event, size), bitorder="little", count=size)
    assert np.flatnonzero(bits).tolist() == ids
    return ids


@SETTINGS
@given(st.lists(strategies.filters, max_size=12), st.lists(strategies.events, min_size=1, max_size=8))
def test_buffered_bulk_loaded_and_settled_records_match_alike(filters: list[Filter], events: list[Event]) -> None:
    one_by_one, bulk = Index(), Index()
    held = dict(enumerate(filters))
    for number, each in held.items():
        one_by_one.insert(number, each)
    bulk.insert_many(list(held), list(held.values()))
    settled = Index()
    settled.insert_many(list(held), filter_table(held.values()))
    settled.settle()
    for event in events:
        for index in (one_by_one, bulk, settled):
            assert found(index, event) == expected(held, event)


@MANY
@given(st.data())
def test_random_changes(data: st.DataObject) -> None:
    index, held = Index(), dict[int, Filter]()
    for _ in range(data.draw(st.integers(1, 12))):
        step = data.draw(st.sampled_from(["insert", "many", "remove", "remove many", "settle", "match"]))
        free = [number for number in range(40) if number not in held]
        if step == "insert" and free:
            number = data.draw(st.sampled_from(free))
            held[number] = data.draw(strategies.filters)
            index.insert(number, held[number])
        elif step == "many":
            numbers = data.draw(st.lists(st.sampled_from(free), unique=True)) if free else []
            filters = [data.draw(strategies.filters) for _ in numbers]
            index.insert_many(numbers, filters)
            held.update(zip(numbers, filters, strict=True))
        elif step == "remove" and held:
            number = data.draw(st.sampled_from(sorted(held)))
            index.remove(number)
            del held[number]
        elif step == "remove many" and held:
            numbers = data.draw(st.lists(st.sampled_from(sorted(held)), unique=True))
            index.remove_many(numbers)
            for number in numbers:
                del held[number]
        elif step == "settle":
            index.settle()
        assert len(index) == len(held)
        event = data.draw(strategies.events)
        assert found(index, event) == expected(held, event)


@SETTINGS
@given(st.lists(strategies.any_filters, max_size=10), st.lists(strategies.any_events, min_size=1, max_size=5))
def test_values_of_all_sizes(filters: list[Filter], events: list[Event]) -> None:
    held = dict(enumerate(filters))
    index = Index()
    index.insert_many(list(held), filters)
    for event in events:
        assert found(index, event) == expected(held, event)


def bounds(rng: random.Random, names: list[str]) -> str:
    """A conjunction of one to five bounds, which may use the whole number line."""
    parts = []
    for name in rng.sample(names, rng.randint(1, min(5, len(names)))):
        low = rng.choice([rng.randrange(100), rng.uniform(0, 100), rng.randrange(2**53, 2**60)])
        form = rng.randrange(5)
        parts.append(
            [f"{name} <= {low}", f"{name} > {low}", f"{name} >= {low} and {name} < {low + 30}", f"{name} != {low}",
             f"{name} < {low}"][form]
        )  # fmt: skip
    return " and ".join(parts)


def texts(rng: random.Random, names: list[str]) -> str:
    """A conjunction of string predicates over words that share their beginnings, ends and middles."""
    word = "".join(rng.choice("ab") for _ in range(rng.randint(1, 6)))
    operator = rng.choice(
        ["=", "prefix", "suffix", "contains", "contains", "!=", ">=", "<", "is not", "is not prefix", "is not suffix"]
    )
    conditions = ["exists", "absent", "is string", "> 20", "is not 'a'", f"prefix '{word[:1]}'"]
    more = f" and {rng.choice(names)} {rng.choice(conditions)}"
    return f"{rng.choice(names)} {operator} '{word}'" + (more if rng.random() < 0.5 else "")


def lists(rng: random.Random, names: list[str]) -> str:
    """Lists, negations and alternatives."""
    values = ", ".join(str(rng.randrange(30)) for _ in range(rng.randint(1, 6)))
    name, other = rng.sample(names, 2)
    return rng.choice(
        [f"{name} in ({values})", f"{name} in ({values}) and {other} < {rng.randrange(9)}", f"{name} not in ({values})",
         f"{name} = {rng.randrange(30)} or {other} = {rng.randrange(30)}", f"{name} exists", f"{name} absent",
         f"{name} = {rng.randrange(5)} and {other} = {rng.randrange(5)} and {name} exists", "true"]
    )  # fmt: skip


def crowds(rng: random.Random, names: list[str]) -> str:
    """A condition that many filters share, and one that tells them apart."""
    word = "".join(rng.choice("ab") for _ in range(rng.randint(1, 6)))
    numbers = ", ".join(str(rng.randrange(30)) for _ in range(rng.randint(2, 4)))
    other, third = rng.sample(names[1:], 2)
    popular = [f"{names[0]} = 'ab'", f"{names[0]} prefix 'a'", f"{names[0]} in ('ab', '{word}')", f"{names[0]} exists"]
    rarer = [
        f"{other} in ({numbers})", f"{other} in ('{word}', '{word[::-1]}')", f"{other} != {rng.randrange(30)}",
        f"{other} != '{word}'", f"{other} prefix '{word}'", f"{other} contains '{word}'", f"{other} = {len(word)}",
    ]  # fmt: skip
    more = ["", f" and {third} > {rng.randrange(30)}", f" and {third} in ({numbers})", f" and {third} != '{word}'"]
    return f"{rng.choice(popular)} and {rng.choice(rarer)}{rng.choice(more)}"


def values(rng: random.Random) -> object:
    word = "".join(rng.choice("ab") for _ in range(rng.randint(0, 9)))
    return rng.choice(
        [rng.randrange(100), rng.randrange(30), rng.uniform(0, 100), rng.randrange(2**53, 2**60), word, "ab", True]
    )


@pytest.mark.parametrize("make", [bounds, texts, lists, crowds])
@pytest.mark.parametrize("names", [3, 9])
def test_thousands_of_similar_filters(make: Callable[[random.Random, list[str]], str], names: int) -> None:
    """Enough for runs, cells, pairs and lists to be used; a tenth is removed, half is inserted one by one."""
    rng = random.Random(f"{make.__name__} {names}")
    attributes = [f"n{i}" for i in range(names)]
    held: dict[int, Filter] = {}
    while len(held) < 1500:
        try:
            held[len(held) * 3] = parse(make(rng, attributes))
        except FilterError:
            continue
    index = Index()
    numbers = list(held)
    index.insert_many(numbers[:750], [held[number] for number in numbers[:750]])
    for number in numbers[750:]:
        index.insert(number, held[number])
    for number in rng.sample(numbers, 150):
        index.remove(number)
        del held[number]
    events = [{name: values(rng) for name in attributes if rng.random() < 0.8} for _ in range(60)]
    for settle in (False, True):
        if settle:
            index.settle()
        for event in events:
            assert sorted(index.match(event).tolist()) == expected(held, event)


@pytest.mark.parametrize("share", [0.05, 0.4, 1.0])
@pytest.mark.parametrize("names", [4, 12])
def test_events_match_together_what_each_of_them_matches(names: int, share: float) -> None:
    """Groups of many chunks and of few, in two segments; events of which few or all have the attributes of a group."""
    rng = random.Random(f"{names} {share}")
    attributes = [f"n{i}" for i in range(names)]

    def box() -> Filter:
        lows = {name: rng.randrange(100) for name in rng.sample(attributes, rng.choice([1, 2, 3, 3, 3, 4]))}
        return parse(" and ".join(f"{name} >= {low} and {name} < {low + 25}" for name, low in lows.items()))

    held = {number: box() for number in range(6000)}
    index = Index()
    for first, last in ((0, 4500), (4500, 6000)):
        index.insert_many(range(first, last), [held[number] for number in range(first, last)])
    for number in rng.sample(range(6000), 300):
        index.remove(number)
        del held[number]
    events = [{name: rng.uniform(0, 125) for name in attributes if rng.random() < share} for _ in range(150)]
    for settle in (False, True):
        if settle:
            index.settle()
        found = index.match_many(events)
        for at, event in enumerate(events):
            assert sorted(found[at].tolist()) == sorted(index.match(event).tolist())
        for at in range(0, len(events), 30):
            assert sorted(found[at].tolist()) == expected(held, events[at])


@pytest.mark.parametrize("size", [50, 2_000, 6_000])
def test_ids_that_are_removed_and_inserted_again_are_found_once(size: int) -> None:
    """Also where a filter has several entries because of its list, and where positions are looked up by order."""
    rng = random.Random(size)
    index, held = Index(), dict[int, tuple[str, str]]()

    def come(number: int) -> Filter:
        held[number] = f"a{rng.randrange(20)}", f"b{rng.randrange(7)}"
        return parse("s in ('{}', '{}')".format(*held[number]))

    index.insert_many(range(size), [come(number) for number in range(size)])
    for turn in range(12):
        gone = rng.sample(range(size), size // 10)
        if turn % 2:
            index.remove_many(gone)
        else:
            for number in gone:
                index.remove(number)
        for number in gone:
            with pytest.raises(FilterError, match="there is no subscription"):
                index.remove(number)
        for value in ("a3", "b5"):
            wanted = sorted(number for number in held if value in held[number] and number not in gone)
            assert sorted(index.match({"s": value}).tolist()) == wanted
        for number in gone:
            index.insert(number, come(number))
        assert len(index) == size
    index.remove_many(range(size))
    assert len(index) == 0
    assert not len(index.match({"s": "a3"}))


def most_tested(index: Index) -> int:
    """Entries of the largest run that is not answered by a slice: they are tested one by one, or by cells."""
    most = 0
    for segment in index._single.segments:
        runs = layout.part_view(segment.block, layout.P_RUNS, 4 * (int(segment.header[layout.H_RUNS]) + 1)).reshape(
            -1, 4
        )
        tested = (runs[:-1, 0] & 0xFF) > layout.RUN_SORTED_LAST
        most = max(most, int(np.diff(runs[:, 1].astype(np.int64))[tested].max(initial=0)))
    return most


@pytest.mark.parametrize(
    "form",
    ["c = 'all' and s in ('v{0}', 'v{1}')", "c prefix 'al' and s in ('v{0}', 'v{1}')",
     "c in ('all', 'v{0}') and s in ('v{0}', 'v{1}')", "c = 'all' and s in ('v{0}', 'v{1}') and n > {0}",
     "c = 'all' and t{1} prefix 'v{0}'", "c = 'all' and n != {0}", "c = 'all' and s != 'v{0}'", "s != 'v{0}'"],
)  # fmt: skip
def test_a_value_that_all_filters_require_does_not_hide_the_selective_ones(form: str) -> None:
    rng = random.Random(form)
    filters = {number: parse(form.format(rng.randrange(500), 500 + number % 80)) for number in range(4000)}
    index = Index()
    index.insert_many(list(filters), list(filters.values()))
    index.settle()
    event: Event = {"c": "all", "s": "v7", "n": 99, **{f"t{500 + i}": "v77" for i in range(80)}}
    assert found(index, event) == expected(filters, event)
    assert most_tested(index) <= 100


def test_identical_filters_are_held_once() -> None:
    index = Index()
    index.insert_many(range(1000), [parse("a = 1 and b > 5")] * 1000)
    assert (index.unique, len(index)) == (1, 1000)
    assert index.nbytes / 1000 < 200
    assert sorted(index.match({"a": 1, "b": 6}).tolist()) == list(range(1000))


def test_mistakes_are_rejected_and_change_nothing() -> None:
    index = Index()
    index.insert(1, parse("a = 1"))
    index.insert(2, parse("a = 1 or b = 2"))
    for number in (1, 2, -1, 2**32):
        with pytest.raises(FilterError):
            index.insert(number, parse("a = 2"))
    with pytest.raises(FilterError, match=r"twice|already"):
        index.insert_many([7, 7], [parse("a = 1")] * 2)
    with pytest.raises(FilterError, match="2 ids for 1 filters"):
        index.insert_many([7, 8], [parse("a = 1")])
    with pytest.raises(FilterError, match="wire form"):
        index.insert_many([7], WireTable(np.frombuffer(b"\x91\x91\x91\xc0", np.uint8), np.array([0, 4])))
    with pytest.raises(FilterError, match="no subscription 9"):
        index.remove(9)
    assert len(index) == 2
    assert sorted(index.match({"a": 1}).tolist()) == [1, 2]


@pytest.mark.parametrize(
    "event",
    [
        b"",
        b"\x81",
        b"\xc0",
        b"\x81\xa1a",
        b"\x81\xa1a\x91\x91\x01",
        b"\x82\xa1a\x01",
        b"\x81\xa1a\x01\x01",
        b"\x81\x01\x01",
    ],
)
def test_anything_but_an_event_is_rejected(event: bytes) -> None:
    index = Index()
    index.insert(1, parse("a = 1"))
    with pytest.raises(EventError):
        index.match(event)
    assert index.match({"a": 1}).tolist() == [1]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_are_rejected(value: float) -> None:
    index = Index()
    index.insert(1, parse("a exists"))
    with pytest.raises(EventError):
        index.match({"a": value})


@given(st.binary(max_size=40))
@SETTINGS
def test_random_bytes_raise_nothing_but_event_errors(data: bytes) -> None:
    index = Index()
    index.insert(1, parse("a exists"))
    with contextlib.suppress(EventError):
        index.match(data)


def test_slices_stay_valid_and_are_read_only() -> None:
    index = Index()
    index.insert_many(range(100), [parse("a = 1")] * 100)
    slices = list(index.match_slices({"a": 1}))
    index.remove(5)
    index.settle()
    assert sorted(np.concatenate(slices).tolist()) == list(range(100))
    with pytest.raises(ValueError, match="read-only"):
        slices[0][0] = 7
    assert index.match_slices({"a": 1}).count == 99


def test_segments_are_merged_in_the_background_while_the_index_is_read() -> None:
    store_sizes = []
    index = Index()
    rng = random.Random(5)
    held = {}
    for number in range(6000):
        held[number] = parse(f"a = {rng.randrange(50)} and b > {rng.randrange(1000)}")
        index.insert(number, held[number])
        if number % 500 == 0:
            assert sorted(index.match({"a": 7, "b": 500}).tolist()) == expected(held, {"a": 7, "b": 500})
            store_sizes.append(len(index._single.segments))
    assert max(store_sizes) < 30
    index.settle()
    assert len(index._single.segments) == 1
    assert sorted(index.match({"a": 7, "b": 500}).tolist()) == expected(held, {"a": 7, "b": 500})


def test_an_empty_store_holds_nothing() -> None:
    store = SegmentStore()
    assert len(store) == 0
    assert store.unique == 0
    assert store.nbytes > 0
