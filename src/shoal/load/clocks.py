"""Clocks: the offset between a host's clock and the reader's, estimated from arrivals.

Owns the estimate. A record of second `s` is written after `s + 1` by its host's clock and arrives later, so its arrival
by the reader's clock minus `s + 1` is the offset of the two clocks plus a delay. The delay is never negative, so the
smallest recent value is the best estimate. A host that is always late by the same amount cannot be told from one whose
clock is behind, and is treated in the same way: its last record counts as the present and is not dropped. Overloaded
hosts are late, so this matters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

CLOCK_MEMORY_S: Final = 10
"""How far back arrivals are remembered. A change of a clock is detected after this time at the latest."""

CLOCK_LEARN_S: Final = 3
"""How far apart the first and the last remembered arrival must be for an estimate. In a backlog that is read at once
all records but the last look late, whatever the clock."""

SKEW_STEP_S: Final = 1.0
"""Difference above which the correction changes. Records cover whole seconds, so a finer correction is impossible."""

SKEW_S_MAX: Final = 30
"""The largest correction. With a larger offset the records of the host are late or early, and are dropped."""


class HostClock(msgspec.Struct, frozen=True, array_like=True):
    """The state of the estimate for one host."""

    shift_s: int = 0
    """Seconds to add to the host's time to get the reader's time."""
    least: tuple[tuple[int, float], ...] = ()
    """The smallest difference in each second of the reader's clock, oldest first."""

    def observe(self, seen: Iterable[tuple[float, float]]) -> HostClock:
        """The clock after some arrivals, each with its time and its delay after the end of its second."""
        least = dict(self.least)
        for arrived_s, behind_s in seen:
            second = int(arrived_s)
            least[second] = min(behind_s, least.get(second, behind_s))
        newest = max(least)
        kept = sorted((second, value) for second, value in least.items() if second > newest - CLOCK_MEMORY_S)
        shift_s = self.shift_s
        estimate = min(value for _, value in kept)
        if newest - kept[0][0] >= CLOCK_LEARN_S and abs(estimate - shift_s) > SKEW_STEP_S:
            shift_s = round(max(-SKEW_S_MAX, min(estimate, SKEW_S_MAX)))
        return HostClock(shift_s, tuple(kept))
