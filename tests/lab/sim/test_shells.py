"""Rules of the shipped shells that no checker tests, because breaking them costs time and breaks no promise. The shells
run unchanged in a simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.load.telemetry_samples import record

from shoal.balance.balancer_options import BalancerOptions
from shoal.balance.decision_record import DecisionRecord, Outcome
from shoal.balance.settings import BalanceSettings
from shoal.bus.client import Bus
from shoal.channels.agent.process import Agent, AgentOptions
from shoal.channels.agent.session import SILENT_LEASES_MAX
from shoal.cluster.cluster_timeouts import DEFAULT_TIMING
from shoal.coordination.interface import Lease
from shoal.lab.sim.models.coordinator import ModelClient, ModelCoordinator
from shoal.lab.sim.models.redis_node import RedisNode
from shoal.lab.sim.world.fault_options import FaultOptions
from shoal.lab.sim.world.link import LinkEnd, directions
from shoal.lab.sim.world.network import Network
from shoal.lab.sim.world.node import Node
from shoal.lab.sim.world.process import COORDINATOR_URL, FIRST_SECOND, Process, Processes
from shoal.lab.sim.world.world import World
from shoal.leader.balancer_shell import BalancerShell
from shoal.leader.balancer_store import BalancerStore
from shoal.leader.conductor_shell import Leadership
from shoal.leader.keeper import Keeper
from shoal.leader.keeper_shell import KeeperShell
from shoal.leader.leadership import Leader
from shoal.leader.providers import NoProvider
from shoal.leader.telemetry_reader import TelemetryReader
from shoal.limits import Limits
from shoal.load.fold import fold
from shoal.load.fold_state import FoldState
from shoal.load.record import xadd
from shoal.load.window import LoadWindow
from shoal.load_kinds import KINDS
from shoal.plan.keys import KEEPER_LEASE, RING_KEY
from shoal.plan.ring import Ring, ServerAddress
from shoal.plan.signature import Signer
from shoal.rules import ALL_RULES, Rules, without
from shoal.wire.connection import Connection
from shoal.wire.envelope import AGENT_CHANNEL, TELEMETRY_KEY

SERVER = "s1"
LIMITS = Limits()
LEASE_S = LIMITS.server_lease_s
NEVER_S = 10_000.0
"""TCP gives up a silent connection after this time. None of these tests waits that long."""


class Connections:
    """Notes when the connections of an agent end (a `transport.Tap`)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ended_at: list[float] = []

    def wrote(self, peer: str, data: bytes) -> None:
        """Nothing to note."""

    def ended(self, peer: str) -> None:
        """A connection has ended."""
        self.ended_at.append(self._world.now)


class Cluster:
    """One server and a coordinator; tests start the rest."""

    def __init__(self) -> None:
        self.world = World(7)
        self.network = Network(self.world, FaultOptions(tcp_timeout_s=NEVER_S))
        self.coordinator = ModelCoordinator(self.network)
        self.processes = Processes(self.network, self.coordinator)
        self.server = RedisNode(self.network, SERVER)
        self.holders: list[str] = []
        """The holders of the server's lease, one after the other."""
        self._look()

    def start_leader(self) -> None:
        """Starts a ring keeper and conductor."""
        leader = self.processes.new(self.network.node("leader"))
        leader.begin(self._lead(leader))

    async def _lead(self, process: Process) -> None:
        async with await process.runtime.coordinator(COORDINATOR_URL, LEASE_S / 2) as coordinator:
            signer = Signer(bytes(32))
            runtime = process.runtime
            leader = Leader(
                coordinator, signer, LIMITS, DEFAULT_TIMING, [SERVER], "leader", runtime.random, wall=runtime.wall
            )
            await leader.run()

    def start_agent(self, node: Node, site: str = "") -> Connections:
        """Starts the shipped agent on a node; returns the observer of its connections."""
        seen = Connections(self.world)
        process = self.processes.new(node, tap=seen)
        options = AgentOptions(address=ServerAddress(SERVER, SERVER, 1, site), url=COORDINATOR_URL, limits=LIMITS)
        process.begin(Agent(options, process.runtime).work(lambda: asyncio.sleep(0)))
        return seen

    def run(self, seconds: float) -> None:
        """Lets time pass."""
        self.world.run(self.world.now + seconds)
        assert self.processes.failures == []

    def _look(self) -> None:
        lease = self.coordinator.store.lease_of(f"servers/{SERVER}")
        if lease is not None and self.holders[-1:] != [lease.holder]:
            self.holders.append(lease.holder)
        self.world.after(0.01, self._look)

    def end_at_server(self, node: Node) -> LinkEnd:
        """The agent's end of its main connection to the server, the first; the other is for heartbeats."""
        first, _ = (end for end in self.network.ends(node.name) if directions(end)[0].dst.node is self.server.node)
        return first


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.processes.close()


@pytest.fixture
def led(cluster: Cluster) -> Cluster:
    cluster.start_leader()
    return cluster


def test_of_two_agents_for_one_server_the_newer_one_keeps_the_lease(led: Cluster) -> None:
    """An agent takes over a lease once, when it starts. If it did so whenever it lost one, an agent that was replaced
    while it hung would take the lease back, and the two would alternate for ever."""
    older, newer = led.network.node("older"), led.network.node("newer")
    led.start_agent(older)
    led.run(5.0)
    older.pause()
    led.start_agent(newer)
    led.run(1.0)
    assert len(led.holders) == 2
    older.resume()
    led.run(30.0)
    assert len(led.holders) == 2


def test_an_agent_that_was_replaced_takes_a_lease_that_is_free(led: Cluster) -> None:
    older, newer = led.network.node("older"), led.network.node("newer")
    led.start_agent(older)
    led.run(5.0)
    led.start_agent(newer)
    led.run(5.0)
    newer.crash()
    led.run(2 * LEASE_S)
    first, _, last = led.holders
    assert first == last


def test_a_silent_connection_is_kept_for_three_leases_and_then_replaced(led: Cluster) -> None:
    """A server that is silent for a lease or two is slow: a new connection would cost a resync with every client. After
    three leases the connection counts as half open."""
    node = led.network.node("agent")
    seen = led.start_agent(node)
    led.run(5.0)
    led.network.stall(led.end_at_server(node), 2 * LEASE_S)
    led.run(4 * LEASE_S)
    assert seen.ended_at == []
    silent_at = led.world.now
    led.network.stall(led.end_at_server(node), NEVER_S)
    led.run((SILENT_LEASES_MAX + 3) * LEASE_S)
    (ended_at,) = seen.ended_at
    assert abs(ended_at - silent_at - SILENT_LEASES_MAX * LEASE_S) < LEASE_S
    lease = led.coordinator.store.lease_of(f"servers/{SERVER}")
    assert lease is not None, "on its new connection the agent renews the server's lease again"


class StoppingClient(ModelClient):
    """Pauses its process when the ring is about to be written; the write is sent when the process resumes."""

    async def put(self, key: str, value: bytes, expect: int | None = None, *, fence: Lease | None = None) -> int:
        """See `Coordinator.put`."""
        if key == RING_KEY:
            self.node.pause()
            await asyncio.sleep(0.001)
        return await super().put(key, value, expect, fence=fence)


def start_keeper(cluster: Cluster, rules: Rules) -> Node:
    """Starts a ring keeper without the other parts of a leader."""
    process = cluster.processes.new(cluster.network.node("keeper"))

    async def keep() -> None:
        signer = Signer(bytes(32))
        keeper = Keeper(signer, LIMITS, [SERVER], DEFAULT_TIMING.first_ring_wait_s)
        async with StoppingClient(cluster.coordinator, process.loop, LEASE_S / 2) as coordinator:
            random, wall = process.runtime.random, process.runtime.wall
            await KeeperShell(coordinator, signer, keeper, DEFAULT_TIMING, "keeper", random, rules, wall=wall).run()

    process.begin(keep())
    return process.node


@pytest.mark.parametrize(
    ("rules", "is_written"), [(ALL_RULES, False), (without("fence"), True)], ids=["fenced", "not fenced"]
)
def test_the_ring_of_a_keeper_that_has_lost_its_lease_is_refused(
    cluster: Cluster, rules: Rules, is_written: bool
) -> None:
    """The keeper stops between its decision and its write for longer than its lease. The standby that leads by then has
    not written a ring yet, so only the fence shows that the write is late."""
    store = cluster.coordinator.store
    cluster.start_agent(cluster.network.node("agent"))
    keeper = start_keeper(cluster, rules)
    cluster.run(5.0)
    assert keeper.paused
    assert store.acquire(KEEPER_LEASE, "standby", NEVER_S) is not None
    keeper.resume()
    cluster.run(5.0)
    assert (store.get(RING_KEY) is not None) == is_written
    assert store.refused == (not is_written)


def test_a_keeper_without_the_lease_writes_no_ring(cluster: Cluster) -> None:
    store = cluster.coordinator.store
    standby = store.acquire(KEEPER_LEASE, "standby", NEVER_S)
    assert standby is not None
    cluster.start_agent(cluster.network.node("agent"))
    keeper = start_keeper(cluster, ALL_RULES)
    cluster.run(10.0)
    assert not keeper.paused
    store.release(standby)
    cluster.run(1.0)
    assert keeper.paused, "it leads now, and is about to write"


class Balance:
    """A shipped balancer that leads when a test says so, and servers whose agents report each second."""

    def __init__(self, cluster: Cluster) -> None:
        self.world = cluster.world
        self.leads = True
        self.reports = True
        self.decisions: list[tuple[float, float]] = []
        """When each decision was made, and when its window ended."""
        self._lease: Lease | None = None
        self._servers = (cluster.server, RedisNode(cluster.network, "s2"))
        self._ring = Ring(1, tuple(ServerAddress(server.node.name, server.node.name, 1) for server in self._servers))
        self._store = cluster.coordinator.store
        self._process = cluster.processes.new(cluster.network.node("balancer"))
        self._process.begin(self._main())
        self._lead()
        self.world.after(1.0, self._report)

    async def _main(self) -> None:
        runtime, changed = self._process.runtime, asyncio.Event()
        options = BalancerOptions(auto=True)
        async with await runtime.coordinator(COORDINATOR_URL, LEASE_S / 2) as coordinator:
            balancing = BalancerShell(
                BalancerStore(coordinator, Signer(bytes(32)).public, changed),
                TelemetryReader(None, None, LIMITS, changed, runtime),
                NoProvider(options),
                self,
                self._leading,
                BalanceSettings(window_s=2, lateness_s=1.0),
                options,
                changed,
                DEFAULT_TIMING.keeper_poll_s,
                wall=runtime.wall,
            )
            await balancing.run()

    def _lead(self) -> None:
        """Holds the lease only while it leads; each lead has its own token."""
        if not self.leads:
            self._lease = None
        elif self._lease is None:
            self._lease = self._store.acquire(KEEPER_LEASE, "balancer", NEVER_S, True)
        self.world.after(0.001, self._lead)

    def _leading(self) -> Leadership | None:
        return Leadership(self._lease, self._ring, self._lease) if self._lease is not None else None

    def _report(self) -> None:
        second = round(FIRST_SECOND + self.world.now) - 1
        for server in self._servers if self.reports else ():
            fields = xadd(record(server.node.name, second), 100)[-4:]
            server.add_entry(TELEMETRY_KEY, fields, server.model)
        self.world.after(1.0, self._report)

    def write_decision(self, record: DecisionRecord, *, quiet: bool) -> None:
        """The balancer has decided something."""
        self.decisions.append((self.world.now, LoadWindow.from_bytes(record.window, KINDS).end_s - FIRST_SECOND))

    def write_outcome(self, outcome: Outcome) -> None:
        """Nothing to note."""


@pytest.mark.parametrize("lost_at", [9.5, 10.0])
def test_a_balancer_that_leads_again_uses_no_load_of_its_last_lead(cluster: Cluster, lost_at: float) -> None:
    """It drops the load that it has folded by then (9.5) and the records that it has read and not folded (10.0)."""
    balance = Balance(cluster)
    cluster.world.at(lost_at, setattr, balance, "leads", False)
    cluster.run(20.0)
    assert [end for _, end in balance.decisions][-1:] == [8.0]
    balance.reports = False
    balance.leads = True
    cluster.run(5.0)
    assert [end for at, end in balance.decisions if at > lost_at] == []
    balance.reports = True
    cluster.run(10.0)
    later = [end for at, end in balance.decisions if at > lost_at]
    assert later
    assert min(later) > 25.0


# Sites


def test_the_site_of_an_agent_is_in_its_load_windows(led: Cluster) -> None:
    led.start_agent(led.network.node("agent"), site="bergen")
    reader = led.processes.new(led.network.node("reader"))
    read: list[tuple[str, str]] = []

    async def fold_telemetry() -> None:
        telemetry = TelemetryReader(None, None, LIMITS, asyncio.Event(), reader.runtime)
        telemetry.follow([ServerAddress(SERVER, SERVER, 1)])
        await asyncio.sleep(10.0)
        settings = BalanceSettings(window_s=2, lateness_s=1.0)
        windows, _ = fold(FoldState(), telemetry.take(), reader.runtime.wall(), settings, KINDS)
        hosts = [host for window in windows for host in window.hosts.to_pylist()]
        read.extend((host["host"], host["site"]) for host in hosts)
        await telemetry.close()

    reader.begin(fold_telemetry())
    led.run(12.0)
    assert {*read} == {(SERVER, "bergen")}


# Buses


def test_a_bus_that_is_closed_right_after_a_suspension_lingers(led: Cluster) -> None:
    """Its leases are over and it has not noticed yet: subscribers may have been told elsewhere, and need it."""
    led.start_agent(led.network.node("agent"))
    led.run(5.0)
    app = led.network.node("app")
    process = led.processes.new(app)
    bus = Bus(COORDINATOR_URL, limits=LIMITS, runtime=process.runtime)

    async def work() -> None:
        await bus.open()
        await bus.publish("tile", b"message", confirm=True)

    process.begin(work())
    led.run(4.0)
    departure = bus.shell.departure
    app.pause()
    led.run(2 * LEASE_S)
    app.resume()
    process.call(lambda: process.loop.create_task(bus.aclose()))
    led.run(20.0)
    assert departure.waits > 0


# Other versions


def test_an_agent_logs_clients_of_other_versions_once_a_minute(led: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    led.start_agent(led.network.node("agent"))
    led.run(5.0)
    speaker = led.processes.new(led.network.node("speaker"))

    async def speak() -> None:
        async with Connection(SERVER, 1, username=None, password=None, name="old", dial=speaker.runtime.dial) as old:
            for _ in range(100):
                await old.ask((b"PUBLISH", AGENT_CHANNEL, b"\xf5C\x94\x01\x01\x02\x03"))
                await asyncio.sleep(1.0)

    with caplog.at_level("WARNING", logger="shoal.channels.agent.session"):
        speaker.begin(speak())
        led.run(100.0)
    assert [record.message for record in caplog.records] == ["client of another version on the server"] * 2
