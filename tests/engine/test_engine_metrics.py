"""Metrics of an engine: the counts of the instance that serves, and zeros of one that stands by."""

from __future__ import annotations

from shoal.engine import engine_metrics
from shoal.engine.engine import EngineStatus
from shoal.metrics import REGISTRY


def test_the_counts_are_read_when_they_are_asked_for() -> None:
    statuses: list[EngineStatus | None] = [None]
    engine_metrics.show(lambda: statuses[0])
    assert REGISTRY.get_sample_value("shoal_engine_clients") == 0
    statuses[0] = EngineStatus(3, 4, 5, 6, False, 7, 8, 9)
    names = ("instance", "clients", "filters", "in_flight_events", "events", "deliveries", "choked_events")
    assert [REGISTRY.get_sample_value(f"shoal_engine_{name}") for name in names] == [3, 4, 5, 6, 7, 8, 9]
