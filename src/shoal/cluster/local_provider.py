"""The provider of a local cluster: its supervisor starts and stops servers.

Owns the requests to the supervisor. The balancer decides when they are made (see `shoal.leader.providers`).
"""

from __future__ import annotations

import asyncio

from shoal.balance.balancer_options import BalancerOptions
from shoal.balance.effects import ProviderState
from shoal.cluster.control_socket import request
from shoal.cluster.parts import engine_processes_max
from shoal.cluster.state import StateDir


class LocalProcesses:
    """The supervisor of a local cluster starts and stops processes."""

    def __init__(self, directory: StateDir, options: BalancerOptions) -> None:
        self._directory = directory
        self._options = options
        self._known = self._fresh(())

    def state(self) -> ProviderState:
        """The state that the supervisor has recorded."""
        written = self._directory.read()
        if written is not None:
            ids = tuple(server.id for server in written.servers)
            self._known = self._fresh(ids, written.max_out_bytes_per_s)
        return self._known

    async def add(self, kind: str, count: int, site: str = "") -> tuple[str, ...]:
        """Asks the supervisor for new processes."""
        answer = await asyncio.to_thread(request, self._directory, "add", count=count, kind=kind, site=site)
        return answer.servers

    async def remove(self, host: str) -> None:
        """Asks the supervisor to stop the processes of a host."""
        await asyncio.to_thread(request, self._directory, "remove", host)

    def _fresh(self, servers: tuple[str, ...], capacity: float | None = None) -> ProviderState:
        options = self._options
        return ProviderState(
            servers_min=options.servers_min,
            servers_max=options.servers_max,
            servers=servers,
            knows_all=bool(servers),
            new_capacity=options.new_max_out_bytes_per_s if capacity is None else capacity,
            engine_processes_max=engine_processes_max(),
        )
