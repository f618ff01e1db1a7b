"""Pauses of deliveries: each is that of a freeze, of a return of the coordinator, or of quiet time."""

from __future__ import annotations

from shoal.lab.soak.pauses import PauseMeter, Pauses
from shoal.lab.soak.round_log import CoordinatorBack, CoordinatorKilled, ServerFrozen, ServerThawed


def steady(*parts: tuple[float, float]) -> list[float]:
    """Deliveries every 10 ms in these intervals, and none between them."""
    return [since + step / 100 for since, until in parts for step in range(round((until - since) * 100) + 1)]


def test_a_pause_belongs_to_the_fault_that_it_overlaps() -> None:
    meter = PauseMeter()
    meter.take_fault(ServerFrozen("s1", 10.0))
    meter.take_fault(ServerThawed("s1", 16.0))
    meter.take_fault(CoordinatorKilled(25.0))
    meter.take_fault(CoordinatorBack(30.0))
    meter.take_deliveries(steady((0.0, 5.0), (5.2, 10.5), (14.0, 30.1), (30.6, 40.0)))
    meter.take_deliveries(steady((0.0, 40.0)))
    found = meter.sum_up()
    assert [round(one, 2) for one in found.failovers] == [3.5]
    assert [round(one, 2) for one in found.returns] == [0.3]
    assert round(found.quiet, 2) == 0.2


def test_a_return_without_a_longer_pause_costs_nothing() -> None:
    meter = PauseMeter()
    meter.take_fault(CoordinatorKilled(10.0))
    meter.take_fault(CoordinatorBack(11.0))
    meter.take_deliveries(steady((0.0, 5.0), (5.4, 11.2), (11.3, 20.0)))
    assert meter.sum_up().returns == [0.0]


def test_a_stall_that_began_before_the_return_counts() -> None:
    meter = PauseMeter()
    meter.take_fault(CoordinatorKilled(10.0))
    meter.take_fault(CoordinatorBack(20.0))
    meter.take_deliveries(steady((0.0, 19.9), (22.9, 30.0)))
    assert [round(one, 2) for one in meter.sum_up().returns] == [3.0]


def test_rounds_are_added() -> None:
    total = Pauses()
    total.add(Pauses([1.0], [0.1], 0.2))
    total.add(Pauses([2.0], [0.3], 0.1))
    assert total == Pauses([1.0, 2.0], [0.1, 0.3], 0.2)
