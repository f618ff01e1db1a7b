"""When the quiet phase of a run ends, and with which verdict."""

from __future__ import annotations

from random import Random

import pytest

from shoal.lab.sim.checkers import Verdict
from shoal.lab.sim.scenario import (
    BEGIN_S,
    COMMON,
    LIVENESS_S_MAX,
    LOOK_S,
    QUIET_S,
    TRANSIT_S,
    FaultTargets,
    Scenario,
    Variant,
)
from shoal.lab.sim.world.fault_options import FaultOptions

QUIET_AT = BEGIN_S + Scenario.safety_s + Scenario.calm_s
"""When applications stop."""
NEVER = float("inf")


class OneMessage(Scenario):
    """The last message is confirmed at one time and arrives at another. Nothing else happens."""

    def __init__(self, confirmed_at: float, arrives_at: float, variant: Variant = COMMON) -> None:
        self.confirmed_at = confirmed_at
        self.arrives_at = arrives_at
        super().__init__(1, variant=variant)

    def draw_faults(self, rng: Random) -> FaultOptions:
        return FaultOptions()

    def build(self, rng: Random) -> FaultTargets:
        return FaultTargets((), (), ())

    def quiet(self) -> bool:
        return self.world.now >= self.confirmed_at

    def judge(self) -> Verdict:
        verdict = Verdict()
        if self.world.now < self.arrives_at:
            verdict.violate("lost", "the message")
        return verdict


@pytest.mark.parametrize("late_s", [2.0, QUIET_S - 0.1, QUIET_S + 0.1, 4 * QUIET_S])
@pytest.mark.parametrize("transit_s", [0.0, 0.6, TRANSIT_S - LOOK_S])
def test_a_message_that_is_still_on_its_way_is_not_lost(late_s: float, transit_s: float) -> None:
    confirmed_at = QUIET_AT + late_s
    run = OneMessage(confirmed_at, confirmed_at + transit_s)

    assert not run.execute().verdict.violations
    assert run.world.now <= confirmed_at + transit_s + LOOK_S


@pytest.mark.parametrize("late_s", [0.0, 2.0, QUIET_S + 0.1, 4 * QUIET_S])
def test_a_message_that_does_not_arrive_is_lost(late_s: float) -> None:
    run = OneMessage(QUIET_AT + late_s, NEVER)

    assert run.execute().verdict.violations == ["lost: the message"]
    assert run.world.now <= QUIET_AT + max(QUIET_S, late_s + TRANSIT_S) + LOOK_S


def test_a_world_that_does_not_settle_is_judged_at_last() -> None:
    run = OneMessage(NEVER, NEVER)

    assert run.execute().verdict.violations == ["lost: the message"]
    assert run.world.now >= LIVENESS_S_MAX


def test_a_variant_changes_one_run_and_only_attributes_that_exist() -> None:
    run = OneMessage(NEVER, NEVER, {"liveness_s_max": QUIET_AT + 5.0})

    assert run.execute().verdict.violations == ["lost: the message"]
    assert run.world.now <= QUIET_AT + 5.0 + LOOK_S
    assert Scenario.liveness_s_max == LIVENESS_S_MAX
    with pytest.raises(AttributeError, match="livness"):
        OneMessage(NEVER, NEVER, {"livness_s_max": 1.0})
