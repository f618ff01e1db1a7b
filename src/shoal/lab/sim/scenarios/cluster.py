"""A simulated cluster of channels: servers with agents, leaders, applications and strangers.

Owns what the scenarios of channels have in common. Servers are models; agents, leaders and the applications' buses are
the shipped ones. `rules` can switch a rule of the protocol off, to prove that the checkers notice. The
scenarios themselves are `channels`, `moves`, `recording` and `balancer`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Any, Final

import msgspec

from shoal.channels.agent.process import Agent, AgentOptions
from shoal.channels.telemetry import loop_image
from shoal.coordination.interface import Coordinator
from shoal.errors import PlanError
from shoal.lab.sim.checkers import Verdict
from shoal.lab.sim.history import Interval
from shoal.lab.sim.models.redis_base import RedisOptions
from shoal.lab.sim.models.redis_node import RedisNode
from shoal.lab.sim.scenario import COMMON, FaultTargets, Scenario, Variant
from shoal.lab.sim.scenarios.app import App
from shoal.lab.sim.scenarios.channel_checkers import Expectations, judge
from shoal.lab.sim.scenarios.channel_run_history import ChannelRunHistory
from shoal.lab.sim.scenarios.liveness import check_settled
from shoal.lab.sim.scenarios.provocations import FullDisk
from shoal.lab.sim.scenarios.shape import Shape
from shoal.lab.sim.scenarios.stranger import ANSWERS, HOSTILE, Stranger
from shoal.lab.sim.world.fault_options import FaultOptions
from shoal.lab.sim.world.node import Node
from shoal.lab.sim.world.process import COORDINATOR_URL, Process, WallClock
from shoal.leader.leader_timeouts import LeaderTiming
from shoal.leader.leadership import Leader
from shoal.plan.book import PlanBook
from shoal.plan.entry import Entry
from shoal.plan.keys import AGENT_SECRETS_PREFIX, RING_KEY, entries_prefix, entry_key
from shoal.plan.placement import Mode, Placement
from shoal.plan.ring import ServerAddress
from shoal.plan.signature import Signer, Verifier
from shoal.rules import ALL_RULES, Rules
from shoal.runtime import Runtime

QUIET_DEATH: Final = 0.4
QUIET_DEATH_S: Final = 0.01
"""How often, and how soon, a server dies after it confirmed a message on a quiet channel."""
FIRST_LOAD_S: Final = (0.0, 0.1)
"""The same for the first agents. They are quick, because the run begins when all are up."""
LAPSE_S: Final = (3.8, 6.0)
LAPSE_EVERY_S: Final = 5.0
"""How long an agent does not renew its lease when it lapses, and about how often that happens."""


class ChannelScenario(Scenario):
    """One seed of a scenario of channels. `book` is the plan as the coordinator holds it at this moment."""

    agent_capacity_bytes_per_s = 125_000_000.0
    """The bandwidth that an agent assumes for its server."""
    pace = 2.0
    """How much more often things happen than in the scenario `balancer`, in which a decision takes seconds. An idle
    cluster costs as much CPU as a busy one, so runs are short and eventful."""
    fault_pace = 1.75
    """The same for faults."""
    load_s = 0.0, 2.0
    """How long an agent takes to load its modules."""
    full_disk_share = 0.08
    """How often the disk of the coordinator is full for a while."""
    ring_death = 0.5
    """How often an agent dies when the ring changes."""
    hostile = HOSTILE
    false_answers = ANSWERS
    """How often the stranger is hostile, and how many of the questions that it hears it answers then."""
    fixed_faults: Mapping[str, Any] = MappingProxyType({})
    fixed_limits: Mapping[str, Any] = MappingProxyType({})
    fixed_shape: Mapping[str, Any] = MappingProxyType({})
    """What a variant does not leave to the seed."""

    def __init__(self, seed: int, rules: Rules = ALL_RULES, trace: bool = False, variant: Variant = COMMON) -> None:
        self.rules = rules
        super().__init__(seed, trace, variant)

    def draw_faults(self, rng: Random) -> FaultOptions:
        """The faults of links and nodes."""
        return replace(FaultOptions.draw(rng, self.fault_pace), **self.fixed_faults)

    def draw_shape(self, rng: Random, options: FaultOptions) -> None:
        """The size of the run, and what its applications are like."""
        shape = self.make_shape(options)
        self.shape = replace(
            shape, limits=msgspec.structs.replace(shape.limits, **self.fixed_limits), **self.fixed_shape
        )
        self.safety_s = self.shape.safety_s

    def build(self, rng: Random) -> FaultTargets:
        """The cluster, its first plan, its applications and a stranger."""
        shape = self.shape
        self.history = ChannelRunHistory()
        self.cut_off_at: dict[int, float] = {}
        """When a server first disconnected each client for reading too slowly."""
        self.plan_key = rng.randbytes(32)
        self.signer = Signer(self.plan_key)
        self.verifier = Verifier(self.signer.public)
        self.book = PlanBook(self.verifier)
        self.channels = [f"c.{index}" for index in range(shape.channels)]
        self.pattern = "c.*"
        self.quiet_channels = [f"q.{index}" for index in range(2)]
        self.placements: dict[str, list[tuple[float, set[str]]]] = {}
        """The servers of each channel, and since when."""
        self.agent_processes: list[list[AgentProcess]] = []
        self.names = [f"s{index + 1}" for index in range(shape.servers)]
        self.servers = [self._server(name) for name in self.names]
        self.agents = [self._agent(name) for name in self.names]
        self._watch_plan()
        leaders = self.make_leaders()
        self._first_plan(rng)
        self.apps = [self.make_app(self.network.node(f"app{index}")) for index in range(shape.clients)]
        self.stranger = Stranger(
            self.network,
            self.names,
            self._inboxes,
            self.channels,
            self.strangers_active,
            self.history,
            lambda: self.book.ring,
            self.exercised,
            shape.greedy,
            self.hostile,
            self.false_answers,
        )
        others = self.other_nodes()
        return FaultTargets(
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

    def make_shape(self, options: FaultOptions) -> Shape:
        """How large the run is."""
        return Shape.draw(self.world.rng("shape"), options, self.pace)

    def make_app(self, node: Node) -> App:
        """An application."""
        return App(self, node)

    def agent_wall(self, node: Node) -> WallClock:
        """The time of day of the agent on a node."""
        return WallClock(node)

    def apps_leave(self) -> bool:
        """Whether applications may close their bus."""
        return self.active

    def strangers_active(self) -> bool:
        """Whether plain clients publish. Lies do not name the stream that they are about, so there are none where
        clients have several streams on a channel."""
        return self.active and not self.shape.idle

    def other_nodes(self) -> list[str]:
        """Makes the scenario's own nodes; returns the names of those that may be crashed and paused."""
        return []

    def subscribable(self) -> list[str]:
        """The channels to which applications subscribe."""
        return self.channels + self.quiet_channels

    def members_changed(self, left: list[str], joined: list[str]) -> None:
        """A new ring was written; these servers left it and joined it."""

    def entry_written(self, entry: Entry) -> None:
        """A new entry was written to the coordinator."""

    def secret_written(self) -> None:
        """The agents have another secret."""

    def agent_wrote(self, agent: str, server: str, data: bytes) -> None:
        """The agent of one server sends commands to the same or another server."""

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
        """Notes the first time at which a server disconnects an application for reading too slowly."""
        self.exercised["cut off"] += 1
        for app in self.apps:
            if app.node is node:
                self.cut_off_at.setdefault(app.client, self.world.now)

    def _crash_agent_too(self, name: str) -> None:
        """The agent crashes with its server, so no process knows any more what was there."""
        self.exercised["machine crash"] += 1
        self._crash_agent(name, "machine")

    def _crash_agent(self, name: str, why: str) -> None:
        agent = self.network.nodes[f"agent-{name}"]
        self.world.note("crash", agent.name, why)
        agent.crash()
        self.world.after(self.world.rng(why).uniform(0.3, 4.0), agent.restart)

    def quiet_confirmed(self, channel: str) -> None:
        """Called when a message on a quiet channel was confirmed. In some runs its server and agent crash before all
        subscribers have received it; no later message shows them that it is missing."""
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
            self.world.after(rng.expovariate(1 / LAPSE_EVERY_S), self._lapse)

    def _agent(self, name: str) -> Node:
        node = self.network.node(f"agent-{name}", host=f"host-{name}")
        processes: list[AgentProcess] = []

        def crashed() -> None:
            processes[-1].unwatched()
            self.history.link_ended(name, None, self.world.now)
            self._count_agent(processes[-1])
            self.died("agent", name)

        def start() -> None:
            processes.append(AgentProcess(self, node, name))

        node.on_restart, node.on_crash = start, crashed
        start()
        self.agent_processes.append(processes)
        return node

    def agent_of(self, server: str) -> AgentProcess:
        """The current or last agent of a server."""
        return self.agent_processes[self.names.index(server)][-1]

    def make_leaders(self) -> list[str]:
        """Makes the nodes that keep the ring; returns the names of those that may be crashed."""
        self.leader("keeper", "keeper")
        return ["keeper"]

    def leader(self, name: str, kind: str) -> None:
        """Makes a node with a leader on it; `kind` names it in the counts of crashes."""
        self.participant(name, kind, self.lead)

    async def lead(self, process: Process) -> None:
        """The main task of a leader's process."""
        node, limits = process.node, self.shape.limits
        async with await process.runtime.coordinator(COORDINATOR_URL, limits.server_lease_s / 2) as coordinator:
            await self.make_leader(coordinator, f"{node.name}/{node.incarnation}", process.runtime).run()

    def make_leader(self, coordinator: Coordinator, holder: str, runtime: Runtime) -> Leader:
        """Ring keeper and conductor."""
        return Leader(
            coordinator, self.signer, self.shape.limits, LeaderTiming(), self.names[: self.shape.servers], holder,
            runtime.random, self.rules, wall=runtime.wall,
        )  # fmt: skip

    def _inboxes(self) -> list[int]:
        return [app.record.client for app in self.apps if app.started]

    # The plan

    def _watch_plan(self) -> None:
        """Observes each ring, entry and secret when it is written, before any watch does."""
        tell_watchers = self.coordinator.store.on_change
        assert tell_watchers is not None

        def changed(key: str) -> None:
            stored = self.coordinator.store.get(key)
            if stored is not None and key == RING_KEY:
                self._ring_written(stored.value)
            elif stored is not None and key.startswith(entries_prefix()):
                self._entry_written(stored.value)
            elif stored is not None and key.startswith(AGENT_SECRETS_PREFIX):
                self.secret_written()
            tell_watchers(key)

        self.coordinator.store.on_change = changed

    def _first_plan(self, rng: Random) -> None:
        """Gives some channels an entry, with placements of every kind, before the run begins."""
        for channel in self.channels:
            mode = rng.choice([None, None, *Mode])
            if mode is not None:
                placement = Placement(1, mode, self.some_servers(rng, mode))
                self.exercised[f"placement {mode.value}"] += 1
                name = channel.encode()
                self.coordinator.store.put(entry_key(name), self.signer.entry(name, placement))

    def some_servers(self, rng: Random, mode: Mode) -> tuple[str, ...]:
        """Random servers for a placement of a kind."""
        return tuple(rng.sample(self.names, 1 if mode is Mode.SINGLE else rng.randint(1, len(self.names))))

    def _ring_written(self, data: bytes) -> None:
        """Notes the members of the ring."""
        self.book.accept_ring(data)
        assert self.book.ring is not None
        before, self.history.members = self.history.members, set(self.book.ring.ids)
        if before and self.active:
            for app in self.apps:
                app.ring_changed()
            if self.faults.active and self.world.rng("ring").random() < self.ring_death:
                self._crash_agent(self.world.rng("ring").choice(self.names), "ring")
        left = sorted(before - self.history.members)
        joined = sorted(self.history.members - before) if before else []
        self.exercised["server left ring"] += len(left)
        self.exercised["server joined ring"] += len(joined)
        for server in left:
            self.history.unwatched.append(Interval(f"{server} left the ring", self.world.now))
        self._note_placements()
        self.members_changed(left, joined)
        self.world.note("ring", self.book.ring.version, self.book.ring.ids)

    def _entry_written(self, data: bytes) -> None:
        try:
            channel, news = self.book.accept_entry(data)
        except PlanError as error:
            self.history.splits.append(f"an invalid entry was written: {error}")
            return
        entry = self.book.entry(channel)
        if news and entry is not None:
            self.world.note("entry", channel.decode(), entry.phase.value, entry.newness, str(entry))
            self._note_placements()
            self.entry_written(entry)

    def _note_placements(self) -> None:
        """Notes on which servers publishers of each channel may be from now on."""
        if self.book.ring is None:
            return
        for name in self.subscribable():
            channel = name.encode()
            entry = self.book.entry(channel)
            servers = {*self.book.placement(channel).servers, *(entry.servers if entry is not None else ())}
            known = self.placements.setdefault(name, [])
            if not known or known[-1][1] != servers:
                known.append((self.world.now, servers))

    def servers_since(self, name: str, since: float) -> set[str]:
        """All servers on which a channel was placed since a time."""
        known = self.placements.get(name, [])
        first = max((row for row, (at, _) in enumerate(known) if at <= since), default=0)
        return {server for _, servers in known[first:] for server in servers}

    # The run

    def recorded(self) -> list[object]:
        """The contents of the history."""
        return [sorted(value) if isinstance(value, set) else value for value in vars(self.history).values()]

    def formed(self) -> bool:
        """Every agent has a ring."""
        cores = [processes[-1].agent.core for processes in self.agent_processes]
        return all(core is not None and core.book.ring is not None for core in cores)

    def faults_began(self) -> None:
        """In some runs agents fail to renew their leases, or the coordinator's disk is full."""
        if self.shape.lapses:
            self._lapse()
        if self.world.rng("disk").random() < self.full_disk_share and not self.network.options.peaceful:
            FullDisk(self).begin()

    def finish(self) -> bool:
        """Reads what is left in the inboxes, and adds up the counters of applications and agents."""
        read = [app.finish() for app in self.apps]
        for processes in self.agent_processes:
            self._count_agent(processes[-1])
        return any(read)

    def judge(self) -> Verdict:
        """Checks the promise of channels, and that everything has settled."""
        healable, calm = self.shape.healable, self.calm
        close_complete = healable and calm and not self.shape.slow_readers and not self.cut_off_at
        idle_s = self.shape.limits.publisher_idle_s if self.shape.idle else None
        expect = Expectations(healable, calm, close_complete=close_complete, full=self.shape.full, idle_s=idle_s)
        verdict = judge(self.history, expect)
        check_settled(self.apps, verdict)
        return verdict

    @property
    def calm(self) -> bool:
        """Whether the run had no fault, no crash, no lapsed lease and no full table. Crashes that the scenario causes
        count too."""
        return not self.faults.counts and not self.deaths and not self.shape.lapses and not self.shape.full

    def quiet(self) -> bool:
        """Whether all subscriptions are in force, all messages confirmed, all questions answered, and no hole open."""
        routers = [app.router for app in self.apps if not app.leaving and app.router is not None]
        if len(routers) < len(self.apps):
            return False
        if not all(router.settled and not router.statistics().questions for router in routers):
            return False
        cores = [sub.core for app in self.apps for sub in app.subs]
        if not all(core is not None and core.settled and not core.asks_outside for core in cores):
            return False
        streams = (stream for core in cores if core is not None for _, stream in core.all_streams())
        return not any(stream.has_hole() or stream.doubted_at is not None for stream in streams)

    def count(self, app: App) -> None:
        """Adds a router's counters to `exercised`."""
        if app.router is not None:
            for name, value in msgspec.structs.asdict(app.router.counters).items():
                self.exercised[f"router {name}"] += value

    def _count_agent(self, process: AgentProcess) -> None:
        if process.agent.core is not None:
            for name, value in msgspec.structs.asdict(process.agent.core.counters).items():
                self.exercised[f"agent {name}"] += value


class AgentProcess:
    """One process of a server's agent. It runs the shipped agent."""

    def __init__(self, run: ChannelScenario, node: Node, server: str) -> None:
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
        self.node = node
        self.incarnation = node.incarnation
        self.steady_since = run.world.now
        """Since when the agent has watched its server without a break."""
        self.informed_since = math.inf
        """Since when a publisher on its server cannot be unknown to the agent: since all clients there have told their
        streams to this process. Before that, one that its predecessor had answered may publish and die unheard."""
        self.process.begin(self._main())

    async def _main(self) -> None:
        loop_image.load_image()
        await self.agent.work(self._load)

    async def _load(self) -> None:
        """The slow part of an agent's start."""
        await asyncio.sleep(
            self.run.world.rng("loads").uniform(*(self.run.load_s if self.run.book.ring else FIRST_LOAD_S))
        )

    def unwatched(self) -> None:
        """Notes that the agent may miss messages on its server from now on."""
        self.steady_since = self.run.world.now
        self.run.history.unwatched.append(Interval(f"the agent of {self.server} was away", self.run.world.now))

    # Observing the connections (see `transport.Tap`)

    def wrote(self, peer: str, data: bytes) -> None:
        """The agent sends commands. It tells nobody of all publishers before it knows them."""
        core = self.agent.core
        if core is not None and core.knows_publishers:
            self.informed_since = min(self.informed_since, self.run.world.now)
        self.run.agent_wrote(self.server, peer, data)

    def ended(self, peer: str) -> None:
        """A connection has ended. Without the one to its own server the agent hears nothing."""
        if peer == self.server:
            self.unwatched()
            self.run.history.link_ended(self.server, None, self.run.world.now)
