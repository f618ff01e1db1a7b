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

import msgspec

from shoal.channels.rules import ALL_RULES, Rules
from shoal.channels.subscription import Subscription
from shoal.limits import DEFAULT_LIMITS, Limits
from shoal.plan.placement import Mode, Placement
from shoal.plan.ring import ServerAddress
from shoal.plan.signing import Signer, Verifier
from shoal.sim.agent_actor import AgentActor, KeeperActor
from shoal.sim.checkers import Expectations, Verdict, judge
from shoal.sim.client_actor import ClientActor
from shoal.sim.coordinator import ModelCoordinator
from shoal.sim.faults import Faults
from shoal.sim.history import Handed, History, Interval, PublisherRecord, SubscriberRecord, payload_of
from shoal.sim.model_base import BufferLimit, RedisOptions
from shoal.sim.network import Network
from shoal.sim.node import Node
from shoal.sim.options import FaultOptions
from shoal.sim.redis_node import RedisNode
from shoal.sim.world import World

BEGIN_S = 3.0
CALM_S = 8.0


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
        return cls(
            servers=rng.randint(2, 4),
            clients=rng.randint(4, 8),
            channels=rng.randint(2, 5),
            safety_s=rng.uniform(12.0, 25.0),
            burst_max=rng.choice((3, 12, 30)),
            payload_bytes=rng.choice((10, 400)),
            burst_pause_s=rng.choice((0.3, 1.5, 4.0)),
            limits=limits,
            pubsub_limit=BufferLimit(40_000, 20_000, 2.0) if tight else BufferLimit(),
            slow_readers=slow_readers,
            healable=healable,
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


class App:
    """One application process: it publishes in bursts, subscribes, reads at its own pace, and starts anew
    after a crash.
    """

    def __init__(self, run: ChannelsRun, node: Node) -> None:
        self.run = run
        self.node = node
        self.random = run.world.rng(f"app/{node.name}")
        self.records: dict[Subscription, SubscriberRecord] = {}
        self.subs: list[Subscription] = []
        self.reading: set[Subscription] = set()
        self.actor: ClientActor
        self.record: PublisherRecord
        node.on_crash = self._crashed
        node.on_restart = self.start
        self.start()

    @property
    def slow(self) -> bool:
        """Whether this application reads slowly."""
        return self.run.shape.slow_readers and self.node.name.endswith(("1", "3"))

    def start(self) -> None:
        """A new process with a new identity."""
        run = self.run
        client = run.world.rng("identity").getrandbits(48) | 1
        self.record = run.history.publishers[client] = PublisherRecord(client)
        self.records, self.subs, self.reading = {}, [], set()
        self.actor = ClientActor(
            run.network, self.node, run.coordinator, client, run.signer.public, run.shape.limits, run.rules,
            on_publish=lambda server, channel, blob: run.history.sent(server, client, run.world.now),
            on_ready=self._ready, on_confirmed=self._confirmed,
        )  # fmt: skip
        self.node.after(self.random.uniform(0.0, 1.0), self._begin)

    def _begin(self) -> None:
        if not self.actor.started:
            self.node.after(0.1, self._begin)
            return
        for _ in range(self.random.randint(1, 2)):
            self._subscribe()
        self._live()

    def _live(self) -> None:
        """One thing after another, as long as applications are active."""
        run, random = self.run, self.random
        if not run.active:
            return
        draw = random.random()
        if draw < 0.75:
            self._burst(random.choice(run.channels), random.randint(1, run.shape.burst_max))
        elif draw < 0.87:
            self._subscribe()
            run.exercised["late joiner"] += 1
        elif self.subs:
            self._unsubscribe(random.choice(self.subs))
        self.node.after(random.expovariate(1 / run.shape.burst_pause_s), self._live)

    def _burst(self, channel: str, count: int) -> None:
        self.run.exercised["burst"] += 1
        for _ in range(count):
            self._publish(channel)
            if self.random.random() < 0.2:
                self.node.after(self.random.uniform(0.0, 0.3), self._publish, channel)

    def _publish(self, channel: str) -> None:
        history, now = self.run.history, self.run.world.now
        number = history.next_number
        payload = payload_of(number, self.run.shape.payload_bytes)
        history.publish(channel, self.record.client, 0, now)
        _, sequence = self.actor.publish(channel.encode(), payload, number)
        history.messages[number].sequence = sequence

    def _confirmed(self, token: object) -> None:
        assert isinstance(token, int)
        self.run.history.confirmed(token, self.run.world.now)

    def _subscribe(self) -> None:
        if len(self.subs) >= 4:
            return
        pattern = self.random.random() < 0.25
        name = self.run.pattern if pattern else self.random.choice(self.run.channels)
        self.run.exercised["pattern" if pattern else "channel"] += 1
        record = SubscriberRecord(name, pattern, self.record.client, self.run.world.now)
        sub = self.actor.subscribe(name.encode(), pattern)
        self.records[sub] = record
        self.subs.append(sub)
        self.run.history.subscribers.append(record)
        self._ready(sub)

    def _unsubscribe(self, sub: Subscription) -> None:
        self._read(sub, 1 << 30)
        self.subs.remove(sub)
        self.records[sub].ended_at = self.run.world.now
        self.actor.unsubscribe(sub)

    def _ready(self, sub: Subscription) -> None:
        record = self.records.get(sub)
        if record is None:
            return
        if sub.in_force and record.in_force_at is None:
            record.in_force_at = self.run.world.now
        if not self.slow:
            self._read(sub, 1 << 30)
        elif sub not in self.reading:
            self.reading.add(sub)
            self.node.after(self._reading_pause_s(), self._read_slowly, sub)

    def _reading_pause_s(self) -> float:
        return self.random.uniform(0.02, 0.4) if self.run.active else 0.01

    def _read_slowly(self, sub: Subscription) -> None:
        self._read(sub, self.random.randint(1, 6) if self.run.active else 1 << 30)
        if sub.inbox.items:
            self.node.after(self._reading_pause_s(), self._read_slowly, sub)
        else:
            self.reading.discard(sub)

    def _read(self, sub: Subscription, count: int) -> None:
        record = self.records[sub]
        if record.ended_at is not None:
            return
        while sub.inbox.items and count:
            record.handed.append(Handed(self.run.world.now, sub.inbox.take()))
            count -= 1
        if sub.overflowed and sub.inbox.roomy:
            self.actor.consumed(sub)

    def _crashed(self) -> None:
        now = self.run.world.now
        self.record.ended_at, self.record.crashed = now, True
        self.run.exercised["client crash"] += 1
        for sub in self.subs:
            self.records[sub].ended_at = now
        self.run.count(self.actor)

    def finish(self) -> None:
        """The end of the run: whatever still lies in an inbox is read."""
        for sub in self.subs:
            self._read(sub, 1 << 30)
        self.run.count(self.actor)


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
        self.agent_actors: list[list[AgentActor]] = []
        self.names = [f"s{index + 1}" for index in range(shape.servers)]
        self.servers = [self._server(name) for name in self.names]
        self.agents = [self._agent(name) for name in self.names]
        self._keeper()
        self._entries(rng)
        self.apps = [App(self, self.network.node(f"app{index}")) for index in range(shape.clients)]
        self.faults = Faults(
            self.network,
            crashable=[*self.names, *(f"agent-{n}" for n in self.names), "coordinator", "keeper"]
            + [app.node.name for app in self.apps],
            pausable=[*(f"agent-{n}" for n in self.names), "coordinator", *(app.node.name for app in self.apps), self.names[0]],
            partitionable=list(self.network.nodes),
        )

    # The cluster

    def _server(self, name: str) -> RedisNode:
        server = RedisNode(self.network, name, RedisOptions(pubsub_limit=self.shape.pubsub_limit), host=f"host-{name}")
        start = server.node.on_restart
        deaths: list[Interval] = []

        def crashed() -> None:
            deaths.append(Interval(name, self.world.now))
            self.history.server_deaths.append(deaths[-1])
            self.exercised["server crash"] += 1

        def restarted() -> None:
            assert start is not None
            start()
            deaths[-1].ended_at = self.world.now

        server.node.on_crash, server.node.on_restart = crashed, restarted
        return server

    def _agent(self, name: str) -> Node:
        node = self.network.node(f"agent-{name}", host=f"host-{name}")
        peers = [peer for peer in self.names if peer != name]

        def start() -> None:
            instance = self.world.rng("identity").getrandbits(63)
            actor = AgentActor(
                self.network, node, name, peers, self.coordinator, instance, self.signer.public, self.shape.limits,
                self.rules,
            )  # fmt: skip
            actors.append(actor)

        def crashed() -> None:
            self.exercised["agent crash"] += 1
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

        node.on_restart = start
        start()
        tell_watchers = self.coordinator.store.on_change
        assert tell_watchers is not None

        def changed(key: str) -> None:
            self._ring_written(key)
            tell_watchers(key)

        self.coordinator.store.on_change = changed

    def _ring_written(self, key: str) -> None:
        """Notes who is in the ring, the moment that it is written."""
        if key == "plan/ring":
            stored = self.coordinator.store.get(key)
            assert stored is not None
            ring = Verifier(self.signer.public).ring(stored.value)
            before, self.history.members = self.history.members, set(ring.ids)
            self.exercised["server left ring"] += len(before - self.history.members)
            for server in before - self.history.members:
                self.history.server_deaths.append(Interval(f"{server} left the ring", self.world.now))
            self.exercised["server joined ring"] += len(self.history.members - before) if before else 0

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
        world.run(BEGIN_S + shape.safety_s)
        self.faults.stop()
        world.run(world.now + CALM_S)
        self.active = False
        world.run(world.now + 20.0 + shape.limits.gap_timeout_s)
        for app in self.apps:
            app.finish()
        for actors in self.agent_actors:
            self._count_agent(actors[-1])
        verdict = judge(self.history, Expectations(healable=shape.healable, calm=not self.faults.counts))
        self._check_settled(verdict)
        self.exercised.update(self.faults.counts)
        self.exercised.update(verdict.seen)
        return Outcome(
            world.seed, verdict, sum(self.faults.counts.values()), self.exercised, world.events_run, world.trace or []
        )

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
