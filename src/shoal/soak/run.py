"""A soak run: rounds of a cluster, load processes, faults, quiet and a verdict.

Owns the order of a round and the sum over rounds:

    begin     the cluster forms, subscribers come into force, publishers begin
    load      publishers and subscribers at work while faults strike; the last part of it is without faults
    quiet     publishers are silent but there; everything owed must arrive, everything must settle
    verdict   a checking process reads the logs

A run that is longer than `ROUND_S_MAX` has several rounds, so that logs and memory stay bounded, and so that no
publisher is silent so long that its stream ends and its sequence numbers begin again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from shoal.cluster.acl import ADMIN
from shoal.cluster.local import LocalCluster
from shoal.cluster.timing import Timing
from shoal.coordination.redis import RedisCoordinator
from shoal.plan.keys import entry_key
from shoal.plan.signing import Signer
from shoal.soak.asking import Asking, begin_asking
from shoal.soak.checker import Report
from shoal.soak.faults import Faults
from shoal.soak.forwarding import count_forwarded
from shoal.soak.outcome import Options, Outcome
from shoal.soak.processes import Worker, judge_in_process
from shoal.soak.records import Counted, Log, Wrong
from shoal.soak.shape import IDLE_CHANNELS, Shape, draw, draw_burst_shape
from shoal.soak.worker import SHAPE_FILE

ROUND_S_MAX: Final = 60.0
READY_S_MAX: Final = 60.0
"""How long subscribers may take to be in force at the beginning."""
SETTLE_S_MAX: Final = 60.0
"""How long everything may take to settle once publishers are silent."""
END_S_MAX: Final = 60.0
MOVES_S_MAX: Final = 30.0
"""How long moves may take to end when all were asked for, while publishers go on."""
POLL_S: Final = 0.1
RESTART_PAUSE_S_MAX: Final = 1.0
"""The supervisor would wait longer and longer for a process that is killed all the time."""


class Progress(msgspec.Struct, frozen=True):
    """How far a run is: seconds of load done, and what has happened."""

    phase: str
    load_s: float
    messages: int
    deliveries: int
    faults: int
    moves: int


Tell = Callable[[Progress], None]


async def run_soak(options: Options, tell: Tell) -> Outcome:
    """Runs all rounds."""
    outcome = Outcome(options)
    began = time.monotonic()
    rounds = math.ceil(options.seconds / ROUND_S_MAX)
    for number in range(rounds):
        directory = Path(tempfile.mkdtemp(prefix="shoal-soak-"))
        keep = False
        try:
            moves = options.moves * (number + 1) // rounds - options.moves * number // rounds
            part = msgspec.structs.replace(options, moves=moves, seconds=options.seconds / rounds)
            one = Round(part, options.seed + number, directory, tell)
            report = await one.execute()
            outcome.add(report, one.kills, one.forwarded)
            keep = bool(report.violation_count)
        finally:
            if keep:
                outcome.kept.append(directory)
            else:
                shutil.rmtree(directory, ignore_errors=True)
    outcome.seconds = time.monotonic() - began
    return outcome


class Round:
    """One cluster, one load, one verdict."""

    def __init__(self, options: Options, seed: int, directory: Path, tell: Tell) -> None:
        servers = [f"s{number}" for number in range(1, options.servers + 1)]
        idle = IDLE_CHANNELS if options.moves else 0
        self.shape: Shape = (
            draw_burst_shape(seed, options.seconds, options.burst, options.limits)
            if options.burst
            else draw(seed, options.seconds, servers, options.subscribers, options.limits, idle)
        )
        self.kills = 0
        self.forwarded = 0
        self._options = options
        self._directory = directory
        self._tell = tell
        self._load_began = math.inf
        self._log = Log(directory / "faults.log")
        self._workers: list[Worker] = []
        self._faults: Faults | None = None
        self._asking: Asking | None = None

    async def execute(self) -> Report:
        """Runs all phases and judges."""
        (self._directory / SHAPE_FILE).write_bytes(msgspec.json.encode(self.shape))
        timing = Timing(restart_pause_s_max=RESTART_PAUSE_S_MAX)
        cluster = LocalCluster(
            self._options.servers, self._directory / "cluster", limits=self._options.limits, timing=timing
        )
        self._show("starting the cluster")
        async with cluster, contextlib.AsyncExitStack() as stack:
            stack.callback(self._keep_logs, cluster)
            await self._place(cluster)
            if self._options.protocol == "moves":
                self._asking = await stack.enter_async_context(
                    begin_asking(cluster, self.shape, self._options, self._directory)
                )
            await self._begin(cluster, stack)
            await self._load(cluster)
            await self._settle()
            if self._asking is not None:
                await self._asking.finish()
                self.forwarded = await asyncio.to_thread(count_forwarded, cluster.state)
        self._log.end()
        self._show("checking")
        return await judge_in_process(self._directory, self._options.severity)

    def _keep_logs(self, cluster: LocalCluster) -> None:
        """The logs of servers and agents go with the cluster, but may be wanted when something was wrong."""
        shutil.copytree(cluster.directory.logs, self._directory / "cluster-logs", dirs_exist_ok=True)

    async def _place(self, cluster: LocalCluster) -> None:
        """Writes the plan's entries: some channels live where no ring would put them."""
        signer = Signer(cluster.directory.key_file.read_bytes())
        async with await RedisCoordinator.connect(cluster.url_for(ADMIN), timeout_s=READY_S_MAX) as coordinator:
            for channel in self.shape.channels:
                if channel.placement is not None:
                    name = channel.name.encode()
                    await coordinator.put(entry_key(name), signer.entry(name, channel.placement))
                    self._log.write(Counted(f"placement {channel.placement.mode}", 1))

    async def _begin(self, cluster: LocalCluster, stack: contextlib.AsyncExitStack) -> None:
        watchers = 0 if self._asking is None else 1
        roles = ("watch", watchers), ("subscribe", self.shape.subscriber_processes), ("publish", 1)
        for role, count in roles:
            for number in range(count):
                worker = Worker(role, number, self._directory, cluster.url)
                self._workers.append(await stack.enter_async_context(worker))
            ready = await self._until(lambda: all(one.status.ready for one in self._workers), READY_S_MAX, "beginning")
            if not ready:
                self._log.write(Wrong(f"unsettled: not all subscribers were in force after {READY_S_MAX:g} s"))

    async def _load(self, cluster: LocalCluster) -> None:
        self._load_began = time.monotonic()
        seconds = self.shape.seconds
        faults = Faults(cluster, self._options.faults, seconds, self.shape.rng("faults"), self._log)
        self._faults = faults
        striking = asyncio.create_task(faults.run())
        asking = asyncio.create_task(self._asking.run(self._load_began)) if self._asking else None
        try:
            end = self._load_began + seconds
            await self._until(lambda: time.monotonic() >= end, math.inf, "load")
            await self._end_moves()
            for role in ("watch", "publish"):
                self._order("stop", role)
            if not await self._until(striking.done, SETTLE_S_MAX, "mending"):
                self._log.write(Wrong(f"unsettled: the cluster was not well {SETTLE_S_MAX:g} s after the last fault"))
        finally:
            tasks = [task for task in (striking, asking) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.kills = faults.kills
        for corner, times in faults.counts.items():
            self._log.write(Counted(corner, times))

    async def _end_moves(self) -> None:
        """Lets moves end while publishers go on: a lazy one waits for somebody to speak. What does not end is told in
        the log of moves."""
        asking = self._asking
        if asking is not None:
            await self._until(lambda: asking.settled, MOVES_S_MAX, "moves end")

    async def _settle(self) -> None:
        """Quiet; then subscribers end, and after them publishers, who may be asked for something to the last."""
        self._order("stop", "subscribe")
        settled = await self._until(lambda: all(one.status.settled for one in self._workers), SETTLE_S_MAX, "settling")
        if not settled:
            self._log.write(Wrong(f"unsettled: not everything had settled after {SETTLE_S_MAX:g} s of quiet"))
        for role in ("subscribe", "publish", "watch"):
            self._order("end", role)
            if not await self._until(partial(self._ended, role), END_S_MAX, "ending"):
                self._log.write(Wrong(f"unsettled: processes that {role} did not end within {END_S_MAX:g} s"))

    def _order(self, order: str, role: str) -> None:
        for worker in self._of(role):
            worker.order(order)

    def _ended(self, role: str) -> bool:
        return all(worker.ended for worker in self._of(role))

    def _of(self, role: str) -> Iterable[Worker]:
        return [worker for worker in self._workers if worker.role == role]

    async def _until(self, condition: Callable[[], bool], timeout_s: float, phase: str) -> bool:
        """Waits for a condition, showing progress; False if it took too long. A process that fails ends the run."""
        give_up = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > give_up:
                return False
            for worker in self._workers:
                worker.check()
            self._show(phase)
            await asyncio.sleep(POLL_S)
        return True

    def _show(self, phase: str) -> None:
        statuses = [worker.status for worker in self._workers]
        self._tell(
            Progress(
                phase=phase,
                load_s=max(0.0, min(time.monotonic() - self._load_began, self.shape.seconds)),
                messages=sum(status.messages for status in statuses),
                deliveries=sum(status.deliveries for status in statuses),
                faults=self._faults.kills if self._faults else 0,
                moves=len(self._asking.ledger.moves) if self._asking else 0,
            )
        )
