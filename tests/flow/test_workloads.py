"""Workloads: traffic over time."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.flow import FlowSimulator, distance_model
from shoal.flow.workloads import (
    Curve,
    Hot,
    RGame,
    RGameMap,
    Zipf,
    ZipfChannels,
    day,
    many_publishers,
    many_subscribers,
    ramp,
    ups_and_downs,
)

LATENCIES = distance_model()


def test_a_ramp_goes_from_one_value_to_the_other() -> None:
    curve = ramp(100, 200, each_s=2.0, hold_s=10)
    assert curve.seconds == 60
    assert curve.at([0, 25, 50, 60]).tolist() == [100, 150, 200, 200]
    assert ramp(200, 100, each_s=1.0).at([50]).tolist() == [150]


def test_ups_and_downs_are_those_of_the_paper() -> None:
    curve = ups_and_downs()
    assert curve.at([550, 950]).tolist() == [800, 200]
    assert 550 < curve.at(curve.seconds) < 600


def test_a_day_has_its_minimum_before_dawn_and_its_maximum_in_the_evening() -> None:
    curve = day(hour_s=10)
    values = curve.at(np.arange(240))
    assert curve.seconds == 240
    assert 30 <= int(values.argmin()) <= 60
    assert 190 <= int(values.argmax()) <= 220
    assert curve.at(0) == curve.at(240)


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


def test_zipf_loads_follow_their_ranks_and_their_curve() -> None:
    channels = ZipfChannels(Zipf(1000, 5000.0, exponent=1.0), Curve(((0, 1.0), (10, 0.5))), LATENCIES, seed=1)
    rates = np.sort(channels.at(0).publications)[::-1]
    assert rates.sum() == pytest.approx(5000.0)
    assert rates[0] / rates[9] == pytest.approx(10.0)
    assert channels.at(5).publications.sum() == pytest.approx(3750.0)


def test_a_channel_becomes_hot_and_cools_down_again() -> None:
    hot = Hot(from_s=3, until_s=6, publications_per_s=900.0, subscribers=200)
    channels = ZipfChannels(Zipf(100, 1000.0), Curve(((0, 1.0), (10, 1.0))), LATENCIES, seed=1, hot=hot)
    before, during, after = (channels.at(second) for second in (2, 3, 6))
    assert (during.publications[-1], during.subscribers[-1]) == (900.0, 200)
    assert during.publications[:-1].tolist() == before.publications[:-1].tolist()
    assert before.publications.tolist() == after.publications.tolist()
    assert before.subscribers.tolist() == after.subscribers.tolist()


def test_many_channels_run() -> None:
    channels = ZipfChannels(Zipf(20_000, 1e5), Curve(((0, 1.0), (5, 1.0))), LATENCIES, seed=1)
    series = FlowSimulator(channels, None).run()
    assert series.column("messages_out") == pytest.approx(1e6)
