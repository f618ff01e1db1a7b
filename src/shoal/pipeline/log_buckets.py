"""Times in buckets that grow by two percent: percentiles of any number of times, from counts that can be added up.

Owns the buckets. Counts of several tasks, days or servers are added bucket by bucket, which percentiles cannot be. A
percentile is off by one percent at most.

    bucket -1    below `NEGATIVE_US`: the clocks differ; counts as 0
    bucket  0    below 1 us
    bucket  n    from RATIO ** (n - 1) us on
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

RATIO: Final = 1.02
NEGATIVE_US: Final = -1000
"""Servers give times in whole milliseconds, so a time may come out up to one millisecond too small."""

Buckets = npt.NDArray[np.int32]


def buckets_of(times_us: npt.NDArray[Any]) -> Buckets:
    """The bucket of each time."""
    positive = np.maximum(times_us, 1).astype(np.float64)
    found: Buckets = np.floor(np.log(positive) / np.log(RATIO)).astype(np.int32) + 1
    found[times_us < 1] = 0
    found[times_us <= NEGATIVE_US] = -1
    return found


def percentile_us(buckets: npt.NDArray[Any], counts: npt.NDArray[Any], share: float) -> float | None:
    """The time that this share of all times does not exceed; None if there are none."""
    total = int(counts.sum())
    if not total:
        return None
    order = np.argsort(buckets, kind="stable")
    reached = np.cumsum(counts[order])
    bucket = int(buckets[order][np.searchsorted(reached, share * total)])
    return 0.0 if bucket < 1 else float(RATIO ** (bucket - 0.5))
