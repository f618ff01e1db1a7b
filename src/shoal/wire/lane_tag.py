"""The tag of a published message: which bytes it covers, and how publishers and agents make it.

Owns the tag in the header of an envelope (docs/identity.md). The scanner checks the same tags with a compiled loop. The
key is that of one client on one server and channel (`ClientKey.lane`), so a tag is worth nothing on another server. It
covers the header, the extension and a beacon's body, not the payload.

Key and header fill one block of the hash, so a tag costs one compression. `hashlib` would compress the block of a keyed
hash again for each message, also in a copy of a prepared state.
"""

from __future__ import annotations

import hashlib
from typing import Final, TypeAlias

from shoal.wire.envelope import BEACON, FOREIGN, HEADER_BYTES, body_at, is_envelope
from shoal.wire.identity import KEY_BYTES, MESSAGE_TAG_BYTES

LaneState: TypeAlias = hashlib.blake2s
"""A hash that has taken the key of a lane. It is copied for each message, which is cheaper than to begin anew."""

TAG_LABEL: Final = b"message"
MARK_LABEL: Final = b"refuted"
MARK_KEY: Final = bytes(KEY_BYTES)
"""Marks are public: anyone can compute them."""
TAG_AT: Final = HEADER_BYTES - MESSAGE_TAG_BYTES
_FLAGS_AT: Final = 2
_SETTLED_BYTES: Final = 8


def lane_state(key: bytes) -> LaneState:
    """The hash for the messages of a lane."""
    return hashlib.blake2s(key, person=TAG_LABEL, digest_size=MESSAGE_TAG_BYTES)


def covered_end(blob: bytes) -> int:
    """Where the part of an envelope ends that its tag covers: header, extension and a beacon's body."""
    return body_at(blob) + (_SETTLED_BYTES if blob[_FLAGS_AT] & BEACON else 0)


def tagged(blob: bytes, state: LaneState) -> bytes:
    """An envelope with the tag of a lane. Foreign messages have none."""
    if blob[_FLAGS_AT] & FOREIGN:
        return blob
    made = state.copy()
    made.update(blob[:TAG_AT] + blob[HEADER_BYTES : covered_end(blob)])
    return blob[:TAG_AT] + made.digest() + blob[HEADER_BYTES:]


def mark_of(head: bytes) -> int:
    """The mark by which agents name a false message: a hash of all that a tag covers, and of the tag. A false message
    may have number and tag of a true one, and differ in another field."""
    mark = hashlib.blake2s(head, key=MARK_KEY, person=MARK_LABEL, digest_size=MESSAGE_TAG_BYTES).digest()
    return int.from_bytes(mark, "little")


def has_tag(blob: bytes, state: LaneState) -> bool:
    """Whether a payload is an envelope with the tag of a lane."""
    return is_envelope(blob) and tagged(blob, state) == blob
