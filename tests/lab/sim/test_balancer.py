"""The scenario `balancer`: seeds are clean, and the checkers notice each rule of balancing that is switched off.

Which seed catches a broken rule may change with the scenario, so several are tried: first those that are known to catch
it, then from the first seed on. Known ones are among the clean seeds, so what they catch is the broken rule.
"""

from __future__ import annotations

from itertools import chain

import pytest

from shoal.lab.sim.scenario import Outcome
from shoal.lab.sim.scenarios import balancer
from shoal.lab.sim.scenarios.balancer import BalancerRun, run_seed
from shoal.lab.sim.scenarios.balancer_corners import BREAKS, CORNERS
from shoal.leader.record_watch import RecordWatch
from shoal.rules import without

SEARCH_SEEDS_MAX = 30
"""How many seeds are tried beyond the known ones."""

CATCHING: dict[str, tuple[int, ...]] = {
    "fence": (9,),
    "drained": (35,),
    "one_at_a_time": (0,),
    "basis": (7,),
    "pinned": (7,),
    "once": (9,),
    "settle": (35,),
    "fresh_load": (9,),
    "guest": (35,),
    "state_first": (7,),
}
"""Quick seeds that are known to catch a broken rule."""

CLEAN = sorted({*chain(*CATCHING.values())})

KINDS: dict[str, set[str]] = {
    "fence": {"deposed"},
    "drained": {"not drained"},
    "one_at_a_time": {"two at once"},
    "basis": {"stale", "stranger"},
    "pinned": {"pinned"},
    "once": {"applied twice"},
    "settle": {"hasty", "restless"},
    "fresh_load": {"old load"},
    "guest": {"not a guest"},
    "state_first": {"two at once", "unproposed", "applied twice", "stale", "stranger", "failed", "deposed"},
}
"""The violations that a broken rule causes."""


def kinds(outcome: Outcome) -> set[str]:
    return {violation.split(":")[0] for violation in outcome.verdict.violations}


@pytest.mark.parametrize("seed", CLEAN)
def test_a_seed_is_clean(seed: int) -> None:
    outcome = run_seed(seed)
    verdict = outcome.verdict
    assert verdict.violations == []
    assert (verdict.lost, verdict.duplicated, verdict.reordered) == (0, 0, 0)
    assert verdict.deliveries > 0, "messages were delivered"
    assert outcome.exercised["window"] > 20, "load was measured"


def test_no_process_dies_in_a_peaceful_run_although_servers_come_and_go() -> None:
    """So the promise for runs without faults, that nothing comes early, is tested while the ring changes."""
    run = BalancerRun(23)
    assert run.peaceful
    outcome = run.execute()
    assert run.calm
    assert run.deaths == 0
    assert outcome.verdict.violations == []
    assert outcome.exercised["server joined ring"] > 0
    assert outcome.exercised["router late_joins"] > 0


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_rule_is_caught(name: str) -> None:
    seeds = chain(CATCHING[name], range(SEARCH_SEEDS_MAX))
    caught = next((outcome for seed in seeds if kinds(outcome := run_seed(seed, without(name))) & KINDS[name]), None)
    assert caught is not None, f"no seed noticed that the rule {name} is off"
    assert caught.seed in CLEAN or run_seed(caught.seed).verdict.violations == [], "with the rule on, the seed is clean"


def test_leaders_telemetry_and_servers_all_have_their_corners() -> None:
    assert {"deposed leader refused", "standby finished a plan", "leader paused with a plan under way"} <= {*CORNERS}
    assert {"late telemetry", "duplicate telemetry", "window with missing telemetry"} <= {*CORNERS}
    assert {"server added", "server removed", "server died and came back empty", "guest promoted"} <= {*CORNERS}
    assert {"returned server is a home again", "channel pinned", "pinned channel lost its server"} <= {*CORNERS}


def test_a_drained_server_stays_until_its_records_are_archived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balancer, "RECORDED", 1.0)
    monkeypatch.setattr(balancer, "ARCHIVE_S", 20.0)
    for seed in (5, *range(SEARCH_SEEDS_MAX)):
        outcome = run_seed(seed)
        assert outcome.verdict.violations == []
        with monkeypatch.context() as changed:
            changed.setattr(RecordWatch, "holding", frozenset())
            if outcome.exercised["drained server with records"] and "records lost" in kinds(run_seed(seed)):
                return
    pytest.fail("no seed noticed that drained servers leave with their records")
