"""A copy of the plan outside the coordinator: the cluster's public key and the signed ring.

Owns the encoding. Agents keep a copy on their server and clients keep one in a file, so that clients can open while the
coordinator is away. A copy is as trustworthy as the place where it was found: the key in it verifies only its own ring.
"""

from __future__ import annotations

from typing import Final

import msgspec

from shoal.errors import ForgedEntryError
from shoal.plan.signature import Verifier

PLAN_COPY_KEY: Final = b"__shoal:plan"
"""The key of the copy on every server."""

FORMAT: Final = 1


class PlanCopy(msgspec.Struct, frozen=True, array_like=True):
    """The public key of a cluster and its signed ring."""

    format: int
    key: bytes
    ring: bytes


_decoder: Final = msgspec.msgpack.Decoder(PlanCopy)


def encode_copy(key: bytes, ring: bytes) -> bytes:
    """The copy of a plan."""
    return msgspec.msgpack.encode(PlanCopy(FORMAT, key, ring))


def decode_copy(data: bytes) -> PlanCopy:
    """Reads a copy. ForgedEntryError if it is not one, or if its ring is not signed with its key."""
    try:
        copy = _decoder.decode(data)
        if copy.format != FORMAT:
            raise ForgedEntryError(f"the copy of the plan has format {copy.format}, this process reads {FORMAT}")
        Verifier(copy.key).ring(copy.ring)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise ForgedEntryError(f"not a copy of a plan ({error})") from error
    return copy
