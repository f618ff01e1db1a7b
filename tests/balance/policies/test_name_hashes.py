"""Hashes of many names agree with those of single names."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.balance.policies.situations import make_channels, make_situation

from shoal.balance.columns import Placements
from shoal.balance.policies.name_hashes import SLOTS, key_slots, ring_hashes
from shoal.balance.policies.ring_homes import ring_of
from shoal.plan.ring import Ring, ServerAddress, ring_hash


def array(*names: bytes) -> pa.Array:
    return pa.array(names, pa.binary())


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=8))
def test_hashes_are_those_of_the_ring(names: list[bytes]) -> None:
    assert ring_hashes(array(*names)).tolist() == [ring_hash(name) for name in names]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 127, 128, 129, 255, 256, 257])
def test_a_name_of_any_length_is_hashed(size: int) -> None:
    name = bytes(index % 251 for index in range(size))
    assert ring_hashes(array(name)).tolist() == [ring_hash(name)]


def test_a_slice_of_names_is_hashed_as_itself() -> None:
    names = array(b"a", b"bb", b"ccc", b"dddd")[1:3]
    assert ring_hashes(names).tolist() == [ring_hash(b"bb"), ring_hash(b"ccc")]
    assert key_slots(names).tolist() == key_slots(array(b"bb", b"ccc")).tolist()


@pytest.mark.parametrize(
    ("name", "slot"),
    [(b"123456789", 0x31C3 % SLOTS), (b"somekey", 11058), (b"foo{hash_tag}", 2515), (b"bar{hash_tag}", 2515), (b"", 0)],
)
def test_slots_are_those_of_redis_cluster(name: bytes, slot: int) -> None:
    assert key_slots(array(name)).tolist() == [slot]


@pytest.mark.parametrize(
    ("name", "hashed"),
    [
        (b"a{b}c", b"b"),
        (b"a{b}{c}", b"b"),
        (b"{{b}}", b"{b"),
        (b"}a{b}", b"b"),
    ],
)
def test_of_a_name_with_a_tag_the_tag_is_hashed(name: bytes, hashed: bytes) -> None:
    assert key_slots(array(name)).tolist() == key_slots(array(hashed)).tolist()


@pytest.mark.parametrize("name", [b"a{}b{c}", b"a{b", b"a}b", b"{}"])
def test_a_name_without_a_tag_is_hashed_whole(name: bytes) -> None:
    crc = 0
    for byte in name:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1
        crc &= 0xFFFF
    assert key_slots(array(name)).tolist() == [crc % SLOTS]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), unique=True, min_size=1, max_size=20), st.integers(1, 5))
def test_homes_are_those_of_a_ring_with_the_same_members(names: list[bytes], members: int) -> None:
    channels = make_channels([1.0] * len(names), names=names)
    hosts = make_situation(channels, Placements.single([0] * len(names)), [100.0] * 6).hosts
    in_ring = hosts.takes.copy()
    in_ring[members:] = False
    ring = Ring(1, tuple(ServerAddress(hosts.ids[host], "localhost", 1) for host in range(members)))
    homes = ring_of(hosts, in_ring).homes(ring_hashes(channels.names))
    assert [hosts.ids[home] for home in homes] == [ring.home(name) for name in names]
