"""The scenario `moves`: seeds are clean, and the checkers notice each rule of moves that is switched off.

Which seed catches a broken rule may change with the scenario, so several are tried: first those that are known to catch
it, then from the first seed on. Known ones are among the clean seeds, so what they catch is the broken rule.
"""

from __future__ import annotations

from itertools import chain

import pytest

from shoal.lab.sim.protocols import PROTOCOLS
from shoal.lab.sim.scenario import Outcome
from shoal.lab.sim.scenarios.moves import run_seed
from shoal.lab.sim.scenarios.moves_corners import BREAKS, CORNERS
from shoal.rules import declared, without

SEARCH_SEEDS_MAX = 25
"""How many seeds are tried beyond the known ones."""

CATCHING: dict[str, tuple[int, ...]] = {
    "forward_old_to_new": (1,),
    "forward_new_to_old": (1,),
    "home_help": (1,),
    "version_in_header": (12,),
    "mark_forwarded": (0,),
    "forward_authentic": (1,),
    "all_unended_placements": (123,),
    "prepare": (1,),
    "widen_before_switch": (1,),
    "narrow_last": (23,),
    "whole_resync": (83, 29),
    "dedupe": (2,),
    "order": (35,),
    "heal": (9,),
    "handshake": (16,),
    "lease": (26,),
}
"""Quick seeds that are known to catch a broken rule."""

CLEAN = sorted({5, 6, 9, 13, 17, 19, *chain(*CATCHING.values())})

KINDS: dict[str, set[str]] = {
    "mark_forwarded": {"runaway"},
    "forward_authentic": {"invented"},
    "dedupe": {"duplicated"},
    "heal": {"unhealed", "lost"},
    "handshake": {"early", "lost"},
    "lease": {"split"},
}
"""The violations that a broken rule causes, where that is not a loss."""


def kinds(outcome: Outcome) -> set[str]:
    return {violation.split(":")[0] for violation in outcome.verdict.violations}


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
    seeds = chain(CATCHING.get(name, ()), range(SEARCH_SEEDS_MAX))
    caught = next((outcome for seed in seeds if (outcome := run_seed(seed, without(name))).verdict.violations), None)
    assert caught is not None, f"no seed noticed that the rule {name} is off"
    assert kinds(caught) & KINDS.get(name, {"lost"})
    assert caught.seed in CLEAN or run_seed(caught.seed).verdict.violations == [], "with the rule on, the seed is clean"


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
