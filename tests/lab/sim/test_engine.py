"""The scenario `engine`: it holds, repeats itself, and its checkers notice a broken rule."""

from __future__ import annotations

from functools import cache
from typing import Final

import pytest
from tests.lab.sim.broken_rules import assert_noticed

from shoal.lab.sim.scenario import Outcome, Variant
from shoal.lab.sim.scenarios.engine import CORNERS, VARIANTS, EngineRun, run_seed

pytestmark = pytest.mark.xdist_group("sim_engine")
SHORT: Final[Variant] = {"liveness_s_max": 40.0}
"""When a run ends at the latest: without a rule, many never settle. The control settles within that time."""


def run_healthy(seed: int, rule: str = "") -> Outcome:
    """A run with all rules, in the variant of a rule: what one test has looked at is the control of others."""
    return _run_healthy(seed, rule if rule in VARIANTS else "")


@cache
def _run_healthy(seed: int, variant: str) -> Outcome:
    return run_seed(seed, variant={**VARIANTS.get(variant, {}), **SHORT})


def test_seeds_hold() -> None:
    for seed in (2, 10, 122):
        outcome = run_seed(seed)
        assert outcome.verdict.violations == [], seed
        assert outcome.verdict.deliveries > 0
        assert {*outcome.exercised} & {*CORNERS.values()}


def test_the_same_seed_gives_the_same_digest() -> None:
    assert run_seed(3, variant=SHORT).digest == run_healthy(3).digest


CATCHING: Final = {
    "present_all": (1, "lost"),
    "roll_first": (1, "false alarm"),
    "dedupe_emitter": (1, "duplicated"),
    "ready_first": (2, "lost"),
    "fence_instances": (3, "wrong parts"),
    "old_state_last": (2, "growth"),
    "one_copy": (5, "unmatched"),
    "say_late": (4, "lost"),
    "lease_checked": (27, "lost"),
    "marks_aligned": (27, "lost"),
    "change_to_both": (21, "lost"),
    "answer_in_time": (48, "lost"),
    "in_order": (117, "lost"),
}


@pytest.mark.parametrize("name", CATCHING)
def test_a_broken_rule_is_noticed(name: str) -> None:
    seed, found = CATCHING[name]
    assert_noticed(run_seed, name, (seed,), {found}, VARIANTS)


def test_a_change_that_is_given_up_while_orders_are_lost_does_not_stop_the_engine() -> None:
    """An access point did not hear that a change was given up before the next one; then all waited for its mark."""
    assert run_healthy(4, "old_state_last").verdict.violations == []


def test_a_matcher_that_is_slow_to_hear_the_end_of_a_change_does_not_stop_the_engine() -> None:
    """Another access point left, and the matcher was not ordered to listen to it any more; then all waited for it."""
    outcome = run_healthy(3)
    assert outcome.verdict.violations == []
    assert outcome.exercised["access point removed"]


def test_late_orders_of_a_head_do_not_bring_back_the_operators_of_its_process() -> None:
    """A head ordered its own process to leave, heard its earlier orders afterwards, and began again with them: the next
    change made it an access point that never said Taken. The run settled at t=152."""
    run = EngineRun(3)
    assert run.execute().verdict.violations == []
    assert run.world.now < 40


def test_readers_get_no_gap_if_only_processes_of_the_engine_die() -> None:
    """Three causes of gaps without a loss: a roll that was over before it was called, one that was over before clients
    had heard its answers, and letters of a process that woke up."""
    for seed in (3, 4, 10):
        outcome = run_healthy(seed, "roll_first")
        assert outcome.verdict.violations == [], seed
        assert outcome.exercised["take-over"] > 1
