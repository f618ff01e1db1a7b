"""The scenario `queue`: producers and consumers of one queue on one to three stores, under faults.

Owns the participants and their applications. Clients, stores' agents and leaders are the shipped ones, and so are the
scripts on models of stores, which keep their keys through crashes because they answer only after they have synced.
Handlers are quick, slow or fail; some messages always fail. The stores' times of day jump, replies and pushes are lost
with connections. In runs with several stores shards move between them (`queue_moves`), and an observer reads the
statistics meanwhile. The checks are in `queue_history`.

In most runs an operator requests the queue before clients come. In the share `BUS_SHARE` clients create it: they have
a whole bus, and ask the agent of a channel server. In the others they have the part of a bus that queues need.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Any, Final

import msgspec

from shoal.bus.client import Bus
from shoal.bus.plan_source import PlanSource
from shoal.bus.queues import BusQueues
from shoal.channels.agent.process import Agent, AgentOptions
from shoal.channels.client.context import QueueAnswered
from shoal.channels.telemetry import loop_image
from shoal.errors import (
    AlreadyAcceptedError,
    JobLostError,
    QueueError,
    QueueFullError,
    ShoalError,
    TooManyIdsError,
    TooManyKeysError,
)
from shoal.lab.sim.checkers import Verdict
from shoal.lab.sim.history import number_in, payload_of
from shoal.lab.sim.models.redis_node import RedisNode
from shoal.lab.sim.scenario import COMMON, FaultTargets, Outcome, Scenario, Variant
from shoal.lab.sim.scenarios.queue_actions import ACTION_CORNERS, Operator
from shoal.lab.sim.scenarios.queue_history import (
    ACCEPTED,
    DUPLICATE,
    REFUSED,
    Put,
    QueueCheck,
    QueueHistory,
    StoredQueue,
)
from shoal.lab.sim.scenarios.queue_moves import (
    MOVE_CORNERS,
    MoveOperator,
    counting_store,
    counts,
    merged,
    state_of,
    version_of,
)
from shoal.lab.sim.scenarios.queue_witness import Witness
from shoal.lab.sim.world.fault_options import RATES, FaultOptions
from shoal.lab.sim.world.process import COORDINATOR_URL, Process
from shoal.leader.leader_timeouts import LeaderTiming
from shoal.leader.leadership import Leader
from shoal.limits import DEFAULT_LIMITS, Limits
from shoal.plan.format import VALUE as FORMAT_VALUE
from shoal.plan.keys import FORMAT_KEY, RING_KEY
from shoal.plan.queue_settings import QueueSettings
from shoal.plan.ring import Ring, ServerAddress
from shoal.plan.signature import Signer, Verifier
from shoal.queues.agent.process import StoreAgent, StoreAgentOptions
from shoal.queues.consumer import CLOCK_JUMPS_MAX, GIVE_AT_BOUNDARY, LEASE_BEFORE_START, MOVE_CONFIRM, WAKE_POLL
from shoal.queues.consumer_shell import JobStream
from shoal.queues.job import Job
from shoal.queues.keyspace.collections import Hash, Values
from shoal.queues.message_format import KEY_PREFIX
from shoal.queues.producer import SAFE_PUT
from shoal.queues.queue import FRESH_PLACES, MOVE_ORDER, RETURN_CHECK, STORE_OPENED, NewMessage, Queue
from shoal.queues.script_loader import (
    CLOCK_CLAMP,
    MOVE_LEASE,
    PRODUCER_SEQUENCE,
    REFUSED_SEQUENCE,
    REPAIR_SEQUENCE,
    RULES,
    TURN_SEQUENCE,
    load_scripts,
)
from shoal.queues.settings import CLOCK_STEP_S, LEASE_STEP_S, ConsumerSettings
from shoal.rules import ALL_RULES, Rules
from shoal.wire import control

BREAKS: Final = (
    *RULES,
    SAFE_PUT,
    WAKE_POLL,
    GIVE_AT_BOUNDARY,
    LEASE_BEFORE_START,
    MOVE_CONFIRM,
    MOVE_ORDER,
    FRESH_PLACES,
    RETURN_CHECK,
    STORE_OPENED,
)
"""The rules that this scenario tests."""

CORNERS: Final = {
    "message accepted": "accepted",
    "queue full": "full",
    "wait for room": "waited",
    "id refused": "duplicate",
    "delayed message": "delayed",
    "put with an unknown outcome": "unknown put",
    "batch sent again": "batch again",
    "turn sent again": "consumer repeated",
    "job pushed": "consumer pushed",
    "key given back": "consumer given",
    "message failed": "failed",
    "dead letter": "dead",
    "message delivered again": "redelivered",
    "job lost": "job lost",
    "consumer that lost its lease": "consumer rejoined",
    "consumer left in good order": "left",
    "consumer drained": "drained",
    "store crash": "store crash",
    "consumer crash": "consumer crash",
    "producer crash": "producer crash",
    "connection reset": "reset",
    "partition": "partition",
    "pause": "pause",
    "clock jump": "clock jump",
    "agent crash": "agent crash",
    "leader crash": "leader crash",
    "coordinator crash": "coordinator crash",
    "queue created by a client": "created by a client",
    "statistics while a shard moves": "statistics in a move",
    **MOVE_CORNERS,
    **ACTION_CORNERS,
}
"""Every corner that a campaign must exercise, and its counter."""

BOUNDS: Final = {QueueFullError: "full", TooManyKeysError: "too many keys", TooManyIdsError: "too many ids"}
"""Counters of refused puts."""
COUNTED: Final = ("repeated", "pushed", "given", "rejoined")
"""Counters of consumers that are corners."""
NAME: Final = "jobs"
STORES: Final = ("q1", "q2", "q3")
SETTINGS: Final = QueueSettings(
    shards=4, messages_max=30, bytes_max=20_000, lease_s=5.0, dedupe_s=15.0, attempts_max=3, dead_max=1000
)
LIMITS: Final = msgspec.structs.replace(
    DEFAULT_LIMITS, clock_drift_max=0.05, connect_timeout_s=2.0, queue_put_timeout_s=8.0
)
PREPARE_S: Final = (0.2, 4.0, 4.0)
COPY_S: Final = (0.3, 6.0, 6.0)
"""The timeouts of phases: a move under the short ones is often given up."""
UNSAFE_S: Final = LEASE_STEP_S + CLOCK_JUMPS_MAX * CLOCK_STEP_S
"""A job that is reported lost later than a lease less this time after `done` may be lost with its lease. The store says
that the consumer has joined again in one reply only, which may be lost too."""
TIMING: Final = LeaderTiming(keeper_lease_s=1.2, keeper_poll_s=0.4)
LEADERS: Final = ("leader-0", "leader-1")
SERVER: Final = "s1"
RECOVERY_S: Final = 24.0
"""How long faults last in runs in which a store is recovered."""
BUS_SHARE: Final = 0.125
OBSERVE_S: Final = 0.8
"""About how often the observer reads the statistics."""
POISON_SHARE: Final = 0.03
POISON_SHARE_REPAIR: Final = 0.2
"""Share of the messages that always fail, and in runs with an operator that looks after them."""
LONG_SHARE: Final = 0.3
LONG_S: Final = (4.0, 10.0)
"""In this share of the runs with faults, pauses and partitions last this long."""
STALLS_PER_S: Final = 0.7
STALL_S: Final = (2.2, 5.0)
"""In the same runs connections stall for longer than a client waits: it sends its request again on another one, and
both arrive."""
JUMP_EVERY_S: Final = (2.6, 8.0)
JUMP_S: Final = (-100.0, 3600.0)
"""In half of the runs with faults the store's time of day jumps by one of these, this often: at
most twice within a lease."""
PUTS_S: Final = 0.4
"""Some puts of a producer overlap: they begin within this time."""
END_PUTS: Final = 3
"""Messages that each producer puts after the last fault, so that every consumer has work in a healthy world."""

_CALM: Final[dict[str, Any]] = dict.fromkeys(RATES, 0.0) | {"spike_probability": 0.0}
_LOSES: Final[dict[str, Any]] = {
    "fixed_faults": _CALM,
    "store_counts": (2, 3),
    "loss_share": 1.0,
    "recoveries": 0.0,
    "operators": 0.0,
}
_REPEATS: Final[dict[str, Any]] = {
    "fixed_faults": _CALM | {"resets_per_s": 2.0, "stalls_per_s": 2.0, "stall_s": STALL_S},
    "store_counts": (1,),
    "operators": 0.0,
}
"""Replies are lost or late, and requests are sent again."""
VARIANTS: Final[dict[str, Variant]] = {
    PRODUCER_SEQUENCE: _REPEATS,
    REFUSED_SEQUENCE: _REPEATS,
    TURN_SEQUENCE: _REPEATS,
    LEASE_BEFORE_START: {
        "fixed_faults": _CALM | {"pauses_per_s": 0.7, "pause_s": LONG_S},
        "store_counts": (1,),
        "operators": 0.0,
        "fixed_shape": {"in_flight": 8, "key_count": 6, "consumer_count": 3},
    },
    MOVE_LEASE: {
        "fixed_faults": _CALM | {"crashes_per_s": 1.0},
        "store_counts": (2,),
        "loss_share": 0.0,
        "operators": 0.0,
        "fixed_shape": {"move_every_s": 0.3, "limits": LIMITS},
    },
    MOVE_ORDER: {
        "fixed_faults": _CALM | {"delay_s": (0.002, 0.05)},
        "store_counts": (2,),
        "loss_share": 0.0,
        "operators": 0.0,
        "fixed_shape": {
            "key_count": 2,
            "pace_s": 0.02,
            "producer_count": 3,
            "move_every_s": 0.3,
            "limits": LIMITS,
        },
    },
    RETURN_CHECK: {**_LOSES, "late_abandons": 0.0, "unplugged": 1.0},
    STORE_OPENED: {**_LOSES, "late_abandons": 1.0},
    CLOCK_CLAMP: {
        "fixed_faults": _CALM,
        "store_counts": (1,),
        "operators": 0.0,
        "fixed_shape": {"jumps": True, "slow": True, "in_flight": 4, "key_count": 6, "pace_s": 0.1},
    },
    REPAIR_SEQUENCE: {
        **_REPEATS,
        "fixed_faults": _CALM | {"resets_per_s": 6.0, "stalls_per_s": 6.0, "stall_s": STALL_S},
        "operators": 1.0,
        "fixed_actions": ("purge", "repair"),
        "actions_every_s": 0.2,
    },
    MOVE_CONFIRM: {
        "fixed_faults": _CALM | {"delay_s": (0.02, 0.05)},
        "store_counts": (2,),
        "loss_share": 0.0,
        "operators": 0.0,
        "safety_s": 30.0,
        "stunned": 1.0,
        "patience_s": 0.01,
        "work_s": (0.0, 0.1),
        "workers": 3,
        "fixed_shape": {
            "in_flight": 16,
            "key_count": 12,
            "pace_s": 0.02,
            "producer_count": 3,
            "consumer_count": 3,
            "slow": False,
            "move_every_s": 0.3,
            "limits": LIMITS,
        },
    },
}
"""The variant of the scenario in which it soon shows that a rule is broken. In the same variant the protocol holds."""


class QueueRun(Scenario):
    """One seed of the scenario."""

    safety_s = 15.0
    calm_s = 6.0
    fixed_faults: Mapping[str, Any] = MappingProxyType({})
    fixed_shape: Mapping[str, Any] = MappingProxyType({})
    """What a variant does not leave to the seed."""
    store_counts = (1, 2, 2, 3)
    loss_share = 0.7
    """In this share of the runs without other faults and with several stores, shards of one are abandoned."""
    late_abandons = 0.3
    unplugged = 0.4
    """How often that happens when the store is back already; and how often the store was only cut off."""
    recoveries = 0.3
    """How often the store is recovered instead."""
    stunned = 0.0
    """How often a consumer is paused for longer than its lease when a shard is sealed."""
    patience_s: float | None = None
    """How long a worker waits for a job before it asks again. A job that nothing has announced is then started too."""
    work_s = (0.0, 0.02)
    """How long a worker takes for most messages."""
    workers = 2
    """Tasks of a consumer that process messages."""
    operators = 0.4
    """In this share of the runs an operator acts on the queue."""
    fixed_actions: tuple[str, ...] = ()
    actions_every_s = 1.2
    """What the operator does; empty: by seed. And about how long it waits between two actions."""
    settings = SETTINGS

    def __init__(self, seed: int, rules: Rules = ALL_RULES, trace: bool = False, variant: Variant = COMMON) -> None:
        self.rules = rules
        self.history = QueueHistory()
        self.unit = NAME.encode()
        self.prefix = KEY_PREFIX + self.unit + b":"
        self.producing: set[str] = set()
        self.job_streams: list[JobStream] = []
        self.takers: dict[str, JobStream] = {}
        """The newest of them, by node."""
        super().__init__(seed, trace, variant)

    def draw_faults(self, rng: Random) -> FaultOptions:
        """As in other scenarios; in some runs pauses and partitions outlast the leases of consumers, and stalls outlast
        the patience of clients."""
        options = super().draw_faults(rng)
        if self.fixed_faults:
            return replace(options, **self.fixed_faults)
        if options.peaceful or self.world.rng("long faults").random() >= LONG_SHARE:
            return options
        long = replace(options, pauses_per_s=0.3, pause_s=LONG_S, partitions_per_s=0.2, partition_s=LONG_S)
        return replace(long, stalls_per_s=STALLS_PER_S, stall_s=STALL_S)

    def draw_shape(self, rng: Random, options: FaultOptions) -> None:
        """The number of participants, and how hard they work."""
        self.producer_count = rng.randint(1, 3)
        self.consumer_count = rng.randint(2, 4)
        self.key_count = rng.choice((2, 6, 20))
        self.pace_s = rng.choice((0.02, 0.1, 0.4))
        self.slow = rng.random() < 0.4
        self.jumps = not options.peaceful and rng.random() < 0.5
        self.in_flight = rng.choice((1, 4, 16))
        self.store_count = rng.choice(self.store_counts)
        self.move_every_s = rng.choice((0.3, 1.0, 3.0))
        self.with_bus = rng.random() < BUS_SHARE
        self.loses_store = options.peaceful and self.store_count > 1 and rng.random() < self.loss_share
        self.recovers = self.loses_store and self.world.rng("recovery").random() < self.recoveries
        if self.recovers:
            self.safety_s = RECOVERY_S
        self.limits: Limits = msgspec.structs.replace(
            LIMITS, shard_prepare_timeout_s=rng.choice(PREPARE_S), shard_copy_timeout_s=rng.choice(COPY_S)
        )
        for name, value in self.fixed_shape.items():
            setattr(self, name, value)

    def build(self, rng: Random) -> FaultTargets:
        """Leaders, stores with their agents, producers, consumers and an observer."""
        self.signer = Signer(rng.randbytes(32))
        names = STORES[: self.store_count]
        self.witness = Witness(self, load_scripts(self.rules))
        self.actions = Operator(self, self.witness) if self.world.rng("operator").random() < self.operators else None
        self.stores = {name: self._store(name) for name in names}
        self.operator = MoveOperator(self, self.unit, Verifier(self.signer.public), names, self.move_every_s)
        for name in LEADERS:
            self.participant(name, "leader", self._lead)
        agents = [f"agent-{name}" for name in names]
        for name in names:
            agent = partial(self._run_agent, ServerAddress(name, name, 1))
            self.participant(f"agent-{name}", "agent", agent, f"host-{name}")
        others = self._make_server() if self.with_bus else []
        if not self.with_bus:
            self._write_ring()
            self.operator.create(SETTINGS)
        producers = [f"producer-{number}" for number in range(self.producer_count)]
        consumers = [f"consumer-{number}" for number in range(self.consumer_count)]
        for name in producers:
            self.participant(name, "producer", self._produce)
        for name in consumers:
            self.participant(name, "consumer", self._consume)
        if self.loses_store:
            self.participant("sleeper", "producer", self._sleep)
        clients = [*producers, *consumers]
        if self.store_count > 1:
            clients.append(self.participant("observer", "observer", self._observe).name)
        if self.actions is not None:
            self.participant("operator", "operator", self._operate)
        machines = [*agents, *LEADERS, "coordinator", *others]
        crashable = [*names, *machines, *clients]
        if self.actions is not None:
            clients.append("operator")  # it lives: another one would not know what this one has asked for
        return FaultTargets(crashable, [*machines, *clients], [*names, *machines, *clients])

    def _write_ring(self) -> None:
        """A ring whose server is gone: this cluster has queues only."""
        ring = Ring(1, (ServerAddress(SERVER, SERVER, 1),), lease_ms=round(1000 * self.limits.server_lease_s))
        self.coordinator.store.put(FORMAT_KEY, FORMAT_VALUE)
        self.coordinator.store.put(RING_KEY, self.signer.ring(ring))

    def _make_server(self) -> list[str]:
        """A channel server with its agent, which clients ask for the queue."""
        server = RedisNode(self.network, SERVER, host=f"host-{SERVER}")
        server.node.on_crash = lambda: self.died("server", SERVER)
        self.participant(f"agent-{SERVER}", "server agent", self._watch_server, f"host-{SERVER}")
        return [f"agent-{SERVER}"]

    async def _watch_server(self, process: Process) -> None:
        options = AgentOptions(address=ServerAddress(SERVER, SERVER, 1), url=COORDINATOR_URL, limits=self.limits)

        async def loaded() -> None:
            loop_image.load_image()

        await Agent(options, process.runtime, self.rules).work(loaded)

    async def _lead(self, process: Process) -> None:
        node, runtime = process.node, process.runtime
        async with await runtime.coordinator(COORDINATOR_URL, self.limits.server_lease_s / 2) as coordinator:
            await Leader(
                coordinator, self.signer, self.limits, TIMING, [SERVER], f"{node.name}/{node.incarnation}",
                runtime.random, self.rules, wall=runtime.wall,
            ).run()  # fmt: skip

    async def _run_agent(self, address: ServerAddress, process: Process) -> None:
        """The agent of a store."""
        options = StoreAgentOptions(address=address, url=COORDINATOR_URL, limits=self.limits)
        await StoreAgent(options, process.runtime, self.rules).work()

    def _store(self, name: str) -> RedisNode:
        store = RedisNode(self.network, name, host=f"host-{name}")
        restart = store.node.on_restart
        assert restart is not None

        def restarted() -> None:
            keys = store.model.keys
            restart()
            store.model.keys = keys  # what was answered was synced

        store.node.on_restart = restarted
        store.around = self.witness.watch(name)
        store.node.on_crash = lambda: self.died("store", name)
        return store

    def values(self, store: str) -> Values:
        """The keys of a store."""
        return self.stores[store].model.keys.values

    def kill(self, name: str) -> bool:
        """Crashes a node now; returns whether it ran and faults are on."""
        node = self.network.nodes[name]
        was_up = node.up and self.faults.active
        self.faults.crash(node)
        return was_up

    def violated(self, kind: str, text: str) -> None:
        """Records a violation that was found while the run continued."""
        self.history.violations.append((kind, text))

    def died(self, kind: str, name: str) -> None:
        """Counts a crash, and ends the jobs of a consumer."""
        super().died(kind, name)
        incarnation = self.network.nodes[name].incarnation - 1
        self.history.process_ended(f"{name}/{incarnation}", self.world.now)
        self.producing.discard(f"{name}/{incarnation}")

    def formed(self) -> bool:
        """The queue exists and all requests are carried out."""
        return self.operator.entry is not None and not self.operator.asked

    def begin_safety(self) -> None:
        """Shards begin to move."""
        if not self.formed():
            self.violated("unsettled", f"the queue was not created by t={self.world.now:.3f}, before any fault")
        if self.store_count > 1:
            self.operator.start()
        if self.loses_store:
            self.operator.lose_store()

    def go_on(self) -> None:
        """The last move ends."""
        self.operator.going = False

    def faults_began(self) -> None:
        """In some runs the store's clock jumps."""
        if self.jumps:
            self._jump()

    def _jump(self) -> None:
        if self.faults.active:
            rng = self.world.rng("jump")
            rng.choice(list(self.stores.values())).clock_jump_s += rng.choice(JUMP_S)
            self.exercised["clock jump"] += 1
            self.world.after(rng.uniform(*JUMP_EVERY_S), self._jump)

    # Applications

    @contextlib.asynccontextmanager
    async def _queue(self, process: Process) -> AsyncGenerator[Queue, None]:
        """The queue as a client has it, from its whole bus or from the part for queues."""
        runtime = process.runtime
        if self.with_bus:
            bus = Bus(COORDINATOR_URL, limits=self.limits, runtime=runtime, rules=self.rules)
            while True:
                try:
                    await bus.open()
                    break
                except ShoalError:
                    await asyncio.sleep(0.1)
            try:
                yield bus.queue(NAME)
            finally:
                with contextlib.suppress(ShoalError):
                    await bus.aclose()
            return
        while self.operator.entry is None:  # noqa: ASYNC110 - clients share no event loop
            await asyncio.sleep(0.1)
        source = PlanSource(lambda: COORDINATOR_URL, self.limits.connect_timeout_s, runtime)
        queues = BusQueues(source, Verifier(self.signer.public), self.limits, runtime, self.rules, _no_agent)
        try:
            yield queues.queue(NAME)
        finally:
            with contextlib.suppress(ShoalError):
                await queues.aclose()

    async def _create(self, queue: Queue) -> None:
        """The queue exists, with the settings of this scenario."""
        while True:
            try:
                made = await queue.create(SETTINGS)
                self.exercised["created by a client"] += made
                return
            except ShoalError:
                await asyncio.sleep(0.1)

    async def _operate(self, process: Process) -> None:
        """Acts on the queue."""
        assert self.actions is not None
        async with self._queue(process) as queue:
            await self._create(queue)
            await self.actions.work(process, queue)

    async def _observe(self, process: Process) -> None:
        """Reads the statistics: they count every message that is certainly there."""
        rng = self.world.rng(f"observer/{process.node.incarnation}")
        async with self._queue(process) as queue:
            while True:
                await asyncio.sleep(rng.expovariate(1 / OBSERVE_S))
                began, moving = self.world.now, self.is_moving
                try:
                    count = (await queue.stats()).messages
                except ShoalError:
                    continue
                self.exercised["statistics in a move"] += moving or self.is_moving
                sure = self.history.surely_stored(began, min(self.history.limits("attempts_max", 0.0)))
                if count < sure:
                    text = f"{count} messages at t={began:.3f} to {self.world.now:.3f}, when {sure} were there"
                    self.violated("undercounted", text)

    @property
    def is_moving(self) -> bool:
        """Whether a shard moves."""
        return self.operator.entry is not None and self.operator.entry.move is not None

    async def _produce(self, process: Process) -> None:
        me = f"{process.node.name}/{process.node.incarnation}"
        rng = self.world.rng(f"app/{me}")
        self.producing.add(me)
        async with self._queue(process) as queue:
            await self._create(queue)
            while self.active:
                pauses = [0.0, *(rng.uniform(0.0, PUTS_S) for _ in range(rng.choice((0, 0, 5))))]
                await asyncio.gather(*(self._put_some(queue, me, rng, pause_s) for pause_s in pauses))
                await asyncio.sleep(rng.expovariate(1 / self.pace_s))
            for _ in range(END_PUTS):
                await self._put(queue, me, rng, [f"k{rng.randrange(self.key_count)}"], [""], False, "wait")
        self.producing.discard(me)

    async def _sleep(self, process: Process) -> None:
        """A producer that is silent while a store is away, and puts when it is back."""
        me = f"{process.node.name}/{process.node.incarnation}"
        rng = self.world.rng(f"app/{me}")
        keys, ids = [f"k{number}" for number in range(self.key_count)], [""] * self.key_count
        async with self._queue(process) as queue:
            await self._create(queue)
            await self._put(queue, me, rng, keys, ids, False, "raise")
            while not self.operator.returned:  # noqa: ASYNC110 - clients share no event loop
                await asyncio.sleep(0.05)
            self.exercised["put after the return"] += 1
            await self._put(queue, me, rng, keys, ids, False, "raise")

    async def _put_some(self, queue: Queue, me: str, rng: Random, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        count = rng.choice((1, 1, 1, 3, 8))
        keys = [f"k{rng.randrange(self.key_count)}" for _ in range(count)]
        ids = [f"i{rng.randrange(40)}" if rng.random() < 0.2 else "" for _ in range(count)]
        await self._put(queue, me, rng, keys, ids, rng.random() < 0.1, rng.choice(("raise", "wait")))

    async def _put(
        self, queue: Queue, me: str, rng: Random, keys: Sequence[str], ids: Sequence[str], delayed: bool, full: str
    ) -> None:
        now = self.world.now
        puts = [self.history.put(me, key, id, delayed, now) for key, id in zip(keys, ids, strict=True)]
        delay_s = rng.uniform(0.05, 2.0) if delayed else 0.0
        messages = [NewMessage(payload_of(put.number, 12), put.key, put.id or None, delay_s) for put in puts]
        refused: dict[int, ShoalError]
        try:
            refused = dict((await queue.put_many(messages, full="wait" if full == "wait" else "raise")).refused)
        except ShoalError as none:  # there is no queue just now
            refused = dict.fromkeys(range(len(puts)), none)
        for position, put in enumerate(puts):
            put.answered_at = self.world.now
            error = refused.get(position)
            put.outcome = self._outcome_of(error, now)
            if error is None:
                self.exercised["accepted"] += 1
                self.exercised["delayed"] += delayed
            self.exercised["waited"] += full == "wait" and self.world.now - now > 1.0
        self.exercised["batch again"] += any(producer.repeated for producer in queue.producers)
        self.exercised["put rerouted"] = self.exercised["put rerouted"] + queue.rerouted
        queue.rerouted = 0
        self._check_bound()

    def _outcome_of(self, error: ShoalError | None, since: float) -> str:
        if error is None:
            return ACCEPTED
        if isinstance(error, AlreadyAcceptedError):
            self.exercised["duplicate"] += 1
            return DUPLICATE
        if isinstance(error, QueueFullError | TooManyKeysError | TooManyIdsError):
            self.exercised[BOUNDS[type(error)]] += 1
            self.witness.check_refusal(error, since)
            return REFUSED
        self.exercised["unknown put"] += 1
        return "unknown"

    async def _consume(self, process: Process) -> None:
        me = f"{process.node.name}/{process.node.incarnation}"
        rng = self.world.rng(f"app/{me}")
        settings = ConsumerSettings(slow_after_s=0.5, slow_rest_s=1.0, quantum_messages=10, key_messages=4)
        while True:
            async with self._queue(process) as queue:
                await self._create(queue)
                await self._take(queue, me, rng, settings, process)

    async def _take(self, queue: Queue, me: str, rng: Random, settings: ConsumerSettings, process: Process) -> None:
        """One stay of a consumer."""
        jobs = queue.take(max_in_flight=self.in_flight, settings=settings)
        self.job_streams.append(jobs)
        self.takers[process.node.name] = jobs
        stays_s = rng.choice((2.0, 1000.0)) if self.active else None
        drains = stays_s is not None and rng.random() < 0.5
        try:
            async with asyncio.timeout(None if drains else stays_s):
                async with jobs:
                    if drains and stays_s is not None:
                        asyncio.get_running_loop().call_later(stays_s, jobs.drain)
                    workers = [
                        asyncio.ensure_future(self._work(jobs, me, rng, process.node.clock))
                        for _ in range(self.workers)
                    ]
                    try:
                        await asyncio.gather(*workers)
                    finally:  # an error of one ends the stay, and leaving gives back the jobs of all
                        for worker in workers:
                            worker.cancel()
                    self.exercised["drained"] += 1
        except TimeoutError:
            self.exercised["left"] += 1
        except QueueError:
            await asyncio.sleep(0.2)

    async def _work(self, jobs: JobStream, me: str, rng: Random, clock: Callable[[], float]) -> None:
        """One worker. `clock` also advances while the process is paused."""
        async for job in self._asked(jobs):
            core = job.core

            def holds(job: Job = job) -> bool:
                return not job.core.settled and job.core.key.core.holds(job.core.key, clock())

            number = number_in(job.payload)
            self.exercised["redelivered"] += number in self.history.started
            text = f"{number} of {job.key!r} started at {me} at t={self.world.now:.3f}"
            holds_key = self._token_of(job.key) == core.key.token
            if not holds_key and not self.history.is_abandoned(number):
                self.violated("unowned", f"{text}, which does not hold the key")
            if holds_key and number in self.history.removed:
                self.violated("resurrected", f"{text}, but an operator has deleted it")
            if self.actions is not None and not self.history.is_abandoned(number):
                self.actions.check_start(job.key, core.key.token, text)
            start = self.history.start(number, job.key.decode(), me, self.world.now, holds)
            try:
                slow = self.slow and rng.random() < 0.2
                await asyncio.sleep(rng.uniform(0.5, 1.5) if slow else rng.uniform(*self.work_s))
                poison = (number * 7919) % 100 < 100 * self._poison_share
                fails = poison or rng.random() < 0.03
                start.ended_at, start.end = self.world.now, "fail" if fails else "done"
                if fails:
                    self.exercised["failed"] += 1
                    await job.fail("it fails", retry_in=rng.uniform(0.0, 1.0))
                else:
                    await job.done()
                start.confirmed_at = self.world.now
            except JobLostError:
                self.exercised["job lost"] += 1
                start.lost = True
                cores = jobs.cores
                start.certain = not any(one.counters["rejoined"] or one.left for one in cores)
                start.certain = start.certain and not core.key.failure and not core.key.uncertain
                start.certain = start.certain and self._is_current(core.key.token)
                start.certain = start.certain and me.partition("/")[0] not in self.operator.stunned
                assert start.ended_at is not None, "done or fail was called"
                lease_s = min(self.history.limits("lease_s", 0.0), default=0.0)
                start.certain = start.certain and self.world.now - start.ended_at < lease_s - UNSAFE_S
                start.certain = start.certain and number not in self.history.removed
            except asyncio.CancelledError:
                if start.ended_at is None:
                    start.ended_at, start.end = self.world.now, "crash"
                raise

    async def _asked(self, jobs: JobStream) -> AsyncGenerator[Job, None]:
        """The jobs of a worker."""
        while True:
            try:
                async with asyncio.timeout(self.patience_s):
                    job = await anext(jobs)
            except TimeoutError:
                continue
            except StopAsyncIteration:
                return
            yield job

    # Judgment

    @property
    def _stored(self) -> StoredQueue:
        if self.store_count == 1:
            return StoredQueue(self.values(STORES[0]), self.prefix)
        stores = [(name, self.values(name)) for name in self.current_stores]
        entry = self.operator.entry
        return StoredQueue(merged(entry, stores, self.prefix) if entry is not None else {}, self.prefix)

    def _is_current(self, token: bytes) -> bool:
        """Whether a token is of the plan's version. An abandon ends older ones while requests are on their way."""
        entry = self.operator.entry
        return entry is not None and not entry.dropped and int(token.partition(b".")[0]) == entry.version

    @property
    def _poison_share(self) -> float:
        more = self.actions is not None and self.actions.meets_dead_letters
        return POISON_SHARE_REPAIR if more else POISON_SHARE

    def _token_of(self, key: bytes) -> bytes:
        """The token under which a key is held; empty if it is not."""
        entry = self.operator.entry
        if entry is None:
            return b""
        stores = [(name, self.values(name)) for name in self.current_stores]
        shard = entry.shard_of(key)
        owners = self.values(counting_store(entry, stores, self.prefix, shard)).get(self.prefix + b"%d:owners" % shard)
        return owners.fields[key].split()[1] if isinstance(owners, Hash) and key in owners.fields else b""

    def _check_bound(self) -> None:
        """The bound is exact on one store. On several, each shard counts on the store where it was put."""
        count, allowed = len(self.stored_numbers), self.history.limits("messages_max", 0.0)
        if allowed and count > max(allowed) * (1 if self.store_count == 1 else SETTINGS.shards):
            self.violated("over bound", f"{count} messages at t={self.world.now:.3f}")

    def quiet(self) -> bool:
        """Whether producers have ended, no shard moves and the queue is empty, or nothing will change any more."""
        work = not self._settled or self._relics or not self.is_empty or not (self.actions is None or self.actions.over)
        return not self.producing and (not work or self.world.now > 200.0)

    @property
    def stored_numbers(self) -> list[int]:
        """The messages in the queue."""
        return self._stored.numbers()

    @property
    def is_empty(self) -> bool:
        """Whether no message is there or will be put."""
        return not self.producing and not self.stored_numbers

    @property
    def current_stores(self) -> list[str]:
        """All stores but those where the queue was abandoned."""
        entry = self.operator.entry
        return [name for name in self.stores if entry is None or counts(entry, name, self.values(name), self.prefix)]

    @property
    def _settled(self) -> bool:
        """Whether no shard moves, no request waits, and no store has something to drop."""
        ships = any(key.endswith(b":ship") for name in self.current_stores for key in self.values(name))
        return not ships and not self.is_moving and not self.operator.asked

    @property
    def _relics(self) -> list[str]:
        """Stores that have a queue that was dropped. A store that was away then shuts it as soon as its agent is there,
        and keeps it until the next queue of the name comes to it."""
        entry, found = self.operator.entry, []
        for name in self.stores:
            version = version_of(self.values(name), self.prefix)
            if entry is None or entry.inherits or version in (0, entry.version):
                continue
            states = {state_of(self.values(name), self.prefix, shard) for shard in range(len(entry.places))}
            if not self.loses_store or states != {b"x"}:
                found.append(name)
        return found

    def judge(self) -> Verdict:
        """The verdict on everything so far."""
        stored = self._stored
        dead = stored.dead()
        self.exercised["dead"] = len(dead)
        return QueueCheck(self.history).judge(stored.numbers(), dead)

    def check(self, verdict: Verdict) -> None:
        """What an empty queue keeps, and whether its counters are right."""
        for jobs in self.job_streams:
            for name in COUNTED if jobs.started else ():
                self.exercised[f"consumer {name}"] += sum(core.counters[name] for core in jobs.cores)
            self.exercised["key rehomed"] += jobs.rehomed
        if not self._settled:
            verdict.violate("unsettled", f"a move or a request has not ended: {self.operator.entry}")
        stored = self._stored
        for name in self._relics:
            conf = self.values(name)[self.prefix + b"conf"]
            verdict.violate("growth", f"{name} keeps a queue that was dropped: {conf!r}")
        numbers = stored.numbers()
        for name in self.current_stores:
            one = StoredQueue(self.values(name), stored.prefix)
            if not numbers and (left := sorted(one.leftovers())):
                verdict.violate("growth", f"an empty queue keeps {left[:3]} on {name}")
            held = len(one.numbers())
            if one.counted_messages() != held:
                verdict.violate("growth", f"{name} counts {one.counted_messages()} messages and has {held}")

    def recorded(self) -> Sequence[object]:
        """The history, for the digest."""
        puts = [(put.number, put.key, put.outcome, put.answered_at or 0.0) for put in self.history.puts.values()]
        starts = [(start.number, start.consumer, start.at, start.end) for start in self.history.starts]
        return [puts, starts]


async def _no_agent(name: bytes, settings: bytes) -> QueueAnswered:
    """There is no agent of a channel server, but an operator that creates the queue."""
    return QueueAnswered(None, control.QUEUE_BUSY, "")


def run_seed(seed: int, rules: Rules = ALL_RULES, trace: bool = False, variant: Variant = COMMON) -> Outcome:
    """Runs one seed; the same seed always gives the same outcome."""
    return QueueRun(seed, rules, trace, variant).execute()


__all__ = ["BREAKS", "CORNERS", "VARIANTS", "Put", "QueueRun", "run_seed"]
