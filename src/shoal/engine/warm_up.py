"""Warm-up: compiles the kernels of an engine, or loads them from the cache, before it serves."""

from __future__ import annotations

from shoal.engine import filter_numbers, seat_groups
from shoal.filters.index import warm_up as index


def warm_up() -> None:
    """Uses every kernel once. The first time on a machine it takes a minute. Events are never Arrow batches here, so
    Arrow is not imported."""
    index.warm_up(columns=False)
    seat_groups.warm_up()
    filter_numbers.warm_up()
