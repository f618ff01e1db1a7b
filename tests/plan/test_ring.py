"""The ring: the same home everywhere and forever, few channels move when a server comes or goes, fair shares."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.plan.ring import Ring, ServerAddress, ring_hash

CHANNELS = [b"tile.%d" % number for number in range(2000)]

GOLDEN_HASH = 0x8F83906FDFE20AA2
GOLDEN_HOMES = {
    b"tile.1": "s2",
    b"tile.2": "s3",
    b"tile.3": "s3",
    b"tile.4": "s2",
    b"chat": "s3",
    b"news": "s1",
    b"\x00": "s1",
    b"\xff\xfe": "s3",
    b"gr\xc3\xbcn": "s2",
    b"x" * 512: "s1",
}


def ring_of(*servers: str, version: int = 1) -> Ring:
    return Ring(version, tuple(ServerAddress(server, "10.0.0.1", 7000) for server in servers))


def homes(ring: Ring) -> dict[bytes, str]:
    return {channel: ring.home(channel) for channel in CHANNELS}


# Stability


def test_homes_never_change() -> None:
    """Golden values: another result means that clients of two releases would disagree about every channel."""
    assert ring_hash(b"tile.1") == GOLDEN_HASH
    ring = ring_of("s1", "s2", "s3")
    assert [ring.home(channel) for channel in GOLDEN_HOMES] == list(GOLDEN_HOMES.values())


def test_many_channels_are_asked_about_at_once() -> None:
    ring = ring_of("s1", "s2", "s3")
    assert ring.homes_of(iter(CHANNELS)) == [ring.home(channel) for channel in CHANNELS]
    assert ring.homes_of([]) == []


def test_neither_order_nor_version_nor_address_matters() -> None:
    moved = Ring(9, tuple(ServerAddress(server, "10.9.9.9", 1) for server in ("s3", "s1", "s2")))
    assert homes(ring_of("s1", "s2", "s3")) == homes(moved)


@given(channel=st.binary(max_size=50))
def test_any_bytes_have_a_home(channel: bytes) -> None:
    ring = ring_of("s1", "s2", "s3")
    assert ring.home(channel) in ring.ids
    assert ring.home(channel) == ring_of("s1", "s2", "s3").home(channel)


def test_a_ring_that_was_sent_is_the_same_ring() -> None:
    ring = ring_of("s1", "s2", "s3", version=7)
    ring.home(b"computed once")
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(ring), type=Ring)
    assert copy == ring
    assert homes(copy) == homes(ring)


# Movement


@pytest.mark.parametrize("gone", ["s1", "s2", "s3", "s4", "s5"])
def test_only_the_channels_of_a_server_that_leaves_move(gone: str) -> None:
    servers = ("s1", "s2", "s3", "s4", "s5")
    before = homes(ring_of(*servers))
    after = homes(ring_of(*(server for server in servers if server != gone)))
    moved = {channel for channel in CHANNELS if before[channel] != after[channel]}
    assert moved == {channel for channel, home in before.items() if home == gone}


def test_the_channels_of_a_server_that_leaves_spread_over_the_others() -> None:
    before = homes(ring_of("s1", "s2", "s3", "s4"))
    after = homes(ring_of("s2", "s3", "s4"))
    heirs = Counter(after[channel] for channel, home in before.items() if home == "s1")
    assert set(heirs) == {"s2", "s3", "s4"}


@given(count=st.integers(1, 8))
def test_a_server_that_joins_only_takes(count: int) -> None:
    old = [f"s{number}" for number in range(count)]
    before, after = homes(ring_of(*old)), homes(ring_of(*old, "new"))
    moved = [channel for channel in CHANNELS if before[channel] != after[channel]]
    assert {after[channel] for channel in moved} == {"new"}
    assert len(moved) < 2 * len(CHANNELS) / (count + 1), "about its share, and not much more"


# Balance


@pytest.mark.parametrize("count", [2, 3, 5, 8, 16])
def test_shares_are_fair(count: int) -> None:
    """A hundred points each: the largest share stays within a half of the fair one."""
    shares = Counter(homes(ring_of(*(f"s{number}" for number in range(count)))).values())
    fair = len(CHANNELS) / count
    assert len(shares) == count
    assert 0.5 * fair < min(shares.values())
    assert max(shares.values()) < 1.5 * fair


# Members


def test_members_have_addresses() -> None:
    ring = ring_of("s1", "s2")
    assert ring.ids == ("s1", "s2")
    assert ring.address("s2") == ServerAddress("s2", "10.0.0.1", 7000)
    assert ring.address("s9") is None


def test_a_ring_without_servers_has_no_home() -> None:
    with pytest.raises(ValueError, match="without servers"):
        ring_of().home(b"tile")


# Guests


def test_a_guest_is_nobodys_home_and_changes_nothing_for_others() -> None:
    before = ring_of("s1", "s2")
    joined = before.next(ring_of("s1", "s2", "s3").servers, guests=("s3",))
    assert homes(joined) == homes(before)
    assert joined.ids == ("s1", "s2", "s3")
    assert joined.homes == ("s1", "s2")


def test_a_home_that_becomes_a_guest_is_remembered_as_the_earlier_home() -> None:
    before = ring_of("s1", "s2")
    after = before.next(before.servers, guests=("s2",))
    left = [channel for channel in CHANNELS if before.home(channel) == "s2"]
    assert {after.home(channel) for channel in CHANNELS} == {"s1"}
    assert all(members.home(channel) == "s2" for channel in left for members in after.lived_by)


def test_guests_survive_the_wire() -> None:
    ring = ring_of("s1", "s2").next(ring_of("s1", "s2", "s3").servers, guests=("s3",))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ring), type=Ring) == ring


# Memberships


def test_the_memberships_of_earlier_rings_are_known_as_far_as_they_are_remembered() -> None:
    rings = [ring_of("s1")]
    for number in range(2, 13):
        rings.append(rings[-1].next(ring_of("s1", f"s{number}").servers))
    newest = rings[-1]
    for first, last in ((4, 12), (5, 7), (12, 12), (11, 99)):
        expected = [ring.members for ring in rings if first <= ring.version <= last]
        assert newest.memberships(first, last) == tuple(reversed(expected))
    assert newest.memberships(3, 12) is None, "it is too long ago"
    assert newest.memberships(13, 99) == ()
    assert newest.memberships(8, 7) == ()
