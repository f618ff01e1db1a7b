"""The scenario `engine`: it holds, repeats itself, and its checkers notice a broken rule."""

from __future__ import annotations

from functools import cache

import pytest

from shoal.lab.sim.scenarios.engine import CORNERS, run_seed
from shoal.rules import without

pytestmark = pytest.mark.xdist_group("sim_engine")
run_once = cache(run_seed)
"""A run with all rules: what one test has looked at is the control of others."""


def test_seeds_hold() -> None:
    for seed in (2, 10, 122):
        outcome = run_once(seed)
        assert outcome.verdict.violations == [], seed
        assert outcome.verdict.deliveries > 0
        assert {*outcome.exercised} & {*CORNERS.values()}


def test_the_same_seed_gives_the_same_digest() -> None:
    assert run_seed(3).digest == run_once(3).digest


@pytest.mark.parametrize(
    ("rule", "seed", "found"),
    [
        ("present_all", 1, "lost"),
        ("say_late", 1, "lost"),
        ("dedupe_emitter", 2, "duplicated"),
        ("ready_first", 3, "lost"),
        ("one_copy", 4, "unmatched"),
        ("in_order", 21, "false alarm"),
        ("marks_aligned", 21, "unsettled"),
        ("change_to_both", 21, "lost"),
        ("answer_in_time", 83, "lost"),
    ],
)
def test_a_broken_rule_is_noticed(rule: str, seed: int, found: str) -> None:
    assert run_once(seed).verdict.violations == []
    assert any(text.startswith(found) for text in run_seed(seed, without(rule)).verdict.violations)
