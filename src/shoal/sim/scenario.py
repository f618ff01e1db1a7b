"""What the scenarios of channels have in common: the cluster, its applications, and the order of a run's phases.

    begin     the cluster forms its first ring
    safety    applications publish and subscribe while faults strike
    calm      faults are over and everything is up again; applications go on for a while
    liveness  applications are quiet; everything owed must arrive, everything must settle

The protocol's cores are the shipped ones; `rules` takes one rule out of them to prove that the checkers notice. Never
touches what one scenario is about: `channels.py` and `moves.py` add that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Final

import msgspec

from shoal.channels.agent import Agent, AgentOptions
from shoal.channels.rules import ALL_RULES, Rules
from shoal.cluster.leading import Leader
from shoal.cluster.timing import DEFAULT_TIMING
from shoal.coordination.interface import Coordinator
from shoal.errors import PlanError
from shoal.plan.book import PlanBook
from shoal.plan.entry import Entry
from shoal.plan.keys import RING_KEY, entries_prefix, entry_key
from shoal.plan.placement import Mode, Placement
from shoal.plan.ring import ServerAddress
from shoal.plan.signing import Signer, Verifier
from shoal.sim.app import App
from shoal.sim.checkers import Expectations, Verdict, judge
from shoal.sim.coordinator import CoordinatorOptions, ModelCoordinator
from shoal.sim.faults import Faults
from shoal.sim.history import History, Interval
from shoal.sim.model_base import RedisOptions
from shoal.sim.network import Network
from shoal.sim.node import Node
from shoal.sim.options import FaultOptions
from shoal.sim.process import COORDINATOR_URL, Process, Processes, WallClock, failures_logged
from shoal.sim.redis_node import RedisNode
from shoal.sim.settled import check_settled
from shoal.sim.shape import Shape
from shoal.sim.stranger import Stranger
from shoal.sim.world import World

BEGIN_S: Final = 3.0
CALM_S: Final = 8.0
QUIET_S: Final = 10.0
LOOK_S: Final = 2.0
"""So long the run is quiet at least, and so often it is looked whether everything has settled."""
QUIET_DEATH: Final = 0.4
QUIET_DEATH_S: Final = 0.05
"""How often, and how soon, a server dies after somebody spoke on a quiet channel."""
LIVENESS_S_MAX: Final = 400.0
"""By then a healthy world must have settled, however slow its links are."""
LOAD_S: Final = (0.0, 2.0)
FIRST_LOAD_S: Final = (0.0, 0.1)
"""How long an agent takes to load what it needs; at first it is quick, because a run begins when all are there."""
LAPSE_S: Final = (3.5, 7.0)
"""How long a lease is not renewed, now and then."""


@dataclass(slots=True)
class Outcome:
    """What one seed showed."""

    seed: int
    verdict: Verdict
    faults: int
    exercised: Counter[str]
    events: int = 0
    trace: list[tuple[object, ...]] = field(default_factory=list)
    digest: bytes = b""


class Scenario:
    """One seed of a scenario. `book` is the plan as the coordinator holds it at this moment."""

    agent_capacity_bytes_per_s = 125_000_000.0
    """What an agent takes its server to be able to send."""
    ring_death = 0.5
    """How often an agent dies when the ring changes."""

    def __init__(self, seed: int, rules: Rules = ALL_RULES, trace: bool = False) -> None:
        self.world = World(seed, trace=trace)
        rng = self.world.rng("shape")
        options = self.draw_faults(rng)
        self.shape = shape = self.draw_shape(options)
        self.rules = rules
        self.network = Network(self.world, options)
        self.history = History()
        self.exercised: Counter[str] = Counter()
        self.deaths = 0
        """How many processes have died, whoever struck them."""
        self.cut_off_at: dict[int, float] = {}
        """When a server first cut a client off."""
        self.active = True
        self.peace_s = 0.0
        """How long faults leave the run alone at first."""
        self.signer = Signer(rng.randbytes(32))
        self.verifier = Verifier(self.signer.public)
        self.book = PlanBook(self.verifier)
        self.coordinator = ModelCoordinator(self.network, options=self.coordinator_options())
        self.processes = Processes(self.network, self.coordinator)
        self.channels = [f"c.{index}" for index in range(shape.channels)]
        self.pattern = "c.*"
        self.quiet_channels = [f"q.{index}" for index in range(2)]
        self.agent_lives: list[list[AgentLife]] = []
        self.names = [f"s{index + 1}" for index in range(shape.servers)]
        self.servers = [self._server(name) for name in self.names]
        self.agents = [self._agent(name) for name in self.names]
        self._watch_plan()
        leaders = self.make_leaders()
        self.coordinator.node.on_crash = lambda: self.died("coordinator", "coordinator")
        self._first_plan(rng)
        self.apps = [self.make_app(self.network.node(f"app{index}")) for index in range(shape.clients)]
        Stranger(
            self.network, self.names, self._inboxes, self.channels, self.strangers_active, self.history.foreign_sent
        )
        others = self.other_nodes()
        self.faults = Faults(
            self.network,
            crashable=[*self.names, *(f"agent-{n}" for n in self.names), "coordinator", *leaders, *others]
            + [app.node.name for app in self.apps],
            pausable=[
                *(f"agent-{n}" for n in self.names),
                "coordinator",
                *others,
                *(app.node.name for app in self.apps),
                self.names[0],
            ],
            partitionable=list(self.network.nodes),
        )

    # What a scenario adds

    def draw_faults(self, rng: Random) -> FaultOptions:
        """What links and nodes suffer."""
        return FaultOptions.draw(rng)

    def draw_shape(self, options: FaultOptions) -> Shape:
        """How large the run is."""
        return Shape.draw(self.world.rng("shape"), options)

    def coordinator_options(self) -> CoordinatorOptions:
        """How fast the coordinator is."""
        return CoordinatorOptions()

    def make_app(self, node: Node) -> App:
        """An application."""
        return App(self, node)

    def agent_wall(self, node: Node) -> WallClock:
        """The time of day as the agent on a node has it."""
        return WallClock(node)

    def strangers_active(self) -> bool:
        """Whether plain clients publish."""
        return self.active

    def other_nodes(self) -> list[str]:
        """Makes the scenario's own nodes; those named may be crashed and paused."""
        return []

    def subscribable(self) -> list[str]:
        """The channels to which applications subscribe."""
        return self.channels + self.quiet_channels

    def begin_safety(self) -> None:
        """The cluster stands; faults begin after `peace_s`."""

    def entry_written(self, entry: Entry) -> None:
        """The coordinator has a new entry."""

    def agent_wrote(self, agent: str, server: str, data: bytes) -> None:
        """The agent of one server sends commands to the same or another server."""

    def died(self, kind: str, name: str) -> None:
        """The process of a node is gone."""
        self.deaths += 1
        self.exercised[f"{kind} crash"] += 1

    def go_on(self) -> None:
        """Lets applications be active for longer, in a healthy world."""

    def check(self, verdict: Verdict) -> None:
        """Judges what only this scenario promises."""

    # The cluster

    def _server(self, name: str) -> RedisNode:
        server = RedisNode(self.network, name, RedisOptions(pubsub_limit=self.shape.pubsub_limit), host=f"host-{name}")
        start = server.node.on_restart
        deaths: list[Interval] = []

        def crashed() -> None:
            if self.world.rng("machine").random() < 0.4:
                self._crash_agent_too(name)
            deaths.append(Interval(name, self.world.now))
            self.history.unwatched.append(deaths[-1])
            self.died("server", name)

        def restarted() -> None:
            assert start is not None
            start()
            deaths[-1].ended_at = self.world.now

        server.node.on_crash, server.node.on_restart = crashed, restarted
        server.on_cut_off = self._cut_off
        return server

    def _cut_off(self, node: Node) -> None:
        """Notes the first time at which a server cuts an application off because it reads too slowly."""
        self.exercised["cut off"] += 1
        for app in self.apps:
            if app.node is node:
                self.cut_off_at.setdefault(app.record.client, self.world.now)

    def _crash_agent_too(self, name: str) -> None:
        """The whole machine is gone, and nobody remembers what was on it."""
        self.exercised["machine crash"] += 1
        self._crash_agent(name, "machine")

    def _crash_agent(self, name: str, why: str) -> None:
        agent = self.network.nodes[f"agent-{name}"]
        self.world.note("crash", agent.name, why)
        agent.crash()
        self.world.after(self.world.rng(why).uniform(0.3, 4.0), agent.restart)

    def spoken_once(self, channel: str) -> None:
        """Somebody spoke where it will be quiet from now on: perhaps the machine dies before everybody has heard it,
        and nobody remembers it."""
        rng = self.world.rng("quiet")
        if self.network.options.crashes_per_s and rng.random() < QUIET_DEATH and self.book.ring is not None:
            server = rng.choice(self.book.placement(channel.encode()).servers)
            delay_s = rng.uniform(0.0, QUIET_DEATH_S)
            for name in (server, f"agent-{server}"):
                self.world.after(delay_s, self.faults.crash, self.network.nodes[name])

    def _lapse(self) -> None:
        """An agent does not renew its lease for a while, as if an operator had taken its server out of the ring."""
        if self.faults.active:
            rng = self.world.rng("lapses")
            agent = f"agent-{rng.choice(self.names)}"
            self.coordinator.mute_leases(agent, self.world.now + rng.uniform(*LAPSE_S))
            self.world.after(rng.expovariate(1 / 3.0), self._lapse)

    def _agent(self, name: str) -> Node:
        node = self.network.node(f"agent-{name}", host=f"host-{name}")
        lives: list[AgentLife] = []

        def crashed() -> None:
            lives[-1].unwatched()
            self._count_agent(lives[-1])
            self.died("agent", name)

        def start() -> None:
            lives.append(AgentLife(self, node, name))

        node.on_restart, node.on_crash = start, crashed
        start()
        self.agent_lives.append(lives)
        return node

    def agent_of(self, server: str) -> AgentLife:
        """The agent that a server has now, or had last."""
        return self.agent_lives[self.names.index(server)][-1]

    def make_leaders(self) -> list[str]:
        """Makes the process that keeps the ring; those named may be crashed."""
        self.leader("keeper", "keeper")
        return ["keeper"]

    def leader(self, name: str, kind: str) -> None:
        """Makes a node with a leader on it; `kind` says what dies when it dies."""
        node = self.network.node(name)

        def start() -> None:
            process = self.processes.new(node)
            process.begin(self.lead(process))

        node.on_restart, node.on_crash = start, lambda: self.died(kind, name)
        start()

    async def lead(self, process: Process) -> None:
        """One life of a leader."""
        node, limits = process.node, self.shape.limits
        async with await process.runtime.coordinator(COORDINATOR_URL, limits.server_lease_s / 2) as coordinator:
            await self.make_leader(coordinator, f"{node.name}/{node.incarnation}").run()

    def make_leader(self, coordinator: Coordinator, holder: str) -> Leader:
        """Ring keeper and mover."""
        return Leader(
            coordinator, self.signer, self.shape.limits, DEFAULT_TIMING, self.names[: self.shape.servers], holder,
            self.rules,
        )  # fmt: skip

    def _inboxes(self) -> list[int]:
        return [app.record.client for app in self.apps]

    # The plan

    def _watch_plan(self) -> None:
        """Sees each ring and entry the moment that it is written, before anybody else."""
        tell_watchers = self.coordinator.store.on_change
        assert tell_watchers is not None

        def changed(key: str) -> None:
            stored = self.coordinator.store.get(key)
            if stored is not None and key == RING_KEY:
                self._ring_written(stored.value)
            elif stored is not None and key.startswith(entries_prefix()):
                self._entry_written(stored.value)
            tell_watchers(key)

        self.coordinator.store.on_change = changed

    def _first_plan(self, rng: Random) -> None:
        """Some channels have placements of their own, of every kind, before anybody has come."""
        for channel in self.channels:
            mode = rng.choice([None, None, *Mode])
            if mode is not None:
                placement = Placement(1, mode, self.some_servers(rng, mode))
                self.exercised[f"placement {mode.value}"] += 1
                name = channel.encode()
                self.coordinator.store.put(entry_key(name), self.signer.entry(name, placement))

    def some_servers(self, rng: Random, mode: Mode) -> tuple[str, ...]:
        """Servers for a placement of some kind."""
        return tuple(rng.sample(self.names, 1 if mode is Mode.SINGLE else rng.randint(1, len(self.names))))

    def _ring_written(self, data: bytes) -> None:
        """Notes who is in the ring."""
        self.book.accept_ring(data)
        assert self.book.ring is not None
        before, self.history.members = self.history.members, set(self.book.ring.ids)
        if before and self.active:
            for app in self.apps:
                app.ring_changed()
            if self.faults.active and self.world.rng("ring").random() < self.ring_death:
                self._crash_agent(self.world.rng("ring").choice(self.names), "ring")
        self.exercised["server left ring"] += len(before - self.history.members)
        for server in sorted(before - self.history.members):
            self.history.unwatched.append(Interval(f"{server} left the ring", self.world.now))
        self.exercised["server joined ring"] += len(self.history.members - before) if before else 0
        self.world.note("ring", self.book.ring.version, self.book.ring.ids)

    def _entry_written(self, data: bytes) -> None:
        try:
            channel, news = self.book.accept_entry(data)
        except PlanError as error:
            self.history.splits.append(f"an entry was written that nobody may use: {error}")
            return
        entry = self.book.entry(channel)
        if news and entry is not None:
            self.world.note("entry", channel.decode(), entry.phase.value, entry.newness, str(entry))
            self.entry_written(entry)

    # The run

    def execute(self) -> Outcome:
        """Runs all phases and judges."""
        try:
            with failures_logged(self.processes.failures):
                return self.run_phases()
        finally:
            self.processes.close()

    def run_phases(self) -> Outcome:
        """The phases of a run, one after the other."""
        world, shape = self.world, self.shape
        world.run(BEGIN_S)
        self.begin_safety()
        world.run(BEGIN_S + self.peace_s)
        self.faults.start()
        if shape.lapses:
            self._lapse()
        world.run(BEGIN_S + shape.safety_s)
        self.faults.stop()
        world.run(world.now + CALM_S)
        self.go_on()
        self.active = False
        world.run(world.now + QUIET_S)
        while not self.quiet() and world.now < LIVENESS_S_MAX:
            world.run(world.now + LOOK_S)
        return self._judged()

    def _judged(self) -> Outcome:
        world = self.world
        for app in self.apps:
            app.finish()
        for lives in self.agent_lives:
            self._count_agent(lives[-1])
        verdict = judge(self.history, Expectations(healable=self.shape.healable, calm=self.calm))
        self.processes.note_failures()
        for failure in self.processes.failures:
            verdict.violate("failure", failure)
        check_settled(self.apps, verdict)
        self.check(verdict)
        self.exercised.update(self.faults.counts)
        self.exercised.update(verdict.seen)
        return Outcome(
            world.seed, verdict, sum(self.faults.counts.values()), self.exercised, world.events_run, world.trace or [],
            world.digest,
        )  # fmt: skip

    @property
    def calm(self) -> bool:
        """Whether nothing has gone wrong for anybody. Scenarios strike too, beside the faults: a death is a death."""
        return not self.faults.counts and not self.deaths and not self.shape.lapses

    def quiet(self) -> bool:
        """Whether nobody waits for anything any more."""
        routers = [app.router for app in self.apps]
        if not all(router is not None and router.settled for router in routers):
            return False
        cores = [sub.core for app in self.apps for sub in app.subs]
        if not all(core is not None and core.settled for core in cores):
            return False
        streams = (stream for core in cores if core is not None for _, stream in core.all_streams())
        return not any(stream.has_hole() or stream.doubted_at is not None for stream in streams)

    def count(self, app: App) -> None:
        """Adds a router's counters to what was exercised."""
        if app.router is not None:
            for name, value in msgspec.structs.asdict(app.router.counters).items():
                self.exercised[f"router {name}"] += value

    def _count_agent(self, life: AgentLife) -> None:
        if life.agent.core is not None:
            for name, value in msgspec.structs.asdict(life.agent.core.counters).items():
                self.exercised[f"agent {name}"] += value


class AgentLife:
    """One life of the agent of a server: the shipped agent in a process of its own."""

    def __init__(self, run: Scenario, node: Node, server: str) -> None:
        self.run = run
        self.server = server
        self.process = run.processes.new(node, wall=run.agent_wall(node), tap=self)
        options = AgentOptions(
            address=ServerAddress(server, server, 1),
            url=COORDINATOR_URL,
            limits=run.shape.limits,
            max_out_bytes_per_s=run.agent_capacity_bytes_per_s,
        )
        self.agent = Agent(options, self.process.runtime, run.rules)
        self.process.begin(self._main())

    async def _main(self) -> None:
        await self.agent.work(self._load)

    async def _load(self) -> None:
        """What takes long at the start of an agent."""
        await asyncio.sleep(self.run.world.rng("loads").uniform(*(LOAD_S if self.run.book.ring else FIRST_LOAD_S)))

    def unwatched(self) -> None:
        """From now on the agent may miss what happens on its server."""
        self.run.history.unwatched.append(Interval(f"the agent of {self.server} was away", self.run.world.now))

    # What is seen of the connections (see `transport.Tap`)

    def wrote(self, peer: str, data: bytes) -> None:
        """Commands leave the agent."""
        self.run.agent_wrote(self.server, peer, data)

    def ended(self, peer: str) -> None:
        """A connection is gone: if it is the one to its own server, nothing is heard until there is another."""
        if peer == self.server:
            self.unwatched()
