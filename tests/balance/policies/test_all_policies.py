"""Properties of every policy, in any situation."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.balance.policies.situations import (
    drawn_situations,
    load_ratios,
    make_channels,
    make_situation,
    rounds_to_rest,
)

from shoal.balance.columns import SINGLE, Floats, Placements, host_loads
from shoal.balance.decision import Decision, Reason, changed
from shoal.balance.policies import POLICIES, Policy, policy
from shoal.balance.policies.bounded_load import load_bounds
from shoal.balance.policies.server_state import dead
from shoal.balance.settings import DEFAULT_SETTINGS, BalanceSettings
from shoal.balance.situation import Pool, Situation
from shoal.errors import ConfigError

ROUNDING = 1e-6
BY_LOAD = ("shoal", "dynamoth")
"""Policies that consider loads before they move a channel."""

every_policy = pytest.mark.parametrize("name", POLICIES)
"""For situations made by hand. Drawn ones cost more than a decision: all policies are asked about each."""
often = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def named(names: Iterable[str] = POLICIES) -> Iterator[tuple[str, Policy]]:
    """Policies one after another; a failure names the last one."""
    for name in names:
        note(f"policy {name}")
        yield name, policy(name)


@often
@given(situation=drawn_situations())
def test_a_decision_can_be_carried_out(situation: Situation) -> None:
    for _, decide in named():
        decision = decide(situation, DEFAULT_SETTINGS)
        assert_whole(situation, decision)
        may_take = situation.hosts.takes.copy()
        may_take[decision.keep] = True
        may_take[decision.drain] = False
        for index, row in enumerate(decision.moves.tolist()):
            gained = set(decision.placements.of(index)) - set(situation.placements.of(row))
            assert all(may_take[host] for host in gained)


@often
@given(situation=drawn_situations())
def test_servers_come_and_go_within_the_pool(situation: Situation) -> None:
    hosts, pool = situation.hosts, situation.pool
    for name, decide in named():
        decision = decide(situation, DEFAULT_SETTINGS)
        assert decision.add >= 0
        if decision.add:
            assert int((~dead(hosts)).sum()) + pool.adding + decision.add <= pool.servers_max
        assert hosts.takes[decision.drain].all()
        assert not hosts.takes[decision.keep].any()
        assert not dead(hosts)[decision.keep].any()
        if len(decision.drain):
            assert int(hosts.takes.sum()) - len(decision.drain) >= max(pool.servers_min, 1)
        if name not in BY_LOAD:
            assert not len(decision.drain)


@often
@given(situation=drawn_situations())
def test_the_same_situation_gives_the_same_decision_and_stays_as_it_is(situation: Situation) -> None:
    before = copy.deepcopy(situation)
    for _, decide in named():
        first = decide(situation, DEFAULT_SETTINGS)
        second = decide(copy.deepcopy(before), DEFAULT_SETTINGS)
        np.testing.assert_equal(as_plain(first), as_plain(second))
        for part in ("hosts", "placements", "channels"):
            now, then = getattr(situation, part), getattr(before, part)
            for field in now.__dataclass_fields__:
                assert np.array_equal(getattr(now, field), getattr(then, field))


@often
@given(situation=drawn_situations())
def test_nothing_stays_on_a_dead_server(situation: Situation) -> None:
    for _, decide in named():
        decision = decide(situation, BalanceSettings(moves_max=1000))
        after = changed(situation.placements, decision.moves, decision.placements)
        if (situation.hosts.takes & (situation.hosts.capacity > 0)).any():
            assert not dead(situation.hosts)[after.servers].any()


@often
@given(situation=drawn_situations())
def test_no_server_is_filled_above_the_safe_ratio_unless_that_lowers_the_maximum(situation: Situation) -> None:
    """The maximum counts only servers that give: a giant elsewhere that cannot be relieved must not prevent relief of
    others. Channels on a server that takes nothing more must go somewhere.
    """
    for _, decide in named(BY_LOAD):
        decision = decide(situation, DEFAULT_SETTINGS)
        before = load_ratios(situation, situation.placements)
        placements = changed(situation.placements, decision.moves, decision.placements)
        after = load_ratios(situation, placements)
        gives = host_bytes(situation, placements) < host_bytes(situation, situation.placements)
        highest = np.where(situation.hosts.takes, before, np.inf)[gives].max(initial=0.0)
        filled = (after > before + ROUNDING) & (after > DEFAULT_SETTINGS.safe_ratio + ROUNDING)
        assert highest == np.inf or (after[filled] < highest).all()


@often
@given(situation=drawn_situations(min_channels=5))
def test_shoal_moves_no_more_channels_than_it_may(situation: Situation) -> None:
    few = BalanceSettings(moves_max=2)
    decision = policy("shoal")(situation, few)
    lost = dead(situation.hosts)[situation.placements.servers]
    on_dead = len(set(situation.placements.rows[lost].tolist()))
    assert len(decision) <= max(2, on_dead)


@often
@given(situation=drawn_situations(steady=True))
def test_steady_load_settles_and_hashing_and_slots_move_a_channel_once(situation: Situation) -> None:
    for _, decide in named(BY_LOAD):
        assert rounds_to_rest(decide, situation, DEFAULT_SETTINGS, 11) <= 10
    for _, decide in named(("consistent-hashing", "slots")):
        assert rounds_to_rest(decide, situation, DEFAULT_SETTINGS, 3) <= 1


@often
@given(seed=st.integers(0, 10_000), servers=st.integers(1, 6))
def test_bounded_load_keeps_its_bounds_while_channels_are_small(seed: int, servers: int) -> None:
    chance = np.random.default_rng(seed)
    channels = make_channels(chance.uniform(0.0, 2.0, 60 * servers))
    capacity = chance.choice([50.0, 100.0], servers)
    placements = Placements.single(chance.integers(0, servers, len(channels)))
    situation = make_situation(channels, placements, capacity)
    decision = policy("bounded-load")(situation, DEFAULT_SETTINGS)
    after = changed(placements, decision.moves, decision.placements)
    loads, _ = host_loads(channels, after, servers)
    assert (loads <= load_bounds(situation) + ROUNDING).all()


@every_policy
@pytest.mark.parametrize(
    ("weights", "capacity", "takes"),
    [
        pytest.param([], [100.0, 100.0], [True, True], id="no channels"),
        pytest.param([0.0] * 5, [100.0, 100.0], [True, True], id="no load"),
        pytest.param([1e9], [100.0] * 4, [True] * 4, id="a channel larger than all servers together"),
        pytest.param([1e9] * 6, [100.0] * 4, [True] * 4, id="nothing but such channels"),
        pytest.param([90.0] * 4, [100.0] * 4, [True] * 4, id="all servers equally full"),
        pytest.param([500.0, 10.0], [100.0], [True], id="one server"),
        pytest.param([10.0, 10.0], [0.0, 0.0], [True, True], id="servers that can carry nothing"),
        pytest.param([10.0, 10.0], [100.0, 100.0], [False, False], id="all servers draining"),
        pytest.param([10.0, 10.0], [0.0, 0.0], [False, False], id="all servers dead"),
        pytest.param([1e-6, 1e12], [1e-6, 1e12], [True, True], id="sizes at the ends of the scale"),
    ],
)
def test_it_ends_whatever_the_loads(name: str, weights: list[float], capacity: list[float], takes: list[bool]) -> None:
    channels = make_channels(weights)
    placements = Placements.single(np.arange(len(weights)) % len(capacity))
    situation = make_situation(channels, placements, capacity, takes=takes)
    decision = policy(name)(situation, DEFAULT_SETTINGS)
    assert_whole(situation, decision)


@every_policy
def test_a_server_that_did_not_report_keeps_its_channels(name: str) -> None:
    channels = make_channels([10.0] * 40)
    placements = Placements.single(np.arange(40) % 4)
    settled = make_situation(channels, placements, [200.0] * 4, pool=Pool(4, 4, 0, 100.0, 1.0, 1.0))
    for _ in range(2):
        decision = policy(name)(settled, DEFAULT_SETTINGS)
        placements = changed(placements, decision.moves, decision.placements)
        settled = make_situation(channels, placements, [200.0] * 4, pool=settled.pool)
    unheard = make_situation(channels, placements, [200.0] * 4, takes=[True, True, True, False], pool=settled.pool)
    unheard.hosts.heard[3] = False
    unheard.hosts.bytes_out[3] = 0.0
    decision = policy(name)(unheard, DEFAULT_SETTINGS)
    on_it = placements.servers[placements.offsets[:-1]] == 3
    assert on_it.any()
    assert not on_it[decision.moves].any()
    assert not len(decision.keep)


def test_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="unknown policy 'round-robin'"):
        policy("round-robin")


def assert_whole(situation: Situation, decision: Decision) -> None:
    """Every channel has its servers: at least one, none twice, exactly one if it is single; and all figures are
    numbers.
    """
    assert len(set(decision.moves.tolist())) == len(decision.moves) == len(decision.placements)
    assert len(decision.reasons) == len(decision.moves)
    assert all(isinstance(reason, Reason) for reason in decision.reasons)
    assert decision.figures.shape == (len(decision.moves), len(decision.figure_names))
    assert np.isfinite(decision.figures).all()
    after = changed(situation.placements, decision.moves, decision.placements)
    assert len(after) == len(situation.channels)
    assert (after.degree >= 1).all()
    assert (after.degree[after.mode == SINGLE] == 1).all()
    for row in range(len(after)):
        assert len(set(after.of(row))) == len(after.of(row))
    for index, row in enumerate(decision.moves.tolist()):
        same_mode = decision.placements.mode[index] == situation.placements.mode[row]
        assert not same_mode or set(decision.placements.of(index)) != set(situation.placements.of(row))


def host_bytes(situation: Situation, placements: Placements) -> Floats:
    bytes_out, _ = host_loads(situation.channels, placements, len(situation.hosts))
    return bytes_out


def as_plain(decision: Decision) -> list[object]:
    parts = decision.placements
    return [
        decision.moves,
        parts.mode,
        parts.offsets,
        parts.servers,
        decision.reasons,
        decision.figures,
        decision.add,
        decision.drain,
        decision.keep,
        decision.server_figures,
    ]
