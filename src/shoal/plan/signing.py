"""Signatures on rings and plan entries, so that nobody but the holder of the cluster's key can move a channel.

Owns the signed form. Entries pass through agents, inboxes and caches that are not trusted; what arrives is believed
because of its signature (Ed25519 over kind and body), wherever it came from. A signature costs more than all the rest
of a control message, and the same entry comes from several servers and to several clients of a process; so what has
been found genuine is remembered, byte for byte, by the process.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from shoal.errors import ForgedEntryError
from shoal.plan.entry import Entry, check_entry
from shoal.plan.placement import Placement, check_servers
from shoal.plan.ring import Ring

T = TypeVar("T")

_RING: Final = b"shoal ring"
_ENTRY: Final = b"shoal entry"
OPENED_MAX: Final = 4096
"""Genuine entries that a process remembers, the latest ones; some hundred bytes each."""
KEYS_MAX: Final = 64
"""The same of clusters' keys, and of rings, which are larger and change less."""
_encoder: Final = msgspec.msgpack.Encoder()


class _Signed(msgspec.Struct, frozen=True, array_like=True):
    kind: bytes
    body: bytes
    signature: bytes


_signed_decoder: Final = msgspec.msgpack.Decoder(_Signed)
_ring_decoder: Final = msgspec.msgpack.Decoder(Ring)
_entry_decoder: Final = msgspec.msgpack.Decoder(Entry)


class Signer:
    """Holds the cluster's private key; only the balancer (and who stands in for it) has one."""

    def __init__(self, private: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(private)

    @staticmethod
    def generate() -> bytes:
        """A new private key, 32 bytes."""
        return Ed25519PrivateKey.generate().private_bytes_raw()

    @property
    def public(self) -> bytes:
        """The key by which everyone else checks, 32 bytes."""
        return self._key.public_key().public_bytes_raw()

    def ring(self, ring: Ring) -> bytes:
        """The signed form of a ring."""
        return self._sign(_RING, _encoder.encode(ring))

    def entry(self, channel: bytes, placement: Placement) -> bytes:
        """The signed form of the plan's line for a channel that does not move."""
        return self.line(Entry(channel, placement))

    def line(self, entry: Entry) -> bytes:
        """The signed form of the plan's line for one channel."""
        _check(entry)
        return self._sign(_ENTRY, _encoder.encode(entry))

    def _sign(self, kind: bytes, body: bytes) -> bytes:
        return _encoder.encode(_Signed(kind, body, self._key.sign(kind + b"\0" + body)))


class Verifier:
    """Holds the cluster's public key and opens what was signed."""

    def __init__(self, public: bytes) -> None:
        _key(public)  # says at once if that is no key
        self._public = public

    def ring(self, data: bytes) -> Ring:
        """The ring in `data`; ForgedEntryError if the cluster did not sign it."""
        return _open_ring(self._public, data)

    def entry(self, data: bytes) -> Entry:
        """The plan entry in `data`; ForgedEntryError if the cluster did not sign it."""
        return _open_entry(self._public, data)


@lru_cache(maxsize=KEYS_MAX)
def _key(public: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public)


@lru_cache(maxsize=KEYS_MAX)
def _open_ring(public: bytes, data: bytes) -> Ring:
    ring = _open(public, _RING, data, _ring_decoder)
    if not ring.homes or len(set(ring.ids)) != len(ring.ids):
        raise ForgedEntryError("a signed ring has no home for channels, or a server twice; it is refused")
    return ring


@lru_cache(maxsize=OPENED_MAX)
def _open_entry(public: bytes, data: bytes) -> Entry:
    entry = _open(public, _ENTRY, data, _entry_decoder)
    try:
        _check(entry)
    except ValueError as error:
        raise ForgedEntryError(f"a signed entry cannot be: {error}") from error
    return entry


def _open(public: bytes, kind: bytes, data: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
    try:
        signed = _signed_decoder.decode(data)
        if signed.kind != kind:
            raise ForgedEntryError(f"expected a {kind.decode()}, got something else; it is refused")
        _key(public).verify(signed.signature, kind + b"\0" + signed.body)
        return decoder.decode(signed.body)
    except (msgspec.DecodeError, ValueError, RecursionError, InvalidSignature) as error:
        raise ForgedEntryError("a ring or plan entry does not carry this cluster's signature; it is refused") from error


def _check(entry: Entry) -> None:
    check_entry(entry)
    for placement in (*entry.earlier, entry.placement):
        check_servers(placement.mode, placement.servers)
