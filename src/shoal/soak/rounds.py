"""What all rounds have in common: a cluster, load processes, quiet and a verdict.

Owns the order of a round and the way its processes are begun, told and ended:

    begin     the cluster forms, subscribers come into force, publishers begin
    load      publishers and subscribers at work while things happen to the cluster
    quiet     publishers are silent but there; everything owed must arrive, everything must settle
    verdict   a checking process reads the logs

What happens while they are at work is the business of each kind of round: `run.py`, `balanced.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from shoal.cluster.local import LocalCluster
from shoal.soak.checker import Report, Severity
from shoal.soak.following import Following
from shoal.soak.processes import Worker, judge_in_process
from shoal.soak.records import Log, Wrong
from shoal.soak.shape import Shape
from shoal.soak.worker import SHAPE_FILE

READY_S_MAX: Final = 60.0
"""How long subscribers may take to be in force at the beginning."""
SETTLE_S_MAX: Final = 60.0
"""How long everything may take to settle once publishers are silent."""
END_S_MAX: Final = 60.0
MOVES_S_MAX: Final = 30.0
"""How long moves may take to end when all were asked for, while publishers go on."""
POLL_S: Final = 0.1


class Progress(msgspec.Struct, frozen=True):
    """How far a run is: seconds of load done, and what has happened."""

    phase: str
    load_s: float = 0.0
    messages: int = 0
    deliveries: int = 0
    faults: int = 0
    moves: int = 0


Tell = Callable[[Progress], None]


class BaseRound(ABC):
    """One cluster, one load, one verdict."""

    def __init__(self, shape: Shape, severity: Severity, directory: Path, tell: Tell) -> None:
        self.shape = shape
        self.following: Following | None = None
        self.watchers = 0
        """Processes of those who watch from outside."""
        self.load_began = math.inf
        self.log = Log(directory / "faults.log")
        self.directory = directory
        self._severity = severity
        self._tell = tell
        self._workers: list[Worker] = []

    @property
    def kills(self) -> int:
        """How many processes were killed."""
        return 0

    @abstractmethod
    def make_cluster(self, directory: Path) -> LocalCluster:
        """The cluster, not yet started."""

    @abstractmethod
    async def prepare(self, cluster: LocalCluster, stack: contextlib.AsyncExitStack) -> None:
        """Makes the cluster ready for its load, before there are clients."""

    @abstractmethod
    async def load(self, cluster: LocalCluster) -> None:
        """Everything from the moment when all clients are there until publishers are told to stop."""

    @abstractmethod
    async def finish(self, cluster: LocalCluster) -> None:
        """Looks at the cluster a last time, before it ends."""

    async def execute(self) -> Report:
        """Runs all phases and judges."""
        (self.directory / SHAPE_FILE).write_bytes(msgspec.json.encode(self.shape))
        self._show("starting the cluster")
        async with self.make_cluster(self.directory / "cluster") as cluster, contextlib.AsyncExitStack() as stack:
            stack.callback(self._keep_logs, cluster)
            await self.prepare(cluster, stack)
            await self._begin(cluster, stack)
            self.load_began = time.monotonic()
            await self.load(cluster)
            await self._settle()
            await self.finish(cluster)
        self.log.end()
        self._show("checking")
        return await judge_in_process(self.directory, self._severity)

    def _keep_logs(self, cluster: LocalCluster) -> None:
        """Logs and decisions go with the cluster, but may be wanted when something was wrong."""
        shutil.copytree(cluster.directory.logs, self.directory / "cluster-logs", dirs_exist_ok=True)
        if cluster.directory.audit.exists():
            shutil.copytree(cluster.directory.audit, self.directory / "audit", dirs_exist_ok=True)

    async def _begin(self, cluster: LocalCluster, stack: contextlib.AsyncExitStack) -> None:
        roles = ("watch", self.watchers), ("subscribe", self.shape.subscriber_processes), ("publish", 1)
        for role, count in roles:
            for number in range(count):
                worker = Worker(role, number, self.directory, cluster.url)
                self._workers.append(await stack.enter_async_context(worker))
            ready = await self.until(lambda: all(one.status.ready for one in self._workers), READY_S_MAX, "beginning")
            if not ready:
                self.log.write(Wrong(f"unsettled: not all subscribers were in force after {READY_S_MAX:g} s"))

    async def end_moves(self) -> None:
        """Lets moves end while publishers go on: a lazy one waits for somebody to speak. What does not end is told in
        the log of moves."""
        following = self.following
        if following is not None:
            await self.until(lambda: following.settled, MOVES_S_MAX, "moves end")

    async def _settle(self) -> None:
        """Quiet; then subscribers end, and after them publishers, who may be asked for something to the last."""
        self.order("stop", "subscribe")
        settled = await self.until(lambda: all(one.status.settled for one in self._workers), SETTLE_S_MAX, "settling")
        if not settled:
            self.log.write(Wrong(f"unsettled: not everything had settled after {SETTLE_S_MAX:g} s of quiet"))
        for role in ("subscribe", "publish", "watch"):
            self.order("end", role)
            if not await self.until(partial(self._ended, role), END_S_MAX, "ending"):
                self.log.write(Wrong(f"unsettled: processes that {role} did not end within {END_S_MAX:g} s"))

    def order(self, order: str, role: str) -> None:
        """Gives an order to all processes of a role."""
        for worker in self._of(role):
            worker.order(order)

    def _ended(self, role: str) -> bool:
        return all(worker.ended for worker in self._of(role))

    def _of(self, role: str) -> Iterable[Worker]:
        return [worker for worker in self._workers if worker.role == role]

    async def until(self, condition: Callable[[], bool], timeout_s: float, phase: str) -> bool:
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

    async def until_load(self, load_s: float, phase: str, condition: Callable[[], bool] = lambda: False) -> None:
        """Waits until there was load for so long, or for a condition."""
        end = self.load_began + load_s
        await self.until(lambda: time.monotonic() >= end or condition(), math.inf, phase)

    def _show(self, phase: str) -> None:
        statuses = [worker.status for worker in self._workers]
        self._tell(
            Progress(
                phase=phase,
                load_s=max(0.0, min(time.monotonic() - self.load_began, self.shape.seconds)),
                messages=sum(status.messages for status in statuses),
                deliveries=sum(status.deliveries for status in statuses),
                faults=self.kills,
                moves=len(self.following.ledger.moves) if self.following else 0,
            )
        )
