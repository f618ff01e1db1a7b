"""Metrics of an engine's process.

Owns their names. They are read when the page is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from shoal.engine.links import Status
from shoal.metrics import gauge

_GAUGES: Final = {
    "instance": gauge(
        "shoal_engine_instance", "number of the instance in which this process runs operators; 0: it stands by"
    ),
    "clients": gauge("shoal_engine_clients", "clients of the access point in this process"),
    "filters": gauge("shoal_engine_filters", "filters of the matcher in this process"),
    "in_flight": gauge("shoal_engine_in_flight_events", "events that were taken in and are not delivered everywhere"),
    "events": gauge("shoal_engine_events", "events that the access point in this process has taken in"),
    "deliveries": gauge("shoal_engine_deliveries", "deliveries by the exit point in this process"),
    "choked": gauge("shoal_engine_choked_events", "events that found too many in flight, and are sent again"),
}


def show(status: Callable[[], Status | None]) -> None:
    """Shows the counts of an engine from now on."""

    def count(name: str) -> float:
        return float(getattr(status(), name, 0))

    for name, one in _GAUGES.items():
        one.set_function(partial(count, name))
