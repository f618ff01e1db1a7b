"""The order of every round: a cluster, load processes, quiet and a verdict.

Owns the phases, and the processes of a round:

    begin     the cluster starts, subscriptions come into force, publishers begin
    load      publishers and subscribers work, and each kind of round does its own (`run`, `balancer_round`)
    quiet     publishers are silent but open; everything published must arrive, everything must settle
    verdict   a checking process reads the logs
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
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
from shoal.lab.harness import LoadProcess, Stop
from shoal.lab.soak import checker
from shoal.lab.soak.checker import CheckLogs, RoundReport, Severity
from shoal.lab.soak.load_orders import REPORTS, LoadStatus, PlainPlaces, Role, StartLoad
from shoal.lab.soak.load_shape import LoadShape
from shoal.lab.soak.plan_follower import PlanFollower
from shoal.lab.soak.round_log import Problem, RoundLog

READY_S_MAX: Final = 60.0
"""How long the first subscriptions may take to be in force."""
SETTLE_S_MAX: Final = 60.0
"""How long everything may take to settle when publishers are silent."""
END_S_MAX: Final = 60.0
"""How long load processes may take to end."""
MOVES_S_MAX: Final = 30.0
"""How long moves may take to end after the last request, while publishers continue."""
CHECK_S_MAX: Final = 600.0
"""How long the checking process may take."""
POLL_S: Final = 0.1


class RoundProgress(msgspec.Struct, frozen=True):
    """The progress of a soak: seconds of load so far, and counts."""

    phase: str
    load_s: float = 0.0
    messages: int = 0
    deliveries: int = 0
    faults: int = 0
    moves: int = 0


Tell = Callable[[RoundProgress], None]


class RoundProcess:
    """One load process and its last status."""

    def __init__(self, role: Role, number: int, directory: Path) -> None:
        self.role = role
        self.process = LoadProcess(
            f"{role} process {number}", "shoal.lab.soak.load_worker", REPORTS, log=directory / f"{role}-{number}.err"
        )
        self.status = LoadStatus(0, 0, ready=False, settled=False)
        self.process.on(LoadStatus, self._take)

    def _take(self, status: LoadStatus) -> None:
        self.status = status


class BaseRound(ABC):
    """One cluster, one load, one verdict."""

    def __init__(self, shape: LoadShape, severity: Severity, directory: Path, tell: Tell) -> None:
        self.shape = shape
        self.follower: PlanFollower | None = None
        self.places: PlainPlaces | None = None
        """Where plain clients should be; None if there are none."""
        self.load_began = math.inf
        self.log = RoundLog(directory / "faults.log")
        self.directory = directory
        self._severity = severity
        self._tell = tell
        self._processes: list[RoundProcess] = []

    @property
    def kills(self) -> int:
        """Number of processes that were killed."""
        return 0

    @abstractmethod
    def make_cluster(self, directory: Path) -> LocalCluster:
        """The cluster, before it starts."""

    @abstractmethod
    async def prepare(self, cluster: LocalCluster, stack: contextlib.AsyncExitStack) -> None:
        """Prepares the cluster, before there are clients."""

    @abstractmethod
    async def load(self, cluster: LocalCluster) -> None:
        """Everything between the arrival of all clients and the stop of the publishers."""

    @abstractmethod
    async def finish(self, cluster: LocalCluster) -> None:
        """Reads the required data from the cluster before it ends."""

    async def execute(self) -> RoundReport:
        """Runs all phases and returns the verdict."""
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
        return await self._check()

    async def _check(self) -> RoundReport:
        """Lets a checking process judge the logs."""
        order = CheckLogs(str(self.directory), self._severity)
        log = self.directory / "checker.err"
        async with LoadProcess("checking process", "shoal.lab.soak.checker", checker.REPORTS, log=log) as process:
            return await process.ask(order, RoundReport, CHECK_S_MAX)

    def _keep_logs(self, cluster: LocalCluster) -> None:
        """Copies logs and decisions, which are deleted with the cluster, for rounds with violations."""
        shutil.copytree(cluster.directory.logs, self.directory / "cluster-logs", dirs_exist_ok=True)
        if cluster.directory.audit.exists():
            shutil.copytree(cluster.directory.audit, self.directory / "audit", dirs_exist_ok=True)

    async def _begin(self, cluster: LocalCluster, stack: contextlib.AsyncExitStack) -> None:
        roles: tuple[tuple[Role, int], ...] = (
            ("watch", 1 if self.places else 0),
            ("subscribe", self.shape.subscriber_processes),
            ("publish", 1),
        )
        started = {
            role: [RoundProcess(role, number, self.directory) for number in range(count)] for role, count in roles
        }
        for one in itertools.chain.from_iterable(started.values()):  # they load their modules at the same time
            await stack.enter_async_context(one.process)
        for role, processes in started.items():
            for number, one in enumerate(processes):
                one.process.send(StartLoad(role, number, str(self.directory), cluster.url, self.shape, self.places))
                self._processes.append(one)
            ready = await self.until(lambda: all(one.status.ready for one in self._processes), READY_S_MAX, "beginning")
            if not ready:
                self.log.write(Problem(f"unsettled: not all subscribers were in force after {READY_S_MAX:g} s"))

    async def end_moves(self) -> None:
        """Waits for moves to end while publishers continue, since a lazy move needs publications. The log of moves
        lists those that do not end."""
        follower = self.follower
        if follower is not None:
            await self.until(lambda: follower.settled, MOVES_S_MAX, "moves end")

    async def _settle(self) -> None:
        """Quiet; then subscribers end, and after them publishers, which may have to repeat messages until then."""
        self.send(Stop(), "subscribe")
        settled = await self.until(lambda: all(one.status.settled for one in self._processes), SETTLE_S_MAX, "settling")
        if not settled:
            self.log.write(Problem(f"unsettled: not everything had settled after {SETTLE_S_MAX:g} s of quiet"))
        for role in ("subscribe", "publish", "watch"):
            for process in self._of(role):
                process.end_orders()
            if not await self.until(partial(self._ended, role), END_S_MAX, "ending"):
                self.log.write(Problem(f"unsettled: {role} processes did not end within {END_S_MAX:g} s"))

    def send(self, order: msgspec.Struct, role: str) -> None:
        """Gives an order to all processes of a role."""
        for process in self._of(role):
            process.send(order)

    def _ended(self, role: str) -> bool:
        return all(process.is_over for process in self._of(role))

    def _of(self, role: str) -> Iterable[LoadProcess]:
        return [one.process for one in self._processes if one.role == role]

    async def until(self, condition: Callable[[], bool], timeout_s: float, phase: str) -> bool:
        """Waits for a condition and shows progress; False after a timeout. A process that fails ends the round."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            for one in self._processes:
                one.process.check()
            self._show(phase)
            await asyncio.sleep(POLL_S)
        return True

    async def until_load(self, load_s: float, phase: str, condition: Callable[[], bool] = lambda: False) -> None:
        """Waits for a duration of load, or for a condition."""
        end = self.load_began + load_s
        await self.until(lambda: time.monotonic() >= end or condition(), math.inf, phase)

    def _show(self, phase: str) -> None:
        statuses = [one.status for one in self._processes]
        self._tell(
            RoundProgress(
                phase=phase,
                load_s=max(0.0, min(time.monotonic() - self.load_began, self.shape.seconds)),
                messages=sum(status.messages for status in statuses),
                deliveries=sum(status.deliveries for status in statuses),
                faults=self.kills,
                moves=len(self.follower.ledger.moves) if self.follower else 0,
            )
        )
