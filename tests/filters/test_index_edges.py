"""Events, filters and tables at the limits of the index. Each of these was wrong once."""

from __future__ import annotations

import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.errors import FilterError, FilterTooLargeError
from shoal.filters import parse
from shoal.filters.conjunctions import Conjunction
from shoal.filters.filter import Filter
from shoal.filters.index import Index, event_table, segment_builder
from shoal.filters.index.wire_table import wire_table
from shoal.filters.ranges import OneOf


def found(index: Index, event: Any) -> list[int]:
    return sorted(index.match(event).tolist())


@pytest.mark.parametrize("times", [1, 1300, 100_000])
def test_an_attribute_that_is_set_and_nulled_repeatedly(times: int) -> None:
    index = Index()
    index.insert(1, parse("a = 1"))
    again = b"\xa1a\x01\xa1a\xc0" * times
    assert found(index, b"\xdf" + struct.pack(">I", 2 * times) + again) == []
    assert found(index, b"\xdf" + struct.pack(">I", 2 * times + 1) + again + b"\xa1a\x01") == [1]


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("power", [53, 54, 60, 62])
@pytest.mark.parametrize("operator", [">=", ">", "<=", "<", "=", "!="])
def test_integers_between_floats(operator: str, power: int, settled: bool) -> None:
    near = [sign * (2**power + step) for sign in (1, -1) for step in (-2048, -2, -1, 0, 1, 2, 3, 2048)]
    filters = [parse(f"a {operator} {number}") for number in near]
    index = Index()
    for number, each in enumerate(filters):
        index.insert(number, each)
    if settled:
        index.settle()
    for value in near:
        event = {"a": value}
        assert found(index, event) == [number for number, each in enumerate(filters) if each.matches(event)]


def test_lists_that_share_values() -> None:
    """Clusters of a list's values are distinct, although one record is found in all of them."""
    rng = np.random.default_rng(3)
    filters = [parse(f"a in ({', '.join(map(str, rng.permutation(400)[:200]))})") for _ in range(60)]
    filters += [parse(f"a = {number}") for number in range(400)]
    filters += [parse(f"s in ({', '.join(repr(f't{n}') for n in rng.permutation(60)[:30])})") for _ in range(30)]
    index = Index()
    index.insert_many(np.arange(len(filters), dtype=np.uint32), filters)
    index.settle()
    events: list[dict[str, Any]] = [{"a": number} for number in range(400)]
    for event in [*events, *({"s": f"t{number}"} for number in range(60))]:
        assert found(index, event) == [number for number, each in enumerate(filters) if each.matches(event)]


def test_a_long_list_is_held_once(tmp_path: Path) -> None:
    index = Index()
    index.insert(7, parse(f"a in ({', '.join(map(str, range(1024)))}) and b > 1"))
    index.settle()
    assert index.nbytes < 100_000
    index.save(tmp_path / "index")
    for each in (index, Index.open(tmp_path / "index")):
        assert found(each, {"a": 1023, "b": 2}) == [7]
        assert found(each, {"a": 1024, "b": 2}) == found(each, {"a": 5, "b": 1}) == []
        each.insert(8, parse("a = 5"))
        each.settle()
        assert found(each, {"a": 5, "b": 2}) == [7, 8]


def is_one(name: str) -> Filter:
    """The filter `name = 1`, without parsing it."""
    return Filter((Conjunction(((name, OneOf((1,))),)),))


def test_a_merge_beyond_the_limit_of_attribute_names_is_rejected() -> None:
    first, second = Index(), Index()
    first.insert_many(np.arange(40_000, dtype=np.uint32), [is_one(f"n{i}") for i in range(40_000)])
    second.insert_many(np.arange(40_000, 80_000, dtype=np.uint32), [is_one(f"m{i}") for i in range(40_000)])
    with pytest.raises(FilterTooLargeError, match="65000 attribute names"):
        first.merge(second)
    assert len(first) == 40_000
    assert found(first, {"n0": 1}) == [0]


def test_many_ids_for_one_event_and_then_a_long_table_without_any() -> None:
    index = Index()
    index.insert_many(np.arange(50_000, dtype=np.uint32), [parse("a = 1")] * 50_000)
    assert len(index.match_many(event_table([{"a": 1}])).ids) == 50_000
    assert len(index.match_many(event_table([{"a": 2}] * 200_000)).ids) == 0


def test_a_snapshot_while_another_thread_inserts(tmp_path: Path) -> None:
    index, over = Index(), threading.Event()
    index.insert_many(np.arange(2000, dtype=np.uint32), [parse(f"s = 'first{i}'") for i in range(2000)])

    def insert() -> None:
        number = 2000
        while not over.is_set():
            index.insert(number, parse(f"s = 'then{number}'"))
            number += 1

    writer = threading.Thread(target=insert)
    writer.start()
    try:
        for _ in range(8):
            index.save(tmp_path / "index")
            opened = Index.open(tmp_path / "index")
            for number in range(2000, len(opened)):
                assert found(opened, {"s": f"then{number}"}) == [number]
    finally:
        over.set()
        writer.join()


def test_settle_raises_the_failure_of_a_background_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    index, build = Index(), segment_builder.build

    def failing(*args: Any) -> Any:
        if threading.current_thread().name == "shoal-merge":
            raise MemoryError("no memory")
        return build(*args)

    monkeypatch.setattr(segment_builder, "build", failing)
    for start in (0, 10):
        index.insert_many(np.arange(start, start + 10, dtype=np.uint32), [parse(f"a = {i}") for i in range(10)])
    with pytest.raises(MemoryError):
        index.settle()
    assert found(index, {"a": 3}) == [3, 13]
    monkeypatch.undo()
    index.settle()
    assert found(index, {"a": 3}) == [3, 13]


@pytest.mark.parametrize(
    "wire",
    [
        *(b"\x91\x91\x91\x91", b"\x91\x91\x91\x91\xc3\x02", b"\x91\x91\x91\x92\x0c\x06\xa1a"),  # no pair
        b"\x91\x91\x91\x91\x92\xa1a\x93\x04\xdd\xff\xff\xff\xff\x01\x00",  # a list of four billion values
        b"\x91\x91\x91\x91\x92\xa1a\x94\x02\x01\x05\xdd\xff\xff\xff\xff",  # as many excluded numbers
        b"\x91\x91\x91\x91\x92\xa1a\x94\x02",  # no bounds
        *(b"\x91\x91\x91\x91\x92\xa1\xff\x91\x01", b"\x91\x91\x91\x91\x92\xa1a\x93\x04\x91\xa1\xff\x01"),  # no UTF-8
        b"\x91\x92\x91\x91\x92\xa1a\x93\x04\x91\x01\x00\x91\x91\x92\xa1b\x93\x04\x90\x00",  # no value in an alternative
    ],
)
def test_bytes_that_are_no_filter_are_an_error(wire: bytes) -> None:
    """They were read beyond their end, which ended the process."""
    index = Index()
    with pytest.raises(FilterError):
        index.insert_wire(1, wire)
    with pytest.raises(FilterError):
        index.insert_many(np.arange(2, dtype=np.uint32), wire_table([b"\x91\x91\x91\x91\x92\xa1a\x91\x01", wire]))
    index.insert(1, parse("a = 1"))
    assert found(index, {"a": 1}) == [1]
    assert found(index, {"a": [1, 2]}) == [1]  # reads the names of all filters
