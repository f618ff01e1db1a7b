"""A soak of the engine: emitters and readers in processes of their own, while the engine's processes are killed and its
configuration changes.

Owns the order of a round, the schedule of kills and changes, and the facts:

    prepare   the filters of all readers come into force
    load      emitters emit, a few filters come and go, processes of the engine are killed and come back, operators of
              all layers come and go
    quiet     every event is taken, and what was sent arrives
    verdict   the logs of all clients are judged (`engine_checker`)
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from shoal.cluster.acl import ADMIN
from shoal.cluster.cluster_timeouts import Timing
from shoal.cluster.local import LocalCluster
from shoal.engine.director import Wanted
from shoal.engine.engine_report import EngineReport, encode_wanted, lease_name, read_report, wanted_key
from shoal.engine.messages import MAIN
from shoal.errors import CoordinatorError
from shoal.lab.air_quality import PER_CELL, AirQuality
from shoal.lab.harness import Go, LoadError, LoadProcess, Ready, Stop
from shoal.lab.soak.engine_checker import EngineVerdict, judge
from shoal.lab.soak.engine_orders import REPORTS, EngineClientStatus, Line, StartEmitter, StartReader, read_log
from shoal.lab.soak.outcome import BaseOutcome
from shoal.lab.soak.rounds import RoundProgress, Tell
from shoal.lab.soak.run import RESTART_PAUSE_S_MAX, round_directory
from shoal.limits import Limits
from shoal.runtime import PRODUCTION

SERVERS: Final = 2
ENGINES: Final = 2
"""Processes of the engine: one serves, one stands by."""
SCALED_ENGINES: Final = 4
"""The same, if the configuration changes: one more than there are matchers."""
CONFIGURATIONS: Final = ((1, 3, 1), (1, 1, 1), (2, 2, 1), (1, 2, 2), (2, 3, 2), (1, 1, 1))
"""The numbers of access points, matchers and exit points that are wanted, one after the other."""
CHANGE_S_MAX: Final = 30.0
"""How long a change may take, kills included."""
CHANGE_PAUSE_S: Final = 0.5
"""Time between two changes."""
EMITTERS: Final = 2
READERS: Final = 6
KILL_EVERY_S: Final = 6.0
"""Time between two kills, if the process that was killed is back by then."""
KILL_PAUSE_S: Final = 2.0
"""Least time between two kills."""
KILL_FIRST_S: Final = 2.0
KILLS_END_S: Final = 4.0
"""No process is killed in the last part of the load."""
SECONDS_MIN: Final = KILL_FIRST_S + 2 * KILL_EVERY_S + KILLS_END_S
"""One kill of the process that serves, and one of the process that stands by."""
RECOVERED_S_MAX: Final = 3.0
"""How long a reader may wait for its next event after a kill."""
READY_S_MAX: Final = 180.0
QUIET_S_MAX: Final = 60.0
BACK_S_MAX: Final = 60.0
COORDINATOR_S_MAX: Final = 5.0
POLL_S: Final = 0.1
REPORT_POLL_S: Final = 0.02
STILL_S: Final = 1.5
"""Everything has arrived when nothing has come for this long."""
SERVING, STANDBY = "process with the access point killed", "other process killed"
CHANGED: Final = ("access points changed", "matchers changed", "exit points changed")


class EngineSoakOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the soak."""

    filters: int
    rate: int
    seconds: float
    seed: int
    limits: Limits
    kill: bool = True
    scale: int = 0
    """Changes of the configuration."""

    changes_per_s: float = 24.0
    """Filters that come, and filters that go."""
    per_cell: int = PER_CELL
    emitters: int = EMITTERS
    readers: int = READERS

    @property
    def city(self) -> AirQuality:
        """The load."""
        return AirQuality(self.filters, self.seed, self.per_cell)

    @property
    def engines(self) -> int:
        """Processes of the engine."""
        return SCALED_ENGINES if self.scale else ENGINES


class EngineOutcome(BaseOutcome):
    """The verdict and the counts."""

    def __init__(self, options: EngineSoakOptions) -> None:
        kills = [SERVING, STANDBY] if options.kill else []
        super().__init__("engine", [*kills, *(CHANGED if options.scale else [])])
        self.verdict = EngineVerdict()
        self.given_up: dict[int, dict[str, int]] = {}
        """By instance: changes that were given up, with the reason."""
        self.scaling_s: list[float] = []
        """How long each change took that one instance carried out."""
        self.changes = 0

    @property
    def moves(self) -> int:
        """Nothing moves."""
        return 0

    def judge(self, verdict: EngineVerdict) -> None:
        """Takes the verdict."""
        self.rounds += 1
        self.verdict = verdict
        report = self.report
        report.messages, report.deliveries = verdict.events, verdict.deliveries
        report.lost, report.duplicated, report.reordered = verdict.lost, verdict.duplicated, verdict.reordered
        report.gaps_reported, report.gaps_false = verdict.gaps, verdict.false_alarms
        for text in verdict.violations:
            self.problem(text)
        if verdict.gaps:
            self.problem(f"gaps: {verdict.gaps}, but no emitter and no reader has died")
        slow = [recovered for recovered in verdict.recovered_s if recovered > RECOVERED_S_MAX]
        for recovered in slow:
            self.problem(f"slow: a reader waited {recovered:.2f} s for an event after a kill")

    def problem(self, text: str) -> None:
        """Something did not happen, or not in time."""
        self.report.violations = [*self.report.violations, text]
        self.report.violation_count = len(self.report.violations)

    def more_facts(self) -> dict[str, Any]:
        """What is particular to the engine; see `engine_checker`."""
        verdict = self.verdict
        recovered = [round(one, 3) for one in verdict.recovered_s if one < math.inf]
        return {
            "events": verdict.events,
            "kills": self.faults,
            "unmatched": verdict.unmatched,
            "owed": verdict.owed,
            "missed": verdict.missed,
            "gaps": verdict.gaps,
            "false_alarms": verdict.false_alarms,
            "recovered_s_max": max(recovered, default=None),
            "recovered_s": recovered,
            "scalings": self.changes,
            "scaling_seconds_max": max(self.scaling_s, default=None),
            "given_up": sum(count for reasons in self.given_up.values() for count in reasons.values()),
            "given_up_because": self._reasons(),
        }

    def _reasons(self) -> dict[str, int]:
        """Why changes were given up."""
        counts: Counter[str] = Counter()
        for reasons in self.given_up.values():
            counts.update(reasons)
        return dict(counts)


class EngineClientProcess:
    """An emitter or a reader, in a process of its own."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self.status = EngineClientStatus(0)
        self.process = LoadProcess(name, "shoal.lab.soak.engine_client", REPORTS, log=directory / f"{name}.err")
        self.process.on(EngineClientStatus, self._take)

    def _take(self, status: EngineClientStatus) -> None:
        self.status = status


class EngineRound:
    """One cluster with an engine, its clients, and the kills."""

    def __init__(self, options: EngineSoakOptions, directory: Path, outcome: EngineOutcome, tell: Tell) -> None:
        self._options = options
        self._directory = directory
        self._outcome = outcome
        self._tell = tell
        self._emitters = [EngineClientProcess(f"emitter-{number}", directory) for number in range(options.emitters)]
        self._readers = [EngineClientProcess(f"reader-{number}", directory) for number in range(options.readers)]
        self.engines = options.engines
        """Processes of the engine."""
        self._kills: list[float] = []
        self.lines: list[Line] = []
        """What all clients have logged, after the round."""
        self._phase = "starting the cluster"
        self._began = time.monotonic()

    @property
    def _clients(self) -> list[EngineClientProcess]:
        return [*self._emitters, *self._readers]

    async def execute(self) -> None:
        """Runs all phases."""
        self._show()
        timing = Timing(restart_pause_s_max=RESTART_PAUSE_S_MAX)
        cluster = LocalCluster(
            SERVERS, self._directory / "cluster", limits=self._options.limits, timing=timing, tls=False, engine=True
        )
        async with cluster, contextlib.AsyncExitStack() as stack:
            for number in range(2, self.engines + 1):
                await cluster.fleet.start_engine(number)
            coordinator = await PRODUCTION.coordinator(cluster.url_for(ADMIN), COORDINATOR_S_MAX)
            await stack.enter_async_context(coordinator)
            self._coordinator = coordinator
            stack.callback(self._keep_logs, cluster)
            await self._prepare(cluster, stack)
            await self._engines_are_back()
            await self._load(cluster)
            await self._quiet()
        self._phase = "checking"
        self._show()
        self.lines = [line for client in self._clients for line in read_log(client.log)]
        self._outcome.judge(await asyncio.to_thread(judge, self.lines, self._options.city, self._kills))

    def _keep_logs(self, cluster: LocalCluster) -> None:
        """The logs of the engine stay with the round's; the cluster removes its directory."""
        for log in cluster.directory.logs.glob("engine-*"):
            shutil.copy(log, self._directory)

    async def _prepare(self, cluster: LocalCluster, stack: contextlib.AsyncExitStack) -> None:
        self._phase = "filters come into force"
        self._show()
        options, url = self._options, cluster.url
        for client in self._clients:
            await stack.enter_async_context(client.process)
        for client in self._emitters:
            rate = options.rate / len(self._emitters)
            client.process.send(StartEmitter(url, client.name, str(client.log), options.city, rate))
        for number, client in enumerate(self._readers):
            adds_per_s = options.changes_per_s / 2 / len(self._readers)
            client.process.send(
                StartReader(url, client.name, str(client.log), options.city, number, len(self._readers), adds_per_s)
            )
        await asyncio.gather(*(client.process.answer(Ready, READY_S_MAX) for client in self._clients))

    async def _load(self, cluster: LocalCluster) -> None:
        self._phase = "load"
        self._start_load()
        async with asyncio.TaskGroup() as group:
            scaling = group.create_task(self._scale_all())
            await self._kill_all(cluster)
            await self._until(lambda: self._load_s >= self._options.seconds and scaling.done(), self._seconds_max)

    def _start_load(self) -> None:
        self._began = time.monotonic()
        for client in self._clients:
            client.process.send(Go())

    @property
    def _seconds_max(self) -> float:
        return self._options.seconds + self._options.scale * CHANGE_S_MAX

    async def _kill_all(self, cluster: LocalCluster) -> None:
        due = KILL_FIRST_S
        number = 0
        while self._options.kill and due < self._options.seconds - KILLS_END_S:
            await self._until(lambda due=due: self._load_s >= due, self._options.seconds)  # type: ignore[misc]
            await self._engines_are_back()
            await self._kill(cluster, number)
            number, due = number + 1, max(due + KILL_EVERY_S, self._load_s + KILL_PAUSE_S)

    async def _scale_all(self) -> None:
        """Wants now more, now fewer operators."""
        for number in range(self._options.scale):
            await self._scale(*CONFIGURATIONS[number % len(CONFIGURATIONS)])
            await asyncio.sleep(CHANGE_PAUSE_S)

    async def _scale(self, points: int, matchers: int, exits: int) -> None:
        """Changes the numbers of operators, and waits until it is done."""
        before = await self._report()
        wanted = f"{points}-{matchers}-{exits}"
        await self._coordinator.put(wanted_key(MAIN), encode_wanted(Wanted(matchers, exits, access_points=points)))
        deadline = time.monotonic() + CHANGE_S_MAX
        while True:
            await asyncio.sleep(REPORT_POLL_S)
            report = await self._report()
            if report is not None and report.configuration == wanted and report.phase == "idle":
                break
            if time.monotonic() > deadline:
                now = "no engine serves" if report is None else f"there is {report.configuration}"
                self._outcome.problem(f"stuck: {wanted} is wanted, and after {CHANGE_S_MAX:g} s {now}")
                return
        if before is not None and before.instance == report.instance:
            self._outcome.scaling_s.append(round(report.last_change_s, 3))
        layers = [] if before is None else [int(count) for count in before.configuration.split("-")]
        self._outcome.changes += 1
        for what, old, new in zip(CHANGED, layers, (points, matchers, exits), strict=False):
            self._outcome.exercised[what] += old != new

    async def _report(self) -> EngineReport | None:
        """What the instance that serves has written down; None if none serves."""
        with contextlib.suppress(CoordinatorError):
            report = await read_report(self._coordinator, MAIN)
            if report is not None:
                self._outcome.given_up[report.instance] = report.given_up
            return report
        return None

    async def _engines_are_back(self) -> None:
        """Waits until an engine serves and the others stand by. Otherwise the time that a process takes to start would
        be measured."""
        deadline = time.monotonic() + BACK_S_MAX
        while True:
            report = await self._report()
            if report is not None and len(report.members) >= self.engines:
                return
            if time.monotonic() > deadline:
                raise LoadError(f"the engines are not back after {BACK_S_MAX:g} s")
            await self._until(lambda: False, POLL_S)

    async def _kill(self, cluster: LocalCluster, number: int) -> None:
        """Kills a process of the engine. It is started again by the supervisor."""
        engines = [child.name for child in cluster.status().processes if child.kind == "engine"]
        victim, serves = choose_victim(engines, await self._serving(engines), number)
        self._outcome.exercised[SERVING if serves else STANDBY] += 1
        self._outcome.faults += 1
        self._kills.append(time.monotonic())
        await cluster.kill(victim)

    async def _serving(self, engines: Sequence[str]) -> str:
        """The process that serves. A report is there for a moment longer than its writer."""
        deadline = time.monotonic() + BACK_S_MAX
        while time.monotonic() < deadline:
            lease = await self._coordinator.lease_of(lease_name(MAIN))
            for name in engines:
                if lease is not None and lease.holder.startswith(f"{name}-"):
                    return name
            await self._until(lambda: False, POLL_S)
        raise LoadError(f"no engine serves for {BACK_S_MAX:g} s")

    async def _quiet(self) -> None:
        """Stops emitters, and waits until nothing arrives any more."""
        self._phase = "quiet"
        for client in self._clients:
            client.process.send(Stop())
        if not await self._until(lambda: all(client.status.ended for client in self._clients), QUIET_S_MAX):
            late = ", ".join(client.name for client in self._clients if not client.status.ended)
            raise LoadError(f"not ended in {QUIET_S_MAX:g} s: {late}")
        count = -1
        while count != (count := sum(client.status.count for client in self._readers)):
            await self._until(lambda: False, STILL_S)

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
                client.process.check()
            self._show()
            await asyncio.sleep(POLL_S)
        return True

    def _show(self) -> None:
        loaded = self._phase not in ("starting the cluster", "filters come into force")
        self._tell(
            RoundProgress(
                self._phase,
                load_s=min(self._load_s, self._options.seconds) if loaded else 0.0,
                messages=sum(client.status.count for client in self._emitters),
                deliveries=sum(client.status.count for client in self._readers),
                faults=self._outcome.faults,
            )
        )


def choose_victim(engines: Sequence[str], serving: str, number: int) -> tuple[str, bool]:
    """The process that is killed next, and whether it serves: by turns the one that serves and one of the others, which
    take turns too."""
    others = [name for name in engines if name != serving]
    if number % 2 == 0 or not others:
        return serving, True
    return others[number // 2 % len(others)], False


async def run_engine(options: EngineSoakOptions, tell: Tell) -> EngineOutcome:
    """Runs the soak."""
    outcome = EngineOutcome(options)
    began = time.monotonic()
    with round_directory(outcome) as directory:
        try:
            await EngineRound(options, directory, outcome, tell).execute()
        except LoadError as error:
            outcome.rounds += 1
            outcome.problem(str(error))
    outcome.seconds = time.monotonic() - began
    return outcome
