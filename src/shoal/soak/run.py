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
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from shoal.cluster.acl import ADMIN
from shoal.cluster.local import LocalCluster
from shoal.cluster.timing import Timing
from shoal.coordination.redis import RedisCoordinator
from shoal.limits import Limits
from shoal.plan.keys import entry_key
from shoal.plan.signing import Signer
from shoal.soak.checker import Report, Severity
from shoal.soak.corners import wanted_corners
from shoal.soak.faults import FaultPlan, Faults
from shoal.soak.processes import Worker, judge_in_process
from shoal.soak.records import Counted, Log, Wrong
from shoal.soak.shape import Shape, draw
from shoal.soak.worker import SHAPE_FILE

ROUND_S_MAX: Final = 60.0
READY_S_MAX: Final = 60.0
"""How long subscribers may take to be in force at the beginning."""
SETTLE_S_MAX: Final = 60.0
"""How long everything may take to settle once publishers are silent."""
END_S_MAX: Final = 60.0
POLL_S: Final = 0.1
RESTART_PAUSE_S_MAX: Final = 1.0
"""The supervisor would wait longer and longer for a process that is killed all the time."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is to be."""

    servers: int
    subscribers: int
    seconds: float
    faults: FaultPlan
    seed: int
    limits: Limits

    @property
    def severity(self) -> Severity:
        """What the run suffers at the worst."""
        if self.faults.kill_servers:
            return Severity.SERVERS
        return Severity.AGENTS if self.faults.any else Severity.CALM


class Progress(msgspec.Struct, frozen=True):
    """How far a run is: seconds of load done, and what has happened."""

    phase: str
    load_s: float
    messages: int
    deliveries: int
    faults: int


Tell = Callable[[Progress], None]


class Outcome:
    """The sum over rounds. `kept` are the directories of rounds that were not right."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.rounds = 0
        self.faults = 0
        self.report = Report()
        self.exercised: Counter[str] = Counter()
        self.kept: list[Path] = []
        self.seconds = 0.0
        self.latency_ms: dict[str, float] = {}

    def add(self, report: Report, faults: int) -> None:
        """Adds a round; latencies are those of the worst round."""
        total = self.report
        self.rounds += 1
        self.faults += faults
        for name in ("messages", "deliveries", "lost", "duplicated", "reordered", "gaps_reported", "violation_count"):
            setattr(total, name, getattr(total, name) + getattr(report, name))
        total.violations = total.violations + report.violations
        self.exercised.update(report.exercised)
        for name, value in report.latency_ms.items():
            self.latency_ms[name] = max(value, self.latency_ms.get(name, 0.0))

    @property
    def corners_missed(self) -> list[str]:
        """Corners that such a run should have met, and has not."""
        wanted = wanted_corners(self.options.faults, self.options.seconds)
        return [corner for corner in wanted if not self.exercised[corner]]

    @property
    def holds(self) -> bool:
        """Whether every promise was kept, and was really put to the test."""
        return not self.report.violation_count and not self.corners_missed

    def facts(self) -> dict[str, Any]:
        """The facts that `shoal soak channels --json` prints."""
        report = self.report
        missed = [f"never exercised: {corner}" for corner in self.corners_missed]
        exercised = {**dict.fromkeys(wanted_corners(self.options.faults, self.options.seconds), 0), **self.exercised}
        return {
            "protocol": "channels",
            "seeds": self.rounds,
            "messages": report.messages,
            "deliveries": report.deliveries,
            "moves": self.exercised["server left ring"] + self.exercised["server joined ring"],
            "faults": self.faults,
            "lost": report.lost,
            "duplicated": report.duplicated,
            "reordered": report.reordered,
            "gaps_reported": report.gaps_reported,
            "violations": report.violations + missed,
            "violation_count": report.violation_count + len(missed),
            "exercised": dict(sorted(exercised.items())),
            "latency_ms": self.latency_ms,
            "kept": [str(path) for path in self.kept],
            "seconds": round(self.seconds, 1),
        }


async def run_soak(options: Options, tell: Tell) -> Outcome:
    """Runs all rounds."""
    outcome = Outcome(options)
    began = time.monotonic()
    rounds = math.ceil(options.seconds / ROUND_S_MAX)
    for number in range(rounds):
        directory = Path(tempfile.mkdtemp(prefix="shoal-soak-"))
        keep = False
        try:
            one = Round(options, options.seed + number, options.seconds / rounds, directory, tell)
            report = await one.execute()
            outcome.add(report, one.kills)
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

    def __init__(self, options: Options, seed: int, seconds: float, directory: Path, tell: Tell) -> None:
        servers = [f"s{number}" for number in range(1, options.servers + 1)]
        self.shape: Shape = draw(seed, seconds, servers, options.subscribers, options.limits)
        self.kills = 0
        self._options = options
        self._directory = directory
        self._tell = tell
        self._load_began = math.inf
        self._log = Log(directory / "faults.log")
        self._workers: list[Worker] = []
        self._faults: Faults | None = None

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
            await self._begin(cluster, stack)
            await self._load(cluster)
            await self._settle()
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
        for role, count in (("subscribe", self.shape.subscriber_processes), ("publish", 1)):
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
        try:
            end = self._load_began + seconds
            await self._until(lambda: time.monotonic() >= end, math.inf, "load")
            self._order("stop", "publish")
            if not await self._until(striking.done, SETTLE_S_MAX, "mending"):
                self._log.write(Wrong(f"unsettled: the cluster was not well {SETTLE_S_MAX:g} s after the last fault"))
        finally:
            striking.cancel()
            await asyncio.gather(striking, return_exceptions=True)
        self.kills = faults.kills
        for corner, times in faults.counts.items():
            self._log.write(Counted(corner, times))

    async def _settle(self) -> None:
        """Quiet; then subscribers end, and after them publishers, who may be asked for something to the last."""
        self._order("stop", "subscribe")
        settled = await self._until(lambda: all(one.status.settled for one in self._workers), SETTLE_S_MAX, "settling")
        if not settled:
            self._log.write(Wrong(f"unsettled: not everything had settled after {SETTLE_S_MAX:g} s of quiet"))
        for role in ("subscribe", "publish"):
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
            )
        )
