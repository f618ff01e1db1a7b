"""What the players count: the rule for lost, duplicated and reordered, live and at the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.demo.audit import TAIL_S, Publications, Reading, Tally, audit
from shoal.demo.game import Update

CHANNEL = "tile.0.0"
PLAYER = 7


def published(count: int) -> Publications:
    """One update a second, the first at 1."""
    return {CHANNEL: {PLAYER: [float(number) for number in range(1, count + 1)]}}


def update(number: int) -> Update:
    return Update(PLAYER, number, float(number), number - 1.0, 0.0, 0.0)


def read(*numbers: int, since: float = 0.0) -> tuple[Reading, Tally]:
    tally = Tally()
    reading = Reading(CHANNEL, since, tally)
    for number in numbers:
        reading.update(update(number))
    return reading, tally


def counts(tally: Tally) -> tuple[int, int, int]:
    return tally.lost, tally.duplicated, tally.reordered


def test_everything_in_order_is_fine() -> None:
    reading, tally = read(1, 2, 3)
    assert counts(tally) == (0, 0, 0)
    assert tally.deliveries == 3
    assert audit(published(3), [reading.receipt]) == 0


def test_a_late_joiner_is_owed_nothing_from_before() -> None:
    reading, tally = read(5, 6, since=4.5)
    assert counts(tally) == (0, 0, 0)
    assert audit(published(6), [reading.receipt]) == 0


def test_what_came_before_the_subscription_was_in_force_may_have_holes() -> None:
    reading, tally = read(2, 5, 6, since=4.5)
    assert counts(tally) == (0, 0, 0)
    assert audit(published(6), [reading.receipt]) == 0


def test_a_hole_is_lost_at_once() -> None:
    reading, tally = read(1, 2, 5)
    assert counts(tally) == (2, 0, 0)
    assert audit(published(5), [reading.receipt]) == 2


def test_a_lost_head_shows_at_once_and_is_counted_exactly_at_the_end() -> None:
    reading, tally = read(4, 5)
    assert tally.lost == 1
    assert audit(published(5), [reading.receipt]) == 3


def test_a_lost_tail_and_a_player_never_heard_show_at_the_end() -> None:
    reading, tally = read(1, 2)
    assert tally.lost == 0
    assert audit(published(6), [reading.receipt]) == 4
    silent, _ = read()
    assert audit(published(6), [silent.receipt]) == 6


def test_a_subscription_that_ended_is_owed_what_was_published_well_before() -> None:
    reading, _ = read(1, 2)
    reading.receipt.until = TAIL_S + 2.5
    assert audit(published(9), [reading.receipt]) == 0
    reading.receipt.until = TAIL_S + 4.5
    assert audit(published(9), [reading.receipt]) == 2


def test_twice_is_duplicated_and_late_is_reordered() -> None:
    _, tally = read(1, 2, 2)
    assert counts(tally) == (0, 1, 0)
    reading, tally = read(1, 3, 2, 4)
    assert counts(tally) == (0, 0, 1)
    assert audit(published(4), [reading.receipt]) == 0
    reading, tally = read(3, 2, since=1.5)
    assert tally.reordered == 1
    assert audit(published(3), [reading.receipt]) == 0


def test_a_reported_gap_is_not_silent() -> None:
    reading, tally = read(1)
    reading.gap(PLAYER, 3)
    reading.update(update(4))
    reading.update(update(6))
    assert counts(tally) == (1, 0, 0)
    assert tally.gaps_reported == 1
    assert audit(published(6), [reading.receipt]) == 1


def test_an_open_gap_ends_where_the_player_is_heard_again() -> None:
    reading, tally = read(1)
    reading.gap(PLAYER, None)
    assert audit(published(3), [reading.receipt]) == 0
    reading.update(update(4))
    assert tally.lost == 0
    assert audit(published(6), [reading.receipt]) == 2


def test_a_gap_of_strangers_excuses_only_players_not_heard_before() -> None:
    reading, tally = read(1)
    reading.gap_of_strangers()
    reading.update(update(3))
    assert tally.lost == 1
    stranger, tally = read()
    stranger.gap_of_strangers()
    assert audit(published(3), [stranger.receipt]) == 0
    stranger.update(update(3))
    assert tally.lost == 0
    assert audit(published(4), [stranger.receipt]) == 1


@given(dropped=st.sets(st.integers(1, 30)), since=st.integers(0, 30))
def test_the_audit_finds_exactly_what_was_dropped(dropped: set[int], since: int) -> None:
    due = [number for number in range(1, 31) if number > since]
    reading, tally = read(*(number for number in due if number not in dropped), since=float(since))
    assert audit(published(30), [reading.receipt]) == len(dropped.intersection(due))
    assert tally.duplicated == tally.reordered == 0
    assert tally.lost <= len(dropped.intersection(due))
