"""Keys of clients and agents: how each follows from the agents' secret, and the tags that are made with them.

Owns the derivations of docs/identity.md. Pure: it never touches a socket, a clock or a random source.

    agents' secret ---> signing pair      heartbeats and resyncs, verified by every client
                   ---> exchange pair     enrolment
                   ---> client key -----> to and from the agent of a server   control messages
                                    ----> lane key of a server and channel    published messages
                                    ----> peer key of an asker                healing

Any agent computes the key of any client from the client's id, so agents keep no table of keys and lose none when they
restart. A client knows only its own key. Every key is a keyed BLAKE2s of 32 bytes; the label keeps keys for different
uses apart.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

KEY_BYTES: Final = 32
CLIENT_ID_BYTES: Final = 6
CONTROL_TAG_BYTES: Final = 16
MESSAGE_TAG_BYTES: Final = 8
SIGNATURE_BYTES: Final = 64

KEYS_MAX: Final = 64
"""Size of the cache of public keys."""
DERIVED_MAX: Final = 4096
"""Size of the caches of peer keys, and of hashes that have taken the key of control messages."""

_SIGNED_PREFIX: Final = b"shoal control\0"


def derive(key: bytes, label: bytes, data: bytes = b"", size: int = KEY_BYTES) -> bytes:
    """`size` bytes that follow from a key, a label of at most 8 bytes, and data."""
    return hashlib.blake2s(data, key=key, person=label, digest_size=size).digest()


def exclusive_or(one: bytes, other: bytes) -> bytes:
    """Two strings of the same length, combined; the same again gives the first one back."""
    if len(one) != len(other):
        raise ValueError(f"a string of {len(one)} bytes cannot be combined with one of {len(other)}")
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")


class ClientKey:
    """The key of one client, held by the client and computed by agents."""

    __slots__ = ("client", "generation", "key")

    def __init__(self, client: int, generation: int, key: bytes) -> None:
        self.client = client
        self.generation = generation
        self.key = key

    def to_agent(self, server: str) -> bytes:
        """The key of messages to the agent of a server."""
        return derive(self.key, b"up", server.encode())

    def from_agent(self, server: str) -> bytes:
        """The key of messages from the agent of a server."""
        return derive(self.key, b"down", server.encode())

    def lane(self, server: str, channel: bytes) -> bytes:
        """The key of messages that the client publishes on a channel of a server."""
        name = server.encode()
        return derive(self.key, b"lane", bytes((len(name),)) + name + channel)

    def peer(self, asker: int) -> bytes:
        """The key that this client, as a publisher, shares with a client that asks it for messages."""
        return _peer_key(self.key, asker)

    def renewal(self, exchange_key: bytes) -> bytes:
        """Proves to agents that this client asks for its key of a newer generation; the exchange is used once."""
        return derive(self.key, b"renew", exchange_key, CONTROL_TAG_BYTES)

    def sealed(self, secret: bytes, nonce: int, peer: int, generation: int) -> bytes:
        """A key as an agent sends it to this client, and the same again to open it. A nonce seals one key only."""
        pad = derive(self.key, b"seal", _u64(nonce) + _u64(peer) + bytes((generation,)))
        return exclusive_or(secret, pad)


class AgentSecret:
    """The secret that all agents of a cluster share, in one generation."""

    def __init__(self, generation: int, secret: bytes) -> None:
        if len(secret) != KEY_BYTES or not 0 < generation < 256:
            raise ValueError(f"a secret has {KEY_BYTES} bytes and a generation from 1 to 255")
        self.generation = generation
        self.clients = derive(secret, b"clients")
        """The key from which the keys of clients follow."""
        self._signing = Ed25519PrivateKey.from_private_bytes(derive(secret, b"sign"))
        self._exchange = X25519PrivateKey.from_private_bytes(derive(secret, b"exchange"))
        self.signing = self._signing.public_key().public_bytes_raw()
        """The public half of the signing pair."""
        self.exchange = self._exchange.public_key().public_bytes_raw()
        """The public half of the exchange pair."""

    def client(self, client: int) -> ClientKey:
        """The key of a client."""
        return ClientKey(client, self.generation, derive(self.clients, b"client", _u64(client)))

    def new_client(self, instance: int, count: int) -> ClientKey:
        """The key of a new client: the id looks random, and follows from the agent's instance and a count."""
        drawn = derive(self.clients, b"new", _u64(instance) + _u64(count), CLIENT_ID_BYTES)
        return self.client(int.from_bytes(drawn, "big") or 1)

    def sign(self, head: bytes, body: bytes) -> bytes:
        """The signature of a control message to all clients."""
        return self._signing.sign(_SIGNED_PREFIX + head + body)

    def enrolment(self, client_exchange: bytes, server: str) -> bytes:
        """The key of one enrolment at a server; ValueError if the client's public key is not valid."""
        shared = self._exchange.exchange(X25519PublicKey.from_public_bytes(client_exchange))
        return _enrolment(shared, client_exchange, self.exchange, server)


def enrolment(private: bytes, agents_exchange: bytes, server: str) -> tuple[bytes, bytes]:
    """A client's public key for an enrolment, and the key of that enrolment at a server. `private` is 32 random bytes
    that are used once."""
    pair = X25519PrivateKey.from_private_bytes(private)
    public = pair.public_key().public_bytes_raw()
    shared = pair.exchange(X25519PublicKey.from_public_bytes(agents_exchange))
    return public, _enrolment(shared, public, agents_exchange, server)


def enrolment_seal(key: bytes, client: int, secret: bytes) -> bytes:
    """A client key as an agent sends it in an enrolment, and the same again to open it."""
    return exclusive_or(secret, derive(key, b"seal", _u64(client)))


def enrolment_inbox(client_exchange: bytes) -> int:
    """The number of the inbox on which a client awaits the answer to its enrolment: 48 bits, not 0."""
    return int.from_bytes(hashlib.blake2s(client_exchange, digest_size=CLIENT_ID_BYTES).digest(), "big") or 1


@lru_cache(maxsize=DERIVED_MAX)
def _peer_key(key: bytes, asker: int) -> bytes:
    return derive(key, b"peer", _u64(asker))


@lru_cache(maxsize=DERIVED_MAX)
def ask_key(peer_key: bytes) -> bytes:
    """The key of requests to a publisher."""
    return derive(peer_key, b"ask")


@lru_cache(maxsize=DERIVED_MAX)
def reply_key(peer_key: bytes) -> bytes:
    """The key of a publisher's answers."""
    return derive(peer_key, b"reply")


def control_tag(key: bytes, head: bytes, body: bytes) -> bytes:
    """The tag of a control message."""
    state = _control_state(key).copy()
    state.update(head + body)
    return state.digest()


@lru_cache(maxsize=DERIVED_MAX)
def _control_state(key: bytes) -> hashlib.blake2s:
    """A hash that has taken a key. To copy it is cheaper than to begin anew."""
    return hashlib.blake2s(key=key, person=b"control", digest_size=CONTROL_TAG_BYTES)


def is_signed(public: bytes, head: bytes, body: bytes, signature: bytes) -> bool:
    """Whether agents have signed a control message. `control.is_signed` remembers the answer."""
    try:
        _public_key(public).verify(signature, _SIGNED_PREFIX + head + body)
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(maxsize=KEYS_MAX)
def _public_key(public: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public)


def _enrolment(shared: bytes, client_exchange: bytes, agents_exchange: bytes, server: str) -> bytes:
    return derive(shared, b"enrol", client_exchange + agents_exchange + server.encode())


def _u64(number: int) -> bytes:
    return number.to_bytes(8, "little")
