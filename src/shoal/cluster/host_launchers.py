"""Kinds of hosts that a local cluster can start: what a kind brings.

Owns the record. Servers with their agents are the kind that ships (`shoal.cluster.local`); another kind is offered to
the fleet in the same way, and from then on the provider can add and remove its hosts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostLauncher:
    """How hosts of one kind come and go."""

    kind: str
    """The kind, as in `shoal.plan.kinds`."""
    prefix: str
    """The ids of its hosts are this and a number."""
    start: Callable[[Sequence[str], str], Awaitable[None]]
    """Starts hosts with these ids at a site, all or none."""
    remove: Callable[[str], Awaitable[None]]
    """Ends a host for good."""
