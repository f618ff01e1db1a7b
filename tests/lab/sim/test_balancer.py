"""The scenario `balancer`: seeds are clean, and the checkers notice each rule of balancing that is switched off."""

from __future__ import annotations

import pytest
from tests.lab.sim.broken_rules import SEARCH_SEEDS_MAX, assert_noticed, kinds

from shoal.lab.sim.scenarios.balancer import STEADY_CHANNEL_RATIO, BalancerRun, run_seed
from shoal.lab.sim.scenarios.balancer_corners import BREAKS, CORNERS, VARIANTS
from shoal.lab.sim.scenarios.balancer_load import Load
from shoal.leader.record_watch import RecordWatch

pytestmark = pytest.mark.xdist_group("sim_balancer")

CATCHING: dict[str, int] = {
    "fence": 9,
    "drained": 1,
    "one_at_a_time": 9,
    "basis": 2,
    "pinned": 3,
    "once": 1,
    "settle": 4,
    "fresh_load": 3,
    "guest": 4,
    "state_first": 17,
}
"""Seeds that are known to catch a broken rule."""

CLEAN = (7, 35)
"""Seeds of the whole scenario, one with each policy."""

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


@pytest.mark.parametrize("seed", CLEAN)
def test_a_seed_is_clean(seed: int) -> None:
    outcome = run_seed(seed)
    verdict = outcome.verdict
    assert verdict.violations == []
    assert (verdict.lost, verdict.duplicated, verdict.reordered) == (0, 0, 0)
    assert verdict.deliveries > 0, "messages were delivered"
    assert outcome.exercised["window"] > 20, "load was measured"


def test_steady_load_counts_the_subscriptions_of_clients_that_were_down_when_the_faults_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settled: list[dict[str, int]] = []
    settle = Load.settle

    def noted(load: Load, window_s: int, receivers: dict[str, int], channel_max: float, total_max: float) -> None:
        settled.append(receivers)
        settle(load, window_s, receivers, channel_max, total_max)

    monkeypatch.setattr(Load, "settle", noted)
    run = BalancerRun(268)
    assert run.execute().verdict.violations == []
    subs = [sub.text for app in run.apps for sub in app.subs]
    receivers = {channel: subs.count(channel) + subs.count(run.pattern) for channel in run.channels}
    assert sum(settled[0].values()) < sum(receivers.values()), "clients came back late"
    for channel, (rate, size) in ((channel, run.load.of(channel)) for channel in run.channels):
        sent = rate * len(run.load.publishers[channel]) * size * receivers[channel]
        assert sent <= STEADY_CHANNEL_RATIO * run.mix.capacity_bytes_per_s


def test_no_process_dies_in_a_peaceful_run_although_servers_come_and_go() -> None:
    """So the promise for runs without faults, that nothing comes early, is tested while the ring changes."""
    run = BalancerRun(23, variant={"rests": False})
    assert run.peaceful
    outcome = run.execute()
    assert run.calm
    assert run.deaths == 0
    assert outcome.verdict.violations == []
    assert outcome.exercised["server joined ring"] > 0
    assert outcome.exercised["router late_joins"] > 0


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_rule_is_caught(name: str) -> None:
    assert_noticed(run_seed, name, [CATCHING[name]], KINDS[name], VARIANTS)


def test_leaders_telemetry_and_servers_all_have_their_corners() -> None:
    assert {"deposed leader refused", "standby finished a plan", "leader paused with a plan under way"} <= {*CORNERS}
    assert {"late telemetry", "duplicate telemetry", "window with missing telemetry"} <= {*CORNERS}
    assert {"server added", "server removed", "server died and came back empty", "guest promoted"} <= {*CORNERS}
    assert {"returned server is a home again", "channel pinned", "pinned channel lost its server"} <= {*CORNERS}


def test_a_drained_server_stays_until_its_records_are_archived(monkeypatch: pytest.MonkeyPatch) -> None:
    variant = {**VARIANTS["drained"], "recorded_share": 1.0, "archive_s": 20.0}
    for seed in (1, *range(SEARCH_SEEDS_MAX)):
        outcome = run_seed(seed, variant=variant)
        assert outcome.verdict.violations == []
        with monkeypatch.context() as changed:
            changed.setattr(RecordWatch, "holding", frozenset())
            if outcome.exercised["drained server with records"] and "records lost" in kinds(
                run_seed(seed, variant=variant)
            ):
                return
    pytest.fail("no seed noticed that drained servers leave with their records")
