"""The timeouts and delays of a local cluster, each with a name and a unit.

Owns the record `Timing`. Tests shorten them.
"""

from __future__ import annotations

from typing import Final

from shoal.cluster.authority import AUTHORITY_S, CERTIFICATE_S
from shoal.leader.leader_timeouts import LeaderTiming


class Timing(LeaderTiming, frozen=True, kw_only=True):
    """The timeouts and delays of the supervisor, and of a leader that it runs itself."""

    start_timeout_s: float = 90.0
    """How long one process may take to answer, and a whole cluster to become ready. After that, starting fails."""

    stop_grace_s: float = 3.0
    """How long a process may take to exit by itself. After that it is killed."""

    restart_pause_s_min: float = 0.2
    """Delay before a crashed process is restarted; it doubles with each crash in a row."""

    restart_pause_s_max: float = 10.0
    """Longest delay between two starts."""

    stable_after_s: float = 1.0
    """How long a process must run for the next crash to count as the first one."""

    crashing_after: int = 3
    """Crashes in a row after which a process is reported as crashing."""

    port_tries_max: int = 20
    """Number of ports tried before starting fails."""

    certificate_s: float = CERTIFICATE_S
    """How long a certificate of a cluster with TLS is valid. The supervisor renews it when a third of that is left."""

    authority_s: float = AUTHORITY_S
    """How long the authority of a cluster with TLS is valid. It is replaced at a start when a third of that is left."""


DEFAULT_TIMING: Final = Timing()
