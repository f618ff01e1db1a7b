"""An agent's connections to the other servers, as shipped, on a simulated network: half-open connections are replaced,
quiet ones are kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.core_driver import OTHER_SECRET, SECRET, SIGNER, AgentDriver, from_agent, ring

from shoal.channels.agent.forward_links import ForwardLinks
from shoal.channels.agent.peers import PEER_PATTERN, SILENT_HEARTBEATS_MAX, Peers
from shoal.lab.sim import FaultOptions, LinkEnd, ModelCoordinator, Network, RedisNode, World
from shoal.lab.sim.world.process import Process, Processes
from shoal.limits import DEFAULT_LIMITS
from shoal.plan.ring import Ring, ServerAddress
from shoal.queues.keyspace.resp import CommandReader, encode_frame
from shoal.rules import ALL_RULES
from shoal.wire import control
from shoal.wire.commands import Command
from shoal.wire.connection import Connection
from shoal.wire.envelope import HEARTBEAT_CHANNEL, inbox_channel
from shoal.wire.identity import AgentSecret

RING = Ring(1, tuple(ServerAddress(server, server, 1) for server in ("s1", "s2")))
SILENT_S = SILENT_HEARTBEATS_MAX * DEFAULT_LIMITS.heartbeat_interval_s
OWED_S = DEFAULT_LIMITS.connect_timeout_s
SLACK_S = 1.0
"""Connecting and the backoff take less."""


class DeafServer:
    """Answers the handshake and nothing afterwards, like a server that has given up the connection. With `greets` False
    it does not even answer the handshake."""

    def __init__(self, network: Network, *, greets: bool = True) -> None:
        self.connections = 0
        self.open = 0
        self._greets = greets
        self._readers: dict[LinkEnd, CommandReader] = {}
        network.listen(network.node("s2"), self._accept)

    def _accept(self, end: LinkEnd) -> DeafServer:
        self.connections += 1
        self.open += 1
        self._readers[end] = CommandReader()
        return self

    def received(self, end: LinkEnd, data: bytes) -> None:
        for command in self._readers[end].read(data):
            if self._greets and command[0] == b"HELLO":
                end.send(encode_frame({b"server": b"redis", b"version": b"7.0.15", b"proto": 3}))
            elif self._greets and command[0] == b"CLIENT":
                end.send(encode_frame("OK"))

    def lost(self, end: LinkEnd, reason: str) -> None:
        self.open -= 1


class ForwardingCore:
    """The part of an agent core that `ForwardLinks` calls: `commands` are sent as soon as a connection is open."""

    def __init__(self, *commands: Command) -> None:
        self.commands = list(commands)
        self.news: list[str] = []
        self.replies = 0
        self._open = False

    def take_forwards(self) -> dict[str, list[Command]]:
        commands, self.commands = (self.commands, []) if self._open else ([], self.commands)
        return {"s2": commands} if commands else {}

    def forward_opened(self, server: str, now: float) -> None:
        self._open = True
        self.news.append("opened")

    def forward_lost(self, server: str, now: float) -> None:
        self._open = False
        self.news.append("lost")

    def forward_replied(self, server: str, count: int, now: float) -> None:
        self.replies += count


class Site:
    """The process of the agent of s1."""

    def __init__(self, secret: AgentSecret | None = None) -> None:
        self.world = World(1)
        self.network = Network(self.world, FaultOptions(tcp_timeout_s=10_000.0))
        self.processes = Processes(self.network, ModelCoordinator(self.network))
        self.heartbeats: list[control.Heartbeat] = []
        self.core = AgentDriver(secret=secret).core
        self.links: Peers | ForwardLinks | None = None

    def start(self, make: Callable[[Process], Peers | ForwardLinks]) -> Process:
        """Starts the connections of an agent."""
        process = self.processes.new(self.network.node("agent-s1"))

        async def main() -> None:
            self.links = make(process)
            self.links.follow(RING)

        process.begin(main())
        return process

    def start_peers(self) -> Process:
        """Starts the connections that listen for the heartbeats of other agents."""
        return self.start(
            lambda process: Peers(
                "s1",
                None,
                None,
                DEFAULT_LIMITS,
                self.heartbeats.append,
                lambda: self.core,
                process.runtime.random,
                book=process.runtime.address_book,
                rules=ALL_RULES,
            )
        )

    def start_forwards(self, core: ForwardingCore) -> Process:
        """Starts the connections that publish on other servers."""
        return self.start(
            lambda process: ForwardLinks(
                "s1", None, None, DEFAULT_LIMITS, core, process.runtime.random, book=process.runtime.address_book
            )
        )

    def close_links(self, process: Process) -> None:
        """Ends the connections of the agent."""
        assert self.links is not None
        closing = self.links.close()
        process.call(lambda: process.loop.create_task(closing))

    def run(self, until: float) -> None:
        self.world.run(until)
        assert self.processes.failures == []


class Speaker:
    """A client of s2 that publishes on it."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._process = site.processes.new(site.network.node("speaker"))
        self._connection: Connection | None = None
        self._process.begin(self._open())

    async def _open(self) -> None:
        dial = self._process.runtime.dial
        self._connection = Connection("s2", 1, username=None, password=None, name="speaker", dial=dial)
        await self._connection.open()

    def publish(self, channel: bytes, payload: bytes) -> None:
        """Publishes, and waits until the message has arrived."""
        assert self._connection is not None
        asking = self._connection.ask((b"PUBLISH", channel, payload))
        self._process.call(lambda: self._process.loop.create_task(asking))
        self._site.run(self._site.world.now + 0.1)


def heartbeat(number: int) -> bytes:
    """A heartbeat of the agent of s2."""
    return control.encode(control.Heartbeat("s2", 9, number - 1, 1, 3000, True, 1), 0, number)


def test_a_connection_without_heartbeats_is_replaced() -> None:
    site = Site()
    server = DeafServer(site.network)
    process = site.start_peers()
    site.run(SILENT_S - SLACK_S)
    assert server.connections == server.open == 1
    site.run(SILENT_S + SLACK_S)
    assert server.connections == 2
    assert server.open == 1, "the half-open connection is dropped"
    site.close_links(process)
    site.run(10 * SILENT_S)
    assert server.connections == 2
    assert server.open == 0


def test_a_connection_with_heartbeats_is_kept() -> None:
    site = Site()
    server = RedisNode(site.network, "s2")
    site.start_peers()
    site.run(1.0)
    (client,) = server.ends
    speaker = Speaker(site)
    site.run(1.1)
    assert list(client.patterns) == [PEER_PATTERN]
    spoken = 0
    while site.world.now < 3 * SILENT_S:
        spoken += 1
        speaker.publish(HEARTBEAT_CHANNEL, heartbeat(spoken))
        site.run(site.world.now + SILENT_S - SLACK_S)
    assert client in server.ends
    assert [heard.server for heard in site.heartbeats] == ["s2"] * spoken


def test_heartbeats_of_other_servers_and_garbage_do_not_keep_a_silent_connection() -> None:
    site = Site()
    server = RedisNode(site.network, "s2")
    site.start_peers()
    site.run(1.0)
    (client,) = server.ends
    speaker = Speaker(site)
    site.run(1.1)
    while site.world.now < SILENT_S - SLACK_S:
        assert client in server.ends
        speaker.publish(HEARTBEAT_CHANNEL, b"garbage")
        speaker.publish(HEARTBEAT_CHANNEL, control.encode(control.Heartbeat("s3", 9, 0, 1, 3000, True, 1), 0, 1))
        site.run(site.world.now + SILENT_S / 10)
    site.run(SILENT_S + SLACK_S)
    assert client not in server.ends
    assert sum(PEER_PATTERN in other.patterns for other in server.ends) == 1
    assert site.heartbeats == []


def test_only_signed_heartbeats_of_a_greeted_agent_count_and_each_once() -> None:
    """Otherwise a client could feed the orphan rule with the heartbeats of an earlier outage."""
    site = Site(SECRET)
    site.core.secret(1, bytes(range(2, 34)))
    site.core.ring(SIGNER.ring(ring(1, ("s1", "s2"), secret=SECRET)))
    RedisNode(site.network, "s2")
    site.start_peers()
    speaker = Speaker(site)
    site.run(1.0)
    signature = control.SignatureSeal(SECRET)
    recorded = [
        control.encode(control.Heartbeat("s2", 9, n - 1, 1, 3000, True, 1), 0, n, signature) for n in range(1, 6)
    ]
    speaker.publish(HEARTBEAT_CHANNEL, recorded[0])
    assert site.heartbeats == [], "its agent has not answered yet"
    own = site.core.client
    welcome = control.Welcome("s2", 9, 1, 2, 3000, 1, b"")
    forged = control.encode(welcome, own, 1, from_agent(OTHER_SECRET, own, "s2"))
    speaker.publish(inbox_channel(own), forged)
    speaker.publish(HEARTBEAT_CHANNEL, recorded[2])
    assert site.heartbeats == []
    speaker.publish(inbox_channel(own), control.encode(welcome, own, 1, from_agent(SECRET, own, "s2")))
    for data in (recorded[0], recorded[1], recorded[2], recorded[3], recorded[2], recorded[3]):
        speaker.publish(HEARTBEAT_CHANNEL, data)
    speaker.publish(HEARTBEAT_CHANNEL, heartbeat(5))
    assert [heard.heard for heard in site.heartbeats] == [2, 3]


def test_a_silent_connection_with_unanswered_commands_is_replaced() -> None:
    site = Site()
    server = DeafServer(site.network)
    core = ForwardingCore((b"PUBLISH", b"a", b"1"))
    process = site.start_forwards(core)
    site.run(OWED_S - SLACK_S)
    assert server.connections == 1
    assert core.news == ["opened"]
    assert core.commands == [], "sent"
    site.run(2 * OWED_S + SLACK_S)
    assert server.connections == 2
    assert server.open == 1
    assert core.news == ["opened", "lost", "opened"]
    assert core.replies == 0
    site.close_links(process)
    site.run(10 * OWED_S)
    assert server.connections == 2
    assert server.open == 0
    assert core.news == ["opened", "lost", "opened", "lost"]


def test_a_silent_connection_without_unanswered_commands_is_kept() -> None:
    site = Site()
    server = RedisNode(site.network, "s2")
    core = ForwardingCore()
    process = site.start_forwards(core)
    site.run(3 * OWED_S)
    (client,) = server.ends
    core.commands.append((b"PUBLISH", b"a", b"1"))
    assert isinstance(site.links, ForwardLinks)
    process.call(site.links.flush)
    site.run(6 * OWED_S)
    assert list(server.ends) == [client]
    assert core.news == ["opened"]
    assert core.replies == 1


@pytest.mark.parametrize("kind", ["peers", "forwards"])
def test_a_connection_without_a_handshake_is_replaced(kind: str) -> None:
    site = Site()
    server = DeafServer(site.network, greets=False)
    core = ForwardingCore((b"PUBLISH", b"a", b"1"))
    if kind == "peers":
        site.start_peers()
    else:
        site.start_forwards(core)
    site.run(3 * (OWED_S + SLACK_S))
    assert server.connections >= 3
    assert server.open <= 1
    assert core.news == []


@pytest.mark.parametrize("kind", ["peers", "forwards"])
def test_connecting_to_a_dead_server_is_tried_until_it_is_back(kind: str) -> None:
    site = Site()
    server = RedisNode(site.network, "s2")
    core = ForwardingCore()
    if kind == "peers":
        site.start_peers()
    else:
        site.start_forwards(core)
    site.run(1.0)
    server.node.crash()
    site.run(20.0)
    assert server.ends == {} or not server.node.up
    server.node.restart()
    site.run(20.0 + DEFAULT_LIMITS.reconnect_delay_s_max + SLACK_S)
    assert len(server.ends) == 1
    assert core.news == ([] if kind == "peers" else ["opened", "lost", "opened"])
