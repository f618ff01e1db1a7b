"""The measures of the experiment esilbops-13, on logs whose answers are known."""

from __future__ import annotations

import pytest

from shoal.lab.soak.engine_orders import ASKED, DELIVERED, IN_FORCE, Line
from shoal.lab.soak.engine_round import EngineOutcome, EngineSoakOptions
from shoal.lab.soak.engine_scaling import ScaleChange, ScaleMeasures, evaluate, result
from shoal.limits import DEFAULT_LIMITS

OPTIONS = EngineSoakOptions(filters=100, rate=100, seconds=1.0, seed=1, limits=DEFAULT_LIMITS, kill=False)
CHANGES = [ScaleChange(1.0, 3.0, 3, True), ScaleChange(5.0, 5.5, 1, False), ScaleChange(8.0, 8.4, 3, False)]


def measured(extra: list[Line] | None = None) -> ScaleMeasures:
    """A delivery every 10 ms to two readers; one of them gets nothing from 5.1 to 5.3."""
    lines = [Line(DELIVERED, at / 100, "r1", "e", at, (1,)) for at in range(1000)]
    lines += [Line(DELIVERED, at / 100, "r2", "e", at, (1,)) for at in range(1000) if not 510 < at < 530]
    outcome = EngineOutcome(OPTIONS)
    return evaluate([*lines, *(extra or [])], CHANGES, outcome)


def test_the_pause_of_the_reader_that_waits_longest_counts() -> None:
    found = measured()
    assert found.pauses_ms == pytest.approx([200.0, 10.0])
    assert found.quiet_pauses_ms == pytest.approx([10.0, 10.0])
    assert found.deliveries[0] == (0.0, 200)


def test_filters_that_come_during_a_change_count() -> None:
    lines = [Line(ASKED, at, "r1", "-", number) for number, at in enumerate((0.1, 5.2, 9.0))]
    lines += [Line(IN_FORCE, at + 0.05 * (number + 1), "r1", "-", number) for number, at in enumerate((0.1, 5.2, 9.0))]
    assert measured(lines).in_force_ms_p99 == pytest.approx(100.0)


def test_a_change_that_starts_processes_is_told_apart_and_claims_are_judged() -> None:
    slow = measured([Line(ASKED, 5.2, "r1", "-", 1), Line(IN_FORCE, 5.3, "r1", "-", 1)])
    found = result(slow, slow)
    assert found.headline["scaling_seconds"] == pytest.approx(0.45)
    assert found.headline["scaling_seconds_with_start"] == pytest.approx(2.0)
    assert found.headline["delivery_pause_ms"] == pytest.approx(105.0)
    assert found.headline["pause_above_quiet_ms"] == pytest.approx(95.0)
    assert found.holds
    lost = result(slow._replace(lost=1), slow)
    assert not lost.holds
    assert lost.headline["lost"] == 1
