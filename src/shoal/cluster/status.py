"""The status of a local cluster.

Owns the format. `shoal.cluster.local` fills it in.
"""

from __future__ import annotations

import msgspec

from shoal.balance.window_source import WindowRoute
from shoal.cluster.child import ChildStatus


class ServerStatus(msgspec.Struct, frozen=True):
    """Address of a server, and whether it takes channels."""

    id: str
    host: str
    port: int
    lease: bool
    in_ring: bool


class StoreStatus(msgspec.Struct, frozen=True):
    """Address of a store."""

    id: str
    host: str
    port: int


class SecretStatus(msgspec.Struct, frozen=True):
    """The generations of the agents' secret that are in force, and since when the newest is, in seconds since 1970; 0
    if there was no rotation."""

    generations: tuple[int, ...]
    since_s: float = 0.0


class ClusterStatus(msgspec.Struct, frozen=True):
    """Status of the cluster."""

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
    windows: WindowRoute | None = None
    """The source of the balancer's load windows; None without a balancer."""
    certificates_expire_at: float | None = None
    """When the first certificate expires, in seconds since 1970; None without TLS."""
    agents_secret: SecretStatus | None = None
    """None before the first ring, and in clusters that do not authenticate messages."""
    resumed: bool = False
    """Whether this is a cluster that was continued: its earlier supervisor was killed, or it was stopped and has
    stores."""
    stores: tuple[StoreStatus, ...] = ()
