"""The provider in the simulator: who starts and ends servers, on a node of its own, as a local cluster's supervisor.

Owns which servers there are and what can go wrong with new ones: they take a while, they do not come at all, the
provider refuses, and whoever asked may not hear of it. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from shoal.balance.effects import ProviderState
from shoal.errors import ClusterError
from shoal.plan.keys import Mark, pool_key
from shoal.sim.coordinator import ModelCoordinator
from shoal.sim.network import Network
from shoal.sim.node import Node

ANSWER_TIMEOUT_S: Final = 3.0
START_S: Final = (0.3, 3.0)
"""How long a server takes to be there."""

Told = Callable[[tuple[str, ...] | ClusterError], None]
"""Hears which servers it is about, or what is in the way."""


class Machines(Protocol):
    """Who makes and ends servers with their agents."""

    def start_server(self, server: str) -> None:
        """A server and its agent are there from now on."""

    def end_server(self, server: str) -> None:
        """A server and its agent are gone for good."""


class ProviderActor:
    """Starts and ends servers. `refuses` and `fails` are how often it adds none, and how often one never comes."""

    def __init__(
        self,
        network: Network,
        coordinator: ModelCoordinator,
        machines: Machines,
        servers: list[str],
        limits: ProviderState,
        refuses: float,
        fails: float,
    ) -> None:
        self.network = network
        self.node = network.node("provider")
        self.servers = list(servers)
        self._coordinator = coordinator
        self._machines = machines
        self._limits = limits
        self._refuses = refuses
        self._fails = fails
        self._random = network.world.rng("provider")
        self._count = len(servers)

    def state(self) -> ProviderState:
        """What it has, and what it could do."""
        limits = self._limits
        return ProviderState(
            limits.servers_min,
            limits.servers_max,
            tuple(self.servers),
            knows_all=True,
            new_capacity=limits.new_capacity,
        )

    def add(self, node: Node, count: int, told: Told) -> None:
        """Asks from `node` for new servers."""
        self._ask(node, lambda: self._add(count), told)

    def remove(self, node: Node, server: str, told: Told) -> None:
        """Asks from `node` that a server is ended."""
        self._ask(node, lambda: self._remove(server), told)

    def _ask(self, node: Node, do: Callable[[], tuple[str, ...] | ClusterError], told: Told) -> None:
        answered: list[bool] = []

        def answer(result: tuple[str, ...] | ClusterError) -> None:
            if not answered:
                answered.append(True)
                told(result)

        incarnation = node.incarnation

        def work() -> None:
            result = do()
            self.network.datagram(self.node, node, lambda: answer(result) if node.incarnation == incarnation else None)

        node.after(ANSWER_TIMEOUT_S, answer, ClusterError("the provider does not answer"))
        self.network.datagram(node, self.node, work)

    def _add(self, count: int) -> tuple[str, ...] | ClusterError:
        if self._random.random() < self._refuses or not self._coordinator.node.running:
            return ClusterError("no server is to be had")
        added = []
        for _ in range(count):
            self._count += 1
            server = f"s{self._count}"
            self._coordinator.store.put(pool_key(server), Mark.GUEST.value.encode(), 0)
            self.servers.append(server)
            added.append(server)
            if self._random.random() >= self._fails:
                self.network.world.after(self._random.uniform(*START_S), self._start, server)
        return tuple(added)

    def _start(self, server: str) -> None:
        if server in self.servers:
            self._machines.start_server(server)

    def _remove(self, server: str) -> tuple[str, ...] | ClusterError:
        if server not in self.servers:
            return ClusterError(f"there is no server {server}")
        self.servers.remove(server)
        self._machines.end_server(server)
        return (server,)
