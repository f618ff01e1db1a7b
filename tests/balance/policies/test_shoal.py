"""The policy `shoal`: its actions, and when it does nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.balance.policies.situations import AT_S, make_channels, make_situation

from shoal.balance.columns import ALL_PUBLISHERS, ALL_SUBSCRIBERS, SINGLE, Channels, Floats, Placements, host_loads
from shoal.balance.decision import Decision, Reason, changed
from shoal.balance.policies.shoal import NEAR_BOUND, OFF_BOUND, decide
from shoal.balance.settings import DEFAULT_SETTINGS, BalanceSettings
from shoal.balance.situation import Pool, Situation

CAPACITY = 100.0
ROUNDS_MAX = 8


def crowd(bytes_out: npt.ArrayLike, *, publishers: int = 100, subscribers: int = 100, cpu: float = 0.0) -> Channels:
    """Channels with many clients, and this much CPU for all deliveries of each."""
    plain = make_channels(bytes_out, publications=30.0, subscribers=subscribers)
    count = len(plain)
    return replace(plain, publishers=np.full(count, publishers), cpu_out=np.full(count, cpu))


def fixed_pool(servers: int) -> Pool:
    return Pool(servers, servers, 0, CAPACITY, 1.0, 1.0)


def on(channels: Channels, servers: npt.ArrayLike, count: int, **changes: Any) -> Situation:
    """Channels on a fixed number of servers of equal size."""
    whole = make_situation(
        channels, Placements.single(servers), [CAPACITY] * count, **{"pool": fixed_pool(count), **changes}
    )
    return seen(whole, whole.placements)


def seen(situation: Situation, placements: Placements) -> Situation:
    """The situation with the server loads that result from these placements."""
    bytes_out, cpu = host_loads(situation.channels, placements, len(situation.hosts))
    return replace(situation, placements=placements, hosts=replace(situation.hosts, bytes_out=bytes_out, cpu=cpu))


def ratios(situation: Situation, decision: Decision | None = None) -> Floats:
    placements = situation.placements
    if decision is not None:
        placements = changed(placements, decision.moves, decision.placements)
    bytes_out, cpu = host_loads(situation.channels, placements, len(situation.hosts))
    return np.maximum(bytes_out / situation.hosts.capacity, cpu / situation.hosts.cpu_capacity)


def later(situation: Situation, decision: Decision, seconds: float = DEFAULT_SETTINGS.settle_s) -> Situation:
    moved_at = situation.moved_at.copy()
    moved_at[decision.moves] = situation.at_s
    takes = situation.hosts.takes.copy()
    takes[decision.drain] = False
    takes[decision.keep] = True
    after = replace(
        situation,
        at_s=situation.at_s + seconds,
        hosts=replace(situation.hosts, takes=takes),
        moved_at=moved_at,
        planned_at=situation.planned_at if decision.is_empty else situation.at_s,
    )
    return seen(after, changed(situation.placements, decision.moves, decision.placements))


def test_nothing_moves_while_servers_are_below_the_high_ratio_and_even_enough() -> None:
    assert decide(on(crowd([39, 39, 36, 36]), [0, 0, 1, 1], 2), DEFAULT_SETTINGS).is_empty


def test_an_overloaded_server_is_relieved_by_one_move_or_by_more_if_they_cost_little() -> None:
    situation = on(crowd([2] * 20 + [25, 18, 2]), [0] * 22 + [1], 2)
    dear = decide(situation, BalanceSettings(move_price=0.05))
    cheap = decide(situation, BalanceSettings(move_price=1e-6))
    assert dear.reasons == (Reason.OVERLOAD,)
    assert len(cheap) > 1
    assert DEFAULT_SETTINGS.safe_ratio >= ratios(situation, dear).max() > ratios(situation, cheap).max()


def test_every_move_names_the_figures_behind_it() -> None:
    situation = on(crowd([30, 30, 30, 10]), [0, 0, 0, 1], 2)
    decision = decide(situation, DEFAULT_SETTINGS)
    (figures,) = [dict(zip(decision.figure_names, row, strict=True)) for row in decision.figures.tolist()]
    assert figures["left_before"] == pytest.approx(0.9)
    assert figures["left_after"] == pytest.approx(0.6)
    assert figures["chosen_before"] == pytest.approx(0.1)
    assert figures["chosen_after"] == pytest.approx(0.4)
    assert figures["bytes_out"] == 30
    assert figures["publishers"] == figures["subscribers"] == 100
    assert figures["degree_before"] == figures["degree"] == 1


def test_cpu_counts_as_much_as_bytes() -> None:
    channels = crowd([1.0] * 10, cpu=0.09)
    situation = on(channels, [0] * 10, 2)
    decision = decide(situation, DEFAULT_SETTINGS)
    assert ratios(situation)[0] == pytest.approx(0.9)
    assert ratios(situation, decision).max() <= DEFAULT_SETTINGS.safe_ratio


def test_a_channel_goes_where_neither_bytes_nor_cpu_overflow() -> None:
    channels = replace(crowd([45, 45, 60, 5]), cpu_out=np.array([0.0, 0.0, 0.05, 0.65]))
    situation = on(channels, [0, 0, 1, 2], 3)
    situation = replace(situation, hosts=replace(situation.hosts, capacity=np.array([100.0, 100.0, 200.0])))
    decision = decide(situation, DEFAULT_SETTINGS)
    assert decision.placements.of(0) == (2,)
    assert ratios(situation, decision).max() <= DEFAULT_SETTINGS.safe_ratio


def test_a_large_server_takes_more_than_a_small_one() -> None:
    channels = crowd(np.full(60, 2.0))
    situation = make_situation(channels, Placements.single([0] * 60), [100.0, 200.0], pool=fixed_pool(2))
    decision = decide(seen(situation, situation.placements), DEFAULT_SETTINGS)
    after = changed(situation.placements, decision.moves, decision.placements)
    assert np.bincount(after.servers).tolist() == pytest.approx([20, 40], abs=2)


def test_nothing_goes_to_a_server_that_takes_nothing() -> None:
    situation = on(crowd([30, 30, 30, 10]), [0, 0, 0, 1], 3, takes=[True, False, True])
    after = decide(situation, DEFAULT_SETTINGS).placements
    assert len(after)
    assert 1 not in after.servers


@pytest.mark.parametrize(
    ("publishers", "subscribers", "mode"),
    [(500, 1, ALL_SUBSCRIBERS), (1, 500, ALL_PUBLISHERS), (400, 200, ALL_SUBSCRIBERS)],
)
def test_a_channel_too_large_for_a_server_is_replicated_in_the_mode_that_can_divide_it(
    publishers: int, subscribers: int, mode: int
) -> None:
    situation = on(crowd([150, 1, 1], publishers=publishers, subscribers=subscribers), [0, 1, 2], 4)
    decision = decide(situation, DEFAULT_SETTINGS)
    assert decision.moves.tolist() == [0]
    assert decision.reasons == (Reason.REPLICATE,)
    assert decision.placements.mode.tolist() == [mode]
    assert ratios(situation, decision).max() <= DEFAULT_SETTINGS.safe_ratio


def test_a_channel_that_mostly_goes_to_patterns_is_not_given_to_all_publishers() -> None:
    heard = crowd([150.0], publishers=1, subscribers=1000)
    plain = decide(on(heard, [0], 8), DEFAULT_SETTINGS)
    assert plain.placements.mode.tolist() == [ALL_PUBLISHERS]
    assert not len(decide(on(replace(heard, pattern_part=np.array([0.9])), [0], 8), DEFAULT_SETTINGS))


def test_a_channel_that_cannot_be_divided_stays_single() -> None:
    situation = on(crowd([150, 1], publishers=1, subscribers=1), [0, 1], 4)
    assert not len(decide(situation, DEFAULT_SETTINGS))


def test_no_channel_has_more_servers_than_it_may() -> None:
    few = BalanceSettings(replicas_max=3)
    decision = decide(on(crowd([900.0], publishers=5000), [0], 8), few)
    assert decision.placements.degree.tolist() == [3]


def test_a_replicated_channel_is_merged_when_one_server_is_plenty() -> None:
    channels = crowd([20, 20])
    situation = on(channels, [0, 1], 4)
    wide = seen(situation, Placements.build([ALL_SUBSCRIBERS, SINGLE], [(0, 1, 2), (1,)]))
    decision = decide(wide, DEFAULT_SETTINGS)
    assert decision.reasons == (Reason.MERGE,)
    assert decision.placements.mode.tolist() == [SINGLE]
    assert decision.placements.of(0) != (1,)
    assert decide(later(wide, decision), DEFAULT_SETTINGS).is_empty


def test_a_replicated_channel_is_not_merged_while_its_load_could_come_back() -> None:
    situation = on(crowd([60, 20]), [0, 1], 4)
    wide = seen(situation, Placements.build([ALL_SUBSCRIBERS, SINGLE], [(0, 1, 2), (3,)]))
    assert decide(wide, DEFAULT_SETTINGS).is_empty


def test_full_servers_are_brought_to_nearly_the_same_ratio() -> None:
    weights = np.arange(1.0, 37.0)
    situation = on(crowd(weights / weights.sum() * 800), np.arange(36) % 8, 8)
    for _ in range(4):
        situation = later(situation, decide(situation, DEFAULT_SETTINGS))
    assert ratios(situation).max() <= 1.0 + OFF_BOUND * (DEFAULT_SETTINGS.fail_ratio - 1.0)


def test_a_plan_moves_no_more_than_it_may() -> None:
    situation = on(crowd(np.full(100, 1.5)), np.zeros(100, np.int32), 4)
    decision = decide(situation, BalanceSettings(moves_max=7))
    assert len(decision) == 7
    assert ratios(situation, decision)[0] < ratios(situation)[0]


def arriving(situation: Situation, decision: Decision) -> Floats:
    """The load that a decision brings to each server, as a load ratio."""
    before = {(row, server) for row in decision.moves.tolist() for server in situation.placements.of(row)}
    come = np.zeros(len(situation.hosts))
    for at, row in enumerate(decision.moves.tolist()):
        servers = decision.placements.of(at)
        for server in servers:
            if (row, server) not in before:
                come[server] += situation.channels.bytes_out[row] / len(servers)
    return come / situation.hosts.capacity


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), servers=st.integers(2, 6), level=st.floats(0.3, 0.9))
def test_a_plan_brings_to_a_server_a_part_of_what_it_could_carry_beside_its_load(
    seed: int, servers: int, level: float
) -> None:
    chance = np.random.default_rng(seed)
    weights = chance.pareto(2.0, 10 * servers) + 0.05
    channels = crowd(weights / weights.sum() * level * CAPACITY * servers)
    situation = on(channels, chance.integers(0, servers, 10 * servers), servers)
    if ratios(situation).max() < 1.0:
        come = arriving(situation, decide(situation, DEFAULT_SETTINGS))
        room = DEFAULT_SETTINGS.moved_share * (DEFAULT_SETTINGS.fail_ratio - ratios(situation))
        assert (come <= room + 1e-9).all()


def test_when_a_server_is_about_to_fail_no_bound_keeps_it_from_being_relieved() -> None:
    alone = {"publishers": 1, "subscribers": 1}
    busy = on(crowd([55, 30, 45], **alone), [0, 0, 1], 2)
    assert not len(decide(busy, DEFAULT_SETTINGS))
    failing = on(crowd([70, 45, 35], **alone), [0, 0, 1], 2)
    assert decide(failing, DEFAULT_SETTINGS).moves.tolist() == [1]


def test_a_channel_that_may_not_come_to_as_many_servers_as_it_should_comes_to_fewer_at_first() -> None:
    situation = on(crowd([84, 79, 79, 79, 79, 79]), range(6), 7)
    situation = replace(situation, hosts=replace(situation.hosts, capacity=np.array([100.0] * 6 + [200.0])))
    first = decide(situation, DEFAULT_SETTINGS)
    assert first.reasons == (Reason.REPLICATE,)
    assert first.moves.tolist() == [0]
    assert set(first.placements.of(0)) == {0, 6}


def test_a_channel_larger_than_any_room_leaves_a_drained_server_all_the_same() -> None:
    channels = crowd([45, 20, 20, 15], publishers=1, subscribers=1)
    situation = on(channels, [2, 0, 1, 2], 3, takes=[True, True, False])
    assert arriving(situation, decide(situation, DEFAULT_SETTINGS)).sum() == pytest.approx(0.60)


def test_full_servers_are_left_alone_until_one_is_on_the_way_to_failure() -> None:
    def moves(busiest: float) -> int:
        quarter = (4 * 95.0 - busiest) / 3
        parts = np.repeat([busiest, quarter, quarter, quarter], 20) / 20
        return len(decide(on(crowd(parts, publishers=1, subscribers=1), np.repeat(range(4), 20), 4), DEFAULT_SETTINGS))

    assert not moves(101.0)
    assert moves(103.0)


def test_a_channel_that_was_just_placed_stays_unless_its_server_is_beyond_help() -> None:
    channels = crowd(np.full(9, 10.0), publishers=1, subscribers=1)
    moved_at = np.full(9, AT_S - 15.0)
    assert not len(decide(on(channels, [0] * 9, 2, moved_at=moved_at), DEFAULT_SETTINGS))
    moved_at[8] = AT_S - 100.0
    assert decide(on(channels, [0] * 9, 2, moved_at=moved_at), DEFAULT_SETTINGS).moves.tolist() == [8]
    more = crowd(np.full(12, 10.0), publishers=1, subscribers=1)
    assert len(decide(on(more, [0] * 12, 2, moved_at=np.full(12, AT_S - 15.0)), DEFAULT_SETTINGS)) > 1


def test_a_plan_waits_until_the_last_one_was_seen_at_work() -> None:
    situation = on(crowd([30, 30, 30, 10]), [0, 0, 0, 1], 2)

    def moves(seconds: float, *, moved: bool = True) -> int:
        at_s = AT_S - seconds
        moved_at = np.array([-np.inf, -np.inf, -np.inf, at_s if moved else -np.inf])
        return len(decide(replace(situation, planned_at=at_s, moved_at=moved_at), DEFAULT_SETTINGS))

    assert not moves(1.0)
    assert not moves(6.0)
    assert moves(11.0)
    assert not moves(1.0, moved=False)
    assert moves(6.0, moved=False)


def test_a_hot_channel_does_not_wait_for_the_time_between_plans() -> None:
    situation = on(crowd([180, 10, 10]), [0, 1, 2], 4, planned_at=AT_S - 5.0, moved_at=[-np.inf, AT_S - 5.0, -np.inf])
    assert decide(situation, DEFAULT_SETTINGS).reasons == (Reason.REPLICATE,)


def test_servers_that_joined_get_their_part_and_no_channel_moves_twice() -> None:
    channels = crowd(np.full(80, 3.0))
    situation = on(channels, np.arange(80) % 4, 8)
    moved: Counter[int] = Counter()
    for _ in range(4):
        decision = decide(situation, DEFAULT_SETTINGS)
        assert set(decision.reasons) <= {Reason.SPREAD}
        moved.update(decision.moves.tolist())
        situation = later(situation, decision)
    assert set(moved.values()) == {1}
    assert ratios(situation).max() <= 1.1 * ratios(situation).mean()


@pytest.mark.parametrize(("first", "acts"), [(0.90, False), (1.10, True)])
def test_a_window_in_which_the_load_jumped_is_believed_only_if_it_is_beyond_help(first: float, acts: bool) -> None:
    """The first window of a rise contains only a part of it; the next one counts, even if it is higher still."""
    channels = crowd(np.full(20, first * CAPACITY / 20.0))
    sent = float(channels.bytes_out.sum())
    past = {"past_at": np.array([AT_S - 4.0, AT_S - 2.0, AT_S])}
    before = on(channels, np.zeros(20, int), 4, **past, past_bytes_out=np.array([0.5, 0.5, 1.0]) * sent)
    assert decide(before, DEFAULT_SETTINGS).is_empty is not acts
    after = on(channels, np.zeros(20, int), 4, **past, past_bytes_out=np.array([0.3, 0.5, 1.0]) * sent)
    assert not decide(after, DEFAULT_SETTINGS).is_empty


def test_servers_are_added_in_one_step_for_the_load_to_come() -> None:
    at = np.arange(AT_S - 58.0, AT_S + 2.0, 2.0)
    channels = crowd(np.full(40, 4.5))
    growing = on(
        channels,
        np.arange(40) % 2,
        2,
        pool=Pool(1, 10, 0, CAPACITY, 1.0, 1.0),
        past_at=at,
        past_bytes_out=180.0 * (1.0 + (at - AT_S) / 100.0),
    )
    decision = decide(growing, DEFAULT_SETTINGS)
    assert decision.server_reason is Reason.GROW
    assert decision.server_figures["growth"] == pytest.approx(1.2)
    needed = int(np.ceil(180.0 * 1.2 / DEFAULT_SETTINGS.safe_ratio / CAPACITY))
    assert 2 + decision.add == needed
    coming = replace(growing, pool=replace(growing.pool, adding=decision.add))
    assert decide(coming, DEFAULT_SETTINGS).add == 0
    bounded = replace(growing, pool=replace(growing.pool, servers_max=3))
    assert decide(bounded, DEFAULT_SETTINGS).add == 1


def test_dear_servers_are_added_later_than_cheap_ones() -> None:
    situation = on(crowd(np.full(40, 3.8)), np.arange(40) % 2, 2, pool=Pool(1, 10, 0, CAPACITY, 1.0, 1.0))
    assert decide(situation, DEFAULT_SETTINGS).add == 1
    assert decide(situation, BalanceSettings(server_hour_price=10.0)).add == 0


def test_servers_that_are_not_needed_are_emptied_and_kept_if_load_comes_back() -> None:
    pool = Pool(1, 8, 0, CAPACITY, 1.0, 1.0)
    situation = on(crowd(np.full(40, 2.0)), np.arange(40) % 4, 4, pool=pool)
    few = BalanceSettings(moves_max=8)
    decision = decide(situation, few)
    assert decision.server_reason is Reason.SHRINK
    assert len(decision.drain) == 2
    assert set(decision.reasons) == {Reason.DRAIN}
    assert len(decision) == 8
    back = replace(later(situation, decision), channels=crowd(np.full(40, 5.5)))
    assert set(decide(seen(back, back.placements), few).keep.tolist()) == set(decision.drain.tolist())
    for _ in range(2):
        situation = later(situation, decision)
        decision = decide(situation, few)
    after = changed(situation.placements, decision.moves, decision.placements)
    assert situation.hosts.takes[after.servers].all()


def test_the_dearest_servers_for_what_they_carry_go_first() -> None:
    situation = on(crowd(np.full(40, 2.0)), np.arange(40) % 4, 4, pool=Pool(3, 8, 0, CAPACITY, 1.0, 1.0))
    dear = replace(situation, hosts=replace(situation.hosts, cost=np.array([1.0, 1.0, 3.0, 1.0])))
    assert decide(dear, DEFAULT_SETTINGS).drain.tolist() == [2]


def test_no_server_is_drained_when_moving_its_channels_costs_more_than_it_does() -> None:
    situation = on(crowd(np.full(40, 2.0)), np.arange(40) % 4, 4, pool=Pool(1, 8, 0, CAPACITY, 1.0, 1.0))
    assert not len(decide(situation, BalanceSettings(move_price=0.2)).drain)


def test_a_drained_server_leaves_a_channel_that_all_others_have() -> None:
    channels = crowd([60.0])
    whole = on(channels, [0], 3, takes=[True, True, False])
    wide = seen(whole, Placements.build([ALL_SUBSCRIBERS], [(0, 1, 2)]))
    decision = decide(wide, DEFAULT_SETTINGS)
    assert decision.reasons == (Reason.DRAIN,)
    assert decision.placements.of(0) == (0, 1)


@st.composite
def steady(draw: st.DrawFn) -> Situation:
    """A constant load, on servers that are almost empty, full, or far too few."""
    servers = draw(st.integers(1, 6))
    rows = draw(st.integers(1, 30))
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    weights = chance.pareto(draw(st.floats(0.6, 3.0)), rows) + 0.01
    level = draw(st.floats(0.05, 1.3))
    capacity = chance.choice([50.0, 100.0, 200.0], servers)
    plain = make_channels(weights / weights.sum() * level * capacity.sum(), chance.uniform(1, 100, rows))
    channels = replace(
        plain,
        publishers=chance.choice([1, 3, 30, 300], rows),
        subscribers=chance.choice([1, 3, 30, 300], rows),
        cpu_in=chance.uniform(0, 0.1, rows) * draw(st.sampled_from([0.0, 1.0])),
        cpu_out=chance.uniform(0, 0.3, rows) * draw(st.sampled_from([0.0, 1.0])),
    )
    placements = Placements.single(chance.integers(0, servers, rows))
    pool = Pool(draw(st.integers(1, servers)), servers, 0, CAPACITY, 1.0, 1.0)
    situation = make_situation(channels, placements, capacity, pool=pool)
    return seen(situation, placements)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(situation=steady(), seconds=st.sampled_from([2.0, 10.0, 20.0]))
def test_it_settles_under_steady_load(situation: Situation, seconds: float) -> None:
    plans = 0
    for _ in range(int(ROUNDS_MAX * DEFAULT_SETTINGS.settle_s / seconds)):
        decision = decide(situation, DEFAULT_SETTINGS)
        plans += not decision.is_empty
        situation = later(situation, decision, seconds)
    for _ in range(int(2 * DEFAULT_SETTINGS.settle_s / seconds) + 1):
        decision = decide(situation, DEFAULT_SETTINGS)
        assert not len(decision), (plans, decision.reasons)
        situation = later(situation, decision, seconds)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), servers=st.integers(2, 6))
def test_with_free_moves_it_comes_near_to_the_bound(seed: int, servers: int) -> None:
    chance = np.random.default_rng(seed)
    count = 300 * servers
    capacity = chance.choice([100.0, 200.0], servers)
    weights = 1.0 / np.arange(1.0, count + 1.0)
    channels = crowd(weights / weights.sum() * 0.6 * capacity.sum())
    placements = Placements.single(chance.integers(0, servers, count))
    situation = make_situation(channels, placements, capacity, pool=fixed_pool(servers))
    free = BalanceSettings(moves_max=count, move_price=1e-9, moved_share=1.0)
    decision = decide(situation, free)
    if ratios(situation).max() > free.high_ratio:
        assert ratios(situation, decision).max() <= NEAR_BOUND * 0.6 + 0.01


def test_a_channel_whose_publishers_all_chose_one_server_does_not_wander() -> None:
    """A share belongs to a position, so another server in its place would carry just as much."""
    channels = crowd([65.0, 20.0, 20.0])
    placements = Placements.build([ALL_SUBSCRIBERS, 0, 0], [(0, 1), (1,), (2,)])
    uneven = replace(placements, parts=np.array([1.0, 0.0, 1.0, 1.0]))
    situation = seen(on(channels, [0, 1, 2], 4), uneven)
    moved = 0
    for _ in range(6):
        decision = decide(situation, DEFAULT_SETTINGS)
        moved += len(decision)
        situation = later(situation, decision)
    assert moved <= 1
