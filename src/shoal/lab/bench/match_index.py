"""Shoal's own contenders in `shoal bench match`: the index of filters, used in each of its ways, and how fast it fills.

Owns both. All contenders share one index and take events as they are on the wire.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Final

import msgspec
import numpy as np

from shoal.filters.filter import Filter
from shoal.filters.index import Index, WireTable, filter_table
from shoal.lab.bench.matcher import SHOAL, BenchMatcher, Ids

SLICES: Final = f"{SHOAL}-slices"
MANY: Final = f"{SHOAL}-many"
SLICES_EACH: Final = f"{SHOAL}-slices-each"
WORDS: Final = {
    SHOAL: "Index.match: one event at a time from Python, ids copied into an array of their own",
    SLICES: "Index.count_many: batches of events; ids stay in slices of shared arrays",
    SLICES_EACH: "Index.match_slices: the same, one event at a time from Python",
    MANY: "Index.match_many: batches of events, ids copied",
}
FILL_S: Final = 0.3
"""Small indexes are filled again and again for at least this long."""
ONE_BY_ONE: Final = 50_000
"""Filters that are removed from the full index and inserted again one by one."""


class _IndexMatcher:
    """One way to use the index."""

    batched = False
    name = SHOAL

    def __init__(self, index: Index) -> None:
        self._index = index

    @property
    def nbytes(self) -> int:
        """Every array of the index."""
        return self._index.nbytes


class EventMatcher(_IndexMatcher):
    """Takes one event, copies ids."""

    def take(self, events: bytes) -> int:
        """Matches one event."""
        return len(self._index.match(events))

    def ids(self, event: bytes) -> Ids:
        """The ids for one event."""
        return self._index.match(event)


class _SliceMatcher(_IndexMatcher):
    """Finds slices."""

    def ids(self, event: bytes) -> Ids:
        """The ids for one event."""
        return np.concatenate([np.empty(0, np.uint32), *self._index.match_slices(event)])


class EventSliceMatcher(_SliceMatcher):
    """Takes one event, finds slices."""

    name = SLICES_EACH

    def take(self, events: bytes) -> int:
        """Matches one event."""
        return self._index.match_slices(events).count


class BatchSliceMatcher(_SliceMatcher):
    """Takes batches, finds slices."""

    name = SLICES
    batched = True

    def take(self, events: WireTable) -> int:
        """Matches a batch."""
        return self._index.count_many(events)


class BatchMatcher(_IndexMatcher):
    """Takes batches, copies ids."""

    name = MANY
    batched = True

    def take(self, events: WireTable) -> int:
        """Matches a batch."""
        return len(self._index.match_many(events).ids)

    def ids(self, event: bytes) -> Ids:
        """The ids for one event."""
        table = WireTable(np.frombuffer(event, np.uint8), np.array([0, len(event)], np.int64))
        return self._index.match_many(table).ids


class Filling(msgspec.Struct, frozen=True, kw_only=True):
    """How fast an index was filled."""

    inserts_per_s: float
    inserts_one_by_one_per_s: float
    removes_one_by_one_per_s: float
    unique: int
    """Number of different filters: identical ones are stored once."""


def fill(filters: list[Filter], rounds: int) -> tuple[Index, Filling]:
    """An index with these filters, whose ids are their positions. It is filled `rounds` times, and more often if that
    takes less than `FILL_S`."""
    table = filter_table(filters)
    bulk: list[float] = []
    while len(bulk) < rounds or sum(len(filters) / speed for speed in bulk) < FILL_S:
        began = time.perf_counter()
        index = filled(table)
        bulk.append(len(filters) / (time.perf_counter() - began))
    inserts, removes = _one_by_one(filled(table), filters)
    return index, Filling(
        inserts_per_s=median(bulk),
        inserts_one_by_one_per_s=inserts,
        removes_one_by_one_per_s=removes,
        unique=index.unique,
    )


def filled(table: WireTable) -> Index:
    """A settled index with all filters of a table, whose ids are their positions."""
    index = Index()
    index.insert_many(np.arange(len(table), dtype=np.uint32), table)
    index.settle()
    return index


def _one_by_one(index: Index, filters: list[Filter]) -> tuple[float, float]:
    """Inserts and removes a second, one call each, in an index that holds the filters."""
    some = np.random.default_rng(1).permutation(len(filters))[:ONE_BY_ONE].tolist()
    began = time.perf_counter()
    for number in some:
        index.remove(number)
    between = time.perf_counter()
    for number in some:
        index.insert(number, filters[number])
    return len(some) / (time.perf_counter() - between), len(some) / (between - began)


def index_matchers(index: Index) -> list[BenchMatcher]:
    """All ways to use an index. The first is the reference for all contenders."""
    return [EventMatcher(index), BatchSliceMatcher(index), EventSliceMatcher(index), BatchMatcher(index)]
