"""The scenario `channels`: a seed replays exactly, seeds are clean, and the checkers notice each rule that is switched
off."""

from __future__ import annotations

from contextlib import closing
from random import Random

import pytest
from tests.lab.sim.broken_rules import assert_noticed

from shoal.lab.sim.scenarios.channels import BREAKS, VARIANTS, ChannelsRun, run_seed
from shoal.lab.sim.scenarios.shape import Shape
from shoal.lab.sim.world.fault_options import FaultOptions
from shoal.rules import ALL_RULES, Rule, declared, rule, without

pytestmark = pytest.mark.xdist_group("sim_channels")

CATCHING: dict[str, tuple[int, ...]] = {
    "dedupe": (1,),
    "order": (6,),
    "heal": (8,),
    "beacon": (36,),
    "handshake": (21,),
    "lease": (3,),
    "baseline": (21,),
    "repeat": (6,),
    "remembers": (9,),
    "agent_tags": (28, 29),
    "signatures": (3,),
    "client_tags": (3,),
    "owners": (3,),
    "peer_tags": (3,),
    "fresh_heartbeats": (54,),
    "tags": (3,),
    "refute": (32,),
    "retract": (12,),
    "away": (27, 50),
    "complete": (49,),
    "earlier_streams": (22,),
    "heard_back": (3,),
    "key_proved": (80,),
    "old_secret": (15, 88),
    "told_streams": (32, 65),
    "unbroken": (41,),
}
"""Quick seeds that are known to catch a broken rule."""

CLEAN = (8, 153)
"""The controls of broken rules are clean seeds too."""

KINDS: dict[str, set[str]] = {
    "dedupe": {"duplicated"},
    "order": {"lost", "reordered"},
    "heal": {"unhealed", "lost"},
    "handshake": {"early", "lost", "false gap"},
    "baseline": {"early", "unhealed", "false gap"},
    "lease": {"split"},
    "repeat": {"unsettled", "lost"},
    "remembers": {"false gap"},
    "agent_tags": {"split", "lost", "false gap", "early"},
    "signatures": {"split", "lost"},
    "client_tags": {"lost", "false gap"},
    "owners": {"lost", "false gap"},
    "peer_tags": {"invented", "lost", "false gap"},
    "fresh_heartbeats": {"split"},
    "heard_back": {"split"},
    "refute": {"invented"},
    "retract": {"invented"},
    "away": {"invented"},
    "key_proved": {"false retraction", "lost"},
    "old_secret": {"false retraction", "lost"},
}
"""The violations that a broken rule causes, where that is not a loss."""


def everything(seed: int) -> tuple[object, ...]:
    """Everything of a run: each item that an application received, and when."""
    run = ChannelsRun(seed)
    outcome = run.execute()
    history = run.history
    return outcome.events, outcome.exercised, outcome.verdict, history.messages, history.subscribers


def test_the_same_seed_gives_the_same_run_item_by_item() -> None:
    """`test_determinism` shows that for every protocol, by a digest."""
    assert everything(12) == everything(12) != everything(19)


@pytest.mark.parametrize("seed", CLEAN)
def test_a_seed_is_clean(seed: int) -> None:
    outcome = run_seed(seed)
    verdict = outcome.verdict
    assert verdict.violations == []
    assert (verdict.lost, verdict.duplicated, verdict.reordered) == (0, 0, 0)
    assert verdict.deliveries > 0, "messages were delivered"


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_rule_is_caught(name: str) -> None:
    assert_noticed(run_seed, name, CATCHING.get(name, ()), KINDS.get(name, {"lost"}), VARIANTS)


def test_a_run_is_not_calm_after_a_crash_that_the_scenario_caused() -> None:
    """The scenario crashes agents when the ring changes; these crashes are not in the schedule of faults."""
    run = ChannelsRun(21)
    with closing(run.processes):
        assert run.calm
        run.agents[0].crash()
        assert not run.faults.counts
        assert not run.calm


def test_only_rules_can_be_broken() -> None:
    with pytest.raises(
        ValueError, match="there is no rule 'gravity'; the rules are agent_tags, all_unended_placements"
    ):
        without("gravity")


def test_breaking_a_rule_breaks_only_that_rule() -> None:
    assert all(Rule(name) in ALL_RULES for name in declared())
    for broken in declared():
        assert [name for name in declared() if Rule(name) not in without(broken)] == [broken]


def test_a_rule_is_declared_once() -> None:
    with pytest.raises(ValueError, match="'dedupe' is declared twice"):
        rule("dedupe", "")


def test_seeds_draw_every_shape() -> None:
    """In half of the runs holes have enough time to heal; some readers are slow; some servers disconnect clients
    early."""
    shapes = []
    for seed in range(200):
        rng = Random(seed)
        shapes.append(Shape.draw(rng, FaultOptions.draw(rng), 1.0))
    assert 60 < sum(shape.healable for shape in shapes) < 140
    assert any(shape.slow_readers for shape in shapes)
    assert {shape.servers for shape in shapes} == {2, 3, 4}
