"""When channels are asked to move: waves with quiet in between, several at once, and again before the end."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from shoal.plan.placement import Mode, check_servers
from shoal.soak.schedule import choose_servers, draw_burst, draw_idle, draw_wishes

CHANNELS = [f"c{number}" for number in range(40)]


@pytest.mark.parametrize(("moves", "seconds"), [(1, 2.0), (20, 6.0), (300, 60.0), (777, 41.0)])
def test_all_moves_are_drawn_in_order_with_quiet_before_and_after(moves: int, seconds: float) -> None:
    wishes = draw_wishes(CHANNELS, moves, seconds, Random(1))
    times = [wish.at_s for wish in wishes]
    assert len(wishes) == moves
    assert times == sorted(times)
    assert times[0] >= min(5.0, seconds / 6)
    assert times[-1] <= seconds - min(8.0, seconds / 4)
    assert wishes == draw_wishes(CHANNELS, moves, seconds, Random(1))
    assert len({(wish.at_s, wish.channel) for wish in wishes}) == moves


def test_a_long_run_has_every_kind_several_at_once_some_again_and_quiet_in_between() -> None:
    wishes = draw_wishes(CHANNELS, 300, 60.0, Random(7))
    assert {(wish.mode, wish.eager) for wish in wishes} == {(mode, eager) for mode in Mode for eager in (False, True)}
    at_once = Counter(wish.at_s for wish in wishes)
    assert max(at_once.values()) > 1
    last: dict[str, float] = {}
    again = 0
    for wish in wishes:
        again += wish.at_s - last.get(wish.channel, -10.0) < 0.6
        last[wish.channel] = wish.at_s
    assert again > 20
    times = sorted(at_once)
    pauses = [after - before for before, after in pairwise(times)]
    assert sum(pause > 4.0 for pause in pauses) >= 3


def test_a_burst_moves_every_channel_at_the_same_time() -> None:
    wishes = draw_burst(CHANNELS, 20.0, Random(1))
    assert [wish.channel for wish in wishes] == CHANNELS
    assert {wish.at_s for wish in wishes} == {20.0 / 6}


def test_idle_channels_move_once_and_lazily_in_the_middle() -> None:
    wishes = draw_idle(CHANNELS, 10.0, Random(1))
    assert sorted(wish.channel for wish in wishes) == sorted(CHANNELS)
    assert not any(wish.eager for wish in wishes)
    assert all(4.0 <= wish.at_s <= 6.0 for wish in wishes)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("members", [["s1"], ["s1", "s2"], ["s1", "s2", "s3", "s4"]])
def test_servers_are_members_and_another_placement_if_there_is_a_choice(mode: Mode, members: list[str]) -> None:
    rng = Random(3)
    before = None
    for _ in range(50):
        chosen = choose_servers(mode, members, before, rng)
        if not chosen:
            assert before == (mode, frozenset(members))
            continue
        check_servers(mode, chosen)
        assert set(chosen) <= set(members)
        assert (mode, frozenset(chosen)) != before
        before = mode, frozenset(chosen)


def test_without_a_ring_there_is_no_choice() -> None:
    assert choose_servers(Mode.SINGLE, [], None, Random(1)) == ()
