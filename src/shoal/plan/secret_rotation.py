"""What operators want of the agents' secret: which generations are to be in force.

Owns the record beside the ring in the coordinator. `shoal users rotate` and `revoke` write it, the leader makes the
ring agree with it (`shoal.leader.secret_rotation`). It has no secret in it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from shoal.errors import PlanError
from shoal.plan.ring import Ring

GENERATION_MAX: Final = 255


class Rotation(msgspec.Struct, frozen=True):
    """The generations that are to be in force, `oldest` to `newest`."""

    newest: int
    oldest: int
    since_s: float = 0.0
    """When the ring began to name the newest, in seconds since 1970; 0 before that."""


_decoder: Final = msgspec.json.Decoder(Rotation)


def encode(rotation: Rotation) -> bytes:
    """The record as it is stored: JSON, for operators to read."""
    return msgspec.json.encode(rotation)


def decode(data: bytes) -> Rotation | None:
    """The record; None if it cannot be read."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        return None


def generations(ring: Ring) -> list[int]:
    """The generations that a ring names, the newest last."""
    return sorted(key.generation for key in ring.agent_keys)


def rotated(ring: Ring) -> Rotation:
    """What to want for a new generation. Raises PlanError if two are in force, or if this cannot be."""
    known = _known(ring)
    if len(known) > 1:
        raise PlanError(
            f"generation {known[0]} of the agents' secret is still in force beside generation {known[-1]}",
            do="wait until secret_overlap_s is over, or run `shoal users revoke agents-secret` first",
        )
    if known[-1] >= GENERATION_MAX:
        raise PlanError(
            f"the agents' secret has generation {known[-1]}, the last one",
            do="stop clients, agents and leaders, delete plan/ring and secrets/agents/ in the coordinator, start again",
        )
    return Rotation(known[-1] + 1, known[-1])


def revoked(ring: Ring, now: Rotation | None) -> Rotation:
    """What to want for the end of the older generation. Raises PlanError if there is none."""
    known = _known(ring)
    if len(known) < 2:
        raise PlanError(
            f"generation {known[-1]} of the agents' secret is the only one in force",
            do="run `shoal users rotate agents-secret` first",
        )
    return Rotation(known[-1], known[-1], now.since_s if now is not None else 0.0)


def _known(ring: Ring) -> list[int]:
    if not ring.scheme or not ring.agent_keys:
        raise PlanError("this cluster does not authenticate messages (scheme 0)", do="see docs/identity.md")
    return generations(ring)
