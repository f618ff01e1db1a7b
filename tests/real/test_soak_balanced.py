"""`shoal soak hot-channel` and `scale-out` on real clusters, in small; what they judge, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from shoal.cli import main
from shoal.lab.soak.balance import Balance
from shoal.lab.soak.balancer_follower import BalancerFollower
from shoal.lab.soak.balancer_round import BalancedOptions, BalancedOutcome, BalancedRound, SurgeScenario
from shoal.lab.soak.channel_capacity import Carried, LoadStep
from shoal.lab.soak.checker import RoundReport
from shoal.lab.soak.surges import HOT as HOT_CHANNEL
from shoal.limits import DEFAULT_LIMITS
from shoal.plan.entry import Phase

QUICK = {"SHOAL_BALANCE_WINDOW_S": "1", "SHOAL_BALANCE_WAIT_S": "2"}
WARM_S = 1.5
SECONDS_MAX = 60.0


def options(scenario: SurgeScenario, servers: int = 2, servers_max: int = 2) -> BalancedOptions:
    return BalancedOptions(
        scenario=scenario,
        servers=servers,
        servers_max=servers_max,
        seconds=SECONDS_MAX,
        seed=1,
        limits=DEFAULT_LIMITS,
    )


async def run(
    wanted: BalancedOptions,
    directory: Path,
    is_shown: Callable[[BalancerFollower], bool],
    monkeypatch: pytest.MonkeyPatch,
) -> Balance:
    """A small round until something is shown: what it shows of the balancer. Nothing may be lost in it."""
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    report = await BalancedRound(wanted.surge(), WARM_S, directory, lambda progress: None, is_shown).execute()
    assert report.violations == []
    assert (report.lost, report.duplicated, report.reordered, report.gaps_reported) == (0, 0, 0, 0)
    assert report.deliveries > 1000
    assert report.movements.ended >= 1
    return report.balance


async def test_a_hot_channel_is_replicated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_replicated(observing: BalancerFollower) -> bool:
        entry = observing.ledger.entries[HOT_CHANNEL]
        return entry.phase is Phase.END and len(entry.servers) == 2

    balance = await run(options(SurgeScenario.HOT_CHANNEL), tmp_path, is_replicated, monkeypatch)
    assert balance.detected_s is not None
    assert balance.replicated_s is not None
    assert balance.detected_s < balance.replicated_s
    assert {*balance.replicated_on} == {"s1", "s2"}
    assert balance.highest_ratio > 0


async def test_servers_are_added_and_take_their_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_spread(observing: BalancerFollower) -> bool:
        return observing.settled and any("s3" in entry.servers for entry in observing.ledger.entries.values())

    balance = await run(options(SurgeScenario.SCALE_OUT, servers_max=3), tmp_path, is_spread, monkeypatch)
    assert balance.servers == 3
    assert balance.joined_s is not None
    assert balance.moved > 0


# What is judged


def outcome(scenario: SurgeScenario, balance: Balance) -> BalancedOutcome:
    found = BalancedOutcome(options(scenario, servers=4, servers_max=8))
    found.add(RoundReport(balance=balance, exercised=dict.fromkeys(found.corners, 1)), 0)
    return found


HOT = Balance(detected_s=2.0, replicated_s=4.9, servers=4)
OUT = Balance(joined_s=12.0, relieved_s=29.0, servers=8)


@pytest.mark.parametrize(
    ("scenario", "balance", "kinds"),
    [
        (SurgeScenario.HOT_CHANNEL, HOT, []),
        (SurgeScenario.HOT_CHANNEL, msgspec.structs.replace(HOT, replicated_s=5.1), ["late"]),
        (SurgeScenario.HOT_CHANNEL, msgspec.structs.replace(HOT, replicated_s=None), ["late"]),
        (SurgeScenario.SCALE_OUT, OUT, []),
        (SurgeScenario.SCALE_OUT, msgspec.structs.replace(OUT, relieved_s=31.0), ["late"]),
        (SurgeScenario.SCALE_OUT, msgspec.structs.replace(OUT, joined_s=None), ["late"]),
        (SurgeScenario.SCALE_OUT, msgspec.structs.replace(OUT, moved_twice=("c",)), ["twice"]),
    ],
)
def test_what_was_promised_of_the_balancer_must_hold(
    scenario: SurgeScenario, balance: Balance, kinds: list[str]
) -> None:
    found = outcome(scenario, balance)
    assert [violation.split(":")[0] for violation in found.facts()["violations"]] == kinds
    assert found.holds is (not kinds)


def test_a_corner_that_was_not_met_and_a_message_that_was_lost_fail_the_run() -> None:
    for report in (
        RoundReport(balance=OUT),
        RoundReport(balance=OUT, lost=1, violation_count=1, violations=["lost: one"]),
    ):
        found = BalancedOutcome(options(SurgeScenario.SCALE_OUT, servers=4, servers_max=8))
        found.add(report, 0)
        assert not found.holds


def step(share: float, deliveries_per_s: float, late_ms: float, link_share: float = 0.95, cpu: float = 0.5) -> LoadStep:
    return LoadStep(share, deliveries_per_s, 0, 0, late_ms, link_share, 0.9, 0.1, cpu)


ONE = [step(0.9, 100.0, 20.0, 0.9), step(1.0, 110.0, 400.0)]


@pytest.mark.parametrize(
    ("several", "ratio", "limited_by", "holds"),
    [
        ([step(0.9, 380.0, 20.0), step(1.0, 420.0, 400.0)], 3.8, "links", True),
        ([step(0.7, 270.0, 20.0), step(0.8, 320.0, 400.0)], 2.7, "links", False),
        ([step(0.7, 270.0, 20.0), step(0.8, 320.0, 400.0, 0.6, 0.97)], 2.7, "cores", True),
        ([step(0.7, 270.0, 20.0), step(0.8, 320.0, 400.0, 0.6, 0.5)], 2.7, "unknown", False),
        ([step(0.8, 320.0, 400.0)], 0.0, "links", False),
    ],
)
def test_several_servers_must_carry_their_part_unless_processors_are_full(
    several: list[LoadStep], ratio: float, limited_by: str, holds: bool
) -> None:
    found = outcome(SurgeScenario.HOT_CHANNEL, HOT)
    found.add_carried(Carried(4, limited=True, one=ONE, several=several))
    facts = found.facts()
    assert (facts["carried_vs_one_server"], facts["carried_limited_by"]) == (ratio, limited_by)
    assert found.holds is holds


def test_where_links_are_not_limited_a_server_is_full_at_its_configured_capacity() -> None:
    free = step(0.9, 100.0, 20.0, link_share=0.0)
    assert free.is_carried
    full = msgspec.structs.replace(free, load_ratio=1.2)
    assert (full.is_carried, full.limited_by) == (False, "configured capacity")


@pytest.mark.parametrize(
    "flags",
    [
        "hot-channel --to 8",
        "hot-channel --moves 3",
        "scale-out --kill-agents",
        "scale-out --subscribers 10",
        "scale-out --to 4",
        "scale-out --seconds 2",
        "channels --to 8",
    ],
)
def test_what_cannot_be_is_refused(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", *flags.split()]) == 1
    assert flags.split()[1] in capsys.readouterr().err
