"""The schedule of moves: waves with quiet times in between, several at once, and some again before the end."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from shoal.lab.soak.move_schedule import choose_servers, draw_burst, draw_idle, draw_moves
from shoal.plan.placement import Mode, check_servers

CHANNELS = [f"c{number}" for number in range(40)]


@pytest.mark.parametrize(("moves", "seconds"), [(1, 2.0), (20, 6.0), (300, 60.0), (777, 41.0)])
def test_all_moves_are_drawn_in_order_with_quiet_before_and_after(moves: int, seconds: float) -> None:
    drawn = draw_moves(CHANNELS, moves, seconds, Random(1))
    times = [move.at_s for move in drawn]
    assert len(drawn) == moves
    assert times == sorted(times)
    assert times[0] >= min(5.0, seconds / 6)
    assert times[-1] <= seconds - min(8.0, seconds / 4)
    assert drawn == draw_moves(CHANNELS, moves, seconds, Random(1))
    assert len({(move.at_s, move.channel) for move in drawn}) == moves


def test_a_long_round_has_every_kind_of_move_several_at_once_some_again_and_quiet_times() -> None:
    drawn = draw_moves(CHANNELS, 300, 60.0, Random(7))
    assert {(move.mode, move.eager) for move in drawn} == {(mode, eager) for mode in Mode for eager in (False, True)}
    at_once = Counter(move.at_s for move in drawn)
    assert max(at_once.values()) > 1
    last: dict[str, float] = {}
    again = 0
    for move in drawn:
        again += move.at_s - last.get(move.channel, -10.0) < 0.6
        last[move.channel] = move.at_s
    assert again > 20
    times = sorted(at_once)
    pauses = [after - before for before, after in pairwise(times)]
    assert sum(pause > 4.0 for pause in pauses) >= 3


def test_a_burst_moves_every_channel_at_the_same_time() -> None:
    drawn = draw_burst(CHANNELS, 20.0, Random(1))
    assert [move.channel for move in drawn] == CHANNELS
    assert {move.at_s for move in drawn} == {20.0 / 6}


def test_idle_channels_move_once_and_lazily_in_the_middle() -> None:
    drawn = draw_idle(CHANNELS, 10.0, Random(1))
    assert sorted(move.channel for move in drawn) == sorted(CHANNELS)
    assert not any(move.eager for move in drawn)
    assert all(4.0 <= move.at_s <= 6.0 for move in drawn)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("members", [["s1"], ["s1", "s2"], ["s1", "s2", "s3", "s4"]])
def test_servers_are_members_and_form_another_placement_if_there_is_one(mode: Mode, members: list[str]) -> None:
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


def test_without_members_there_are_no_servers() -> None:
    assert choose_servers(Mode.SINGLE, [], None, Random(1)) == ()
