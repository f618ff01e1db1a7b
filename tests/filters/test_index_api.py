"""The index rejects invalid arguments with a reason, and concurrent changes lose nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from shoal.errors import EventError, FilterError, FilterTooLargeError
from shoal.filters.filter import Filter
from shoal.filters.index import Index, event_table, filter_table, snapshot
from shoal.filters.index.wire_table import wire_table
from shoal.filters.language import parse
from shoal.filters.values import Event
from shoal.limits import DEFAULT_LIMITS

"""The first test compiles the kernels, unless they are in the cache."""

ONE = parse("a = 1")
TWO = parse("a = 1 or b = 2")


def in_threads(*jobs: Callable[[], None]) -> None:
    """Runs jobs concurrently, and raises what one of them raised."""
    failed: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Makes threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# Threads


def test_alternatives_inserted_during_a_match_have_their_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index()
    index.insert(500, TWO)
    match = index._disjuncts.match

    def busy(wire: Any) -> Any:
        monkeypatch.undo()
        for number in range(501, 600):
            index.insert(number, TWO)
        return match(wire)

    monkeypatch.setattr(index._disjuncts, "match", busy)
    assert index.match({"a": 1}).tolist() == list(range(500, 600))


def test_merged_alternatives_have_their_owners_when_they_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    index, other = Index(), Index()
    index.insert(5, parse("x = 1 or y = 1"))
    other.insert_many(range(1000, 1020), [parse(f"x = {i} or z = 7") for i in range(20)])
    add_records = index._disjuncts.add_records
    seen: list[list[int]] = []

    def watched(*args: Any) -> None:
        add_records(*args)
        seen.append(index.match({"z": 7}).tolist())

    monkeypatch.setattr(index._disjuncts, "add_records", watched)
    index.merge(other)
    assert seen == [list(range(1000, 1020))]


@pytest.mark.usefixtures("eager_threads")
def test_threads_that_insert_alternatives_lose_nothing(tmp_path: Path) -> None:
    index = Index()
    index.insert(0, TWO)
    wrong: list[int] = []
    done = threading.Event()

    def insert(first: int) -> Callable[[], None]:
        def run() -> None:
            for number in range(first, first + 400):
                index.insert(number, parse(f"a = 1 or c = {number}"))

        return run

    def read() -> None:
        while not done.is_set():
            wrong.extend(index.match({"b": 2}).tolist()[1:])
            index.save(tmp_path / "index")
            index.split(lambda ids: np.zeros(len(ids), np.int64))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        in_threads(*(insert(1000 * part) for part in range(1, 5)))
    finally:
        done.set()
        reader.join()
    numbers = [number for part in range(1, 5) for number in range(1000 * part, 1000 * part + 400)]
    assert wrong == []
    assert index.match({"a": 1}).tolist() == [0, *numbers]
    assert [index.match({"c": number}).tolist() for number in numbers] == [[number] for number in numbers]


def test_concurrent_saves_to_one_path_leave_a_complete_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    indexes = [Index(), Index()]
    for index, count in zip(indexes, (10, 2000), strict=True):
        index.insert_many(range(count), [parse(f"a = {i} and s = 'text {i}'") for i in range(count)])
    replace = Path.replace

    def late(written: Path, path: Path) -> Path:
        monkeypatch.undo()
        in_threads(lambda: indexes[1].save(path))
        assert len(Index.open(path)) == 2000
        return replace(written, path)

    monkeypatch.setattr(Path, "replace", late)
    indexes[0].save(tmp_path / "index")
    assert len(Index.open(tmp_path / "index")) == 10
    assert [each.name for each in tmp_path.iterdir()] == ["index"]


def test_a_failed_save_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    with pytest.raises(OSError, match="directory"):
        snapshot.write(tmp_path / "index", {"a": np.arange(5)})
    assert [each.name for each in tmp_path.iterdir()] == ["index"]


# Ids


@pytest.mark.parametrize("number", [2**32 + 7, 5 * 2**32 + 7, 2**70, -1, 2**32 - 1, "x", 7.0, None, True])
def test_invalid_ids_are_not_in_the_index(number: object) -> None:
    index = Index()
    index.insert_many([7, 1], [ONE, TWO])
    assert number not in index
    assert 7 in index
    assert np.uint32(7) in index
    with pytest.raises(FilterError, match="no subscription"):
        index.remove(number)  # type: ignore[arg-type]
    assert len(index) == 2


def test_numbers_whose_lower_half_is_an_id_are_not_in_the_index() -> None:
    index = Index()
    index.insert(7, ONE)
    assert not any(k * 2**32 + 7 in index for k in range(1, 2000))


@pytest.mark.parametrize("number", [1.5, True, "x", None, -1, 2**32 - 1, 2**64, 2**70, np.float64(3), np.int64(-1)])
@pytest.mark.parametrize("wanted", [ONE, TWO])
def test_invalid_ids_are_rejected(number: Any, wanted: Filter) -> None:
    index = Index()
    with pytest.raises(FilterError, match="from 0 to 4294967294"):
        index.insert(number, wanted)
    with pytest.raises(FilterError, match="from 0 to 4294967294"):
        index.insert_many([number], [wanted])
    assert len(index) == 0


@pytest.mark.parametrize("numbers", [5, None, [[1]], [[1], [2, 3]], "12"])
def test_anything_but_a_sequence_of_ids_is_rejected(numbers: Any) -> None:
    index = Index()
    with pytest.raises(FilterError, match="sequence of integers"):
        index.insert_many(numbers, [ONE])
    with pytest.raises(FilterError, match="sequence of integers"):
        index.remove_many(numbers)


def test_integers_of_numpy_are_ids() -> None:
    index = Index()
    index.insert(np.uint8(3), ONE)  # type: ignore[arg-type]
    index.insert_many([np.uint64(4), np.int8(5)], [ONE, TWO])  # type: ignore[list-item]
    index.insert_many(np.array([6], np.uint64), [ONE])
    index.insert_many([], [])
    assert sorted(index.match({"a": 1}).tolist()) == [3, 4, 5, 6]
    index.remove(np.int64(3))  # type: ignore[arg-type]
    index.remove_many(np.array([4, 5], np.uint16))
    index.remove_many([])
    assert index.match({"a": 1}).tolist() == [6]


@pytest.mark.parametrize("numbers", [[7, 8, 999], [8, 999, 1000], [7, 7], [8, 8], [7, 2**40], [7, 1.5], [7, True]])
def test_many_are_removed_all_or_none(numbers: list[int]) -> None:
    index = Index()
    index.insert_many([7, 8], [ONE, TWO])
    with pytest.raises(FilterError, match=r"no subscription 999$|[78] is listed twice|from 0 to"):
        index.remove_many(numbers)
    assert sorted(index.match({"a": 1}).tolist()) == [7, 8]
    index.remove_many([8, 7])
    assert len(index) == 0


def test_two_threads_that_insert_one_id_get_it_once() -> None:
    """One filter has alternatives and the other has none, so they are in different stores."""
    index = Index()
    start = threading.Barrier(2)
    refused: list[int] = []

    def insert(filter: Filter) -> None:
        for number in range(300):
            start.wait()
            try:
                index.insert(number, filter)
            except FilterError:
                refused.append(number)

    in_threads(lambda: insert(ONE), lambda: insert(TWO))
    assert sorted(refused) == list(range(300))
    assert sorted(index.match({"a": 1}).tolist()) == list(range(300))


def test_only_an_index_can_be_merged() -> None:
    with pytest.raises(FilterError, match="an index is needed, not something of type NoneType"):
        Index().merge(None)  # type: ignore[arg-type]


# Filters


@pytest.mark.parametrize("count", [20_000, 65_536])
def test_a_list_that_is_too_long_for_the_index_is_rejected(count: int) -> None:
    limits = replace(DEFAULT_LIMITS, filter_in_values_max=count, filter_text_bytes_max=1 << 24)
    long = parse(f"a in ({', '.join(map(str, range(count)))})", limits)
    index = Index()
    with pytest.raises(FilterTooLargeError, match="larger than the index can hold"):
        index.insert(1, long)
    with pytest.raises(FilterTooLargeError, match="larger than the index can hold"):
        index.insert_many([1, 2], [ONE, long])
    assert len(index) == 0


@pytest.mark.parametrize("ask", [ONE.covers, ONE.intersects, ONE.meet, ONE.equal])
def test_only_filters_are_compared(ask: Callable[[Any], object]) -> None:
    with pytest.raises(FilterError, match="a filter is needed"):
        ask("a = 1")


@pytest.mark.parametrize("wanted", ["a = 1", b"\x91\x90", b"\x91\x91\x91\x90", None, 5, ["a = 1"], [[1, 2]], object()])
def test_anything_but_a_filter_is_rejected(wanted: Any) -> None:
    index = Index()
    with pytest.raises(FilterError, match="a filter is needed"):
        index.insert(1, wanted)
    with pytest.raises(FilterError, match="a filter is needed"):
        index.insert_many([1, 2], [ONE, wanted])
    with pytest.raises(FilterError, match="a filter is needed"):
        index.insert_many([1], 5)  # type: ignore[arg-type]
    assert len(index) == 0


def test_one_filter_is_not_many() -> None:
    index = Index()
    with pytest.raises(FilterError, match="this is one filter: use insert"):
        index.insert_many([1], ONE)  # type: ignore[arg-type]
    assert len(index) == 0


@pytest.mark.parametrize("wire", [b"", b"\x91", b"\x91\x90", b"\x91\xdc\x00\x00", b"\xff" * 9, b"\x91\x92\x91\x90\xc0"])
def test_bytes_that_are_not_a_filter_are_rejected(wire: bytes) -> None:
    index = Index()
    for table in (wire_table([wire]), wire_table([filter_table([ONE])[0], wire])):
        with pytest.raises(FilterError, match=r"wire form|at least one"):
            index.insert_many(range(len(table)), table)
    assert len(index) == 0


def test_a_filter_without_conjunctions_is_rejected() -> None:
    index = Index()
    for insert in (index.insert, lambda number, each: index.insert_many([number], [each])):
        with pytest.raises(FilterError, match=r"at least one|wire form"):
            insert(1, Filter(()))
    assert len(index) == 0


def test_a_rejected_alternative_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index()
    insert = index._disjuncts.insert

    def full(number: int, wire: bytes) -> bool:
        if b"bad" in wire:
            raise FilterTooLargeError("too many names")
        return insert(number, wire)

    monkeypatch.setattr(index._disjuncts, "insert", full)
    bad = parse("a = 1 or bad = 2")
    with pytest.raises(FilterTooLargeError):
        index.insert(1, bad)
    with pytest.raises(FilterTooLargeError):
        index.insert_many([1, 2, 3], [ONE, TWO, bad])
    assert (len(index), len(index._disjuncts)) == (0, 0)
    index.insert(4, TWO)
    assert index.match({"a": 1}).tolist() == [4]


# Events


@pytest.mark.parametrize("wanted", [ONE, TWO])
def test_many_events_need_no_table(wanted: Filter) -> None:
    index = Index()
    index.insert(7, wanted)
    events: list[Event | bytes] = [{"a": 1}, {"a": 2}, event_table([{"a": 1}])[0]]
    assert [each.tolist() for each in map(index.match_many(events).__getitem__, range(3))] == [[7], [], [7]]
    assert index.count_many(iter(events)) == 2
    for none in (event_table([]), list[Event]()):
        matches = index.match_many(none)
        assert (str(matches.offsets.dtype), matches.offsets.tolist(), str(matches.ids.dtype)) == (
            "int64",
            [0],
            "uint32",
        )
        assert index.count_many(none) == 0


@pytest.mark.parametrize(
    "events", [[5], 5, None, [None], [{"a": object()}], [{"a": 2**70}], {"a": 1}, {}, "a", b"\x80"]
)
@pytest.mark.parametrize("wanted", [ONE, TWO])
def test_anything_but_a_sequence_of_events_is_rejected(events: Any, wanted: Filter) -> None:
    index = Index()
    index.insert(7, wanted)
    with pytest.raises(EventError):
        index.match_many(events)
    with pytest.raises(EventError):
        index.count_many(events)


# Results


def test_matches_are_a_sequence() -> None:
    index = Index()
    index.insert_many(range(5), [parse(f"a >= {number}") for number in range(5)])
    matches = index.match_many([{"a": number} for number in range(5)])
    each = [sorted(ids.tolist()) for ids in matches]
    assert each == [list(range(number + 1)) for number in range(5)]
    assert (sorted(matches[-1].tolist()), sorted(matches[np.int64(1)].tolist())) == (each[-1], each[1])
    for part in (slice(0, 2), slice(1, 4), slice(-2, None), slice(3, 1), slice(9, 12), slice(None)):
        assert [sorted(ids.tolist()) for ids in matches[part]] == each[part]
        assert len(matches[part].ids) == sum(map(len, each[part]))
    for place in (5, -6):
        with pytest.raises(IndexError, match="5 events"):
            matches[place]
    with pytest.raises(TypeError, match="consecutive events"):
        matches[::2]
    with pytest.raises(TypeError):
        matches["x"]  # type: ignore[call-overload]


def test_slices_have_a_length_and_a_count() -> None:
    index = Index()
    assert len(index.match_slices({"a": 1})) == 0
    index.insert_many(range(3), [ONE] * 3)
    index.insert(7, TWO)
    slices = index.match_slices({"a": 1})
    assert len(slices) == len(list(slices)) == 2
    assert slices.count == 4


@pytest.mark.parametrize("size", [-1, 1.5, None, "8", True, 2**40])
def test_an_invalid_bitmap_size_is_rejected(size: Any) -> None:
    with pytest.raises(FilterError, match="the size of a bitmap is an integer"):
        Index().match_bitmap({"a": 1}, size)


# Parts


@pytest.mark.parametrize(
    "answer",
    [
        lambda ids: 0,
        lambda ids: np.zeros(1, np.int64),
        lambda ids: ids * 0.0,
        lambda ids: ["x"] * len(ids),
        lambda ids: [[0]] * len(ids),
        lambda ids: [[0], [1, 2]],
        lambda ids: None,
        lambda ids: ids.astype(np.int64) - 10,
    ],
)
@pytest.mark.parametrize("wanted", [ONE, TWO])
def test_a_selector_must_return_a_part_for_each_id(answer: Any, wanted: Filter) -> None:
    index = Index()
    index.insert_many(range(5), [wanted] * 5)
    with pytest.raises(FilterError, match="the selector"):
        index.split(answer)


def test_a_merge_with_rejected_alternatives_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    index, other = Index(), Index()
    index.insert(0, TWO)
    other.insert_many([1, 2], [ONE, TWO])

    def full(*_: Any) -> None:
        raise FilterTooLargeError("too many names")

    with monkeypatch.context() as patch:
        patch.setattr(index._disjuncts, "add_records", full)
        with pytest.raises(FilterTooLargeError):
            index.merge(other)
    assert index.match({"a": 1}).tolist() == [0]
    index.merge(other)
    assert sorted(index.match({"a": 1}).tolist()) == [0, 1, 2]


def test_a_selector_may_return_booleans_or_a_list() -> None:
    index = Index()
    index.insert_many(range(5), [ONE, TWO, ONE, TWO, ONE])
    assert [len(part) for part in index.split(lambda ids: ids > 2)] == [3, 2]  # type: ignore[arg-type,return-value]
    assert [len(part) for part in index.split(lambda ids: [1] * len(ids))] == [0, 5]  # type: ignore[arg-type,return-value]
