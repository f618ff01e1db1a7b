"""Dynamoth's load balancer: Algorithm 1, Algorithm 2, low-load rebalancing, and the paper's open points."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.balance.policies.situations import (
    AT_S,
    followed,
    load_ratios,
    make_channels,
    make_situation,
    rounds_to_rest,
)

from shoal.balance.columns import ALL_PUBLISHERS, ALL_SUBSCRIBERS, NEVER, SINGLE, Placements
from shoal.balance.decision import Reason, changed
from shoal.balance.policies.dynamoth import decide
from shoal.balance.policies.dynamoth_channels import BAND, REPLICATION_WAIT_S, asked_for
from shoal.balance.settings import DEFAULT_SETTINGS, BalanceSettings
from shoal.balance.situation import Pool, Situation

FIXED = Pool(4, 4, 0, 100.0, 1.0, 1.0)
SMALL = BalanceSettings(
    all_subscribers_ratio=20.0, all_publishers_ratio=40.0, publications_min=400.0, subscribers_min=200
)


def on_servers(
    weights: npt.ArrayLike, servers: npt.ArrayLike, capacity: npt.ArrayLike = (100.0,) * 4, **changes: Any
) -> Situation:
    return make_situation(make_channels(weights), Placements.single(servers), capacity, **changes)


def one_channel(
    publications: float,
    subscribers: int,
    placement: tuple[int, tuple[int, ...]] = (SINGLE, (0,)),
    bytes_out: float = 10.0,
    **changes: Any,
) -> Situation:
    """One busy channel, and one channel per server that gives each another load: 10, 20, 30 and 40."""
    channels = make_channels(
        [bytes_out, 10.0, 20.0, 30.0, 40.0], [publications, 1.0, 1.0, 1.0, 1.0], [subscribers, 1, 1, 1, 1]
    )
    mode, servers = placement
    placements = Placements.build([mode, 0, 0, 0, 0], [servers, (0,), (1,), (2,), (3,)])
    return make_situation(channels, placements, [100.0] * 4, **{"pool": FIXED, **changes})


def after(situation: Situation, settings: BalanceSettings = SMALL) -> Placements:
    decision = decide(situation, settings)
    return changed(situation.placements, decision.moves, decision.placements)


class TestAlgorithm1:
    @pytest.mark.parametrize(
        ("publications", "subscribers", "mode", "servers"),
        [
            (1000.0, 10, ALL_SUBSCRIBERS, 5),  # 100 publications per subscriber: 5 times the threshold
            (1000.0, 49, ALL_SUBSCRIBERS, 2),  # 20.4: just above it, so one server is not enough
            (1000.0, 50, SINGLE, 1),  # 20: not above it
            (399.0, 1, SINGLE, 1),  # too few publications to matter
            (10.0, 1000, ALL_PUBLISHERS, 3),  # 100 subscribers per publication: 2.5 times the threshold
            (1.0, 199, SINGLE, 1),  # too few subscribers to matter
            (30.0, 1200, SINGLE, 1),  # 40: not above it
            (500.0, 300, ALL_SUBSCRIBERS, 2),  # both counts are large, but no ratio is
            (401.0, 50_000, ALL_SUBSCRIBERS, 2),  # both counts are large, and the ratio suggests all_publishers
            (0.0, 1000, ALL_PUBLISHERS, 25),  # no publications: no division by zero
            (1000.0, 0, ALL_SUBSCRIBERS, 50),
        ],
    )
    def test_mode_and_number_of_servers(self, publications: float, subscribers: int, mode: int, servers: int) -> None:
        asked = asked_for(make_channels([1.0], [publications], [subscribers]), SMALL, 1.0)
        assert (int(asked.mode[0]), int(asked.servers[0])) == (mode, servers)

    def test_the_least_loaded_servers_are_taken_first(self) -> None:
        placements = after(one_channel(1000.0, 20, (SINGLE, (3,))))  # 50: three servers
        assert placements.mode[0] == ALL_SUBSCRIBERS
        assert placements.of(0) == (3, 0, 1)

    def test_the_busiest_servers_are_freed_first(self) -> None:
        placements = after(one_channel(10.0, 600, (ALL_PUBLISHERS, (3, 1, 0, 2))))  # 60: two servers
        assert placements.mode[0] == ALL_PUBLISHERS
        assert placements.of(0) == (1, 0)

    def test_replication_is_cancelled_when_its_conditions_are_not_met(self) -> None:
        decision = decide(one_channel(10.0, 10, (ALL_SUBSCRIBERS, (2, 1, 3))), SMALL)
        assert (decision.placements.mode.tolist(), decision.placements.of(0)) == ([SINGLE], (1,))
        assert decision.reasons == (Reason.MERGE,)

    def test_there_are_no_more_servers_than_the_pool_has(self) -> None:
        placements = after(one_channel(10_000.0, 1))  # 500 servers
        assert sorted(placements.of(0)) == [0, 1, 2, 3]

    def test_nor_than_a_channel_may_have(self) -> None:
        placements = after(one_channel(10_000.0, 1), BalanceSettings(replicas_max=2))
        assert len(placements.of(0)) == 2

    @pytest.mark.parametrize("subscribers", [46, 50, 55])
    def test_around_the_threshold_nothing_flaps(self, subscribers: int) -> None:
        """20.4 publications per subscriber replicate; down to 20 / 1.2 the replicas then stay."""
        situation = one_channel(1000.0, 49)
        placements = after(situation)
        assert placements.degree[0] == 2
        channels = make_channels(
            situation.channels.bytes_out, situation.channels.publications, [subscribers, 1, 1, 1, 1]
        )
        later = make_situation(channels, placements, [100.0] * 4, pool=FIXED)
        assert decide(later, SMALL).is_empty

    def test_below_the_band_replication_ends(self) -> None:
        subscribers = int(1000.0 / (SMALL.all_subscribers_ratio / (1.0 + BAND))) + 1
        assert after(one_channel(1000.0, subscribers, (ALL_SUBSCRIBERS, (0, 1)))).degree[0] == 1

    @pytest.mark.parametrize(("ago_s", "changes"), [(REPLICATION_WAIT_S - 1, 0), (REPLICATION_WAIT_S, 1)])
    def test_replicas_rest_for_a_while(self, ago_s: float, changes: int) -> None:
        situation = one_channel(10.0, 10, (ALL_SUBSCRIBERS, (0, 1)), moved_at=AT_S - ago_s)
        assert len(decide(situation, SMALL)) == changes

    def test_replicas_are_not_merged_on_a_server_without_room_for_all(self) -> None:
        heavy = one_channel(10.0, 10, (ALL_SUBSCRIBERS, (0, 1)), bytes_out=90.0)
        assert decide(heavy, SMALL).is_empty
        lighter = one_channel(10.0, 10, (ALL_SUBSCRIBERS, (0, 1, 2)), bytes_out=90.0)
        assert after(lighter).of(0) == (0, 1)  # one server less is possible, two are not

    def test_replicas_do_not_overload_servers_that_have_no_room(self) -> None:
        channels = make_channels([30.0, 60.0, 69.0, 69.0], [1000.0, 1.0, 1.0, 1.0], [10, 1, 1, 1])
        full = make_situation(channels, Placements.single([0, 1, 2, 3]), [100.0] * 4, pool=FIXED)
        assert decide(full, SMALL).is_empty

    def test_an_overloaded_server_is_relieved_by_replicas_though_others_pass_the_safe_ratio(self) -> None:
        channels = make_channels([300.0], [1000.0], [25])
        giant = make_situation(channels, Placements.single([0]), [100.0] * 2, pool=Pool(2, 2, 0, 100.0, 1.0, 1.0))
        placements = after(giant)
        assert placements.of(0) == (0, 1)
        assert load_ratios(giant, placements).tolist() == [1.5, 1.5]

    def test_a_server_that_stays_keeps_its_turn(self) -> None:
        """Clients use the server at their position, so fewer of them move."""
        situation = one_channel(10.0, 1000, (ALL_PUBLISHERS, (2, 0, 1)))
        situation.hosts.takes[0], situation.hosts.capacity[0], situation.hosts.bytes_out[0] = False, 0.0, 0.0
        assert after(situation).of(0) == (2, 3, 1)


class TestHighLoad:
    def test_the_busiest_channel_goes_to_the_least_loaded_server(self) -> None:
        situation = on_servers([50.0, 40.0, 20.0, 10.0, 30.0], [0, 0, 1, 2, 3])
        decision = decide(situation, DEFAULT_SETTINGS)
        assert decision.moves.tolist() == [0]
        assert decision.placements.of(0) == (2,)
        assert decision.reasons == (Reason.OVERLOAD,)

    def test_until_the_server_is_below_the_safe_ratio(self) -> None:
        situation = on_servers([10.0] * 10 + [1.0], [0] * 10 + [1], (100.0, 100.0))
        decision = decide(situation, DEFAULT_SETTINGS)
        assert len(decision) == 4
        ratios = load_ratios(situation, after(situation, DEFAULT_SETTINGS))
        assert ratios.tolist() == [0.6, 0.41]

    def test_nothing_moves_below_the_high_ratio(self) -> None:
        assert decide(on_servers([79.0, 1.0], [0, 0], pool=FIXED), DEFAULT_SETTINGS).is_empty

    def test_a_channel_that_fits_nowhere_is_passed_over(self) -> None:
        """The paper's loop would move the giant around forever."""
        situation = on_servers([300.0, 5.0, 4.0, 60.0, 60.0, 60.0], [0, 0, 0, 1, 2, 3], pool=FIXED)
        decision = decide(situation, DEFAULT_SETTINGS)
        assert sorted(decision.moves.tolist()) == [1, 2]
        assert rounds_to_rest(decide, situation, DEFAULT_SETTINGS, 5) == 1

    def test_two_servers_do_not_send_a_channel_to_and_fro(self) -> None:
        situation = on_servers([90.0, 30.0], [0, 1], (100.0, 100.0), pool=Pool(2, 2, 0, 100.0, 1.0, 1.0))
        assert decide(situation, DEFAULT_SETTINGS).is_empty

    def test_the_target_is_never_the_new_maximum(self) -> None:
        situation = on_servers([65.0, 35.0, 50.0], [0, 0, 1], (100.0, 100.0), pool=Pool(2, 2, 0, 100.0, 1.0, 1.0))
        placements = after(situation, DEFAULT_SETTINGS)
        assert load_ratios(situation, placements).max() <= 0.85  # 35 moves; 65 would bring the other to 1.15

    def test_a_channel_that_overloads_every_server_stays_though_measured_loads_vary(self) -> None:
        """Each server is above the high ratio with it, and another one always happens to send less beside it."""
        situation = on_servers([62.0], [0], pool=FIXED)
        beside = np.array([22.0, 19.0, 21.0, 20.0])
        for turn in range(4):
            sent = load_ratios(situation, situation.placements) * 100.0 + np.roll(beside, turn)
            measured = replace(situation, hosts=replace(situation.hosts, bytes_out=sent))
            assert 0.8 < load_ratios(measured, measured.placements).max() < 0.85
            assert decide(measured, DEFAULT_SETTINGS).is_empty

    def test_nor_is_a_server_added_for_what_it_sends_beside_the_channel(self) -> None:
        situation = on_servers([78.0], [0], residual=5.0)
        assert decide(situation, DEFAULT_SETTINGS).is_empty

    def test_the_last_resort_lowers_the_maximum_by_as_much_as_an_ordinary_relief(self) -> None:
        pool = Pool(2, 2, 0, 100.0, 1.0, 1.0)
        assert decide(on_servers([62.0, 30.0, 53.0], [0, 0, 1], (100.0, 100.0), pool=pool), DEFAULT_SETTINGS).is_empty
        situation = on_servers([62.0, 30.0, 51.0], [0, 0, 1], (100.0, 100.0), pool=pool)
        assert decide(situation, DEFAULT_SETTINGS).moves.tolist() == [1]  # 0.92 becomes 0.81

    def test_of_servers_of_two_sizes_the_one_with_room_is_found(self) -> None:
        """The small server has the lowest ratio, but it has no room for the channel."""
        situation = on_servers([90.0, 1.0, 80.0], [0, 1, 2], (100.0, 20.0, 400.0), pool=Pool(3, 3, 0, 1.0, 1.0, 1.0))
        assert after(situation, DEFAULT_SETTINGS).of(0) == (2,)

    def test_a_channel_is_moved_once_at_most_and_a_replica_not_beside_another(self) -> None:
        channels = make_channels([100.0, 45.0], [1000.0, 1.0], [25, 1])
        placements = Placements.build([ALL_SUBSCRIBERS, SINGLE], [(0, 1), (0,)])
        situation = make_situation(channels, placements, [100.0] * 3, pool=Pool(3, 3, 0, 100.0, 1.0, 1.0))
        placements = after(situation)
        assert len(set(placements.of(0))) == 2
        assert load_ratios(situation, placements).max() <= 0.7

    def test_when_all_are_too_full_the_load_is_levelled(self) -> None:
        """No server can be brought below the safe ratio; the maximum is lowered anyway."""
        situation = on_servers([20.0] * 15, [0] * 6 + [1] * 4 + [2] * 3 + [3] * 2, pool=FIXED)
        placements = after(situation, DEFAULT_SETTINGS)
        assert load_ratios(situation, placements).max() == pytest.approx(0.8)
        assert rounds_to_rest(decide, situation, DEFAULT_SETTINGS, 5) <= 2

    def test_servers_are_added_when_channels_have_nowhere_to_go(self) -> None:
        situation = on_servers([30.0] * 12, [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3)
        decision = decide(situation, DEFAULT_SETTINGS)
        assert not len(decision)
        assert (decision.add, decision.server_reason) == (2, Reason.GROW)  # 4 * (90 - 70) is more than 70
        assert decision.server_figures["average_ratio"] == pytest.approx(0.9)

    @pytest.mark.parametrize(
        ("pool", "add"),
        [(Pool(1, 5, 0, 100.0, 1.0, 1.0), 1), (Pool(1, 8, 1, 100.0, 1.0, 1.0), 0), (FIXED, 0)],
        ids=["the pool has one", "one is coming", "the pool has none"],
    )
    def test_as_far_as_the_pool_allows(self, pool: Pool, add: int) -> None:
        situation = on_servers([30.0] * 12, [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3, pool=pool)
        assert decide(situation, DEFAULT_SETTINGS).add == add

    def test_no_server_is_added_for_a_channel_that_a_new_one_could_not_carry(self) -> None:
        situation = on_servers([300.0, 60.0, 60.0, 60.0], [0, 1, 2, 3])
        assert decide(situation, DEFAULT_SETTINGS).is_empty

    def test_a_server_is_added_for_a_channel_that_is_better_off_alone(self) -> None:
        """No server would be below the safe ratio with one of them, but two are too much for any."""
        situation = on_servers([75.0, 75.0, 60.0, 60.0], [0, 0, 1, 2], (100.0,) * 3)
        assert decide(situation, DEFAULT_SETTINGS).add == 1
        joined = on_servers([75.0, 75.0, 60.0, 60.0], [0, 0, 1, 2])
        decision = decide(joined, DEFAULT_SETTINGS)
        assert (len(decision), decision.add) == (1, 0)
        assert load_ratios(joined, after(joined, DEFAULT_SETTINGS)).tolist() == [0.75, 0.6, 0.6, 0.75]

    def test_what_a_server_sends_beside_the_channels_counts(self) -> None:
        situation = on_servers([20.0, 20.0, 1.0], [0, 0, 1], (100.0, 100.0), residual=[45.0, 0.0])
        assert decide(situation, DEFAULT_SETTINGS).moves.tolist() == [0]


class TestLowLoad:
    def test_the_least_loaded_server_gives_its_channels_away_slowly_and_is_freed(self) -> None:
        situation = on_servers([30.0, 20.0, 6.0, 5.0, 4.0], [0, 1, 2, 2, 2], (100.0,) * 3)
        moved = []
        for _ in range(4):
            decision = decide(situation, DEFAULT_SETTINGS)
            moved.append((decision.moves.tolist(), decision.drain.tolist()))
            situation = followed(situation, decision)
        assert moved[0] == ([2, 3], [2])
        assert moved[1] == ([4], [])
        assert moved[2] == moved[3] == ([], [])
        assert not (situation.placements.servers == 2).any()

    def test_its_moves_say_why(self) -> None:
        situation = on_servers([30.0, 20.0, 6.0], [0, 1, 2], (100.0,) * 3)
        decision = decide(situation, DEFAULT_SETTINGS)
        assert decision.reasons == (Reason.DRAIN,)
        assert decision.server_reason is Reason.SHRINK

    def test_it_is_interrupted_when_load_rises(self) -> None:
        draining = on_servers([70.0, 60.0, 6.0], [0, 1, 2], (100.0,) * 3, takes=[True, True, False])
        decision = decide(draining, DEFAULT_SETTINGS)
        assert (decision.moves.tolist(), decision.keep.tolist()) == ([], [2])

    def test_a_little_more_load_does_not_interrupt_it(self) -> None:
        between = DEFAULT_SETTINGS.low_ratio * (1 + BAND / 2)
        weights = [100.0 * between, 100.0 * between, 100.0 * between - 1.0, 1.0]
        draining = on_servers(weights, [0, 1, 2, 3], takes=[True, True, True, False])
        assert not len(decide(draining, DEFAULT_SETTINGS).keep)

    def test_servers_that_are_being_freed_are_kept_before_new_ones_are_added(self) -> None:
        busy = on_servers([30.0] * 9 + [1.0], [0] * 3 + [1] * 3 + [2] * 3 + [3], takes=[True, True, True, False])
        decision = decide(busy, DEFAULT_SETTINGS)
        assert (decision.add, decision.keep.tolist()) == (0, [3])

    def test_nothing_begins_that_could_not_be_finished(self) -> None:
        """The others have 30 to spare together, but none of them has 25."""
        situation = on_servers([38.0, 38.0, 25.0], [0, 1, 2], (100.0,) * 3)
        assert decide(situation, DEFAULT_SETTINGS).is_empty

    def test_what_cannot_be_finished_any_more_is_given_up(self) -> None:
        situation = on_servers([38.0, 38.0, 25.0], [0, 1, 2], (100.0,) * 3, takes=[True, True, False])
        assert decide(situation, DEFAULT_SETTINGS).keep.tolist() == [2]

    def test_no_more_servers_go_than_the_pool_must_have(self) -> None:
        situation = on_servers([1.0, 1.0], [0, 1], (100.0, 100.0), pool=Pool(2, 8, 0, 100.0, 1.0, 1.0))
        assert decide(situation, DEFAULT_SETTINGS).is_empty

    def test_a_server_that_was_freed_is_not_needed_again(self) -> None:
        """Down to one server, and then no further: the load stays below the ratio at which servers are added."""
        situation = on_servers([10.0] * 5, [0, 1, 2, 3, 3])
        for _ in range(12):
            situation = followed(situation, decide(situation, DEFAULT_SETTINGS))
            empty = np.bincount(situation.placements.servers, minlength=4) == 0
            hosts = situation.hosts
            situation = replace(situation, hosts=replace(hosts, capacity=np.where(empty & ~hosts.takes, 0.0, 100.0)))
        assert decide(situation, DEFAULT_SETTINGS).is_empty
        assert len(set(situation.placements.servers.tolist())) == 1

    def test_a_replica_that_all_others_have_goes_away(self) -> None:
        situation = one_channel(10_000.0, 1, (ALL_SUBSCRIBERS, (0, 1, 2, 3)), takes=[False, True, True, True])
        placements = after(situation)
        assert sorted(placements.of(0)) == [1, 2, 3]


class TestWaiting:
    def test_no_plan_is_made_before_t_wait(self) -> None:
        hot = [50.0, 40.0, 20.0]
        recent = on_servers(hot, [0, 0, 1], planned_at=AT_S - DEFAULT_SETTINGS.wait_s + 0.5)
        assert decide(recent, DEFAULT_SETTINGS).is_empty
        assert len(decide(replace(recent, planned_at=AT_S - DEFAULT_SETTINGS.wait_s), DEFAULT_SETTINGS)) == 1

    def test_but_the_channels_of_a_dead_server_are_placed_at_once(self) -> None:
        situation = on_servers(
            [50.0, 40.0, 0.0, 0.0, 0.0, 30.0],
            [0, 0, 0, 0, 0, 1],
            (0.0, 100.0, 100.0, 100.0),
            takes=[False, True, True, True],
            planned_at=AT_S - 0.1,
        )
        decision = decide(situation, DEFAULT_SETTINGS)
        assert sorted(decision.moves.tolist()) == [0, 1, 2, 3, 4]
        assert set(decision.reasons) == {Reason.LOST}
        placements = after(situation, DEFAULT_SETTINGS)
        assert {placements.of(0), placements.of(1)} == {(2,), (3,)}

    def test_many_channels_without_load_do_not_all_go_to_one_server(self) -> None:
        idle = on_servers([0.0] * 40, [0] * 40, (0.0, 100.0, 100.0), takes=[False, True, True], moved_at=NEVER)
        placements = after(idle, DEFAULT_SETTINGS)
        assert np.bincount(placements.servers).tolist() == [0, 20, 20]
