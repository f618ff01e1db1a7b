"""The scenario `recording`: seeds are clean, and the checker notices each rule of recording that is switched off."""

from __future__ import annotations

import pytest
from tests.lab.sim.broken_rules import assert_noticed

from shoal.lab.sim.protocols import PROTOCOLS
from shoal.lab.sim.scenarios.recording import BREAKS, CORNERS, run_seed

CATCHING = {
    "record_once": (0,),
    "record_absence": (6,),
    "record_loss": (9,),
    "record_alone": (68,),
    "deletions": (0,),
    "told": (54,),
}
"""Seeds that are known to catch each broken rule."""
KINDS = {
    "record_once": "recorded twice",
    "record_absence": "silent",
    "record_loss": "silent",
    "record_alone": "recorded twice",
    "deletions": "recorded unmarked",
    "told": "invented",
}


def test_it_is_a_protocol_of_campaigns() -> None:
    assert (PROTOCOLS["recording"].breaks, PROTOCOLS["recording"].corners) == (BREAKS, CORNERS)


@pytest.mark.parametrize("seed", [0, 5])
def test_no_record_is_silent_about_a_message(seed: int) -> None:
    outcome = run_seed(seed)
    assert outcome.verdict.violations == []
    assert outcome.exercised["agent recorded"] > 0


@pytest.mark.parametrize("rule", BREAKS)
def test_a_broken_rule_is_seen(rule: str) -> None:
    assert_noticed(run_seed, rule, CATCHING[rule], {KINDS[rule]}, {})
