"""Growth of the load, from the last windows.

Owns two estimates for the `shoal` policy: the factor by which the load will have grown at the horizon, and whether it
has just jumped.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.balance.columns import Floats

POINTS_MIN: Final = 5
"""Fewest windows for an estimate of growth."""
GROWTH_MIN: Final = 1.02
"""Growth below this counts as none."""
GROWTH_MAX: Final = 2.0
"""Upper limit of the estimated growth."""
NOISE: Final = 3.0
"""Factor by which the rise must exceed the scatter around the line."""
JUMP: Final = 1.1
"""Factor between two windows from which on the load counts as having jumped."""
RECENT: Final = 10
"""Number of recent windows; the load must have risen in both halves of them."""


def growth(at_s: Floats, load: Floats, horizon_s: float) -> float:
    """Return the factor by which the load grows within the horizon if it continues as it did; 1 if it does not grow.

    The line is the Theil-Sen estimator (the median of the slopes of all pairs), so that a few outliers do not bend it.
    Lasting growth shows in both halves of the recent past; a sudden step does not, and neither does growth that ended
    some time ago. A rise that could be noise counts as none.
    """
    if len(at_s) < POINTS_MIN:
        return 1.0
    recent = min(len(at_s), RECENT)
    half = (recent + 1) // 2
    older, newer = slice(len(at_s) - recent, len(at_s) - recent + half), slice(len(at_s) - half, None)
    slope = _slope(at_s, load)
    offsets = load - slope * at_s
    level = float(np.median(offsets) + slope * at_s[-1])
    scatter = float(np.median(np.abs(offsets - np.median(offsets))))
    if level <= 0.0 or slope * float(at_s[-1] - at_s[0]) <= NOISE * scatter:
        return 1.0
    lasting = min(slope, _slope(at_s[older], load[older]), _slope(at_s[newer], load[newer]))
    factor = min(1.0 + lasting * horizon_s / level, GROWTH_MAX)
    return factor if factor >= GROWTH_MIN else 1.0


def jumped(load: Floats) -> bool:
    """Return whether the load is much higher than in the window before, and was not in the one before that: the window
    may contain only a part of the rise.
    """
    rises = load[1:] > JUMP * load[:-1]
    return bool(len(rises) and rises[-1] and not rises[-2:-1].any())


def _slope(at_s: Floats, load: Floats) -> float:
    """Return the median of the slopes of all pairs; 0 if there are none."""
    first, second = np.triu_indices(len(at_s), 1)
    apart = at_s[second] - at_s[first]
    slopes = (load[second] - load[first])[apart > 0] / apart[apart > 0]
    return float(np.median(slopes)) if len(slopes) else 0.0
