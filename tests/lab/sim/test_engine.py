"""The scenario `engine`: it holds, repeats itself, and its checkers notice a broken rule."""

from __future__ import annotations

import pytest

from shoal.lab.sim.scenarios.engine import CORNERS, run_seed
from shoal.rules import without


def test_seeds_hold() -> None:
    """An answer of an earlier conversation came late (162)."""
    for seed in (2, 10, 26, 162):
        outcome = run_seed(seed)
        assert outcome.verdict.violations == [], seed
        assert outcome.verdict.deliveries > 0
        assert {*outcome.exercised} & {*CORNERS.values()}


def test_the_same_seed_gives_the_same_digest() -> None:
    assert run_seed(3).digest == run_seed(3).digest


@pytest.mark.parametrize(("rule", "found"), [("say_late", "lost"), ("present_all", "lost"), ("dedupe_emitter", "dup")])
def test_a_broken_rule_is_noticed(rule: str, found: str) -> None:
    violations = (text for seed in range(20) for text in run_seed(seed, without(rule)).verdict.violations)
    assert any(text.startswith(found) for text in violations)
