"""`hard`: ranges over twenty attributes. No predicate is selective by itself, and none is an equality.

Owns its numbers. Every event has all attributes, so that absence decides nothing.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import numpy as np

from shoal.filters.conjunctions import Conjunction
from shoal.filters.filter import Filter
from shoal.filters.ranges import Numbers
from shoal.filters.values import Value

ATTRIBUTES: Final = tuple(f"a{number:02}" for number in range(20))
"""In the order of a conjunction."""
VALUES: Final = 1000
"""Values are integers below this, uniform from 0."""
PREDICATES: Final = (3, 4, 5)
SELECTIVITY: Final = (0.02, 0.22)
"""Of one predicate, uniform between these. A filter matches 0.065 % of the events on average."""
WORDS: Final = (
    "20 integer attributes uniform in 0..999, all in every event; a filter has 3 to 5 of them, each <=, >= or both, "
    "with a selectivity uniform in 2..22 %"
)
_CHUNK: Final = 1 << 16


def make(filters: int, events: int, seed: int) -> tuple[list[Filter], list[dict[str, Value]]]:
    """Filters and events."""
    rng = np.random.default_rng([seed, 0])
    made: list[Filter] = []
    while len(made) < filters:
        made.extend(_chunk(min(_CHUNK, filters - len(made)), rng))
    rows = np.random.default_rng([seed, 1]).integers(VALUES, size=(events, len(ATTRIBUTES))).tolist()
    return made, [dict(zip(ATTRIBUTES, row, strict=True)) for row in rows]


def _chunk(count: int, rng: np.random.Generator) -> list[Filter]:
    most = max(PREDICATES)
    which = rng.permuted(np.tile(np.arange(len(ATTRIBUTES)), (count, 1)), axis=1)[:, :most]
    width = np.rint(rng.uniform(*SELECTIVITY, (count, most)) * VALUES).astype(np.int64)
    kind = rng.integers(3, size=(count, most))
    inner = (rng.random((count, most)) * (VALUES - width + 1)).astype(np.int64)
    low = np.choose(kind, (np.zeros_like(width), VALUES - width, inner))
    high = low + width - 1
    predicates = rng.choice(PREDICATES, count).tolist()
    filters = []
    for number, *columns in zip(predicates, which.tolist(), kind.tolist(), low.tolist(), high.tolist(), strict=True):
        ranges = sorted(islice(zip(*columns, strict=True), number))
        pairs = [(ATTRIBUTES[attribute], _range(*rest)) for attribute, *rest in ranges]
        filters.append(Filter((Conjunction(tuple(pairs)),)))
    return filters


def _range(kind: int, low: int, high: int) -> Numbers:
    """`<=`, `>=` or both bounds."""
    if kind == 0:
        return Numbers(high=high)
    return Numbers(low=low) if kind == 1 else Numbers(low, high)
