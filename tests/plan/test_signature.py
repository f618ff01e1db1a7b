"""Signatures: what the cluster signed is believed wherever it came from, everything else is refused as forged."""

from __future__ import annotations

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.errors import ForgedEntryError
from shoal.plan.placement import Mode, Placement
from shoal.plan.ring import Ring, ServerAddress
from shoal.plan.signature import Signer, Verifier, key_id

PRIVATE = bytes(range(32))
SIGNER = Signer(PRIVATE)
VERIFIER = Verifier(SIGNER.public)
RING = Ring(3, (ServerAddress("s1", "10.0.0.1", 7001), ServerAddress("s2", "10.0.0.2", 7002)))
PLACEMENT = Placement(4, Mode.ALL_SUBSCRIBERS, ("s1", "s2"))
SIGNED_RING = SIGNER.ring(RING)
SIGNED_ENTRY = SIGNER.entry(b"tile", PLACEMENT)


def signed(kind: bytes, body: bytes, format: int = 2) -> bytes:
    """Bytes that carry a right signature over any body: what a broken signer could make."""
    covered = b"shoal plan 2\0" + kind + b"\0" + key_id(SIGNER.public) + body
    signature = Ed25519PrivateKey.from_private_bytes(PRIVATE).sign(covered)
    return msgspec.msgpack.encode([format, kind, key_id(SIGNER.public), body, signature])


def refused(data: bytes) -> None:
    with pytest.raises(ForgedEntryError):
        VERIFIER.ring(data)
    with pytest.raises(ForgedEntryError):
        VERIFIER.entry(data)


# What is believed


def test_what_the_cluster_signed_is_believed() -> None:
    assert VERIFIER.ring(SIGNED_RING) == RING
    entry = VERIFIER.entry(SIGNED_ENTRY)
    assert (entry.unit, entry.placement) == (b"tile", PLACEMENT)


@given(channel=st.binary(max_size=40), version=st.integers(0, (1 << 32) - 1), count=st.integers(1, 9))
def test_any_entry_comes_back(channel: bytes, version: int, count: int) -> None:
    placement = Placement(version, Mode.ALL_PUBLISHERS, tuple(f"s{number}" for number in range(count)))
    entry = VERIFIER.entry(SIGNER.entry(channel, placement))
    assert (entry.unit, entry.placement) == (channel, placement)


def test_keys_are_made_at_random() -> None:
    keys = {Signer.generate() for _ in range(3)}
    assert len(keys) == 3
    assert {len(key) for key in keys} == {32}


# What is refused


def test_another_clusters_signature_is_refused() -> None:
    other = Signer(Signer.generate())
    refused(other.ring(RING))
    refused(other.entry(b"tile", PLACEMENT))


def test_a_ring_is_not_an_entry() -> None:
    with pytest.raises(ForgedEntryError, match="something else"):
        VERIFIER.entry(SIGNED_RING)
    with pytest.raises(ForgedEntryError, match="something else"):
        VERIFIER.ring(SIGNED_ENTRY)


def test_the_signature_covers_the_kind() -> None:
    """A body that could be read as either kind cannot be passed off as the other one."""
    format, kind, key, body, signature = msgspec.msgpack.decode(SIGNED_RING)
    assert (format, kind, key) == (2, b"ring", key_id(SIGNER.public))
    refused(msgspec.msgpack.encode([2, b"entry", key, body, signature]))


def test_another_format_is_refused_with_advice() -> None:
    with pytest.raises(ForgedEntryError, match=r"format 3, this process knows 2.*upgrade this process"):
        VERIFIER.ring(signed(b"ring", msgspec.msgpack.encode(RING), format=3))
    body = msgspec.msgpack.encode(RING)
    signature = Ed25519PrivateKey.from_private_bytes(PRIVATE).sign(b"shoal ring\0" + body)
    refused(msgspec.msgpack.encode([b"shoal ring", body, signature]))  # format 1


def test_an_entry_of_another_kind_is_refused() -> None:
    body = msgspec.msgpack.encode(["lamp", b"tile", [1, "single", ["s1"]]])
    with pytest.raises(ForgedEntryError):
        VERIFIER.entry(signed(b"entry", body))


def test_layouts_of_format_2() -> None:
    """As docs/identity.md has them; other processes and later versions read them."""
    *_, ring_body, _ = msgspec.msgpack.decode(SIGNER.ring(replace(RING, lease_ms=3000)))
    servers = [["s1", "10.0.0.1", 7001, "", "", False], ["s2", "10.0.0.2", 7002, "", "", False]]
    assert msgspec.msgpack.decode(ring_body) == [3, servers, [], [], 0, 3000, []]
    *_, entry_body, _ = msgspec.msgpack.decode(SIGNED_ENTRY)
    placement = [4, "all_subscribers", ["s1", "s2"]]
    assert msgspec.msgpack.decode(entry_body) == ["channel", b"tile", placement, "end", [], 0, 0, False, [], 0]


def test_an_address_of_format_1_is_read() -> None:
    old = msgspec.msgpack.encode(["s1", "10.0.0.1", 7001])
    assert msgspec.msgpack.decode(old, type=ServerAddress) == ServerAddress("s1", "10.0.0.1", 7001)


@pytest.mark.parametrize("whole", [SIGNED_RING, SIGNED_ENTRY], ids=["ring", "entry"])
def test_every_truncation_is_refused(whole: bytes) -> None:
    for cut in range(len(whole)):
        refused(whole[:cut])


@pytest.mark.parametrize("whole", [SIGNED_RING, SIGNED_ENTRY], ids=["ring", "entry"])
def test_every_flipped_bit_is_refused(whole: bytes) -> None:
    for position in range(8 * len(whole)):
        broken = bytearray(whole)
        broken[position // 8] ^= 1 << position % 8
        refused(bytes(broken))


@given(data=st.binary(max_size=100))
@example(b"")
@example(b"\x95\x02\xc4\x04ring\xc4\x00\xc4\x00\xc4\x00")
@example(b"\x91" * 5000)
@example(b"\xdd\xff\xff\xff\xff")
def test_garbage_is_refused(data: bytes) -> None:
    refused(data)


def test_garbage_that_is_nested_without_end_is_refused() -> None:
    """It may come from anybody who can publish, so it must not overflow the reader's stack."""
    kind = b"\x96\x02\xc4\x04ring\xc4\x00\xc4\x00\xc4\x00"
    refused(kind + b"\x91" * 100_000 + b"\xc0")


@pytest.mark.parametrize("size", [0, 1, 63, 65, 1000])
def test_a_signature_of_another_size_is_refused(size: int) -> None:
    *head, signature = msgspec.msgpack.decode(SIGNED_RING)
    refused(msgspec.msgpack.encode([*head, (signature * 20)[:size]]))


@pytest.mark.parametrize("body", [b"", b"\x90", b"\x92\xa1x\x90", b"\xff" * 20, b"\x91" * 50_000])
def test_a_signed_body_that_cannot_be_read_is_refused(body: bytes) -> None:
    refused(signed(b"ring", body))
    refused(signed(b"entry", body))


@pytest.mark.parametrize("servers", [(), ("s1", "s1")], ids=["none", "twice"])
def test_a_signed_ring_that_cannot_be_is_refused(servers: tuple[str, ...]) -> None:
    ring = Ring(1, tuple(ServerAddress(server, "h", 1) for server in servers))
    with pytest.raises(ForgedEntryError, match="no home for channels, or a server twice"):
        VERIFIER.ring(SIGNER.ring(ring))


def test_a_signed_entry_that_cannot_be_is_refused() -> None:
    body = msgspec.msgpack.encode(["channel", b"tile", [1, "single", ["s1", "s2"]]])
    with pytest.raises(ForgedEntryError, match="is inconsistent"):
        VERIFIER.entry(signed(b"entry", body))


def test_the_signer_does_not_sign_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="at least one server"):
        SIGNER.entry(b"tile", Placement(1, Mode.SINGLE, ()))
