"""The timeouts of a leader, each with a name and a unit.

Owns the record `LeaderTiming`. Tests shorten them.
"""

from __future__ import annotations

import msgspec


class LeaderTiming(msgspec.Struct, frozen=True, kw_only=True):
    """The timeouts and intervals of a leader."""

    first_ring_wait_s: float = 10.0
    """How long the first ring waits for all expected servers. Then it is written with those that have joined."""

    keeper_lease_s: float = 3.0
    """The lease of the one keeper that writes the ring."""

    keeper_poll_s: float = 0.25
    """How often the keeper polls the coordinator; well below `GAP_SHARE` of a lease, see the keeper."""
