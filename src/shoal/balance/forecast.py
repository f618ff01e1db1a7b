"""A forecast: the expected total rate of bytes sent by all servers, over time.

Owns the record and the one query that policies make: by what factor will the load rise within a given time? How
forecasts are made is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal.balance.columns import Floats

RISE_MIN: Final = 1.02
"""Smaller rises are ignored."""
RISE_MAX: Final = 3.0
"""Larger rises are limited to this."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Expected load, interpolated linearly between points; undefined before the first and after the last."""

    at_s: Floats
    """Increasing times, in seconds of the windows' clock."""
    bytes_out: Floats
    """Bytes per second."""

    def rise(self, now_s: float, within_s: float) -> float:
        """The largest factor by which the load will rise within `within_s`; 1 if it will not rise or the forecast does
        not cover the time.

        The factor is relative to the forecast's own load at `now_s`, not to the measured load: on a day that is busier
        than expected, the peak will be higher too.
        """
        if not len(self.at_s):
            return 1.0
        until_s = min(now_s + within_s, float(self.at_s[-1]))
        now_s = max(now_s, float(self.at_s[0]))
        if now_s > until_s:
            return 1.0
        between = self.bytes_out[(self.at_s > now_s) & (self.at_s < until_s)]
        now, last = np.interp([now_s, until_s], self.at_s, self.bytes_out)
        if now <= 0.0:
            return 1.0
        factor = min(max(float(last), float(between.max(initial=0.0))) / float(now), RISE_MAX)
        return factor if factor >= RISE_MIN else 1.0
