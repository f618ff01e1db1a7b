"""Rotation of the agents' secret: the leader makes the ring agree with what operators want.

Owns the order of the steps. A core without I/O; `shoal.leader.keeper_shell` is its shell.

    ring names g --wanted--> secret g+1 stored --> ring names g and g+1 --overlap over, or revoked--> ring names g+1
                                                                              --two leases--> secret g deleted

Each step follows from what is stored: the record (`shoal.plan.secret_rotation`), the ring and the secrets. So a leader
that dies between two steps leaves nothing to repair, and the next one continues. No step waits for an agent: an agent
without the newer secret continues with the older one, and a client uses its newer key at a server when the agent there
has shown that it has it. The older secret is deleted only two leases after the ring has dropped it: until then agents
take messages that clients tagged with it before they could know.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec
from msgspec.structs import replace

from shoal.limits import Limits
from shoal.plan.secret_rotation import GENERATION_MAX, Rotation
from shoal.rules import ALL_RULES, Rules, rule

OLD_SECRET: Final = rule("old_secret", "A secret is deleted when clients have heard that the ring does not name it.")

RETIRED_LEASES: Final = 2
"""How long a secret is kept after the ring has dropped it, in server leases."""


class RotationSteps(msgspec.Struct, frozen=True):
    """What to do now."""

    named: tuple[int, ...]
    """The generations that the ring must name."""
    draw: int | None = None
    """The generation for which a secret must be drawn and stored."""
    delete: tuple[int, ...] = ()
    """The generations whose secret must be deleted."""
    record: Rotation | None = None
    """The record to write."""


class SecretRotation:
    """Decides the next steps."""

    def __init__(self, limits: Limits, rules: Rules = ALL_RULES) -> None:
        self._overlap_s = limits.secret_overlap_s
        self._keep_s = RETIRED_LEASES * limits.server_lease_s if OLD_SECRET in rules else 0.0
        self._retired_at: dict[int, float] = {}

    def decide(
        self, wanted: Rotation | None, named: Collection[int], held: Collection[int], wall_s: float, now: float
    ) -> RotationSteps:
        """The steps for a ring that names some generations, and stored secrets."""
        newest, oldest = max(named), min(named)
        self._retired_at = {old: self._retired_at.get(old, now) for old in held if old < oldest}
        delete = tuple(old for old, since in self._retired_at.items() if now >= since + self._keep_s)
        if wanted is None:
            return RotationSteps(tuple(sorted(named)), delete=delete)
        draw = None
        keep = sorted(named)
        if len(named) == 1 and newest < wanted.newest and newest < GENERATION_MAX:
            if newest + 1 in held:
                keep = [newest, newest + 1]
            else:
                draw = newest + 1
        elif len(named) > 1 and (oldest < wanted.oldest or 0 < wanted.since_s <= wall_s - self._overlap_s):
            keep = [newest]
        begun = newest == wanted.newest and not wanted.since_s
        return RotationSteps(tuple(keep), draw, delete, replace(wanted, since_s=wall_s) if begun else None)
