"""The time at which a batch of limited size ends, so that it is about full.

Owns the search. Counting entries costs a round trip to every server, so the search interpolates, and stops when the
batch is full enough. It never touches a socket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

FULL: Final = 0.9
"""A batch that is filled to this part of its limit ends the search."""

AIM: Final = 0.95
"""The part of the limit that interpolation aims at."""

PROBES_MAX: Final = 12
"""After this many counts any batch with an entry will do. If there is none yet, the search continues: it halves the
span of time at least every third count, so it ends."""

BISECT_EVERY: Final = 3


def find_cut(count: Callable[[int], int], low_ms: int, high_ms: int, high_count: int, rows_max: int) -> int:
    """A time until which there are at most `rows_max` entries: `count(time)`. There are none until `low_ms`, and
    `high_count`, more than `rows_max`, until `high_ms`. If there are none until the returned time, the millisecond
    after it has more than `rows_max`."""
    low_count = probes = 0
    while high_ms - low_ms > 1 and low_count < FULL * rows_max and not (low_count and probes >= PROBES_MAX):
        span_ms = high_ms - low_ms
        probes += 1
        if probes % BISECT_EVERY:
            part = (AIM * rows_max - low_count) / (high_count - low_count)
            middle_ms = low_ms + min(max(int(span_ms * part), 1), span_ms - 1)
        else:
            middle_ms = low_ms + span_ms // 2
        found = count(middle_ms)
        if found <= rows_max:
            low_ms, low_count = middle_ms, found
        else:
            high_ms, high_count = middle_ms, found
    return low_ms
