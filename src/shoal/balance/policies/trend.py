"""Growth of the load, seen from the last windows.

Owns the two questions that the `shoal` policy asks of the past: by what factor will the load have grown at the horizon,
and has it just jumped?
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.balance.columns import Floats

POINTS_MIN: Final = 5
"""Windows below which nothing is said about growth."""
GROWTH_MIN: Final = 1.02
"""Growth below this is none."""
GROWTH_MAX: Final = 2.0
"""Growth above this is not believed."""
NOISE: Final = 3.0
"""How many times larger than the scatter around the line its rise must be."""
JUMP: Final = 1.1
"""How many times higher than in the window before a load is that has jumped."""
RECENT: Final = 10
"""Windows of the recent past, in both halves of which the load must have risen."""


def growth(at_s: Floats, load: Floats, horizon_s: float) -> float:
    """The factor by which the load grows within the horizon if it goes on as it did; 1 if it does not grow.

    The line is the one by Theil and Sen (the median of the slopes of all pairs), so that a few odd windows do not
    bend it. What goes on growing has grown in both halves of the recent past: a sudden step has not, wherever it lies,
    and what grew some time ago does not count either. A rise that could be noise is none.
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
    """Whether the load is much higher than in the window before, and was not so then: the window may have seen no more
    than a part of what has begun in it."""
    rises = load[1:] > JUMP * load[:-1]
    return bool(len(rises) and rises[-1] and not rises[-2:-1].any())


def _slope(at_s: Floats, load: Floats) -> float:
    """The median of the slopes of all pairs; 0 if there is none."""
    first, second = np.triu_indices(len(at_s), 1)
    apart = at_s[second] - at_s[first]
    slopes = (load[second] - load[first])[apart > 0] / apart[apart > 0]
    return float(np.median(slopes)) if len(slopes) else 0.0
