"""How long events wait in an engine: from being taken until all their deliveries are confirmed.

Owns a histogram with fixed bounds. Events of one turn are counted together.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Sequence
from typing import Final

FIRST_MS: Final = 0.5
GROWTH: Final = 1.25
BOUNDS_MS: Final = tuple(FIRST_MS * GROWTH**place for place in range(53))
"""Upper bounds of the buckets, up to 55 s; the last bucket has no bound."""


class EventWaits:
    """Counts of waits. `counts` has one count for each bound, and one for what is above."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self._waiting: deque[tuple[int, int, float]] = deque()
        """The last batch of a turn, its events, and when they were taken."""

    def taken(self, batch: int, events: int, now: float) -> None:
        """Events up to a batch are in the fan."""
        self._waiting.append((batch, events, now))

    def settled(self, batch: int, now: float) -> None:
        """Everything up to a batch is delivered."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= batch:
            _, events, taken_at = waiting.popleft()
            self.counts[bisect.bisect_left(BOUNDS_MS, (now - taken_at) * 1000)] += events


def quantile_ms(counts: Sequence[int], share: float) -> float:
    """The wait that a share of the events did not exceed, at most a fourth too long; 0 if there were none."""
    wanted = share * sum(counts)
    if not wanted:
        return 0.0
    seen = 0
    for place, count in enumerate(counts):
        seen += count
        if seen >= wanted:
            return BOUNDS_MS[min(place, len(BOUNDS_MS) - 1)]
    raise AssertionError("counts are not negative")
