"""The baselines: hash ring, hash ring with bounded loads, fixed slots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.balance.policies.situations import AT_S, make_channels, make_situation

from shoal.balance.columns import ALL_SUBSCRIBERS, SINGLE, Floats, Placements, host_loads
from shoal.balance.decision import Reason, changed
from shoal.balance.policies import bounded_load, consistent_hashing, slots
from shoal.balance.policies.name_hashes import SLOTS, key_slots, ring_hashes
from shoal.balance.policies.ring_homes import ring_of
from shoal.balance.settings import DEFAULT_SETTINGS
from shoal.balance.situation import Pool, Situation

CHANNELS = 4000
BASELINES = {
    "consistent-hashing": consistent_hashing.decide,
    "bounded-load": bounded_load.decide,
    "slots": slots.decide,
}
every_baseline = pytest.mark.parametrize("name", BASELINES)


def spread_out(name: str, servers: int, load: float = 0.5, count: int = CHANNELS, **changes: Any) -> Situation:
    """Channels of equal size placed by the baseline itself, on servers of equal size."""
    channels = make_channels(np.full(count, load * servers * 100.0 / count))
    capacity = [100.0] * servers
    situation = make_situation(channels, Placements.single(np.zeros(count, np.int32)), capacity)
    return make_situation(channels, follow(situation, name), capacity, **changes)


def follow(situation: Situation, name: str) -> Placements:
    decision = BASELINES[name](situation, DEFAULT_SETTINGS)
    return changed(situation.placements, decision.moves, decision.placements)


def with_another(situation: Situation) -> Situation:
    capacity = np.append(situation.hosts.capacity, 100.0)
    return make_situation(situation.channels, situation.placements, capacity, pool=situation.pool)


def test_hashing_places_channels_where_the_ring_says() -> None:
    situation = spread_out("consistent-hashing", 5)
    homes = ring_of(situation.hosts, situation.hosts.takes).homes(ring_hashes(situation.channels.names))
    assert situation.placements.servers.tolist() == homes.tolist()
    assert not len(consistent_hashing.decide(situation, DEFAULT_SETTINGS))


@every_baseline
def test_a_new_server_gets_its_part_and_nothing_else_moves(name: str) -> None:
    before = spread_out(name, 4)
    after = follow(with_another(before), name)
    moved = before.placements.servers != after.servers
    assert (after.servers[moved] == 4).mean() > (0.85 if name == "bounded-load" else 0.98)
    if name != "bounded-load":  # which moves no more than its bounds require
        assert 0.15 < moved.mean() < 0.26


@pytest.mark.parametrize("name", ["consistent-hashing", "slots"])
def test_an_overload_means_one_more_server(name: str) -> None:
    pool = Pool(1, 8, 0, 100.0, 1.0, 1.0)
    busy = spread_out(name, 4, load=0.9, pool=pool)
    assert BASELINES[name](busy, DEFAULT_SETTINGS).add == 1
    assert BASELINES[name](busy, DEFAULT_SETTINGS).server_reason is Reason.GROW
    assert BASELINES[name](spread_out(name, 4, load=0.4, pool=pool), DEFAULT_SETTINGS).add == 0


@every_baseline
@pytest.mark.parametrize(
    "changes",
    [
        {"pool": Pool(1, 4, 0, 100.0, 1.0, 1.0)},
        {"pool": Pool(1, 8, 1, 100.0, 1.0, 1.0)},
        {"planned_at": AT_S - DEFAULT_SETTINGS.wait_s / 2},
    ],
    ids=["the pool is at its end", "one is coming", "the last plan is recent"],
)
def test_no_server_is_added_when(name: str, changes: dict[str, Any]) -> None:
    assert BASELINES[name](spread_out(name, 4, load=0.9, **changes), DEFAULT_SETTINGS).add == 0


def test_bounded_load_grows_by_the_average() -> None:
    channels = make_channels([90.0, 1.0, 1.0])
    hot = make_situation(channels, Placements.single([0, 1, 2]), [100.0] * 3)
    assert bounded_load.decide(hot, DEFAULT_SETTINGS).add == 0
    assert bounded_load.decide(spread_out("bounded-load", 3, load=0.65), DEFAULT_SETTINGS).add == 1


@every_baseline
def test_no_server_is_ever_freed(name: str) -> None:
    idle = spread_out(name, 6, load=0.001)
    decision = BASELINES[name](idle, DEFAULT_SETTINGS)
    assert decision.is_empty


@every_baseline
def test_channels_of_a_dead_server_are_placed_at_once_and_the_others_stay(name: str) -> None:
    before = spread_out(name, 5, load=0.4, planned_at=AT_S - 0.1)
    before.hosts.capacity[2] = 0.0
    before.hosts.takes[2] = False
    before.hosts.bytes_out[2] = 0.0
    decision = BASELINES[name](before, DEFAULT_SETTINGS)
    after = changed(before.placements, decision.moves, decision.placements)
    assert not (after.servers == 2).any()
    was_there = before.placements.servers[decision.moves] == 2
    assert was_there.mean() > 0.9
    assert {reason for reason, there in zip(decision.reasons, was_there, strict=True) if there} == {Reason.LOST}


@every_baseline
def test_a_replicated_channel_becomes_single(name: str) -> None:
    placements = Placements.build([ALL_SUBSCRIBERS, SINGLE], [(0, 1, 2), (1,)])
    after = follow(make_situation(make_channels([30.0, 1.0]), placements, [100.0] * 3), name)
    assert after.mode.tolist() == [SINGLE, SINGLE]
    assert after.degree.tolist() == [1, 1]


def test_bounded_load_relieves_a_server_that_hashing_leaves_hot() -> None:
    channels = make_channels(1.0 / np.arange(1, 401))
    capacity = np.full(8, channels.bytes_out.sum() / 8 / 0.5)
    start = make_situation(channels, Placements.single(np.zeros(400, np.int32)), capacity)
    hashed, bound = follow(start, "consistent-hashing"), follow(start, "bounded-load")
    assert highest(channels.bytes_out, bound, capacity) < highest(channels.bytes_out, hashed, capacity)


def highest(weights: Floats, placements: Placements, capacity: Floats) -> float:
    return float((np.bincount(placements.servers, weights, len(capacity)) / capacity).max())


def test_bounded_load_moves_what_is_above_the_bound_and_no_more() -> None:
    channels = make_channels([10.0] * 40)
    uneven = make_situation(channels, Placements.single([0] * 25 + [1] * 15), [1000.0, 1000.0])
    decision = bounded_load.decide(uneven, DEFAULT_SETTINGS)
    assert len(decision) == 0  # the bound is 1.25 times 200: 25 channels
    uneven = make_situation(channels, Placements.single([0] * 28 + [1] * 12), [1000.0, 1000.0])
    assert len(bounded_load.decide(uneven, DEFAULT_SETTINGS)) == 3


def test_bounded_load_leaves_a_channel_alone_that_is_larger_than_every_bound() -> None:
    channels = make_channels([500.0, 5.0, 5.0])
    situation = make_situation(channels, Placements.single([1, 1, 0]), [100.0] * 4)
    after = follow(situation, "bounded-load")
    assert after.servers[0] == 1
    assert (after.servers[1:] != 1).all()


def test_slots_move_whole_and_follow_capacity_by_number() -> None:
    situation = spread_out("slots", 3)
    hosts = replace(situation.hosts, capacity=np.array([100.0, 100.0, 200.0]))
    table = slots.slot_table(hosts, hosts.takes)
    assert np.bincount(table).tolist() == [SLOTS // 4, SLOTS // 4, SLOTS // 2]
    owners = slots.slot_table(situation.hosts, situation.hosts.takes)
    assert situation.placements.servers.tolist() == owners[key_slots(situation.channels.names)].tolist()


def test_slots_look_at_numbers_and_not_at_load() -> None:
    """Two hot channels in one slot stay together, however loaded their server is."""
    names = [b"{hot}.%d" % index for index in range(4)] + [b"cold-%d" % index for index in range(40)]
    channels = make_channels([60.0] * 4 + [0.1] * 40, names=names)
    situation = make_situation(channels, Placements.single(np.zeros(44, np.int32)), [100.0] * 4)
    after = follow(situation, "slots")
    assert len(set(after.servers[:4].tolist())) == 1
    again = make_situation(channels, after, [100.0] * 4, pool=Pool(1, 4, 0, 100.0, 1.0, 1.0))
    assert slots.decide(again, DEFAULT_SETTINGS).is_empty


def test_figures_tell_the_ratios_of_the_servers_left_and_chosen() -> None:
    channels = make_channels([15.0] * 8)
    situation = make_situation(channels, Placements.single([0] * 8), [100.0, 100.0])
    decision = consistent_hashing.decide(situation, DEFAULT_SETTINGS)
    loads, _ = host_loads(channels, changed(situation.placements, decision.moves, decision.placements), 2)
    figures = dict(zip(decision.figure_names, decision.figures[0].tolist(), strict=True))
    assert figures["left_before"] == pytest.approx(1.2)
    assert figures["left_after"] == pytest.approx(loads[0] / 100.0)
    assert figures["chosen_before"] == 0.0
    assert figures["chosen_after"] == pytest.approx(loads[1] / 100.0)
    assert figures["bytes_out"] == 15.0
