"""The scenario `channels`: publishers and subscribers that come and go on a cluster that suffers, by seed.

Owns what the applications of a simulated run do, and the order of its phases:

    begin     the cluster forms its first ring
    safety    applications publish and subscribe while faults strike
    calm      faults are over and everything is up again; applications go on for a while
    liveness  applications are quiet; everything owed must arrive, everything must settle

The protocol's cores are the shipped ones; `rules` takes one rule out of them to prove that the checkers
notice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Final

import msgspec

from shoal.channels.rules import ALL_RULES, Rules
from shoal.limits import DEFAULT_LIMITS, Limits
from shoal.plan.placement import Mode, Placement
from shoal.plan.ring import ServerAddress
from shoal.plan.signing import Signer, Verifier
from shoal.sim.agent_actor import AgentActor, KeeperActor
from shoal.sim.app import App
from shoal.sim.checkers import Expectations, Verdict, judge
from shoal.sim.client_actor import ClientActor
from shoal.sim.coordinator import ModelCoordinator
from shoal.sim.faults import Faults
from shoal.sim.history import History, Interval
from shoal.sim.model_base import BufferLimit, RedisOptions
from shoal.sim.network import Network
from shoal.sim.node import Node
from shoal.sim.options import FaultOptions
from shoal.sim.redis_node import RedisNode
from shoal.sim.stranger import Stranger
from shoal.sim.world import World

BEGIN_S = 3.0
CALM_S = 8.0
QUIET_S = 10.0
NARROW_BYTES_PER_S = 500_000
"""Links below this carry little, so applications send little: a jam is no fault of the protocol."""
LIVENESS_S_MAX = 400.0
"""By then a healthy world must have settled, however slow its links are."""

CORNERS: Final = {
    "late joiner": "late joiner",
    "late joiner with a baseline": "router late_joins",
    "burst": "burst",
    "last message of a burst (beacon)": "router beacons",
    "publisher returns to a server (announce)": "router announces",
    "channel subscription": "channel",
    "pattern subscription": "pattern",
    "slow subscriber overflows": "router overflows",
    "subscriber cut off by its output buffer": "cut off",
    "placement single": "placement single",
    "placement all_subscribers": "placement all_subscribers",
    "placement all_publishers": "placement all_publishers",
    "foreign message": "router foreign",
    "garbage refused": "router garbage",
    "garbage refused by an agent": "agent garbage",
    "forged ring or entry refused": "router forged",
    "duplicate dropped": "router duplicates",
    "unconfirmed publish repeated": "router repeated",
    "message held behind a hole": "router held",
    "hole": "router holes",
    "hole healed": "router healed",
    "closed gap": "closed gap",
    "open gap": "open gap",
    "connection reset": "reset",
    "connection stalled": "stall",
    "partition": "partition",
    "one-way partition": "partition_one_way",
    "pause": "pause",
    "quiet channel": "quiet burst",
    "server crash": "server crash",
    "server and agent crash together": "machine crash",
    "server's restart noticed": "router restarts_seen",
    "server left the ring": "server left ring",
    "server came back to the ring": "server joined ring",
    "agent crash": "agent crash",
    "roll-call": "router roll_calls",
    "hello deferred by a roll-call": "agent hellos_deferred",
    "client crash": "client crash",
    "coordinator crash": "coordinator crash",
    "keeper crash": "keeper crash",
    "power failure": "crash_power",
    "lease ran out": "router stale_links",
    "agent speaks while the coordinator is down": "agent orphan_words",
}
"""Every corner that a campaign must meet, and the counter that shows it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a run is and what its applications are like, drawn by seed."""

    servers: int
    clients: int
    channels: int
    safety_s: float
    burst_max: int
    payload_bytes: int
    burst_pause_s: float
    limits: Limits
    pubsub_limit: BufferLimit
    slow_readers: bool
    healable: bool
    lapses: bool

    @classmethod
    def draw(cls, rng: Random, faults: FaultOptions) -> Shape:
        """A shape by seed. Half of the runs give holes all the time they need to heal; the others report
        early.
        """
        healable = rng.random() < 0.5
        small_window = not healable and rng.random() < 0.5
        slow_readers = rng.random() < 0.3
        limits = msgspec.structs.replace(
            DEFAULT_LIMITS,
            clock_drift_max=0.05,
            beacon_delay_s=0.3,
            gap_timeout_s=45.0 if healable else 9.0,
            resend_messages_max=8 if small_window else 4096,
            inbox_messages_max=16 if slow_readers else 4096,
            held_messages_max=rng.choice((8, 256)),
            heal_page_messages=rng.choice((4, 64)),
            linger_s=rng.choice((0.5, 5.0)),
        )
        tight = rng.random() < 0.3
        narrow = faults.window_bytes / max(faults.delay_s) < NARROW_BYTES_PER_S
        return cls(
            servers=rng.randint(2, 4),
            clients=rng.randint(4, 8),
            channels=rng.randint(2, 5),
            safety_s=rng.uniform(12.0, 25.0),
            burst_max=rng.choice((3, 12, 30)) if not narrow else 3,
            payload_bytes=rng.choice((10, 400)) if not narrow else 10,
            burst_pause_s=rng.choice((0.3, 1.5, 4.0)) if not narrow else 4.0,
            limits=limits,
            pubsub_limit=BufferLimit(150_000, 75_000, 2.0) if tight else BufferLimit(),
            slow_readers=slow_readers,
            healable=healable,
            lapses=faults.clock_drift_max < 0.02 and rng.random() < 0.4,
        )


@dataclass(slots=True)
class Outcome:
    """What one seed showed."""

    seed: int
    verdict: Verdict
    faults: int
    exercised: Counter[str]
    events: int = 0
    trace: list[tuple[object, ...]] = field(default_factory=list)


class ChannelsRun:
    """One seed of the scenario."""

    def __init__(self, seed: int, rules: Rules = ALL_RULES, trace: bool = False) -> None:
        self.world = World(seed, trace=trace)
        rng = self.world.rng("shape")
        options = FaultOptions.draw(rng)
        self.shape = shape = Shape.draw(rng, options)
        self.rules = rules
        self.network = Network(self.world, options)
        self.history = History()
        self.exercised: Counter[str] = Counter()
        self.active = True
        self.signer = Signer(rng.randbytes(32))
        self.coordinator = ModelCoordinator(self.network)
        self.channels = [f"c.{index}" for index in range(shape.channels)]
        self.pattern = "c.*"
        self.quiet_channels = [f"q.{index}" for index in range(2)]
        self.agent_actors: list[list[AgentActor]] = []
        self.names = [f"s{index + 1}" for index in range(shape.servers)]
        self.servers = [self._server(name) for name in self.names]
        self.agents = [self._agent(name) for name in self.names]
        self._keeper()
        self.coordinator.node.on_crash = lambda: self._crashed("coordinator")
        self._entries(rng)
        self.apps = [App(self, self.network.node(f"app{index}")) for index in range(shape.clients)]
        Stranger(self.network, self.names, self._inboxes, self.channels, lambda: self.active)
        self.faults = Faults(
            self.network,
            crashable=[*self.names, *(f"agent-{n}" for n in self.names), "coordinator", "keeper"]
            + [app.node.name for app in self.apps],
            pausable=[
                *(f"agent-{n}" for n in self.names),
                "coordinator",
                *(app.node.name for app in self.apps),
                self.names[0],
            ],
            partitionable=list(self.network.nodes),
        )

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
            self.exercised["server crash"] += 1

        def restarted() -> None:
            assert start is not None
            start()
            deaths[-1].ended_at = self.world.now

        server.node.on_crash, server.node.on_restart = crashed, restarted
        return server

    def _crash_agent_too(self, name: str) -> None:
        """The whole machine is gone, and nobody remembers what was on it."""
        self.exercised["machine crash"] += 1
        agent = self.network.nodes[f"agent-{name}"]
        agent.crash()
        self.world.after(self.world.rng("machine").uniform(0.3, 4.0), agent.restart)

    def _lapse(self) -> None:
        """An agent does not renew its lease for a while, as if an operator had taken its server out of the ring."""
        if self.faults.active:
            rng = self.world.rng("lapses")
            rng.choice(self.agent_actors)[-1].lapse(rng.uniform(3.5, 7.0))
            self.world.after(rng.expovariate(1 / 3.0), self._lapse)

    def _agent(self, name: str) -> Node:
        node = self.network.node(f"agent-{name}", host=f"host-{name}")
        peers = [peer for peer in self.names if peer != name]

        def unwatched() -> None:
            self.history.unwatched.append(Interval(f"the agent of {name} was away", self.world.now))

        def start() -> None:
            instance = self.world.rng("identity").getrandbits(63)
            actor = AgentActor(
                self.network, node, name, peers, self.coordinator, instance, self.signer.public, self.shape.limits,
                unwatched,
            )  # fmt: skip
            actors.append(actor)

        def crashed() -> None:
            self.exercised["agent crash"] += 1
            unwatched()
            self._count_agent(actors[-1])

        actors: list[AgentActor] = []
        node.on_restart, node.on_crash = start, crashed
        start()
        self.agent_actors.append(actors)
        return node

    def _keeper(self) -> None:
        node = self.network.node("keeper")
        members = {name: ServerAddress(name, name, 1) for name in self.names}

        def start() -> None:
            KeeperActor(node, self.coordinator, self.signer, self.shape.limits, members)

        node.on_restart, node.on_crash = start, lambda: self._crashed("keeper")
        start()
        tell_watchers = self.coordinator.store.on_change
        assert tell_watchers is not None

        def changed(key: str) -> None:
            self._ring_written(key)
            tell_watchers(key)

        self.coordinator.store.on_change = changed

    def _crashed(self, who: str) -> None:
        self.exercised[f"{who} crash"] += 1

    def _ring_written(self, key: str) -> None:
        """Notes who is in the ring, the moment that it is written."""
        if key == "plan/ring":
            stored = self.coordinator.store.get(key)
            assert stored is not None
            ring = Verifier(self.signer.public).ring(stored.value)
            before, self.history.members = self.history.members, set(ring.ids)
            if before and self.active:
                for app in self.apps:
                    app.ring_changed()
            self.exercised["server left ring"] += len(before - self.history.members)
            for server in before - self.history.members:
                self.history.unwatched.append(Interval(f"{server} left the ring", self.world.now))
            self.exercised["server joined ring"] += len(self.history.members - before) if before else 0

    def _inboxes(self) -> list[int]:
        return [app.record.client for app in self.apps]

    def _entries(self, rng: Random) -> None:
        """Some channels have placements of their own, of every kind."""
        for channel in self.channels:
            mode = rng.choice([None, None, Mode.SINGLE, Mode.ALL_SUBSCRIBERS, Mode.ALL_PUBLISHERS])
            if mode is None:
                continue
            count = 1 if mode is Mode.SINGLE else rng.randint(1, len(self.names))
            placement = Placement(1, mode, tuple(rng.sample(self.names, count)))
            self.exercised[f"placement {mode.value}"] += 1
            self.coordinator.store.put(f"plan/entries/{channel}", self.signer.entry(channel.encode(), placement))

    # The run

    def execute(self) -> Outcome:
        """Runs all phases and judges."""
        world, shape = self.world, self.shape
        world.run(BEGIN_S)
        self.faults.start()
        if shape.lapses:
            self._lapse()
        world.run(BEGIN_S + shape.safety_s)
        self.faults.stop()
        world.run(world.now + CALM_S)
        self.active = False
        world.run(world.now + QUIET_S + shape.limits.gap_timeout_s)
        while not self._quiet() and world.now < LIVENESS_S_MAX:
            world.run(world.now + QUIET_S)
        for app in self.apps:
            app.finish()
        for actors in self.agent_actors:
            self._count_agent(actors[-1])
        self.exercised["cut off"] += sum(server.cut_off for server in self.servers)
        verdict = judge(
            self.history, Expectations(healable=shape.healable, calm=not self.faults.counts and not shape.lapses)
        )
        self._check_settled(verdict)
        self.exercised.update(self.faults.counts)
        self.exercised.update(verdict.seen)
        return Outcome(
            world.seed, verdict, sum(self.faults.counts.values()), self.exercised, world.events_run, world.trace or []
        )

    def _quiet(self) -> bool:
        """Whether nobody waits for anything any more."""
        routers = [app.actor.router for app in self.apps]
        subs = [sub for app in self.apps for sub in app.subs]
        streams = (stream for sub in subs for _, stream in sub.all_streams())
        settled = all(router.settled for router in routers) and all(sub.settled for sub in subs)
        return settled and not any(stream.has_hole() for stream in streams)

    def _check_settled(self, verdict: Verdict) -> None:
        """Liveness: in a healthy world everything is confirmed, in force, and no table holds what is over."""
        for app in self.apps:
            router = app.actor.router
            who = f"{app.node.name} ({app.record.client:x})"
            if not router.settled:
                verdict.violate("unsettled", f"{who} has {router.publishing.pending_messages} messages unconfirmed")
            for sub in app.subs:
                if not sub.settled:
                    sites = {name: site.state.value for name, site in sub.sites.items()}
                    verdict.violate("unsettled", f"{who}: {sub.text} is not in force everywhere: {sites}")
                held = sum(len(stream.held) for _, stream in sub.all_streams())
                if held or sub.early:
                    verdict.violate("growth", f"{who}: {sub.text} still holds {held} messages, {len(sub.early)} early")
            if router.subscribing.asked or router.publishing.asked:
                asked = len(router.subscribing.asked), len(router.publishing.asked)
                verdict.violate("growth", f"{who} still waits for answers: {asked}")
            if len(router.context.timers) > 60 + 4 * len(app.subs):
                verdict.violate("growth", f"{who} has {len(router.context.timers)} timers in a quiet world")

    def count(self, actor: ClientActor) -> None:
        """Adds a router's counters to what was exercised."""
        for name, value in msgspec.structs.asdict(actor.router.counters).items():
            self.exercised[f"router {name}"] += value

    def _count_agent(self, actor: AgentActor) -> None:
        for name, value in msgspec.structs.asdict(actor.core.counters).items():
            self.exercised[f"agent {name}"] += value


def run_seed(seed: int, rules: Rules = ALL_RULES, trace: bool = False) -> Outcome:
    """Runs one seed; the same seed gives the same outcome, always."""
    return ChannelsRun(seed, rules, trace).execute()
