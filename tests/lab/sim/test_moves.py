"""The scenario `moves`: seeds are clean, and the checkers notice each rule of moves that is switched off."""

from __future__ import annotations

import pytest
from tests.lab.sim.broken_rules import assert_noticed

from shoal.lab.sim.protocols import PROTOCOLS
from shoal.lab.sim.scenarios.moves import run_seed
from shoal.lab.sim.scenarios.moves_corners import BREAKS, CORNERS, VARIANTS
from shoal.rules import declared, without

pytestmark = pytest.mark.xdist_group("sim_moves")

CATCHING: dict[str, tuple[int, ...]] = {
    "forward_old_to_new": (35,),
    "forward_new_to_old": (1,),
    "home_help": (35,),
    "version_in_header": (1,),
    "mark_forwarded": (1,),
    "forward_authentic": (1,),
    "all_unended_placements": (3,),
    "prepare": (35,),
    "widen_before_switch": (1,),
    "narrow_last": (23,),
    "whole_resync": (6,),
    "dedupe": (0,),
    "order": (35,),
    "heal": (9,),
    "handshake": (21,),
    "lease": (26,),
}
"""Quick seeds that are known to catch a broken rule."""

CLEAN = (5, 120)
"""The controls of broken rules are clean seeds too."""

KINDS: dict[str, set[str]] = {
    "mark_forwarded": {"runaway"},
    "forward_authentic": {"invented"},
    "dedupe": {"duplicated"},
    "heal": {"unhealed", "lost"},
    "handshake": {"early", "lost"},
    "lease": {"split"},
}
"""The violations that a broken rule causes, where that is not a loss."""


@pytest.mark.parametrize("seed", CLEAN)
def test_a_seed_is_clean(seed: int) -> None:
    outcome = run_seed(seed)
    verdict = outcome.verdict
    assert verdict.violations == []
    assert (verdict.lost, verdict.duplicated, verdict.reordered) == (0, 0, 0)
    assert outcome.exercised["move"] > 0, "channels moved"
    assert verdict.deliveries > 0, "messages were delivered"


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_rule_is_caught(name: str) -> None:
    assert_noticed(run_seed, name, CATCHING.get(name, ()), KINDS.get(name, {"lost"}), VARIANTS)


def test_every_rule_is_broken_by_some_scenario() -> None:
    assert {name for protocol in PROTOCOLS.values() for name in protocol.breaks} == {*declared()}


def test_a_protocol_breaks_only_rules_that_exist() -> None:
    for protocol in PROTOCOLS.values():
        assert len(set(protocol.breaks)) == len(protocol.breaks)
        for name in protocol.breaks:
            without(name)


def test_every_pair_phase_and_death_is_a_corner() -> None:
    assert "single -> all_publishers" in CORNERS
    assert "all_subscribers -> all_subscribers" in CORNERS
    assert "phase narrow" in CORNERS
    assert "death of coordinator in widen" in CORNERS
    assert sum(" -> " in name for name in CORNERS) == 9
    assert sum(name.startswith("death of ") for name in CORNERS) == 20
