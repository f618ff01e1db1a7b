"""How a local cluster is, for those who ask.

Owns the form. What is in it is said by `shoal.cluster.local`.
"""

from __future__ import annotations

import msgspec

from shoal.balance.window_source import Standing
from shoal.cluster.child import ChildStatus


class ServerStatus(msgspec.Struct, frozen=True):
    """One server: where it is, and whether it takes channels."""

    id: str
    host: str
    port: int
    lease: bool
    in_ring: bool


class ClusterStatus(msgspec.Struct, frozen=True):
    """How the cluster is."""

    cluster: str
    state_dir: str
    started_at: float
    ready: bool
    coordinator: str
    contact: bool
    ring_version: int
    servers: tuple[ServerStatus, ...]
    processes: tuple[ChildStatus, ...]
    trouble: str | None
    windows: Standing | None = None
    """Where the balancer's load windows come from; None if nobody balances."""
