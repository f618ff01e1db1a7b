"""The parts of the policy `shoal`: growth, degrees, estimates and the compiled loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.balance.policies.situations import AT_S, make_channels, make_situation

from shoal.balance.columns import ALL_PUBLISHERS, ALL_SUBSCRIBERS, SINGLE, Channels, Placements
from shoal.balance.policies import share_loops
from shoal.balance.policies.degrees import busiest_part, degrees, size_of_share, spread_evenly
from shoal.balance.policies.estimate import estimate
from shoal.balance.policies.trend import GROWTH_MAX, growth, jumped
from shoal.balance.settings import DEFAULT_SETTINGS

ROW = np.array([0])


def one(publishers: int, subscribers: int, cpu_in: float = 0.0, publications: float = 30.0) -> Channels:
    plain = make_channels([200.0], publications, subscribers)
    return replace(plain, publishers=np.array([publishers]), cpu_in=np.array([cpu_in]))


@given(slope=st.floats(0.005, 0.04), level=st.floats(1.0, 1e9))
def test_a_steady_rise_is_seen(slope: float, level: float) -> None:
    at = np.arange(0.0, 60.0, 2.0)
    load = level * (1.0 + slope * (at - at[-1]))
    if (load > 0).all():
        assert growth(at, load, 20.0) == pytest.approx(1.0 + 20.0 * slope)


def test_a_few_odd_windows_do_not_bend_the_line() -> None:
    at = np.arange(0.0, 60.0, 2.0)
    load = 100.0 + at
    odd = load.copy()
    odd[[3, 11, 20]] = 5000.0
    assert growth(at, odd, 20.0) == pytest.approx(growth(at, load, 20.0), rel=0.02)


def test_noise_and_a_sudden_step_are_no_growth() -> None:
    at = np.arange(0.0, 60.0, 2.0)
    noise = np.random.default_rng(1).normal(100.0, 10.0, len(at))
    assert growth(at, noise, 20.0) == 1.0
    assert growth(at, np.where(at > 54.0, 300.0, 100.0), 20.0) == 1.0
    assert growth(at, 100.0 - at, 20.0) == 1.0


@pytest.mark.parametrize("windows", [5, 8, 16, 30])
def test_a_step_is_no_growth_wherever_it_lies_and_what_has_ended_is_none_either(windows: int) -> None:
    at = np.linspace(0.0, 2.0 * (windows - 1), windows)
    for step in range(1, windows):
        assert growth(at, np.where(at >= 2.0 * step, 300.0, 100.0), 20.0) == 1.0
    if windows > 20:
        assert growth(at, 100.0 + np.minimum(at, 30.0), 20.0) == 1.0


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        ([], False),
        ([1.0], False),
        ([1.0, 1.0], False),
        ([1.0, 1.2], True),
        ([1.0, 1.0, 1.2], True),
        ([1.0, 1.2, 2.0], False),
        ([1.0, 1.2, 1.2], False),
        ([2.0, 1.0, 1.2], True),
        ([1.0, 1.05, 1.1], False),
    ],
)
def test_a_load_has_jumped_in_the_first_window_that_sees_it(load: list[float], expected: bool) -> None:
    assert jumped(np.array(load)) is expected


def test_growth_needs_some_windows_and_is_not_believed_beyond_measure() -> None:
    few, enough = np.array([0.0, 2.0, 4.0, 6.0]), np.array([0.0, 2.0, 4.0, 6.0, 8.0])
    assert growth(few, 10.0 + few, 20.0) == 1.0
    assert growth(enough, 1.0 + enough, 20.0) == GROWTH_MAX
    assert growth(np.zeros(9), np.ones(9), 20.0) == 1.0


def test_few_clients_do_not_divide_evenly() -> None:
    assert busiest_part(np.array([1]), 4) == 1.0
    assert busiest_part(np.array([100_000]), 4) == pytest.approx(0.25, rel=0.02)
    assert 0.25 < busiest_part(np.array([40]), 4)[0] < 0.6


def test_the_mode_follows_from_who_can_be_divided() -> None:
    def choice(channels: Channels) -> tuple[int, int]:
        wanted = degrees(channels, ROW, 0.55, 8, 100.0, 1.0)
        return int(wanted.mode[0]), int(wanted.degree[0])

    assert choice(one(1, 1)) == (SINGLE, 1)
    assert choice(one(1, 5000))[0] == ALL_PUBLISHERS
    assert choice(one(5000, 1))[0] == ALL_SUBSCRIBERS
    assert choice(one(5000, 5000, cpu_in=2.0)) == (ALL_SUBSCRIBERS, 4)
    assert choice(one(5000, 5000, publications=1.0))[0] == ALL_PUBLISHERS
    assert choice(one(5000, 50, publications=1000.0))[0] == ALL_SUBSCRIBERS


def test_a_copy_of_all_publications_costs_cpu_on_every_server() -> None:
    channel = one(1000, 1000, cpu_in=0.5)
    everywhere = size_of_share(channel, ROW, ALL_PUBLISHERS, 8, 1e9, 1.0)
    divided = size_of_share(channel, ROW, ALL_SUBSCRIBERS, 8, 1e9, 1.0)
    assert everywhere[0] == pytest.approx(0.5)
    assert divided[0] < 0.1


def test_every_server_of_all_publishers_sends_to_all_patterns() -> None:
    channel = replace(one(4, 1000), pattern_part=np.array([0.5]))
    assert size_of_share(channel, ROW, ALL_PUBLISHERS, 8, 200.0, 1.0)[0] > 0.5
    assert degrees(channel, ROW, 0.55, 8, 100.0, 1.0).mode[0] == ALL_SUBSCRIBERS
    assert degrees(one(4, 1000), ROW, 0.55, 8, 100.0, 1.0).mode[0] == ALL_PUBLISHERS
    assert spread_evenly(channel, ROW, np.array([8.0]), 8).mode[0] == ALL_SUBSCRIBERS
    assert spread_evenly(one(4, 1000), ROW, np.array([8.0]), 8).mode[0] == ALL_PUBLISHERS


def test_a_channel_is_spread_no_further_than_its_clients_go() -> None:
    wanted = spread_evenly(one(9, 2), ROW, np.array([20.0]), 8)
    assert (wanted.mode[0], wanted.degree[0]) == (ALL_SUBSCRIBERS, 4)
    assert spread_evenly(one(1, 1), ROW, np.array([20.0]), 8).degree[0] == 1


def test_what_was_measured_counts_but_not_right_after_a_plan() -> None:
    channels = make_channels([50.0, 10.0])
    situation = make_situation(channels, Placements.single([0, 1]), [100.0, 100.0], residual=[40.0, 5.0])
    assert estimate(situation, DEFAULT_SETTINGS).ratio.tolist() == pytest.approx([0.9, 0.15])
    recent = replace(situation, moved_at=np.array([AT_S - 4.0, AT_S - 50.0]))
    assert estimate(recent, DEFAULT_SETTINGS).ratio.tolist() == pytest.approx([0.8, 0.15])
    less = make_situation(channels, Placements.single([0, 1]), [100.0, 100.0], residual=[-20.0, 0.0])
    assert estimate(less, DEFAULT_SETTINGS).ratio.tolist() == pytest.approx([0.3, 0.1])


def test_a_server_that_sends_all_it_can_is_asked_for_more() -> None:
    channels = make_channels([200.0, 10.0])
    situation = make_situation(channels, Placements.single([0, 1]), [100.0, 100.0], residual=[-85.0, 0.0])
    assert estimate(situation, DEFAULT_SETTINGS).ratio[0] == pytest.approx(2.0)


def by_server(host: list[int], size: list[float], hosts: int) -> share_loops.ServerShares:
    return share_loops.ServerShares(*share_loops.group_by_server(np.array(host, np.int32), np.array(size), hosts))


@settings(deadline=None)  # the first call may have to compile
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.1, 0.2, 0.5])), max_size=30))
def test_shelves_hold_every_share_largest_first(pairs: list[tuple[int, float]]) -> None:
    host, size = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found = by_server(host, size, 4)
    for server in range(4):
        own = found.order[found.starts[server] : found.starts[server + 1]].tolist()
        mine = [share for share in range(len(pairs)) if host[share] == server]
        assert own == sorted(mine, key=lambda share: -size[share])


def test_how_many_moves_a_level_takes() -> None:
    size = [0.1, 0.2, 0.3, 0.4]
    found = by_server([0, 0, 0, 1], size, 2)
    free = np.ones(4, np.bool_)
    levels, ratio = np.array([0.0, 0.25, 0.35, 0.6]), np.array([0.6, 0.4])
    assert share_loops.moves_for(levels, ratio, np.array(size), free, found).tolist() == [4, 3, 2, 0]
    free[2] = False
    assert share_loops.moves_for(levels, ratio, np.array(size), free, found).tolist() == [3, 3, 3, 0]
