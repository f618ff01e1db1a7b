"""Providers add and remove hosts.

Owns the interface and two implementations: a fixed pool of servers, and none at all. The one for local processes is
`shoal.cluster.local_provider`. The balancer decides when hosts are added, drained and removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from shoal.balance.balancer_options import BalancerOptions
from shoal.balance.effects import ProviderState
from shoal.errors import ClusterError
from shoal.plan.keys import Mark
from shoal.plan.kinds import SERVER


class Provider(Protocol):
    """Adds and removes hosts. Failures raise `ClusterError`."""

    def state(self) -> ProviderState:
        """The provider's servers and limits. Does not block."""

    async def add(self, kind: str, count: int, site: str = "") -> tuple[str, ...]:
        """Starts to add hosts of a kind (`shoal.plan.kinds`) at a site, and returns their new ids. Servers join as
        guests."""

    async def remove(self, host: str) -> None:
        """Stops an empty host; a server has already left the ring."""


class FixedPool:
    """Servers that always run, each with its agent. Those with the mark `out` are in reserve: adding one changes
    its mark, and removing one does nothing more. `marks` returns the current marks."""

    def __init__(self, options: BalancerOptions, marks: Callable[[], Mapping[str, Mark]]) -> None:
        self._options = options
        self._sites = {server.id: server.site for server in options.pool_addresses()}
        self._marks = marks

    def state(self) -> ProviderState:
        """The limits, and the number of servers in reserve."""
        options = self._options
        return ProviderState(
            servers_min=options.servers_min,
            servers_max=options.servers_max,
            spare=len(self._reserve()),
            new_capacity=options.new_max_out_bytes_per_s,
        )

    async def add(self, kind: str, count: int, site: str = "") -> tuple[str, ...]:
        """Chooses from the reserve, in the order of the list."""
        if kind != SERVER:
            raise ClusterError(f"the pool has servers only, no {kind}", do="start it by hand")
        chosen = tuple(server for server in self._reserve() if site in ("", self._sites[server]))[:count]
        if not chosen:
            where = f" at site {site}" if site else ""
            raise ClusterError(f"no server of the pool is in reserve{where}", do="add addresses to balancer.pool")
        return chosen

    async def remove(self, host: str) -> None:
        """Does nothing: the server stays in reserve."""

    def _reserve(self) -> tuple[str, ...]:
        marks = self._marks()
        return tuple(server for server in self._sites if marks.get(server) is Mark.OUT)


class NoProvider:
    """Adds and removes nothing: the set of servers is fixed, and only channels move."""

    def __init__(self, options: BalancerOptions) -> None:
        self._options = options

    def state(self) -> ProviderState:
        """The fixed state."""
        return ProviderState(
            servers_min=self._options.servers_min, servers_max=self._options.servers_max, spare=0, is_fixed=True
        )

    async def add(self, kind: str, count: int, site: str = "") -> tuple[str, ...]:
        """Always raises ClusterError."""
        raise ClusterError(
            "this cluster has no provider that adds servers",
            do="set balancer.pool, or run the balancer beside `shoal up`",
        )

    async def remove(self, host: str) -> None:
        """Always raises ClusterError."""
        raise ClusterError(f"this cluster has no provider that removes {host}", do="stop it by hand")
