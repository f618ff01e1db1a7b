"""Why the leader refused requests: the last ones of each kind of unit.

Owns the record and its stored form, in the coordinator at `refusals/<kind>`. The leader writes it before it deletes a
refused request, so a command that waits for its request finds the reason. A request is named by the version of its key,
which no other request for the unit has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from shoal.plan.move_request import decode_body, encode_body

REFUSALS_MAX: Final = 64
"""Refusals that are kept for each kind. Older ones go."""
REASON_CHARACTERS_MAX: Final = 500


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """One refused request: its unit, the version of its key, and the reason."""

    unit: bytes
    request: int
    reason: str


_decoder: Final = msgspec.msgpack.Decoder(tuple[Refusal, ...])


def add_refusals(kind: str, before: bytes | None, refusals: Sequence[Refusal]) -> bytes:
    """The stored form of the last refusals, with these ones."""
    cut = [msgspec.structs.replace(one, reason=one.reason[:REASON_CHARACTERS_MAX]) for one in refusals]
    return encode_body(kind, (*read_refusals(kind, before), *cut)[-REFUSALS_MAX:])


def read_refusals(kind: str, data: bytes | None) -> tuple[Refusal, ...]:
    """The refusals in `data`; none if it cannot be read: they are only shown to people."""
    try:
        return () if data is None else decode_body(data, kind, _decoder)
    except ValueError:
        return ()


def reason_of(kind: str, data: bytes | None, unit: bytes, request: int) -> str | None:
    """Why the request of a unit was refused; None if it was not, or is forgotten."""
    found = (one.reason for one in read_refusals(kind, data) if (one.unit, one.request) == (unit, request))
    return next(found, None)
