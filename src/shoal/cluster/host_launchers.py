"""Launchers: how a local cluster starts and stops hosts of one kind.

Owns the record. `shoal.cluster.local` registers the launcher of servers with their agents. Once the launcher of another
kind is registered with the fleet, the provider can add and remove its hosts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostLauncher:
    """Starts and stops hosts of one kind."""

    kind: str
    """The kind, as in `shoal.plan.kinds`."""
    prefix: str
    """Prefix of the hosts' ids; a number follows."""
    start: Callable[[Sequence[str], str], Awaitable[None]]
    """Starts hosts with these ids at a site; either all or none."""
    remove: Callable[[str], Awaitable[None]]
    """Stops a host permanently."""
