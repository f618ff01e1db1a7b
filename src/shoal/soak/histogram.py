"""A histogram of times in buckets that grow by a hundredth: millions of values in the room of some hundred.

Owns the buckets. What the times are, and which of them belong together, is the caller's business. Pure.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

GROWTH: Final = 1.01
"""Each bucket is so much wider than the one before: a percentile is at most a hundredth too high."""
LOWEST_S: Final = 1e-6
"""What is below shares one bucket."""
HIGHEST_S: Final = 1e4
"""What is above counts as this; so there are never more than about 2300 buckets."""
SHARES: Final = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}

_SCALE: Final = 1 / math.log(GROWTH)


class Histogram(msgspec.Struct):
    """How many times fell into which bucket; `highest_s` is exact."""

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
        """Counts what another one has counted, too."""
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.count += other.count
        self.highest_s = max(self.highest_s, other.highest_s)

    def percentile_s(self, share: float) -> float | None:
        """A time that at least a share of all times do not exceed, and that is hardly above the lowest such one;
        None of nothing."""
        wanted, seen = math.ceil(share * self.count), 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return min(LOWEST_S * GROWTH**bucket, self.highest_s)
        return None

    def summary_ms(self) -> dict[str, float]:
        """The usual percentiles and the highest, in milliseconds; empty if there is nothing."""
        if not self.count:
            return {}
        shares = {name: self.percentile_s(share) or 0.0 for name, share in SHARES.items()}
        return {name: round(value * 1000, 3) for name, value in {**shares, "max": self.highest_s}.items()}
