"""A forecast: what all servers together are expected to send, over time.

Owns the record and the one question that a policy asks it: by what factor will the load be higher within a while? Who
makes forecasts, and of what, is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal.balance.columns import Floats

RISE_MIN: Final = 1.02
"""A rise below this is none."""
RISE_MAX: Final = 3.0
"""A rise above this is not believed."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Expected load, straight between points. Nothing is said of what is before the first and after the last."""

    at_s: Floats
    """In seconds of the clock that windows have, rising."""
    bytes_out: Floats
    """Bytes a second."""

    def rise(self, now_s: float, within_s: float) -> float:
        """The factor by which the load of now will have risen at its highest within a while; 1 if it will not, or if
        nobody can say.

        It is a factor of the forecast's own load of now, not of the measured one: on a day that is busier than expected
        the peak will be so too.
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
