"""Signatures on rings and plan entries: only the holder of the cluster's key can change the plan.

Owns the signed form. Entries pass through untrusted agents, inboxes and caches. Readers trust the cluster's signature
(Ed25519), not the sender.

    signed     (format, kind, key_id, body, signature)
    signature  over "shoal plan 2\\0" + kind + "\\0" + key_id + body
    key_id     8 bytes of BLAKE2s over the public key

Verifying a signature costs more than the rest of a control message, and a process gets the same entry from several
servers and for several clients. So it caches verified bytes.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, Final, Protocol, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from shoal.errors import ForgedEntryError
from shoal.plan.entry import Entry
from shoal.plan.placement import Placement
from shoal.plan.ring import Ring


class UnitEntry(Protocol):
    """The plan entry of one unit: a msgspec struct, encoded as an array that begins with the kind of unit (`tag`)."""

    @property
    def unit(self) -> bytes:
        """The name of the unit."""

    @property
    def newness(self) -> int:
        """The revision by which entries of a unit are compared; it grows with every change."""

    @property
    def is_moving(self) -> bool:
        """Whether its last move is still in progress."""

    @property
    def stage(self) -> object:
        """A value that changes when a phase begins. Timeouts restart then."""

    def check(self) -> None:
        """Raises ValueError if the entry is inconsistent."""


T = TypeVar("T")
E = TypeVar("E", bound=UnitEntry)

FORMAT: Final = 2
_SIGNED_BY: Final = b"shoal plan 2\0"
_RING: Final = b"ring"
_ENTRY: Final = b"entry"
KEY_ID_BYTES: Final = 8
OPENED_MAX: Final = 4096
"""Size of the cache of verified entries; some hundred bytes each."""
KEYS_MAX: Final = 64
"""Size of the caches of keys and of verified rings, which are larger and change less often."""
_encoder: Final = msgspec.msgpack.Encoder()


class _Signed(msgspec.Struct, frozen=True, array_like=True):
    format: int
    kind: bytes
    key_id: bytes
    body: bytes
    signature: bytes

    @property
    def covered(self) -> bytes:
        """The signed bytes."""
        return _SIGNED_BY + self.kind + b"\0" + self.key_id + self.body


_signed_decoder: Final = msgspec.msgpack.Decoder(_Signed)
_ring_decoder: Final = msgspec.msgpack.Decoder(Ring)


class _Decoders(dict[type[Any], msgspec.msgpack.Decoder[Any]]):
    """Decoders by type of entry, created on first use."""

    def __missing__(self, type: type[Any]) -> msgspec.msgpack.Decoder[Any]:
        self[type] = msgspec.msgpack.Decoder(type)
        return self[type]


_decoders: Final = _Decoders()


class Signer:
    """Holds the cluster's private key; only leaders have one."""

    def __init__(self, private: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(private)
        self._key_id = key_id(self.public)

    @staticmethod
    def generate() -> bytes:
        """A new private key, 32 bytes."""
        return Ed25519PrivateKey.generate().private_bytes_raw()

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self._key.public_key().public_bytes_raw()

    def ring(self, ring: Ring) -> bytes:
        """The signed form of a ring."""
        return self._sign(_RING, _encoder.encode(ring))

    def entry(self, channel: bytes, placement: Placement) -> bytes:
        """The signed entry of a channel that does not move."""
        return self.line(Entry(channel, placement))

    def line(self, entry: UnitEntry) -> bytes:
        """The signed form of an entry of any kind."""
        entry.check()
        return self._sign(_ENTRY, _encoder.encode(entry))

    def _sign(self, kind: bytes, body: bytes) -> bytes:
        unsigned = _Signed(FORMAT, kind, self._key_id, body, b"")
        return _encoder.encode(_Signed(FORMAT, kind, self._key_id, body, self._key.sign(unsigned.covered)))


class Verifier:
    """Holds the cluster's public key; verifies and decodes signed rings and entries."""

    def __init__(self, public: bytes) -> None:
        _key(public)  # raises immediately if the key is invalid
        self._public = public

    def ring(self, data: bytes) -> Ring:
        """The ring in `data`; ForgedEntryError if the signature is not the cluster's."""
        return _open_ring(self._public, data)

    def entry(self, data: bytes) -> Entry:
        """The channel's entry in `data`; ForgedEntryError if the signature is not the cluster's."""
        return self.line(data, Entry)

    def line(self, data: bytes, type: type[E]) -> E:
        """The entry in `data`; ForgedEntryError if the signature is not the cluster's or the kind is not that of
        `type`."""
        entry: E = _open_entry(self._public, data, type)
        return entry


def key_id(public: bytes) -> bytes:
    """The short name of a cluster's key."""
    return hashlib.blake2s(public, digest_size=KEY_ID_BYTES).digest()


@lru_cache(maxsize=KEYS_MAX)
def _key(public: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public)


@lru_cache(maxsize=KEYS_MAX)
def _open_ring(public: bytes, data: bytes) -> Ring:
    ring = _open(public, _RING, data, _ring_decoder)
    if not ring.homes or len(set(ring.ids)) != len(ring.ids):
        raise ForgedEntryError("a signed ring has no home for channels, or a server twice; it is rejected")
    return ring


@lru_cache(maxsize=OPENED_MAX)
def _open_entry(public: bytes, data: bytes, type: type[Any]) -> Any:
    entry = _open(public, _ENTRY, data, _decoders[type])
    try:
        entry.check()
    except ValueError as error:
        raise ForgedEntryError(f"a signed entry is inconsistent: {error}") from error
    return entry


def _open(public: bytes, kind: bytes, data: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
    try:
        signed = _signed_decoder.decode(data)
        if signed.format != FORMAT:
            raise ForgedEntryError(
                f"a ring or plan entry is of format {signed.format}, this process knows {FORMAT}; it is rejected",
                do="upgrade this process" if signed.format > FORMAT else None,
            )
        if signed.kind != kind:
            raise ForgedEntryError(f"expected a signed {kind.decode()}, got something else; it is rejected")
        if signed.key_id != key_id(public):
            raise ForgedEntryError("a ring or plan entry is signed with another key than the cluster's; it is rejected")
        _key(public).verify(signed.signature, signed.covered)
        return decoder.decode(signed.body)
    except (msgspec.DecodeError, ValueError, RecursionError, InvalidSignature) as error:
        raise ForgedEntryError(
            "a ring or plan entry does not carry this cluster's signature; it is rejected"
        ) from error
