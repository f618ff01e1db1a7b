"""`iot`: thresholds over a hundred sensors. An event has the readings of about thirty of them.

Owns its numbers.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.filters.conjunctions import Conjunction
from shoal.filters.filter import Filter
from shoal.filters.ranges import Numbers
from shoal.filters.values import Value

ATTRIBUTES: Final = tuple(f"sensor{number:02}" for number in range(100))
"""In the order of a conjunction."""
VALUES: Final = 10_000
"""Readings are integers below this, uniform from 0."""
PREDICATES_MAX: Final = 3
SELECTIVITY_MAX: Final = 0.1
"""Of one predicate, if the event has the sensor: uniform from 0 to this."""
PRESENT: Final = 0.3
WORDS: Final = (
    "100 sensors with integer readings uniform in 0..9999, each in an event with a probability of 30 %; a filter has "
    "1 to 3 of them, each <= a threshold that up to 10 % of the readings are below"
)


def make(filters: int, events: int, seed: int) -> tuple[list[Filter], list[dict[str, Value]]]:
    """Filters and events."""
    rng = np.random.default_rng([seed, 0])
    count = rng.integers(1, PREDICATES_MAX + 1, filters).tolist()
    which = rng.integers(len(ATTRIBUTES), size=(filters, PREDICATES_MAX)).tolist()
    threshold = rng.integers(int(VALUES * SELECTIVITY_MAX), size=(filters, PREDICATES_MAX)).tolist()
    made = []
    for number, sensors, highs in zip(count, which, threshold, strict=True):
        chosen = dict(zip(sensors[:number], highs, strict=False))
        pairs = [(ATTRIBUTES[sensor], Numbers(high=chosen[sensor])) for sensor in sorted(chosen)]
        made.append(Filter((Conjunction(tuple(pairs)),)))
    return made, _events(events, np.random.default_rng([seed, 1]))


def _events(count: int, rng: np.random.Generator) -> list[dict[str, Value]]:
    readings = rng.integers(VALUES, size=(count, len(ATTRIBUTES))).tolist()
    present = (rng.random((count, len(ATTRIBUTES))) < PRESENT).tolist()
    return [
        {name: value for name, value, there in zip(ATTRIBUTES, values, marks, strict=True) if there}
        for values, marks in zip(readings, present, strict=True)
    ]
