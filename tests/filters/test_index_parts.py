"""Snapshots open in another process, and the parts of a split index together are the index."""

from __future__ import annotations

import contextlib
import copy
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import FilterError, SnapshotError
from shoal.filters.index import Index, snapshot
from shoal.filters.language import parse
from shoal.filters.values import Event

"""The first test compiles the kernels, unless they are in the cache."""


TEXTS = (
    "a = 1",
    "a = 1 and b > 5",
    "name prefix 'ab'",
    "a = 2 or b = 3",
    "a in (1, 2)",
    "c absent",
    "b > 5 and a < 2 and c exists",
    "name is not 'abc' and c is not prefix 'x'",
    "c is not suffix 'x' and c exists",
)
EVENTS: tuple[Event, ...] = (
    {"a": 1, "b": 6},
    {"name": "abc"},
    {"a": 2, "b": 3, "c": True},
    {"a": 1, "b": 9, "c": "x"},
    {},
)


def made(numbers: range) -> Index:
    index = Index()
    for number in numbers:
        index.insert(number, parse(TEXTS[number % len(TEXTS)]))
    return index


def found(index: Index) -> list[list[int]]:
    return [sorted(index.match(event).tolist()) for event in EVENTS]


def test_a_snapshot_is_the_same_index_and_can_be_changed(tmp_path: Path) -> None:
    index = made(range(700))
    index.remove(3)
    index.save(tmp_path / "index")
    opened = Index.open(tmp_path / "index")
    assert (len(opened), found(opened)) == (len(index), found(index))
    opened.remove(0)
    opened.insert(3, parse("a = 1"))
    opened.settle()
    assert len(opened) == 699
    assert 0 not in opened
    assert found(Index.open(tmp_path / "index")) == found(index), "the file stays as it is"


def test_another_process_opens_a_snapshot(tmp_path: Path) -> None:
    index = made(range(50))
    index.save(tmp_path / "index")
    code = (
        "import sys; from shoal.filters.index import Index;"
        "print(sorted(Index.open(sys.argv[1]).match({'a': 1, 'b': 6}).tolist()))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "index"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(found(index)[0])


@pytest.mark.parametrize("size", [0, 5, 30, 300])
def test_truncated_and_damaged_files_are_rejected(tmp_path: Path, size: int) -> None:
    made(range(50)).save(tmp_path / "index")
    whole = (tmp_path / "index").read_bytes()
    (tmp_path / "index").write_bytes(whole[:size])
    with pytest.raises(SnapshotError):
        Index.open(tmp_path / "index")
    (tmp_path / "index").write_bytes(b"?" + whole[1:])
    with pytest.raises(SnapshotError):
        Index.open(tmp_path / "index")


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_any_changed_byte_of_the_header_or_contents_is_detected(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        snapshot.write(path, {"first": np.arange(5), "second": np.arange(300, dtype=np.uint16)})
        damaged = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, 23 + int.from_bytes(damaged[8:16], "little")))
        damaged[place] ^= data.draw(st.integers(1, 255))
        path.write_bytes(damaged)
        with pytest.raises(SnapshotError):
            snapshot.read(path)


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "/tmp", "/etc/passwd"])
def test_files_that_are_not_snapshots_are_rejected(path: str) -> None:
    with pytest.raises(SnapshotError):
        Index.open(path)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Index.open(tmp_path / "index")


def test_inconsistent_arrays_raise_nothing_but_snapshot_errors(tmp_path: Path) -> None:
    made(range(50)).save(tmp_path / "index")
    arrays = snapshot.read(tmp_path / "index")
    for name in arrays:
        for less in ({**arrays, name: arrays[name][:0]}, {each: arrays[each] for each in arrays if each != name}):
            snapshot.write(tmp_path / "other", less)
            with contextlib.suppress(SnapshotError):
                Index.open(tmp_path / "other")


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_index_cannot_be_pickled_or_copied(copied: Callable[[Index], object]) -> None:
    with pytest.raises(TypeError, match=r"save, and Index\.open"):
        copied(made(range(3)))


def test_parts_together_are_the_whole() -> None:
    index = made(range(900))
    index.remove(10)
    parts = index.split(lambda ids: ids % 3)
    assert [len(part) for part in parts] == [300, 299, 300]
    for number, part in enumerate(parts):
        assert found(part) == [[each for each in row if each % 3 == number] for row in found(index)]
    parts[0].merge(parts[1])
    parts[2].insert(10, parse("other suffix 'z'"))
    parts[2].merge(parts[0])
    parts[2].remove(10)
    assert len(parts[2]) == len(index)
    assert found(parts[2]) == found(index)


def test_merging_ids_that_are_in_use_is_rejected() -> None:
    index = made(range(10))
    for other in (made(range(9, 12)), made(range(3, 4))):
        with pytest.raises(FilterError, match="already"):
            index.merge(other)
    assert len(index) == 10


def test_an_empty_index_can_be_saved_split_and_merged(tmp_path: Path) -> None:
    Index().save(tmp_path / "index")
    opened = Index.open(tmp_path / "index")
    opened.merge(Index())
    assert opened.split(lambda ids: np.zeros(len(ids), np.int64)) == []
    assert opened.match({"a": 1}).tolist() == []
