"""The waits of a local cluster, each with a name and a unit.

Owns the one record `Timing`. What the waits are for is said where they are used; tests shorten them.
"""

from __future__ import annotations

from typing import Final

from shoal.leader.timing import LeaderTiming


class Timing(LeaderTiming, frozen=True, kw_only=True):
    """The waits of the supervisor, and of a leader that it runs itself."""

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

    port_tries_max: int = 20
    """How many ports are tried before starting gives up."""


DEFAULT_TIMING: Final = Timing()
