"""A soak of queues: producers and consumers in processes of their own. Consumers, producers, agents and stores are
killed (kill -9) and, on request, shards move between stores.

Owns the order of a round, the schedule of kills, and the facts:

    load      producers put, consumers process, processes are killed and come back
    drain     producers have stopped and nothing is killed any more: consumers empty the queue
    verdict   the logs of all processes are judged (`queue_checker`)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

import shoal
from shoal.cluster.acl import ADMIN
from shoal.cluster.cluster_timeouts import Timing
from shoal.cluster.local import LocalCluster
from shoal.cluster.parts import agent_name
from shoal.coordination.interface import Coordinator
from shoal.errors import CoordinatorError, ShoalError
from shoal.lab.harness import LoadError, LoadProcess, Stop
from shoal.lab.soak.outcome import BaseOutcome
from shoal.lab.soak.queue_checker import QueueFindings, judge
from shoal.lab.soak.queue_orders import (
    BEGUN,
    ENDED,
    QUEUE,
    REPORTS,
    ClientStatus,
    StartConsumer,
    StartProducer,
    read_events,
)
from shoal.lab.soak.rounds import RoundProgress, Tell
from shoal.lab.soak.run import RESTART_PAUSE_S_MAX, round_directory
from shoal.limits import Limits
from shoal.plan.keys import entry_key, move_key
from shoal.plan.kinds import QUEUE as QUEUE_KIND
from shoal.plan.kinds import STORE
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_request import MoveShards, encode_queue_request
from shoal.plan.queue_settings import QueueSettings
from shoal.plan.signature import Verifier
from shoal.queues.queue import Queue
from shoal.runtime import PRODUCTION

CONSUMER, PRODUCER, AGENT, THE_STORE = "consumer", "producer", "agent", "store"
WEIGHTS: Final = {CONSUMER: 5, PRODUCER: 2, AGENT: 2, THE_STORE: 2}
"""How often each kind of process is killed, in proportion. Each is killed at least once."""
PRODUCERS: Final = 2
PER_S: Final = 200.0
"""Messages that each producer puts in a second at most."""
SETTINGS: Final = QueueSettings(messages_max=100_000, lease_s=5.0)
SECONDS_MIN: Final = 5.0
READY_S_MAX: Final = 60.0
DRAIN_S_MAX: Final = 120.0
"""How long consumers may take to empty the queue after the load."""
MOVES_S_MAX: Final = 60.0
"""How long moves may take after the load."""
COORDINATOR_S_MAX: Final = 5.0
POLL_S: Final = 0.1
WORKING_S_MAX: Final = 2.0
"""How long a kill waits for the consumer to work on a message."""
KILLS_END_S: Final = 1.0
"""No process is killed in the last part of the load."""


class QueueSoakOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the soak. `moves` shards move while it runs; then there are two stores."""

    consumers: int
    keys: int
    kills: int
    seconds: float
    seed: int
    limits: Limits
    moves: int = 0

    @property
    def stores(self) -> int:
        """Number of stores."""
        return 2 if self.moves else 1


def draw_kills(options: QueueSoakOptions) -> list[tuple[float, str]]:
    """When which kind of process is killed, in seconds since the start of the load."""
    random = Random(f"kills {options.seed}")
    kinds = [*WEIGHTS][: options.kills]
    kinds += random.choices([*WEIGHTS], [*WEIGHTS.values()], k=options.kills - len(kinds))
    random.shuffle(kinds)
    last = max(options.seconds - KILLS_END_S, 0.0)
    return sorted(zip((random.uniform(0.0, last) for _ in kinds), kinds, strict=True))


class QueueOutcome(BaseOutcome):
    """The verdict and the counts."""

    def __init__(self, options: QueueSoakOptions) -> None:
        killed = {kind for _, kind in draw_kills(options)}
        corners = [f"{kind} killed" for kind in WEIGHTS if kind in killed]
        corners += ["message taken over"] if CONSUMER in killed else []
        corners += ["shard moved"] if options.moves else []
        super().__init__("queue", corners)
        self.verdict = QueueFindings()
        self.moved = 0

    @property
    def moves(self) -> int:
        """Shards that have moved."""
        return self.moved

    def judge(self, verdict: QueueFindings) -> None:
        """Takes the verdict."""
        self.rounds += 1
        self.verdict = verdict
        self.exercised["message taken over"] = len(verdict.takeovers_ms)
        report = self.report
        report.messages, report.deliveries = verdict.accepted, verdict.processed + verdict.repeated
        report.lost, report.reordered = verdict.lost, verdict.reordered
        report.duplicated = verdict.unexplained_duplicates
        report.violations = [*report.violations, *verdict.violations]
        report.violation_count = len(report.violations)

    def problem(self, text: str) -> None:
        """Something did not happen in time."""
        self.report.violations = [*self.report.violations, text]
        self.report.violation_count = len(self.report.violations)

    def more_facts(self) -> dict[str, Any]:
        """What is particular to queues; see `queue_checker`."""
        verdict = self.verdict
        return {
            "overlapped": verdict.overlapped,
            "unexplained_duplicates": verdict.unexplained_duplicates,
            "repeated": verdict.repeated,
            "unsure": verdict.unsure,
            "takeovers": len(verdict.takeovers_ms),
            "takeover_ms": verdict.takeover_ms,
            "takeover_ms_max": round(max(verdict.takeovers_ms), 1) if verdict.takeovers_ms else None,
        }


class QueueClientProcess:
    """A producer or consumer process; after a kill another one takes its place, under another name."""

    def __init__(self, role: str, number: int) -> None:
        self.role = role
        self.number = number
        self.life = 0
        self.before = 0
        """Messages of earlier lives."""
        self.status = ClientStatus(0)
        self.process: LoadProcess

    @property
    def name(self) -> str:
        """The name in the logs, different in each life."""
        return f"{self.role}-{self.number}-{self.life}"

    @property
    def messages(self) -> int:
        """Messages put or processed in all lives."""
        return self.before + self.status.messages

    def take(self, status: ClientStatus) -> None:
        """Takes a report."""
        self.status = status


class QueueRound:
    """One cluster with stores, the clients of one queue, and the kills."""

    def __init__(self, options: QueueSoakOptions, directory: Path, outcome: QueueOutcome, tell: Tell) -> None:
        self._options = options
        self._directory = directory
        self._outcome = outcome
        self._tell = tell
        self._random = Random(f"queue {options.seed}")
        self._clients: list[QueueClientProcess] = []
        self._killed: dict[str, float] = {}
        self._phase = "starting the cluster"
        self._began = time.monotonic()

    async def execute(self) -> None:
        """Runs all phases."""
        self._show()
        timing = Timing(restart_pause_s_max=RESTART_PAUSE_S_MAX)
        directory = self._directory / "cluster"
        async with (
            LocalCluster(1, directory, limits=self._options.limits, timing=timing, tls=False) as cluster,
            contextlib.AsyncExitStack() as stack,
        ):
            self._cluster, self._stack = cluster, stack
            self._stores = await cluster.add_hosts(STORE, self._options.stores)
            bus = await stack.enter_async_context(shoal.connect(cluster.url))
            queue = bus.queue(QUEUE)
            await queue.create(SETTINGS)
            roles = [PRODUCER] * PRODUCERS + [CONSUMER] * self._options.consumers
            self._clients = [QueueClientProcess(role, number) for number, role in enumerate(roles)]
            await asyncio.gather(*map(self._start, self._clients))
            self._phase = "clients start"
            if not await self._until(lambda: all(one.messages for one in self._clients), READY_S_MAX):
                raise LoadError(f"clients have not started in {READY_S_MAX:g} s")
            async with self._moving(cluster):
                await self._load()
            await self._drain(queue)
        self._phase = "checking"
        self._show()
        events = [event for path in self._directory.glob("*.log") for event in read_events(path)]
        self._outcome.judge(await asyncio.to_thread(judge, events, self._killed))

    async def _start(self, client: QueueClientProcess) -> None:
        client.life += 1
        client.before, client.status = client.messages, ClientStatus(0)
        log = self._directory / f"{client.name}.err"
        process = LoadProcess(client.name, "shoal.lab.soak.queue_client", REPORTS, log=log)
        process.on(ClientStatus, client.take)
        client.process = await self._stack.enter_async_context(process)
        url, events, seed = self._cluster.url, str(self._directory / f"{client.name}.log"), self._options.seed
        if client.role == PRODUCER:
            process.send(StartProducer(url, client.name, events, self._options.keys, PER_S, seed))
        else:
            process.send(StartConsumer(url, client.name, events, seed))

    async def _load(self) -> None:
        self._phase = "load"
        self._began = time.monotonic()
        for at, kind in draw_kills(self._options):
            await self._until(lambda at=at: self._load_s >= at, self._options.seconds)  # type: ignore[misc]
            await self._kill(kind)
        await self._until(lambda: self._load_s >= self._options.seconds, self._options.seconds)

    async def _kill(self, kind: str) -> None:
        """Kills one process of a kind. Clients are started again here, agents and stores by the supervisor."""
        self._outcome.faults += 1
        self._outcome.exercised[f"{kind} killed"] += 1
        store = self._random.choice(self._stores)
        if kind == THE_STORE:
            await self._cluster.kill(store)
        elif kind == AGENT:
            await self._cluster.kill(agent_name(store))
        else:
            victim = self._random.choice([client for client in self._clients if client.role == kind])
            if kind == CONSUMER:
                await self._until(lambda: self._is_working(victim), WORKING_S_MAX)
            os.kill(victim.process.pid, signal.SIGKILL)
            self._killed[victim.name] = time.monotonic()
            await self._start(victim)

    def _is_working(self, consumer: QueueClientProcess) -> bool:
        """Whether a consumer has begun a message and has not ended it: then another one must take it over."""
        path = self._directory / f"{consumer.name}.log"
        begun = Counter(event.what for event in read_events(path)) if path.exists() else Counter[str]()
        return begun[BEGUN] > begun[ENDED]

    @contextlib.asynccontextmanager
    async def _moving(self, cluster: LocalCluster) -> AsyncIterator[None]:
        """Moves shards in the background, one after the other; the last move ends before the block does."""
        if not self._options.moves:
            yield
            return
        async with await PRODUCTION.coordinator(cluster.url_for(ADMIN), COORDINATOR_S_MAX) as coordinator:
            moving = asyncio.create_task(self._move_shards(coordinator))
            try:
                yield
                self._phase = "moves end"
                if not await self._until(moving.done, MOVES_S_MAX):
                    self._outcome.problem(
                        f"unsettled: {self._outcome.moved} of {self._options.moves} shards have moved"
                    )
            finally:
                moving.cancel()
                await asyncio.gather(moving, return_exceptions=True)

    async def _move_shards(self, coordinator: Coordinator) -> None:
        """Moves shards to the other store, at regular times or as fast as they move."""
        verifier = Verifier(bytes.fromhex(self._cluster.state.public_key))
        pause_s = self._options.seconds / (self._options.moves + 1)
        while self._outcome.moved < self._options.moves:
            due_s = pause_s * (self._outcome.moved + 1)
            await asyncio.sleep(max(due_s - self._load_s, POLL_S))
            try:
                entry = await _read_entry(coordinator, verifier)
                shard = self._random.randrange(len(entry.places))
                target = next(store for store in self._stores if store != entry.store_of(shard).id)
                request = MoveShards(entry.unit, {shard: target}, f"soak-{self._outcome.moved}")
                key = move_key(entry.unit, QUEUE_KIND)
                version = await coordinator.put(key, encode_queue_request(request), expect=0)
                while version:
                    await asyncio.sleep(POLL_S)
                    stored = await coordinator.get(key)
                    version = stored.version if stored is not None else 0
                if (await _read_entry(coordinator, verifier)).store_of(shard).id == target:
                    self._outcome.moved += 1
                    self._outcome.exercised["shard moved"] += 1
                else:
                    self._outcome.exercised["move given up"] += 1
            except CoordinatorError:
                continue  # a store was killed, and its agent's connections with it

    async def _drain(self, queue: Queue) -> None:
        """Stops producers, waits until the queue is empty, then stops consumers."""
        self._phase = "drain"
        await self._stop(PRODUCER)
        deadline = time.monotonic() + DRAIN_S_MAX
        left = -1
        while left != 0 and time.monotonic() < deadline:
            with contextlib.suppress(ShoalError):
                left = (await queue.stats()).messages
            await self._until(lambda: False, 5 * POLL_S)
        if left != 0:
            self._outcome.problem(f"unsettled: {left} messages are left after {DRAIN_S_MAX:g} s")
        await self._stop(CONSUMER)

    async def _stop(self, role: str) -> None:
        clients = [client for client in self._clients if client.role == role]
        for client in clients:
            client.process.send(Stop())
        if not await self._until(lambda: all(client.status.ended for client in clients), DRAIN_S_MAX):
            self._outcome.problem(f"unsettled: a {role} has not ended in {DRAIN_S_MAX:g} s")

    @property
    def _load_s(self) -> float:
        return time.monotonic() - self._began

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Waits for a condition and shows progress; False after a timeout. A client that fails ends the round."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            for client in self._clients:
                if not client.status.ended:
                    client.process.check()
            self._show()
            await asyncio.sleep(POLL_S)
        return True

    def _show(self) -> None:
        counts: Counter[str] = Counter()
        for client in self._clients:
            counts[client.role] += client.messages
        load_s = min(self._load_s, self._options.seconds) if self._phase != "starting the cluster" else 0.0
        self._tell(
            RoundProgress(
                self._phase,
                load_s=load_s,
                messages=counts[PRODUCER],
                deliveries=counts[CONSUMER],
                faults=self._outcome.faults,
                moves=self._outcome.moved,
            )
        )


async def _read_entry(coordinator: Coordinator, verifier: Verifier) -> QueueEntry:
    stored = await coordinator.get(entry_key(QUEUE.encode(), QUEUE_KIND))
    if stored is None:
        raise LoadError("the entry of the queue is gone")
    return verifier.line(stored.value, QueueEntry)


async def run_queue(options: QueueSoakOptions, tell: Tell) -> QueueOutcome:
    """Runs the soak."""
    outcome = QueueOutcome(options)
    began = time.monotonic()
    with round_directory(outcome) as directory:
        try:
            await QueueRound(options, directory, outcome, tell).execute()
        except LoadError as error:
            outcome.rounds += 1
            outcome.problem(str(error))
    outcome.seconds = time.monotonic() - began
    return outcome
