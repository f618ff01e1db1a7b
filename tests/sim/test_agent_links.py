"""An agent's connections to other servers in the simulator: one that is half open is made anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.limits import DEFAULT_LIMITS
from shoal.sim import Endpoint, FaultOptions, Network, RedisNode, World
from shoal.sim.agent_actor import AgentActor
from shoal.sim.agent_links import Ear, Wire

WAIT_S = {Ear: 20 * DEFAULT_LIMITS.word_interval_s, Wire: DEFAULT_LIMITS.connect_timeout_s}


class Deaf:
    """A server that takes connections and says nothing, as one behind a connection that it has given up."""

    def __init__(self, network: Network) -> None:
        self.connections = 0
        network.listen(network.node("s2"), self._accept)

    def _accept(self, end: Endpoint) -> Deaf:
        self.connections += 1
        return self

    def received(self, end: Endpoint, items: list[Any]) -> None:
        """Says nothing."""

    def lost(self, end: Endpoint, reason: str) -> None:
        """Does not care."""


def actor(network: Network) -> AgentActor:
    """As much of an agent as its connections need."""
    core = SimpleNamespace(forward_opened=lambda *_: None, forward_confirmed=lambda *_: None)
    node = network.node("agent-s1")
    return cast(
        AgentActor,
        SimpleNamespace(network=network, node=node, limits=DEFAULT_LIMITS, follows=True, core=core, flush=lambda: None),
    )


@pytest.mark.parametrize("kind", [Ear, Wire])
def test_a_server_that_says_nothing_though_it_should_is_called_again(kind: type[Ear | Wire]) -> None:
    world = World(1)
    network = Network(world, FaultOptions())
    server = Deaf(network)
    link = kind(actor(network), "s2")
    world.run(WAIT_S[kind] - 0.5)
    assert server.connections == 1
    world.run(WAIT_S[kind] + 1.5)
    assert server.connections == 2
    link.close()
    world.run(10 * WAIT_S[kind])
    assert server.connections == 2


def test_a_server_that_owes_nothing_may_be_silent() -> None:
    world = World(1)
    network = Network(world, FaultOptions())
    server = RedisNode(network, "s2")
    wire = Wire(actor(network), "s2")
    world.run(3 * WAIT_S[Wire])
    (client,) = server.ends
    wire.send([(b"PUBLISH", b"a", b"1")])
    world.run(6 * WAIT_S[Wire])
    assert list(server.ends) == [client]
