"""The scenario `engine`: it holds, repeats itself, and its checkers notice a broken rule."""

from __future__ import annotations

from functools import cache
from typing import Final

import pytest

from shoal.lab.sim.scenario import Outcome, Variant
from shoal.lab.sim.scenarios.engine import CORNERS, run_seed
from shoal.rules import without

pytestmark = pytest.mark.xdist_group("sim_engine")
SHORT: Final[Variant] = {"liveness_s_max": 40.0}
"""When a run ends at the latest: without a rule, many never settle. The control settles within that time."""


@cache
def run_healthy(seed: int) -> Outcome:
    """A run with all rules: what one test has looked at is the control of others."""
    return run_seed(seed, variant=SHORT)


def test_seeds_hold() -> None:
    for seed in (2, 10, 122):
        outcome = run_seed(seed)
        assert outcome.verdict.violations == [], seed
        assert outcome.verdict.deliveries > 0
        assert {*outcome.exercised} & {*CORNERS.values()}


def test_the_same_seed_gives_the_same_digest() -> None:
    assert run_seed(3).digest == run_healthy(3).digest


@pytest.mark.parametrize(
    ("rule", "seed", "found"),
    [
        ("present_all", 1, "lost"),
        ("say_late", 1, "lost"),
        ("dedupe_emitter", 1, "duplicated"),
        ("ready_first", 3, "lost"),
        ("one_copy", 4, "unmatched"),
        ("in_order", 21, "false alarm"),
        ("marks_aligned", 21, "unsettled"),
        ("change_to_both", 21, "lost"),
        ("answer_in_time", 52, "lost"),
    ],
)
def test_a_broken_rule_is_noticed(rule: str, seed: int, found: str) -> None:
    assert run_healthy(seed).verdict.violations == []
    outcome = run_seed(seed, without(rule), variant=SHORT)
    assert any(text.startswith(found) for text in outcome.verdict.violations)
