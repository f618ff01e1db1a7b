"""Curves: how the number of clients, or their load, changes over time.

Owns straight lines between points, and the shape of a day.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from shoal.balance.columns import Floats


@dataclass(frozen=True, slots=True)
class Curve:
    """Straight lines between (second, value) points, in order of time."""

    points: tuple[tuple[float, float], ...]

    @property
    def seconds(self) -> int:
        """The second of the last point."""
        return int(self.points[-1][0])

    def at(self, seconds: npt.ArrayLike) -> Floats:
        """The values at these moments; constant before the first and after the last point."""
        times, values = zip(*self.points, strict=True)
        return np.asarray(np.interp(np.asarray(seconds, np.float64), times, values), np.float64)


def ramp(first: float, last: float, each_s: float, hold_s: float = 0.0) -> Curve:
    """From one value to another, `each_s` a second, then level for `hold_s`."""
    top_s = abs(last - first) / each_s
    points = ((0.0, first), (top_s, last))
    return Curve((*points, (top_s + hold_s, last)) if hold_s else points)


NIGHT: Final = (0.32, 0.22, 0.16, 0.13, 0.12, 0.15, 0.24, 0.38, 0.48, 0.53, 0.57, 0.6)
NOON: Final = (0.63, 0.62, 0.61, 0.64, 0.7, 0.78, 0.87, 0.95, 1.0, 0.96, 0.76, 0.5)
DAY: Final = (*NIGHT, *NOON)
"""Share of the busiest hour, by hour: lowest before dawn, highest in the evening, as in online games."""
