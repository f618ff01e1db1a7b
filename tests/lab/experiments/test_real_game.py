"""RGame on real servers: a small game with players who join and leave, and how games are judged."""

from __future__ import annotations

import os

import pytest

from shoal.balance.settings import BalanceSettings
from shoal.flow import distance_model
from shoal.flow.workloads.curves import Curve
from shoal.lab.experiments.real.elasticity import extremes
from shoal.lab.experiments.real.game import AVERAGE_S, GameRecord, GameSecond, GameSetup, play
from shoal.lab.experiments.real.network import ExperimentNetwork, run_on_network
from shoal.lab.experiments.real.scalability import BROKEN_S, POLICIES, compared, is_over, supported


def second(
    at_s: float, players: int = 10, servers: int = 1, response_ms: float = 80.0, ratio_max: float = 0.5
) -> GameSecond:
    return GameSecond(at_s, players, servers, response_ms, 100.0, ratio_max / 2, ratio_max, 0.1, 0.5)


def game(seconds: list[GameSecond]) -> GameRecord:
    return GameRecord(seconds=seconds)


def test_figures_are_averaged_with_the_seconds_before() -> None:
    played = game([second(at, response_ms=float(10 * at)) for at in range(10)])
    averaged = played.averaged("response_ms")
    assert averaged[0] == 0.0
    assert averaged[9] == pytest.approx(sum(10 * at for at in range(10 - AVERAGE_S, 10)) / AVERAGE_S)


def test_players_are_supported_until_response_times_stay_beyond_the_limit() -> None:
    good = [second(at, players=10 + at) for at in range(20)]
    bad = [second(20 + at, players=30 + at, response_ms=10_000.0) for at in range(BROKEN_S)]
    assert supported(game(good), limited=True) == 29
    assert not is_over(game(good), limited=True)
    assert supported(game(good + bad), limited=True) == 29
    assert is_over(game(good + bad), limited=True)


def test_a_short_spike_does_not_end_a_game() -> None:
    seconds = [second(at, players=10 + at) for at in range(30)]
    seconds[15] = second(15, players=25, response_ms=300.0)
    assert supported(game(seconds), limited=True) == 39


def test_without_limited_links_load_ratios_are_judged_too() -> None:
    seconds = [second(at, players=10 + at, ratio_max=0.5 if at < 10 else 9.0) for at in range(30)]
    assert supported(game(seconds), limited=False) == 19
    assert supported(game(seconds), limited=True) == 39


def test_a_second_without_updates_counts_as_infinite() -> None:
    seconds = [second(at, response_ms=float("inf")) for at in range(BROKEN_S)]
    assert is_over(game(seconds), limited=True)


def test_the_order_of_policies_is_shown_and_only_losses_are_judged() -> None:
    games = {
        policy: game([second(0.0, players=players)]) for policy, players in zip(POLICIES, (30, 20, 10), strict=True)
    }
    found = compared(games, limited=True, parameters={})
    assert found.headline["order"] == [*reversed(POLICIES)]
    assert found.headline["cpu_share"]["shoal"]["machine_mean"] == 0.5
    assert found.holds
    games["shoal"].tally.lost = 1
    assert not compared(games, limited=True, parameters={}).holds


def test_servers_are_added_removed_and_added_again() -> None:
    counts = [(0, 1), (50, 5), (65, 5), (90, 2), (100, 1), (110, 2), (120, 3)]
    assert extremes(game([second(float(at), servers=servers) for at, servers in counts])) == (5, 1, 3)


def test_players_join_and_leave_on_real_servers_and_nothing_is_lost() -> None:
    settings = BalanceSettings(window_s=1, wait_s=2.0)
    setup = GameSetup(Curve(((0.0, 4.0), (3.0, 12.0), (5.0, 3.0), (6.0, 3.0))), 2, "shoal", tiles=2, settings=settings)

    async def work(network: ExperimentNetwork) -> GameRecord:
        return await play(network, setup, distance_model(), lambda _: None)

    environment = dict(os.environ)
    played = run_on_network(None, work)
    players = played.column("players")
    assert max(players) > players[-1] == 3.0
    assert played.is_whole, (played.tally, played.troubles)
    assert played.tally.deliveries > played.tally.messages > 0
    assert dict(os.environ) == environment, "settings of the cluster stayed in the environment"
