"""The counts of lost, duplicated and reordered updates, while a subscription is read and at the end."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.lab.demo.delivery_audit import TAIL_S, Publications, SubscriptionCheck, Tally, Update, audit

CHANNEL = "tile.0.0"
PLAYER = 7


def published(count: int) -> Publications:
    """One update a second, the first at 1."""
    return {CHANNEL: {PLAYER: [float(number) for number in range(1, count + 1)]}}


def update(number: int) -> Update:
    return Update(PLAYER, number, float(number), number - 1.0, 0.0, 0.0)


def read(*numbers: int, since: float = 0.0) -> tuple[SubscriptionCheck, Tally]:
    tally = Tally()
    checked = SubscriptionCheck(CHANNEL, since, tally)
    for number in numbers:
        checked.update(update(number))
    return checked, tally


def counts(tally: Tally) -> tuple[int, int, int]:
    return tally.lost, tally.duplicated, tally.reordered


def test_all_updates_in_order_count_as_nothing_wrong() -> None:
    checked, tally = read(1, 2, 3)
    assert counts(tally) == (0, 0, 0)
    assert tally.deliveries == 3
    assert audit(published(3), [checked.receipt]) == 0


def test_a_late_joiner_misses_nothing_from_before() -> None:
    checked, tally = read(5, 6, since=4.5)
    assert counts(tally) == (0, 0, 0)
    assert audit(published(6), [checked.receipt]) == 0


def test_updates_from_before_the_subscription_may_have_holes() -> None:
    checked, tally = read(2, 5, 6, since=4.5)
    assert counts(tally) == (0, 0, 0)
    assert audit(published(6), [checked.receipt]) == 0


def test_a_hole_is_lost_at_once() -> None:
    checked, tally = read(1, 2, 5)
    assert counts(tally) == (2, 0, 0)
    assert audit(published(5), [checked.receipt]) == 2


def test_a_lost_head_shows_at_once_and_is_counted_exactly_at_the_end() -> None:
    checked, tally = read(4, 5)
    assert tally.lost == 1
    assert audit(published(5), [checked.receipt]) == 3


def test_a_lost_tail_and_a_player_never_received_show_at_the_end() -> None:
    checked, tally = read(1, 2)
    assert tally.lost == 0
    assert audit(published(6), [checked.receipt]) == 4
    silent, _ = read()
    assert audit(published(6), [silent.receipt]) == 6


def test_a_subscription_that_ended_must_have_what_was_published_well_before() -> None:
    checked, _ = read(1, 2)
    checked.receipt.until = TAIL_S + 2.5
    assert audit(published(9), [checked.receipt]) == 0
    checked.receipt.until = TAIL_S + 4.5
    assert audit(published(9), [checked.receipt]) == 2


def test_a_number_again_is_duplicated_and_a_late_one_reordered() -> None:
    _, tally = read(1, 2, 2)
    assert counts(tally) == (0, 1, 0)
    checked, tally = read(1, 3, 2, 4)
    assert counts(tally) == (0, 0, 1)
    assert audit(published(4), [checked.receipt]) == 0
    checked, tally = read(3, 2, since=1.5)
    assert tally.reordered == 1
    assert audit(published(3), [checked.receipt]) == 0


def test_a_reported_gap_is_not_silent() -> None:
    checked, tally = read(1)
    checked.gap(PLAYER, 3)
    checked.update(update(4))
    checked.update(update(6))
    assert counts(tally) == (1, 0, 0)
    assert tally.gaps_reported == 1
    assert audit(published(6), [checked.receipt]) == 1


def test_a_gap_without_an_end_ends_with_the_next_update_of_its_player() -> None:
    checked, tally = read(1)
    checked.gap(PLAYER, None)
    assert audit(published(3), [checked.receipt]) == 0
    checked.update(update(4))
    assert tally.lost == 0
    assert audit(published(6), [checked.receipt]) == 2


def test_a_gap_of_unknown_publishers_excuses_only_players_not_received_before() -> None:
    checked, tally = read(1)
    checked.gap_of_strangers()
    checked.update(update(3))
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
    checked, tally = read(*(number for number in due if number not in dropped), since=float(since))
    assert audit(published(30), [checked.receipt]) == len(dropped.intersection(due))
    assert tally.duplicated == tally.reordered == 0
    assert tally.lost <= len(dropped.intersection(due))


def test_an_update_survives_its_payload() -> None:
    sent = Update(PLAYER, 3, 12.25, 11.75, 0.5, 1.5)
    assert Update.decode(sent.encode()) == sent
    with pytest.raises(struct.error):
        Update.decode(b"north")
