"""Keys: both sides derive the same ones, and a key for one use, client, server or channel opens nothing else."""

from __future__ import annotations

from itertools import combinations

import pytest

from shoal.wire import identity
from shoal.wire.identity import AgentSecret, ClientKey

SECRET = AgentSecret(1, bytes(range(32)))
OTHER = AgentSecret(2, bytes(range(32)))
ALICE, BOB = 0x1234_5678_9ABC, 0x2222
VECTORS = ["ecea98c48aedd8f4", "e6009b117debc99f", "5e991039f060a012", "9679976d20c6f0aa", "0df8bd5311442f14"]
TAG = "782976abbd08809d20effd611f32552b"


def test_every_agent_derives_the_same_keys_and_the_public_halves_are_those_in_the_ring() -> None:
    again = AgentSecret(1, bytes(range(32)))
    assert again.client(ALICE).key == SECRET.client(ALICE).key
    assert (again.signing, again.exchange) == (SECRET.signing, SECRET.exchange)


def test_keys_for_different_uses_clients_servers_and_channels_differ() -> None:
    alice, bob = SECRET.client(ALICE), SECRET.client(BOB)
    keys = [
        alice.key,
        bob.key,
        *(one.to_agent(server) for one in (alice, bob) for server in ("s1", "s2")),
        *(one.from_agent(server) for one in (alice, bob) for server in ("s1", "s2")),
        *(alice.lane(server, channel) for server in ("s1", "s2") for channel in (b"a", b"b")),
        alice.lane("s", b"1a"),
        alice.peer(BOB),
        bob.peer(ALICE),
    ]
    assert all(one != other for one, other in combinations(keys, 2))


def test_the_layout_of_the_derivations_is_fixed() -> None:
    """Processes of different versions must derive the same keys."""
    alice = SECRET.client(ALICE)
    found = [alice.key, alice.to_agent("s1"), alice.lane("s1", b"tile"), alice.peer(BOB), SECRET.signing]
    assert [key.hex()[:16] for key in found] == VECTORS
    assert identity.control_tag(alice.to_agent("s1"), b"head", b"body").hex() == TAG


def test_an_enrolment_gives_the_client_its_key_and_nobody_else_can_open_it() -> None:
    private = b"\x07" * 32
    public, key = identity.enrolment(private, SECRET.exchange, "s1")
    assert key == SECRET.enrolment(public, "s1")
    sealed = identity.enrolment_seal(key, ALICE, SECRET.client(ALICE).key)
    assert identity.enrolment_seal(key, ALICE, sealed) == SECRET.client(ALICE).key
    _, overheard = identity.enrolment(b"\x08" * 32, SECRET.exchange, "s1")
    assert identity.enrolment_seal(overheard, ALICE, sealed) != SECRET.client(ALICE).key
    assert SECRET.enrolment(public, "s2") != key
    assert 0 < identity.enrolment_inbox(public) < 1 << 48


@pytest.mark.parametrize("public", [b"", b"\x00" * 32, b"\x01" * 31])
def test_an_exchange_key_that_is_not_valid_is_refused(public: bytes) -> None:
    with pytest.raises(ValueError, match=r"public key|shared key"):
        SECRET.enrolment(public, "s1")


def test_a_sealed_key_opens_with_the_same_nonce_peer_and_generation_only() -> None:
    alice = SECRET.client(ALICE)
    secret = SECRET.client(BOB).peer(ALICE)
    sealed = alice.sealed(secret, 7, BOB, 1)
    assert alice.sealed(sealed, 7, BOB, 1) == secret
    for other in ((8, BOB, 1), (7, ALICE, 1), (7, BOB, 2)):
        assert alice.sealed(sealed, *other) != secret
    assert SECRET.client(BOB).sealed(sealed, 7, BOB, 1) != secret


def test_a_signature_covers_head_and_body() -> None:
    signature = SECRET.sign(b"head", b"body")
    assert len(signature) == identity.SIGNATURE_BYTES
    assert identity.is_signed(SECRET.signing, b"head", b"body", signature)
    for public, head, body, signed in (
        (OTHER.exchange, b"head", b"body", signature),
        (SECRET.signing, b"Head", b"body", signature),
        (SECRET.signing, b"head", b"body.", signature),
        (SECRET.signing, b"head", b"body", signature[::-1]),
        (SECRET.signing, b"head", b"body", b""),
        (b"", b"head", b"body", signature),
    ):
        assert not identity.is_signed(public, head, body, signed)


@pytest.mark.parametrize(("generation", "secret"), [(0, bytes(32)), (256, bytes(32)), (1, bytes(31))])
def test_a_secret_of_another_size_or_generation_is_refused(generation: int, secret: bytes) -> None:
    with pytest.raises(ValueError, match="generation"):
        AgentSecret(generation, secret)


def test_a_client_key_does_not_depend_on_who_holds_it() -> None:
    alice = SECRET.client(ALICE)
    held = ClientKey(ALICE, 1, alice.key)
    assert held.to_agent("s1") == alice.to_agent("s1")
    assert held.lane("s1", b"tile") == alice.lane("s1", b"tile")
