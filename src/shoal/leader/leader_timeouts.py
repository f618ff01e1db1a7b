"""The waits of a leader, each with a name and a unit.

Owns the record `LeaderTiming`. Each wait is explained where it is used; tests shorten them.
"""

from __future__ import annotations

import msgspec


class LeaderTiming(msgspec.Struct, frozen=True, kw_only=True):
    """The waits of a leader."""

    first_ring_wait_s: float = 10.0
    """How long the first ring waits for all expected servers. Then it is written with those that are there.
    """

    keeper_lease_s: float = 3.0
    """The lease of the one keeper that writes the ring."""

    keeper_poll_s: float = 0.25
    """How often the keeper looks at the coordinator; well below `GAP_SHARE` of a lease, see the keeper."""
