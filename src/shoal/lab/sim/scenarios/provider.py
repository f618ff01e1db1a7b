"""The simulated provider: it starts and removes servers, from its own node, like the supervisor of a local cluster.

Owns the set of servers and the failures of new ones: they are slow or never start, the provider refuses, or its answer
does not reach the leader. Decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from shoal.balance.balancer_options import BalancerOptions
from shoal.balance.effects import ProviderState
from shoal.errors import ClusterError
from shoal.lab.sim.world.network import Network
from shoal.lab.sim.world.process import Process
from shoal.plan.kinds import SERVER

ANSWER_TIMEOUT_S: Final = 3.0
START_S: Final = (0.3, 3.0)
"""How long a server takes to start."""


class Machines(Protocol):
    """Starts and removes servers with their agents."""

    network: Network

    def start_server(self, server: str) -> None:
        """Starts a server and its agent."""

    def end_server(self, server: str) -> None:
        """Removes a server and its agent."""


class SimProvider:
    """Starts and removes servers. `refuses` is how often it refuses to add any, `fails` how often one never starts."""

    def __init__(
        self, machines: Machines, servers: list[str], options: BalancerOptions, refuses: float, fails: float
    ) -> None:
        self.network = machines.network
        self.node = self.network.node("provider")
        self.servers = list(servers)
        self._machines = machines
        self._options = options
        self._refuses = refuses
        self._fails = fails
        self._random = self.network.world.rng("provider")
        self._count = len(servers)

    def reached_from(self, process: Process) -> RemoteProvider:
        """The provider as the leader in a process uses it."""
        return RemoteProvider(self, process)

    def state(self) -> ProviderState:
        """The current servers, and what the provider can do."""
        options = self._options
        return ProviderState(
            options.servers_min,
            options.servers_max,
            tuple(self.servers),
            knows_all=True,
            new_capacity=options.new_max_out_bytes_per_s,
        )

    def add(self, kind: str, count: int, site: str = "") -> tuple[str, ...]:
        """Adds servers, which start later or never."""
        if kind != SERVER:
            raise ClusterError(f"only servers can be added here, not {kind}")
        if self._random.random() < self._refuses:
            raise ClusterError("no server is available")
        added = []
        for _ in range(count):
            self._count += 1
            server = f"s{self._count}"
            self.servers.append(server)
            added.append(server)
            if self._random.random() >= self._fails:
                self.network.world.after(self._random.uniform(*START_S), self._start, server)
        return tuple(added)

    def remove(self, server: str) -> tuple[str, ...]:
        """Removes a server."""
        if server not in self.servers:
            raise ClusterError(f"there is no server {server}")
        self.servers.remove(server)
        self._machines.end_server(server)
        return (server,)

    def _start(self, server: str) -> None:
        if server in self.servers:
            self._machines.start_server(server)


class RemoteProvider:
    """The provider over the network, for one leader process (see `shoal.leader.providers.Provider`)."""

    def __init__(self, provider: SimProvider, process: Process) -> None:
        self._provider = provider
        self._process = process

    def state(self) -> ProviderState:
        """The provider's state, read without a request."""
        return self._provider.state()

    async def add(self, kind: str, count: int, site: str = "") -> tuple[str, ...]:
        """Requests new servers."""
        return await self._ask(self._provider.add, kind, count, site)

    async def remove(self, host: str) -> None:
        """Requests the removal of a server."""
        await self._ask(self._provider.remove, host)

    async def _ask(self, do: Callable[..., tuple[str, ...]], *args: Any) -> tuple[str, ...]:
        network, there, process = self._provider.network, self._provider.node, self._process
        answered: asyncio.Future[tuple[str, ...]] = process.loop.create_future()

        def answer(result: tuple[str, ...] | ClusterError) -> None:
            if answered.done():
                return
            if isinstance(result, ClusterError):
                answered.set_exception(result)
            else:
                answered.set_result(result)

        def work() -> None:
            result: tuple[str, ...] | ClusterError
            try:
                result = do(*args)
            except ClusterError as error:
                result = error
            network.datagram(there, process.node, process.loop.run, answer, result)

        network.datagram(process.node, there, work)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await answered
        except TimeoutError as error:
            raise ClusterError("the provider does not answer") from error
