"""Deadlines of a core: a heap of keys, without a clock of its own."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Final

PATIENCE_DOUBLINGS_MAX: Final = 4


def patience(first_s: float, attempts: int) -> float:
    """How long to wait for an answer after `attempts` earlier questions. It doubles each time, so that repetitions do
    not flood a slow peer."""
    return first_s * (1 << min(attempts, PATIENCE_DOUBLINGS_MAX))


class Timers:
    """Deadlines by key. Setting a key again replaces its deadline.

    `count` is how often a deadline was set: while it stays the same, the earliest deadline has not become earlier.
    """

    __slots__ = ("_at", "_heap", "count")

    def __init__(self) -> None:
        self._at: dict[Hashable, float] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        self.count = 0

    def set(self, key: Hashable, at: float) -> None:
        """Sets or replaces the deadline of `key`."""
        self._at[key] = at
        self.count += 1
        heapq.heappush(self._heap, (at, self.count, key))

    def set_if_absent(self, key: Hashable, at: float) -> None:
        """Sets the deadline of `key` unless it has one."""
        if key not in self._at:
            self.set(key, at)

    def cancel(self, key: Hashable) -> None:
        """Removes the deadline of `key`, if it has one."""
        self._at.pop(key, None)

    def next_at(self) -> float | None:
        """The earliest deadline."""
        while self._heap:
            at, _, key = self._heap[0]
            if self._at.get(key) == at:
                return at
            heapq.heappop(self._heap)
        return None

    def due(self, now: float) -> Iterator[Hashable]:
        """Removes and returns the keys whose deadline has come."""
        while self._heap and self._heap[0][0] <= now:
            at, _, key = heapq.heappop(self._heap)
            if self._at.get(key) == at:
                del self._at[key]
                yield key

    def __len__(self) -> int:
        return len(self._at)
