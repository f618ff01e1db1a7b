"""Figure 7 of the E-SilboPS paper on real processes: events a second of an engine by number of filters.

Owns the cluster, the order of the runs and what is measured. In each round the engine runs beside what it is compared
with: channels with the same deliveries (`air`), or the bare index (`hard`). The configurations are those that two cores
can run. In the last one, 1-2-1 without the head, one process has a matcher alone, and another one has all three
operators: their CPU is that of the operators, channels included. What the access point and the exit point use beyond
the core of the exit point is divided equally between them: they cannot be told apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from shoal.cluster.local import LocalCluster
from shoal.engine.engine_report import EngineReport
from shoal.lab.bench.engine_layouts import EngineLayouts, Layout
from shoal.lab.bench.engine_scale.load import AIR, EngineWorkload, make_load
from shoal.lab.bench.engine_scale.operator_cpu import OperatorCpu
from shoal.lab.bench.engine_scale.projection import EXITS, MATCHERS, CpuByOperator, with_transport
from shoal.lab.bench.engine_scale.worker import REPORTS, AddFilters, Done, Emit, FindAll, Listen, Receive
from shoal.lab.harness import LoadError, LoadProcess, Ready
from shoal.lab.machine import process_cpu_s

PROCESSES: Final = 3
"""Processes of the engine."""
ALONE: Final = "1-2-1, a matcher alone"
ANSWER_S_MAX: Final = 900.0
QUIET_S_MAX: Final = 120.0
QUIET_CPU_S: Final = 0.1
"""CPU of the engine in a second in which it only shows that it lives."""
RUN_S: Final = 1.5
"""About how long a run takes."""
TRIAL: Final = 400
"""Events of the run that tells how many are emitted in the others."""
EVENTS_MAX: Final = 60_000
WORKER: Final = "shoal.lab.bench.engine_scale.worker"


LAYOUTS: Final = (
    Layout("1-1-1", 1, 1),
    Layout("1-2-1", 2, 1),
    Layout("1-2-2", 2, 2),
    Layout(ALONE, 2, 1, alone=True),
)


class Run(NamedTuple):
    """One run."""

    events_per_s: float
    engine_us: float
    """CPU of all processes of the engine for an event."""
    all_us: float
    """CPU of all processes: engine, servers, agents, emitter and readers."""
    by_process: dict[str, float]
    """The same for each process of the engine."""


class Point(NamedTuple):
    """What one load with one number of filters has shown in one layout. Medians."""

    load: str
    filters: int
    layout: str
    matches: float
    deliveries: float
    engine: Run
    other_per_s: float
    """Channel messages a second with the same deliveries (`air`), or events a second of the bare index (`hard`)."""
    other_us: float
    """CPU of that: of all processes, or of the index."""


class LoadResult(NamedTuple):
    """All about one load."""

    points: list[Point]
    cores: dict[int, OperatorCpu]
    processes: dict[int, dict[str, float]]
    """By number of filters: CPU of each operator in its process, channels included."""
    bytes_per_filter: float
    """Memory of a process with a matcher, for each of its filters, at the largest number."""
    gaps: int

    def cpu(self, filters: int) -> CpuByOperator:
        """CPU by operator, cores and channels."""
        cores = self.cores[filters]
        return with_transport(cores.matcher, cores.exit_point, self.processes[filters], (2, 1))


class EngineBed:
    """A cluster with an engine, its clients, and a bare index."""

    def __init__(self, cluster: LocalCluster, layouts: EngineLayouts) -> None:
        self._cluster = cluster
        self.layouts = layouts
        names = ("emitter", "reader", "channel-reader", "index")
        self.emitter, self.reader, self.listener, self.index = (LoadProcess(name, WORKER, REPORTS) for name in names)
        self.gaps = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls) -> AsyncIterator[EngineBed]:
        """A new bed."""
        async with contextlib.AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(LocalCluster(1, engine=True, tls=False))
            bed = cls(cluster, await stack.enter_async_context(EngineLayouts.open(cluster, PROCESSES)))
            for process in (bed.emitter, bed.reader, bed.listener, bed.index):
                await stack.enter_async_context(process)
            yield bed

    async def add(self, load: str, first: int, last: int) -> None:
        """Brings more filters into force."""
        await self.reader.ask(AddFilters(self._cluster.url, load, first, last), Ready, ANSWER_S_MAX)

    async def listen(self) -> None:
        """Subscribes to the channels."""
        await self.listener.ask(Listen(self._cluster.url), Ready, ANSWER_S_MAX)

    def cpu_s(self) -> dict[str, float]:
        """CPU time that each process of the cluster has used."""
        children = self._cluster.status().processes
        return {
            child.name: process_cpu_s(child.pid)
            for child in children
            if child.kind in ("engine", "server", "agent") and child.pid is not None
        }

    async def quiet(self) -> None:
        """Waits until the processes of the engine do little, at most `QUIET_S_MAX`."""
        deadline = time.monotonic() + QUIET_S_MAX
        while time.monotonic() < deadline:
            before = sum(cpu for name, cpu in self.cpu_s().items() if name.startswith("engine"))
            await asyncio.sleep(1.0)
            after = sum(cpu for name, cpu in self.cpu_s().items() if name.startswith("engine"))
            if after - before < QUIET_CPU_S:
                return

    async def run(self, way: str, load: str, filters: int, first: int, events: int, deliveries: int) -> tuple[Run, int]:
        """One run; also the filters that readers were told."""
        reader = self.reader if way == "engine" else self.listener
        before = self.cpu_s()
        reader.send(Receive(deliveries))
        emitted = await self.emitter.ask(
            Emit(self._cluster.url, way, load, filters, first, events),  # type: ignore[arg-type]
            Done,
            ANSWER_S_MAX,
        )
        received = await reader.answer(Done, ANSWER_S_MAX)
        self.gaps += received.gaps
        if received.gaps:
            raise LoadError(f"events are missing: readers have {received.gaps} gaps, after {filters} filters")
        used = {name: 1e6 * (cpu - before.get(name, 0.0)) / events for name, cpu in self.cpu_s().items()}
        engines = {name: cost for name, cost in used.items() if name.startswith("engine")}
        clients = 1e6 * (emitted.cpu_s + received.cpu_s) / events
        seconds = max(emitted.ended_at, received.ended_at) - emitted.began_at
        others = sum(used.values()) - (0.0 if way == "engine" else sum(engines.values()))
        return Run(events / seconds, sum(engines.values()), others + clients, engines), received.matches

    async def find(self, load: str, filters: int, first: int, events: int) -> Done:
        """The bare index."""
        return await self.index.ask(FindAll(load, filters, first, events), Done, ANSWER_S_MAX)


async def measure(name: str, sizes: tuple[int, ...], rounds: int, note: Callable[[str], None]) -> LoadResult:
    """Measures a load with all numbers of filters. Each number has a cluster of its own, so that its figures, memory
    above all, do not depend on what was measured before."""
    with tempfile.TemporaryDirectory(prefix="shoal-experiment-") as directory:
        note(f"{name}: making {max(sizes):,} filters")
        load = await asyncio.to_thread(make_load, name, sizes, Path(directory))
        points: list[Point] = []
        processes: dict[int, dict[str, float]] = {}
        gaps = 0
        for size in sizes:
            async with EngineBed.open() as bed:
                pids = {child.name: child.pid for child in _engines(bed)}
                empty = {child: _memory(pid) for child, pid in pids.items()}
                await bed.listen()
                note(f"{name}: {size:,} filters come into force")
                await bed.add(directory, 0, size)
                for layout in LAYOUTS:
                    note(f"{name}: {size:,} filters, {layout.name}")
                    report = await bed.layouts.arrange(layout, size)
                    point = await _point(bed, load, directory, name, size, layout, rounds)
                    points.append(point)
                    if layout.alone:
                        processes[size] = _alone(report, point.engine.by_process)
                        bytes_per_filter = _bytes_per_filter(report, empty, pids)
                gaps += bed.gaps
        cores: dict[int, OperatorCpu] = {}
        for size in sizes:
            note(f"{name}: {size:,} filters, CPU of operators")
            cores[size] = await asyncio.to_thread(OperatorCpu, load, size, max(MATCHERS), EXITS)
            processes[size] = _divided(processes[size], cores[size].exit_point[2, 1])
        return LoadResult(points, cores, processes, bytes_per_filter, gaps)


async def _point(
    bed: EngineBed, load: EngineWorkload, path: str, name: str, size: int, layout: Layout, rounds: int
) -> Point:
    events = load.events(size)
    first = 0

    async def engine(count: int) -> Run:
        nonlocal first
        run, told = await bed.run("engine", path, size, first, count, events.deliveries(first, count))
        if told != events.matches(first, count):
            raise LoadError(f"readers were told {told} matches and should be told {events.matches(first, count)}")
        first += count
        return run

    for _ in range(2):  # the first events make matchers merge the parts of their indexes
        await engine(TRIAL)
        await bed.quiet()
    warm = await engine(TRIAL)
    count = int(min(max(TRIAL, RUN_S * warm.events_per_s), EVENTS_MAX))
    runs: list[Run] = []
    others: list[tuple[float, float]] = []
    for number in range(rounds):
        for what in ("engine", "other") if number % 2 == 0 else ("other", "engine"):
            if what == "engine":
                runs.append(await engine(count))
            elif name == AIR:
                run, _ = await bed.run("channel", path, size, first, count, events.deliveries(first, count))
                others.append((run.events_per_s, run.all_us))
            else:
                done = await bed.find(path, size, first, count)
                others.append((count / (done.ended_at - done.began_at), 1e6 * done.cpu_s / count))
    middle = Run(
        median(run.events_per_s for run in runs),
        median(run.engine_us for run in runs),
        median(run.all_us for run in runs),
        {process: median(run.by_process[process] for run in runs) for process in runs[0].by_process},
    )
    total = len(events.wires)
    return Point(
        name,
        size,
        layout.name,
        events.matches(0, total) / total,
        events.deliveries(0, total) / total,
        middle,
        median(rate for rate, _ in others),
        median(cpu for _, cpu in others),
    )


def _engines(bed: EngineBed) -> list[Any]:
    return [child for child in bed._cluster.status().processes if child.kind == "engine"]


def _child_of(member: str) -> str:
    """The process of a member: what is behind it is another one for each incarnation."""
    return member.rpartition("-")[0]


def _alone(report: EngineReport, by_process: dict[str, float]) -> dict[str, float]:
    """CPU of a matcher that is alone in its process, and of the access point and the exit point together."""
    (all_three,) = report.exits
    (only,) = (name for name in report.matchers if name != all_three)
    matcher = by_process[_child_of(only)]
    return {"matcher": matcher, "others": max(by_process[_child_of(all_three)] - matcher, 0.0)}


def _divided(found: dict[str, float], exit_core: float) -> dict[str, float]:
    """CPU by operator: what is not the core of the exit point is divided equally."""
    transport = max(found["others"] - exit_core, 0.0) / 2
    return {"access_point": transport, "matcher": found["matcher"], "exit_point": exit_core + transport}


def _bytes_per_filter(report: EngineReport, empty: dict[str, int], pids: dict[str, int]) -> float:
    """Memory of the process with a matcher alone, more than before it had filters, for each of its filters."""
    (only,) = (name for name in report.matchers if name not in report.exits)
    (filters,) = (member.filters for member in report.members if member.name == only)
    child = _child_of(only)
    return (_memory(pids[child]) - empty[child]) / filters


def _memory(pid: int) -> int:
    """Bytes of memory that belong to a process alone."""
    fields = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]]
    return 1024 * sum(int(field[1]) for field in fields if field[0].startswith("Private_"))
