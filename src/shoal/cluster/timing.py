"""The waits of a local cluster, each with a name and a unit.

Owns the one record `Timing`. What the waits are for is said where they are used; tests shorten them.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """How long the supervisor and the keeper wait for what."""

    start_timeout_s: float = 90.0
    """How long one process may take until it answers, and a whole cluster until it is ready. Then starting
    fails."""

    stop_grace_s: float = 3.0
    """How long a process may take to end by itself. Then it is killed."""

    restart_pause_s_min: float = 0.2
    """Pause before a crashed process is started again; it doubles with each crash in a row."""

    restart_pause_s_max: float = 10.0
    """Longest pause between two starts."""

    stable_after_s: float = 1.0
    """How long a process must run for the next crash to count as the first one."""

    crashing_after: int = 3
    """Crashes in a row after which a process is reported as crashing."""

    first_ring_wait_s: float = 10.0
    """How long the first ring waits for all expected servers. Then it is written with those that are there.
    """

    keeper_lease_s: float = 3.0
    """The lease of the one keeper that writes the ring."""

    keeper_poll_s: float = 0.25
    """How often the keeper looks at the coordinator; well below `GAP_SHARE` of a lease, see the keeper."""

    port_tries_max: int = 20
    """How many ports are tried before starting gives up."""


DEFAULT_TIMING: Final = Timing()
