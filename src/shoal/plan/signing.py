"""Signatures on rings and plan entries, so that nobody but the holder of the cluster's key can move a channel.

Owns the signed form. Entries pass through agents, inboxes and caches that are not trusted; what arrives is believed
because of its signature (Ed25519 over kind and body), wherever it came from.
"""

from __future__ import annotations

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
        self._key = Ed25519PublicKey.from_public_bytes(public)

    def ring(self, data: bytes) -> Ring:
        """The ring in `data`; ForgedEntryError if the cluster did not sign it."""
        ring = self._open(_RING, data, _ring_decoder)
        if not ring.homes or len(set(ring.ids)) != len(ring.ids):
            raise ForgedEntryError("a signed ring has no home for channels, or a server twice; it is refused")
        return ring

    def entry(self, data: bytes) -> Entry:
        """The plan entry in `data`; ForgedEntryError if the cluster did not sign it."""
        entry = self._open(_ENTRY, data, _entry_decoder)
        try:
            _check(entry)
        except ValueError as error:
            raise ForgedEntryError(f"a signed entry cannot be: {error}") from error
        return entry

    def _open(self, kind: bytes, data: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
        try:
            signed = _signed_decoder.decode(data)
            if signed.kind != kind:
                raise ForgedEntryError(f"expected a {kind.decode()}, got something else; it is refused")
            self._key.verify(signed.signature, kind + b"\0" + signed.body)
            return decoder.decode(signed.body)
        except (msgspec.DecodeError, ValueError, RecursionError, InvalidSignature) as error:
            raise ForgedEntryError(
                "a ring or plan entry does not carry this cluster's signature; it is refused"
            ) from error


def _check(entry: Entry) -> None:
    check_entry(entry)
    for placement in (*entry.earlier, entry.placement):
        check_servers(placement.mode, placement.servers)
