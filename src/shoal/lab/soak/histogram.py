"""A histogram of times, in buckets that grow by one percent: millions of values take the space of a few hundred.

Owns the buckets. Pure.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

GROWTH: Final = 1.01
"""Growth of the buckets: a percentile is at most one percent too high."""
LOWEST_S: Final = 1e-6
"""Shorter times share one bucket."""
HIGHEST_S: Final = 1e4
"""Longer times count as this, so that there are at most about 2300 buckets."""
SHARES: Final = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}

_SCALE: Final = 1 / math.log(GROWTH)


class Histogram(msgspec.Struct):
    """The number of times in each bucket; `highest_s` is exact."""

    counts: dict[int, int] = {}
    count: int = 0
    highest_s: float = 0.0

    def add(self, value_s: float) -> None:
        """Counts one time."""
        bucket = 0
        if value_s > LOWEST_S:
            bucket = math.ceil(math.log(min(value_s, HIGHEST_S) / LOWEST_S) * _SCALE)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.count += 1
        self.highest_s = max(self.highest_s, value_s)

    def merge(self, other: Histogram) -> None:
        """Adds the counts of another histogram."""
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.count += other.count
        self.highest_s = max(self.highest_s, other.highest_s)

    def percentile_s(self, share: float) -> float | None:
        """A time that at least a share of all times does not exceed, at most one percent above the lowest such time;
        None if the histogram is empty."""
        wanted, seen = math.ceil(share * self.count), 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return min(LOWEST_S * GROWTH**bucket, self.highest_s)
        return None

    def summary_ms(self) -> dict[str, float]:
        """The usual percentiles and the maximum, in milliseconds; empty if the histogram is."""
        if not self.count:
            return {}
        shares = {name: self.percentile_s(share) or 0.0 for name, share in SHARES.items()}
        return {name: round(value * 1000, 3) for name, value in {**shares, "max": self.highest_s}.items()}
