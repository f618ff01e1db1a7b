"""The plan book: it grows newer and never older, and says where a channel lives even when servers have left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.core_driver import FORGER, SIGNER, channel_at, ring

from shoal.errors import ForgedEntryError, StaleEntryError
from shoal.plan.book import PlanBook
from shoal.plan.entry import Entry, Phase
from shoal.plan.placement import Mode, Placement, at_home
from shoal.plan.signature import Verifier

THREE = ("s1", "s2", "s3")


def new_book(version: int = 5, servers: tuple[str, ...] = THREE) -> PlanBook:
    book = PlanBook(Verifier(SIGNER.public))
    book.accept_ring(SIGNER.ring(ring(version, servers)))
    return book


def entry(version: int, *servers: str, mode: Mode = Mode.ALL_SUBSCRIBERS, channel: bytes = b"tile") -> bytes:
    return SIGNER.entry(channel, Placement(version, mode, servers))


# Rings


def test_without_a_ring_there_is_no_placement() -> None:
    book = PlanBook(Verifier(SIGNER.public))
    assert book.version == 0
    assert book.ring is None
    assert book.address("s1") is None
    with pytest.raises(StaleEntryError, match="no ring is known yet"):
        book.placement(b"tile")


def test_a_newer_ring_is_taken_and_can_be_passed_on() -> None:
    book = new_book(5)
    newer = SIGNER.ring(ring(6, ("s1",)))
    assert book.accept_ring(newer)
    assert book.version == 6
    assert book.signed_ring == newer
    assert book.address("s2") is None


def test_the_same_version_is_no_news() -> None:
    book = new_book(5)
    assert not book.accept_ring(SIGNER.ring(ring(5, ("s1",))))
    assert book.ring == ring(5, THREE)


def test_an_older_ring_is_refused_and_changes_nothing() -> None:
    book = new_book(5)
    with pytest.raises(StaleEntryError, match="ring version 4 is older than 5"):
        book.accept_ring(SIGNER.ring(ring(4, ("s1",))))
    assert book.ring == ring(5, THREE)


def test_a_forged_ring_is_refused_and_changes_nothing() -> None:
    book = new_book(5)
    with pytest.raises(ForgedEntryError):
        book.accept_ring(FORGER.ring(ring(99, ("s1",))))
    assert book.ring == ring(5, THREE)


@given(versions=st.lists(st.integers(1, 20), min_size=1))
def test_whatever_comes_in_whatever_order_the_newest_ring_counts(versions: list[int]) -> None:
    book = PlanBook(Verifier(SIGNER.public))
    for position, version in enumerate(versions):
        newest = max(versions[:position], default=0)
        if version < newest:
            with pytest.raises(StaleEntryError):
                book.accept_ring(SIGNER.ring(ring(version, THREE)))
        else:
            assert book.accept_ring(SIGNER.ring(ring(version, THREE))) is (version > newest)
    assert book.version == max(versions)


# Entries


def test_a_channel_without_an_entry_lives_where_the_ring_says() -> None:
    book = new_book(5)
    home = ring(5, THREE).home(b"tile")
    assert book.placement(b"tile") == at_home(5, home)
    assert book.signed_entry(b"tile") == b""


def test_an_entry_goes_before_the_ring() -> None:
    book = new_book(5)
    data = entry(2, "s3", "s1")
    assert book.accept_entry(data) == (b"tile", True)
    assert book.placement(b"tile") == Placement(2, Mode.ALL_SUBSCRIBERS, ("s3", "s1"))
    assert book.signed_entry(b"tile") == data
    assert book.placement(b"other").mode is Mode.SINGLE


def test_a_newer_entry_is_taken_an_older_one_refused() -> None:
    book = new_book(5)
    book.accept_entry(entry(2, "s1"))
    assert book.accept_entry(entry(3, "s2")) == (b"tile", True)
    with pytest.raises(StaleEntryError, match=r"b'tile' has revision 2, older than 3"):
        book.accept_entry(entry(2, "s1"))
    assert book.placement(b"tile").servers == ("s2",)


def test_an_entry_that_is_known_is_no_news() -> None:
    book = new_book(5)
    book.accept_entry(entry(2, "s1"))
    assert book.accept_entry(entry(2, "s1")) == (b"tile", False)


def test_a_version_of_an_entry_means_one_placement() -> None:
    """As with rings: what is in use is not replaced by something that is not newer."""
    book = new_book(5)
    book.accept_entry(entry(2, "s1"))
    try:
        news = book.accept_entry(entry(2, "s2"))[1]
    except StaleEntryError:
        news = False
    assert not news
    assert book.placement(b"tile").servers == ("s1",)


def test_a_forged_entry_is_refused_and_changes_nothing() -> None:
    book = new_book(5)
    book.accept_entry(entry(2, "s1"))
    with pytest.raises(ForgedEntryError):
        book.accept_entry(FORGER.entry(b"tile", Placement(9, Mode.SINGLE, ("s2",))))
    assert book.placement(b"tile").servers == ("s1",)


def test_a_forgotten_entry_can_be_learned_again() -> None:
    book = new_book(5)
    book.accept_entry(entry(2, "s1"))
    book.forget_entry(b"tile")
    assert book.placement(b"tile").mode is Mode.SINGLE
    assert book.entries == {}
    assert book.accept_entry(entry(2, "s1")) == (b"tile", True)


# Servers that have left


def test_an_entry_is_reduced_to_the_servers_that_remain() -> None:
    book = new_book(5)
    book.accept_entry(entry(2, "s1", "s2", "s3", mode=Mode.ALL_PUBLISHERS))
    book.accept_ring(SIGNER.ring(ring(6, ("s1", "s3"))))
    reduced = book.placement(b"tile")
    assert (reduced.mode, reduced.servers) == (Mode.ALL_PUBLISHERS, ("s1", "s3"))
    assert reduced.version not in (2, 5, 6), "nobody may take it for the whole one"
    other = new_book(5)
    other.accept_entry(entry(2, "s1", "s2", "s3", mode=Mode.ALL_PUBLISHERS))
    other.accept_ring(SIGNER.ring(ring(7, ("s3", "s1", "s4"))))
    assert other.placement(b"tile") == reduced, "whoever knows the same servers to be there uses the same version"
    assert book.entries[b"tile"].servers == ("s1", "s2", "s3"), "the entry itself stays as it was signed"


def test_an_entry_that_lost_all_its_servers_falls_back_to_the_ring() -> None:
    book = new_book(5)
    channel = channel_at(ring(6, ("s1", "s3")), "s3")
    book.accept_entry(entry(2, "s2", channel=channel))
    book.accept_ring(SIGNER.ring(ring(6, ("s1", "s3"))))
    assert book.placement(channel) == at_home(6, "s3")


def test_an_entry_counts_again_when_its_servers_are_back() -> None:
    book = new_book(5)
    book.accept_entry(entry(2, "s1", "s2"))
    book.accept_ring(SIGNER.ring(ring(6, ("s1", "s3"))))
    book.accept_ring(SIGNER.ring(ring(7, THREE)))
    assert book.placement(b"tile") == Placement(2, Mode.ALL_SUBSCRIBERS, ("s1", "s2"))


def test_publishers_with_an_earlier_ring_used_what_was_left_of_the_placement_or_the_home() -> None:
    """A replicated channel lost a server and got it back. Subscribers that saw neither ask where publishers were."""
    whole = ring(1, THREE)
    reduced = whole.next(ring(1, ("s1", "s3")).servers)
    book = PlanBook(Verifier(SIGNER.public))
    book.accept_ring(SIGNER.ring(reduced.next(whole.servers)))
    book.accept_entry(entry(1, "s3", "s2", mode=Mode.ALL_PUBLISHERS))
    assert book.earlier_servers(b"tile") == ("s3",)
    alone = channel_at(whole, "s2")
    book.accept_entry(entry(1, "s2", mode=Mode.SINGLE, channel=alone))
    assert book.earlier_servers(alone) == (reduced.home(alone),)
    book.accept_entry(entry(1, "s1", "s3", channel=b"elsewhere"))
    assert book.earlier_servers(b"elsewhere") == ()


def test_a_placement_by_an_earlier_ring_follows_the_ring_as_for_those_who_do_not_know_the_entry() -> None:
    """A move began while the channel was at home, or was abandoned there; then the ring changed."""
    channel = channel_at(ring(6, THREE), "s3")
    home = at_home(5, "s1")
    moving = Entry(channel, Placement(9, Mode.SINGLE, ("s2",)), Phase.PREPARE, (home,), home.version, 9)
    for known in (moving, Entry(channel, home, revision=10)):
        book = new_book(5, ("s1", "s2"))
        book.accept_entry(SIGNER.line(known))
        book.accept_ring(SIGNER.ring(ring(6, THREE)))
        assert book.placement(channel) == at_home(6, "s3")
        assert book.subscribed(channel) == (at_home(6, "s3"),)
    assert book.placing_entry(channel) is None
