"""Metrics of an engine: the counts of the instance that serves, and zeros of one that stands by."""

from __future__ import annotations

from shoal.engine import engine_metrics
from shoal.engine.links import Status
from shoal.metrics import REGISTRY


def test_the_counts_are_read_when_they_are_asked_for() -> None:
    statuses: list[Status | None] = [None]
    engine_metrics.show(lambda: statuses[0])
    assert REGISTRY.get_sample_value("shoal_engine_clients") == 0
    statuses[0] = Status("a", 3, clients=4, filters=5, in_flight=6, events=7, deliveries=8, choked=9)
    names = ("instance", "clients", "filters", "in_flight_events", "events", "deliveries", "choked_events")
    assert [REGISTRY.get_sample_value(f"shoal_engine_{name}") for name in names] == [3, 4, 5, 6, 7, 8, 9]
