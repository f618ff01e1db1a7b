"""The workloads of the simulated experiments."""

from __future__ import annotations

import pytest

from shoal.flow import distance_model
from shoal.flow.workloads import ramp
from shoal.lab.experiments.sim.dynamoth_3 import PLAYERS
from shoal.lab.experiments.sim.one_channel import many_publishers, many_subscribers
from shoal.lab.experiments.sim.rgame_load import RGame, RGameMap

LATENCIES = distance_model()


def test_the_players_of_experiment_3_are_those_of_the_paper() -> None:
    assert PLAYERS.at([550, 950]).tolist() == [800, 200]
    assert 550 < PLAYERS.at(PLAYERS.seconds) < 600


def test_in_rgame_all_players_of_a_tile_receive_all_its_updates() -> None:
    game = RGame(RGameMap(4), ramp(50, 80, each_s=1.0), LATENCIES, seed=1)
    traffic = game.at(29)
    assert len(game.names) == 16
    assert traffic.clients == traffic.subscribers.sum() == 79
    assert traffic.publications.sum() == pytest.approx(3 * 79)
    assert traffic.messages_out.sum() == pytest.approx(3 * (traffic.subscribers**2).sum())
    assert traffic.responses.tolist() == traffic.publications.tolist()
    assert traffic.latency_ms == pytest.approx(2 * LATENCIES.samples_ms.mean(), rel=0.1)


def test_a_game_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    games = [RGame(RGameMap(4), ramp(50, 60, each_s=1.0), LATENCIES, seed) for seed in (1, 1, 2)]
    assert games[0].counts.tolist() == games[1].counts.tolist()
    assert games[0].counts.tolist() != games[2].counts.tolist()
    assert games[0].names != games[2].names


def test_the_micro_benchmarks_are_one_channel_with_many_on_one_side() -> None:
    out, back = many_subscribers(300, 5, LATENCIES, 1).at(0), many_publishers(300, 5, LATENCIES, 1).at(0)
    assert (out.publications[0], out.publishers[0], out.subscribers[0]) == (10, 1, 300)
    assert (back.publications[0], back.publishers[0], back.subscribers[0]) == (3000, 300, 1)
    assert out.responses[0] == back.responses[0] == 3000
