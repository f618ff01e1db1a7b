"""`shoal bench engine`: the engine beside channels, with and without `where=`, on one real server with its agent.

Owns the workloads, the order of the runs, the ratios and their goals. In each round every way runs, one after the
other, so that other work on the machine affects all of them. Results are medians over the rounds. Emitters, readers and
the engine are separate processes, and every delivery is counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from statistics import median, quantiles
from typing import Any, Final

import msgspec

from shoal.cluster.local import LocalCluster
from shoal.lab.air_quality import AirQuality
from shoal.lab.bench.engine_layouts import EngineLayouts, Layout
from shoal.lab.bench.engine_worker import (
    PAYLOAD_BYTES,
    REPORTS,
    AddOneByOne,
    Emit,
    Measured,
    Receive,
    Subscribe,
    Unsubscribe,
    Way,
)
from shoal.lab.harness import LoadProcess, Ready
from shoal.lab.machine import machine, process_cpu_s
from shoal.load.engine_load import EngineLoad

CONFIGURATION: Final = "1-1-1"
LAYOUTS: Final = (Layout("1-2-1", 2, 1), Layout("1-2-2", 2, 2))
"""Further configurations, on `PROCESSES` processes."""
PROCESSES: Final = 3
SUBSCRIBERS: Final = 1000
"""Subscribers of `vs_where`, each with a filter, on `BUSES` buses."""
BUSES: Final = 50
TIMED_PARTS: Final = 5
"""Events at half load are emitted in so many parts, engine and channel in turn. A ratio of two parts next to each
other is one of the same moment: whatever else the machine does delays each hop, and the engine has more of them."""
CROSSING: Final = (1, 2, 3, 4, 8, 16)
"""Numbers of subscribers, each with a bus of its own, among which the crossing point is sought."""
ANSWER_S_MAX: Final = 600.0
NAMES: Final = ("emitter", "reader", "channel reader")
GOALS: Final = {
    "vs_where": ">= 20",
    "cpu_vs_channel": "<= 3.5",
    "latency_p50_vs_channel": "<= 4",
    "in_force_ms_p99": "<= 100",
}
PARTS: Final = ("throughput", "where", "crossing", "layouts")

Figures = dict[str, float]


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    parts: tuple[str, ...] = PARTS
    filters: int = 100_000
    events: int = 20_000
    timed_s: float = 1.0
    """How long events are emitted at half load, in each of `TIMED_PARTS` parts."""
    added: int = 300
    """Filters that are added one by one."""
    rounds: int = 3


class Bench:
    """One cluster with an engine, an emitter process, and reader processes: one for the engine, one for channels."""

    def __init__(self, cluster: LocalCluster, emitter: LoadProcess, reader: LoadProcess, other: LoadProcess) -> None:
        self.cluster = cluster
        self._emitter = emitter
        self._readers: dict[Way, LoadProcess] = {"engine": reader, "where": other, "channel": other}
        self._next = 0

    @contextlib.asynccontextmanager
    async def subscribers(self, way: Way, filters: int, count: int, buses: int = 1) -> Any:
        """Subscribers among whom `filters` filters of a city are divided, in force; they end with the block."""
        shares = [(first, len(range(first, filters, count))) for first in range(count)]
        order = Subscribe(self.cluster.url, way, self._city, shares, count, buses)
        await self._readers[way].ask(order, Ready, ANSWER_S_MAX)
        yield
        await self._readers[way].ask(Unsubscribe(), Ready, ANSWER_S_MAX)

    def use_city(self, filters: int) -> None:
        """Events and filters are those of a city with this number of filters."""
        self._city = filters

    async def run(self, way: Way, events: int, wanted: Callable[[int], int], rate: float = 0.0) -> Figures:
        """One run. `wanted` tells how many deliveries an event has."""
        first, self._next = self._next, self._next + events
        deliveries = sum(wanted(number) for number in range(first, first + events))
        before = self._cpu_s()
        self._readers[way].send(Receive(deliveries))
        emitted = await self._emitter.ask(
            Emit(self.cluster.url, way, self._city, first, events, rate), Measured, ANSWER_S_MAX
        )
        received = await self._readers[way].answer(Measured, ANSWER_S_MAX)
        parts = {name: 1e6 * (used - before[name]) / events for name, used in self._cpu_s().items()}
        if way != "engine":
            del parts["engine"]  # it has nothing to do with it
        parts |= {"emitter": 1e6 * emitted.cpu_s / events, "reader": 1e6 * received.cpu_s / events}
        seconds = max(emitted.ended_at, received.ended_at) - emitted.began_at
        latencies_us = received.latencies_us
        percentiles = quantiles(latencies_us, n=100) if len(latencies_us) > 1 else [0.0] * 99  # nothing may match
        return {
            "events": events,
            "deliveries": deliveries,
            "seconds": seconds,
            "events_per_s": events / seconds,
            "cpu_us": sum(parts.values()),
            **{f"cpu_us_{name}": used for name, used in parts.items()},
            "latency_ms_p50": percentiles[49] / 1000,
            "latency_ms_p99": percentiles[98] / 1000,
        }

    async def in_force_ms(self, first: int, count: int) -> tuple[float, float]:
        """Median and 99th percentile of the time until one more filter is in force."""
        measured = await self._readers["engine"].ask(AddOneByOne(first, count), Measured, ANSWER_S_MAX)
        percentiles = quantiles(measured.latencies_us, n=100)
        return percentiles[49] / 1000, percentiles[98] / 1000

    def _cpu_s(self) -> Figures:
        """CPU time that the processes of the cluster have used."""
        used: Figures = {"engine": 0.0, "server": 0.0, "agent": 0.0}
        for child in self.cluster.status().processes:
            if child.kind in used and child.pid is not None:
                used[child.kind] += process_cpu_s(child.pid)
        return used


async def measure(options: EngineOptions, note: Callable[[str], None]) -> dict[str, Any]:
    """Runs everything on a new cluster; returns what `shoal bench engine --json` prints."""
    note("starting a cluster of one server, its agent and an engine")
    rows: list[dict[str, Any]] = []
    ratios: Figures = {}
    async with LocalCluster(1, engine=True) as cluster, contextlib.AsyncExitStack() as stack:
        processes = [LoadProcess(name, "shoal.lab.bench.engine_worker", REPORTS) for name in NAMES]
        for process in processes:
            await stack.enter_async_context(process)
        bench = Bench(cluster, *processes)
        if "throughput" in options.parts:
            await _throughput(bench, options, note, rows, ratios)
        if "where" in options.parts:
            await _where(bench, options, note, rows, ratios)
        if "crossing" in options.parts:
            await _crossing(bench, options, note, rows, ratios)
        if "layouts" in options.parts:
            await _layouts(bench, options, note, rows)
    return {
        "name": "engine",
        "workload": describe(options),
        "machine": machine(),
        "rows": rows,
        "ratios": ratios,
        "goals": {name: goal for name, goal in GOALS.items() if name in ratios},
        "missed": [name for name, goal in GOALS.items() if name in ratios and not _holds(ratios[name], goal)],
    }


async def _throughput(
    bench: Bench,
    options: EngineOptions,
    note: Callable[[str], None],
    rows: list[dict[str, Any]],
    ratios: Figures,
) -> None:
    """One reader with all filters, beside one subscriber of a channel: an event has one delivery either way."""
    bench.use_city(options.filters)
    note(f"{options.filters:,} filters come into force")
    ways: tuple[Way, ...] = ("engine", "channel")
    full: dict[Way, list[Figures]] = {way: [] for way in ways}
    half: dict[Way, list[Figures]] = {way: [] for way in ways}
    forced: list[tuple[float, float]] = []
    pairs: list[float] = []
    rate = 0.0
    async with (
        bench.subscribers("engine", options.filters, 1),
        bench.subscribers("channel", 1, 1),
        EngineLayouts.open(bench.cluster, 1) as layouts,
    ):
        await bench.run("engine", options.events // 2, lambda _: 1)  # a warm-up: parts of the index are merged
        for number in range(options.rounds):
            note(f"round {number + 1} of {options.rounds}: throughput and latency")
            for way in _rotated([*ways], number):
                full[way].append(await bench.run(way, options.events, lambda _: 1))
            rate = full["engine"][-1]["events_per_s"] / 2  # what is half of the load changes with other work here
            for part in range(TIMED_PARTS):
                for way in _rotated([*ways], part):
                    half[way].append(await bench.run(way, _at_rate(options, rate), lambda _: 1, rate))
                pairs.append(half["engine"][-1]["latency_ms_p50"] / half["channel"][-1]["latency_ms_p50"])
            forced.append(await bench.in_force_ms(options.filters, options.added))
        load = await _load(layouts)
    rows.append(_timed_row(CONFIGURATION, "throughput", options, full["engine"], half["engine"], rate, load))
    rows.append(_timed_row("channel", "throughput", options, full["channel"], half["channel"], rate))
    ratios["cpu_vs_channel"] = round(_medians(full["engine"])["cpu_us"] / _medians(full["channel"])["cpu_us"], 2)
    ratios["latency_p50_vs_channel"] = round(median(pairs), 2)
    ratios["latency_p50_vs_channel_max"] = round(max(pairs), 2)
    ratios["in_force_ms_p50"] = round(median(p50 for p50, _ in forced), 2)
    ratios["in_force_ms_p99"] = round(median(p99 for _, p99 in forced), 2)


async def _layouts(
    bench: Bench, options: EngineOptions, note: Callable[[str], None], rows: list[dict[str, Any]]
) -> None:
    """The same load with more operators."""
    bench.use_city(options.filters)
    async with EngineLayouts.open(bench.cluster, PROCESSES) as layouts:
        for layout in LAYOUTS:
            note(f"{layout.name}: {options.filters:,} filters come into force")
            full: list[Figures] = []
            half: list[Figures] = []
            rate = 0.0
            async with bench.subscribers("engine", options.filters, 1):
                await layouts.arrange(layout, options.filters)
                await bench.run("engine", options.events // 2, lambda _: 1)
                for number in range(options.rounds):
                    note(f"round {number + 1} of {options.rounds}: {layout.name}")
                    full.append(await bench.run("engine", options.events, lambda _: 1))
                    rate = full[-1]["events_per_s"] / 2
                    half.append(await bench.run("engine", _at_rate(options, rate), lambda _: 1, rate))
                load = await _load(layouts)
            rows.append(_timed_row(layout.name, "layouts", options, full, half, rate, load))


async def _load(layouts: EngineLayouts) -> EngineLoad:
    """The load that the engine reports, soon after events were matched."""
    return (await layouts.report(lambda report: report.load.events_per_s > 0, "a measured load")).load


def _at_rate(options: EngineOptions, rate: float) -> int:
    """How many events a part at half load has."""
    return max(round(rate * options.timed_s), 20)


def _timed_row(
    contender: str,
    part: str,
    options: EngineOptions,
    full: list[Figures],
    half: list[Figures],
    rate: float,
    load: EngineLoad | None = None,
) -> dict[str, Any]:
    """A row with throughput, and latency at half load. With the load that the engine reports, its CPU is divided among
    the operators."""
    figures, timed = _medians(full), _medians(half)
    parts = {name.removeprefix("cpu_us_"): used for name, used in figures.items() if name.startswith("cpu_us_")}
    if load is not None:
        parts |= _by_operator(load, parts["engine"])
    return {
        "contender": contender,
        "part": part,
        "filters": options.filters if load is not None else 0,
        "events_per_s": round(figures["events_per_s"], 1),
        "deliveries_per_event": figures["deliveries"] / figures["events"],
        "matches_per_event": round(_matches_per_event(options), 2) if load is not None else 1.0,
        "cpu_us": round(figures["cpu_us"], 2),
        "cpu_us_per_event": {name: round(used, 2) for name, used in parts.items()},
        "latency_ms_p50": round(timed["latency_ms_p50"], 3),
        "latency_ms_p99": round(timed["latency_ms_p99"], 3),
        "rate_at_half_load": round(rate, 1),
    }


def _by_operator(load: EngineLoad, engine_us: float) -> Figures:
    """The CPU of all processes of the engine for an event, by operator: all matchers together, and so on. Transport is
    what belongs to no operator."""
    used = dict.fromkeys(("access_point", "matcher", "exit_point", "transport"), 0.0)
    for process in load.processes:
        for name, part in zip(used, (process.access, process.matching, process.merging, process.rest), strict=True):
            used[name] += part
    return {name: engine_us * part / sum(used.values()) for name, part in used.items()}


async def _where(
    bench: Bench,
    options: EngineOptions,
    note: Callable[[str], None],
    rows: list[dict[str, Any]],
    ratios: Figures,
) -> None:
    """Many subscribers with a filter each. An event matches 1 to 10 of them."""
    bench.use_city(SUBSCRIBERS)
    wanted = _wanted_by(SUBSCRIBERS, SUBSCRIBERS)
    events: dict[Way, int] = {"engine": max(options.events // 4, 100), "where": max(options.events // 100, 20)}
    runs: dict[Way, list[Figures]] = {way: [] for way in events}
    for number in range(options.rounds):
        for way in _rotated([*events], number):
            note(f"round {number + 1} of {options.rounds}: {SUBSCRIBERS} subscribers, {way}")
            async with bench.subscribers(way, SUBSCRIBERS, SUBSCRIBERS, BUSES):
                await bench.run(way, 20, wanted)
                runs[way].append(await bench.run(way, events[way], wanted))
    for way in events:
        rows.append(_row(way, "where", SUBSCRIBERS, _medians(runs[way])))
    engine, where = (_medians(runs[way]) for way in events)
    ratios["vs_where"] = round(engine["events_per_s"] / where["events_per_s"], 1)
    ratios["vs_where_cpu"] = round(where["cpu_us"] / engine["cpu_us"], 1)


async def _crossing(
    bench: Bench,
    options: EngineOptions,
    note: Callable[[str], None],
    rows: list[dict[str, Any]],
    ratios: Figures,
) -> None:
    """Few subscribers, each with a filter and a bus of its own: from how many on does the engine need less CPU?"""
    bench.use_city(SUBSCRIBERS)
    events = max(options.events // 4, 100)
    ways: tuple[Way, ...] = ("engine", "where")
    cpu: dict[tuple[Way, int], float] = {}
    for count in CROSSING:
        wanted = _wanted_by(SUBSCRIBERS, count)
        runs: dict[Way, list[Figures]] = {way: [] for way in ways}
        for number in range(options.rounds):
            for way in _rotated([*ways], number):
                note(f"round {number + 1} of {options.rounds}: {count} subscribers, {way}")
                async with bench.subscribers(way, count, count, count):
                    runs[way].append(await bench.run(way, events, wanted))
        for way in ways:
            figures = _medians(runs[way])
            rows.append(_row(way, "crossing", count, figures))
            cpu[way, count] = figures["cpu_us"]
    won = [count for count in CROSSING if cpu["engine", count] < cpu["where", count]]
    if won:
        ratios["crossing_subscribers"] = won[0]


def _row(way: Way, part: str, subscribers: int, figures: Figures) -> dict[str, Any]:
    parts = {name.removeprefix("cpu_us_"): used for name, used in figures.items() if name.startswith("cpu_us_")}
    return {
        "contender": CONFIGURATION if way == "engine" else way,
        "part": part,
        "subscribers": subscribers,
        "events_per_s": round(figures["events_per_s"], 1),
        "deliveries_per_event": round(figures["deliveries"] / figures["events"], 3),
        "cpu_us": round(figures["cpu_us"], 2),
        "cpu_us_per_event": {name: round(used, 2) for name, used in parts.items()},
    }


def _wanted_by(filters: int, count: int) -> Callable[[int], int]:
    """How many of the first `count` filters of a city want an event."""
    city = AirQuality(filters)
    return lambda number: sum(one < count for one in city.wanted_by(city.reading(number)))


def _matches_per_event(options: EngineOptions) -> float:
    wanted = _wanted_by(options.filters, options.filters)
    return sum(map(wanted, range(1000))) / 1000


def _rotated(ways: list[Way], number: int) -> Iterator[Way]:
    """The ways, another one first in each round."""
    first = number % len(ways)
    yield from ways[first:] + ways[:first]


def _medians(runs: list[Figures]) -> Figures:
    return {name: median(run[name] for run in runs) for name in runs[0]}


def _holds(value: float, goal: str) -> bool:
    sign, bound = goal.split(" ")
    return value >= float(bound) if sign == ">=" else value <= float(bound)


def describe(options: EngineOptions) -> dict[str, str]:
    """What is measured, in words."""
    return {
        "all": (
            f"events of three attributes with {PAYLOAD_BYTES} byte payloads on one server of a cluster; emitter, "
            "reader, engine, server and agent are processes of their own; every delivery is counted; connections and "
            "the emitter's conversation with the engine have begun before the clock starts; figures are "
            f"medians over {options.rounds} rounds; CPU is user and system time of all these processes, per event"
        ),
        "throughput": (
            f"one reader with {options.filters:,} filters, of which each event matches 1 to 10; beside it one "
            "subscriber of a channel that gets the same events. Latency is that at half the engine's rate of the same "
            f"round, engine and channel in turn in {TIMED_PARTS} parts; the ratio is the median of neighbours' ratios. "
            "CPU of the engine is divided among its operators as its processes report it; transport is the rest"
        ),
        "where": (
            f"{SUBSCRIBERS} subscribers with a filter each on {BUSES} buses; each event matches 1 to 10; bus.match, "
            "and bus.subscribe(channel, where=...)"
        ),
        "crossing": "few subscribers with a filter and a bus each; a filter matches 0.55 % of the events",
        "layouts": (
            f"the load of `throughput` with more operators on {PROCESSES} processes. They share the cores of this "
            "machine with the clients, so two cores do not show a higher rate; esilbops-7 projects it"
        ),
    }
