"""Background work of an index: settling while other threads write, and forks during a merge."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from shoal.filters.index import Index, segment_builder
from shoal.filters.index.segment_store import SEGMENTS_MAX
from shoal.filters.language import parse

"""The first test compiles the kernels, unless they are in the cache."""

TEN = [parse(f"a = {number}") for number in range(10)]
TWO = parse("a = 1 or b = 2")


def filled(parts: int) -> Index:
    """An index of some segments."""
    index = Index()
    for part in range(parts):
        index.insert_many(range(10 * part, 10 * part + 10), TEN)
    return index


@contextmanager
def held_merges(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Holds background merges until the event is set."""
    go, build = threading.Event(), segment_builder.build

    def waiting(*args: Any) -> Any:
        if threading.current_thread().name == "shoal-merge":
            go.wait(60)
        return build(*args)

    monkeypatch.setattr(segment_builder, "build", waiting)
    yield go
    go.set()


def in_child(work: Callable[[], bool]) -> bool:
    """The result of some work in a forked child; False if it has not ended after a while."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


def test_several_threads_can_settle_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    index, start, failed = filled(2), threading.Thread.start, list[BaseException]()

    def late(thread: threading.Thread) -> None:
        if thread.name == "shoal-merge":
            time.sleep(0.05)
        start(thread)

    def settle() -> None:
        try:
            index.settle()
        except RuntimeError as error:
            failed.append(error)

    monkeypatch.setattr(threading.Thread, "start", late)
    threads = [threading.Thread(target=settle) for _ in range(3)]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(index._single.segments) == 1


def test_settle_ends_while_another_thread_keeps_writing() -> None:
    index, over, inserted = filled(3), threading.Event(), set(range(30))

    def write() -> None:
        number = 1000
        while not over.is_set():
            index.insert(number, TEN[number % 10])
            inserted.add(number)
            if number >= 2000:
                index.remove(number - 1000)
                inserted.remove(number - 1000)
            number += 1

    def settle() -> None:
        for _ in range(5):
            index.settle()

    writer, settler = threading.Thread(target=write), threading.Thread(target=settle, daemon=True)
    writer.start()
    try:
        settler.start()
        settler.join(60)
        ended = not settler.is_alive()
    finally:
        over.set()
        writer.join()
    assert ended
    index.settle()
    assert len(index._single.segments) == 1
    assert sorted(index.match({"a": 3}).tolist()) == sorted(number for number in inserted if number % 10 == 3)


def test_settle_does_not_wait_for_later_inserts(monkeypatch: pytest.MonkeyPatch) -> None:
    index, build, numbers = filled(3), segment_builder.build, iter(range(1000, 2000, 10))

    def overtaken(*args: Any) -> Any:
        if threading.current_thread().name == "shoal-merge" and (number := next(numbers, 0)):
            writer = threading.Thread(target=index.insert_many, args=(range(number, number + 10), TEN))
            writer.start()
            writer.join()
        return build(*args)

    monkeypatch.setattr(segment_builder, "build", overtaken)
    index.settle()
    assert [segment.positions for segment in index._single.segments] == [30, 10]
    assert len(index.match({"a": 3})) == 4


def test_settle_includes_everything_that_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_merges(monkeypatch) as go:
        index = filled(8)
        assert index._single._is_merging
        index.insert_many(range(100, 110), TEN)
        index.insert(200, TEN[3])
        index.remove(3)
        settler = threading.Thread(target=index.settle)
        settler.start()
        while not index._single._settling:
            time.sleep(0.001)
        index.insert(300, TEN[3])
        go.set()
        settler.join()
    assert [segment.positions for segment in index._single.segments] == [90]
    assert sorted(index.match({"a": 3}).tolist()) == [*range(13, 80, 10), 103, 200, 300]


@pytest.mark.parametrize("wanted", [TEN[1], TWO])
def test_a_forked_child_can_change_and_settle_during_a_merge(wanted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    index = filled(2)
    index.insert(900, TWO)
    index.settle()
    with held_merges(monkeypatch) as go:
        for part in range(2, 10):
            index.insert_many(range(10 * part, 10 * part + 10), TEN)
        assert index._single._is_merging

        def work() -> bool:
            go.set()
            index.insert(1000, wanted)
            index.remove(11)
            index.settle()
            return sorted(index.match({"a": 1}).tolist()) == [1, *range(21, 100, 10), 900, 1000]

        assert in_child(work)
    index.settle()
    assert sorted(index.match({"a": 1}).tolist()) == [*range(1, 100, 10), 900]


def test_a_forked_child_does_not_wait_for_locks_of_other_threads() -> None:
    index, over = filled(1), threading.Event()
    index.insert(900, TWO)

    def write() -> None:
        number = 1000
        while not over.is_set():
            index.insert(number, TWO)
            index.remove(number)
            number += 1

    def work() -> bool:
        index.insert(10**6, TWO)
        index.settle()
        found = set(index.match({"a": 1}).tolist())
        return {1, 900, 10**6} <= found and len(index) == 12 + len(found - {1, 900, 10**6})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert all(in_child(work) for _ in range(5))
    finally:
        over.set()
        writer.join()


def test_a_split_has_what_was_inserted_while_the_buffer_was_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    index = filled(1)
    index.insert(100, TEN[0])
    flush = index._single._flush

    def overtaken() -> None:
        monkeypatch.undo()
        flush()
        index.insert(101, TEN[0])

    monkeypatch.setattr(index._single, "_flush", overtaken)
    parts = index.split(lambda ids: np.zeros(len(ids), np.int64))
    assert sorted(parts[0].match({"a": 0}).tolist()) == [0, 100, 101]


def test_no_change_waits_for_a_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = 3 * SEGMENTS_MAX
    with held_merges(monkeypatch) as go:
        index = filled(8)
        store = index._single
        assert store._is_merging
        writer = threading.Thread(target=change_again, args=(index, range(8, rounds)), daemon=True)
        writer.start()
        writer.join(60)
        assert not writer.is_alive(), "a change waits for the merge, which waits for the test"
        assert len(store.segments) <= SEGMENTS_MAX + 1
        assert index.match({"a": 3}).tolist() == []
        assert sorted(index.match({"a": 4}).tolist()) == [*range(4, 10 * rounds, 10)]
        go.set()
        index.settle()
    assert index.match({"a": 3}).tolist() == []
    assert sorted(index.match({"a": 4}).tolist()) == [*range(4, 10 * rounds, 10)]


def change_again(index: Index, parts: range) -> None:
    """Inserts ten filters at a time, and changes some: one that the held merge has, which gets its id again, and a new
    one."""
    for part in parts:
        index.insert_many(range(10 * part, 10 * part + 10), TEN)
        index.remove(10 * part + 3)
        if part < 16:
            index.remove_many([10 * (part - 8) + 3, 10 * (part - 8) + 4])
            index.insert_many([10 * (part - 8) + 4], [TEN[4]])
