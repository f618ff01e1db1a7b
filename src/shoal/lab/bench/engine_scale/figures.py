"""esilbops-7 to esilbops-12: figures 7 to 12 of the E-SilboPS paper, from one series of measurements.

Owns headline, claims, tables and drawings. Solid lines are measured, dashed lines are projections: configurations that
this machine has no cores for, from the CPU of each operator (`projection`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from shoal.filters.index.warm_up import warm_up
from shoal.lab.bench.engine_scale.load import AIR, HARD, NAMES
from shoal.lab.bench.engine_scale.projection import (
    MATCHERS,
    PAPER,
    CpuByOperator,
    Layers,
    efficiency,
    karp_flatt,
    slices,
    speed_up,
    text_of,
    throughput,
)
from shoal.lab.bench.engine_scale.throughput import LAYOUTS, LoadResult, Point, measure
from shoal.lab.experiments import ExperimentOptions
from shoal.lab.experiments.result import Drawing, ExperimentResult, Line, Panel, Table
from shoal.lab.machine import machine

TITLE: Final = "E-SilboPS, figures 7 to 12"
SIZES: Final = (1_000, 10_000, 100_000, 1_000_000)
QUICK_SIZES: Final = (1_000, 10_000)
ROUNDS: Final = 3
PAPER_EVENTS_PER_S: Final = 300
"""The paper's 1-1-1 with a million subscriptions, read from figure 7."""
PAPER_SPEED_UP_162: Final = 3.4
AIR_VS_CHANNEL_MIN: Final = 0.2
HARD_VS_INDEX_MIN: Final = 0.55
MATCHER_CPU_MAX: Final = 0.6
BYTES_MAX: Final = 250.0
PROJECTED: Final = "projected"
FIRST: Final = 7


def figure(number: int) -> Callable[[ExperimentOptions], ExperimentResult]:
    """The experiment of one figure. All measure the same; figure 7 brings the drawings of all."""

    def run(options: ExperimentOptions) -> ExperimentResult:
        warm_up()
        sizes = options.filters or (QUICK_SIZES if options.quick else SIZES)
        rounds = 1 if options.quick else ROUNDS
        found = {name: asyncio.run(measure(name, sizes, rounds, options.note)) for name in NAMES}
        return result(number, found, sizes)

    return run


def result(number: int, found: dict[str, LoadResult], sizes: tuple[int, ...]) -> ExperimentResult:
    """The result, from what was measured."""
    most = sizes[-1]
    cpu = {(name, size): loaded.cpu(size) for name, loaded in found.items() for size in sizes}
    points = {(one.load, one.filters, one.layout): one for loaded in found.values() for one in loaded.points}
    headline = _headline(found, points, cpu, most)
    drawings = _drawings(points, cpu, sizes)
    return ExperimentResult(
        name=f"esilbops-{number}",
        paper=TITLE,
        parameters={"filters": list(sizes), "loads": list(NAMES), "machine": machine()},
        series={
            "measured": [_facts(one) for loaded in found.values() for one in loaded.points],
            PROJECTED: [_projected_facts(*key, layers, one) for key, one in cpu.items() for layers in PAPER],
            "cpu_us_by_operator": {
                f"{name}, {size} filters": {
                    "access_point": one.access_point,
                    "matcher": {f"1-{count}-x": cost for count, cost in one.matcher.items()},
                    "exit_point": {text_of(layers): cost for layers, cost in one.exit_point.items()},
                    "processes_121": found[name].processes[size],
                }
                for (name, size), one in cpu.items()
            },
        },
        headline=headline,
        tables=[_measured_table(points), _projected_table(cpu, most)],
        drawings=[one for one in drawings if number == FIRST or one.name.startswith(f"esilbops-{number}-")],
        paragraph=_paragraph(headline, most),
        claims=_claims(headline, most),
    )


def _headline(
    found: dict[str, LoadResult],
    points: dict[tuple[str, int, str], Point],
    cpu: dict[tuple[str, int], CpuByOperator],
    most: int,
) -> dict[str, Any]:
    air, hard = points[AIR, most, "1-1-1"], points[HARD, most, "1-1-1"]
    two = points[HARD, most, "1-2-1"]
    matcher = cpu[HARD, most].matcher
    tag = _short(most)
    return {
        f"air_vs_channel_{tag}": round(air.engine.events_per_s / air.other_per_s, 3),
        f"air_cpu_vs_channel_{tag}": round(air.engine.all_us / air.other_us, 2),
        f"hard_vs_index_{tag}": round(hard.engine.events_per_s / hard.other_per_s, 3),
        f"hard_index_cpu_of_engine_{tag}": round(hard.other_us / hard.engine.engine_us, 3),
        "matcher_cpu_121_vs_111": round(matcher[2] / matcher[1], 3),
        "bytes_per_subscription": round(found[HARD].bytes_per_filter, 1),
        "bytes_per_subscription_air": round(found[AIR].bytes_per_filter, 1),
        f"air_events_per_s_{tag}_111": round(air.engine.events_per_s),
        f"hard_events_per_s_{tag}_111": round(hard.engine.events_per_s),
        "paper_events_per_s_1M_111": PAPER_EVENTS_PER_S,
        f"hard_matches_per_event_{tag}": round(hard.matches, 1),
        f"air_matches_per_event_{tag}": round(air.matches, 1),
        f"speedup_hard_{tag}_121": round(two.engine.events_per_s / hard.engine.events_per_s, 2),
        f"projected_speedup_{tag}_162": round(speed_up(cpu[HARD, most], (6, 2)), 2),
        "paper_speedup_1M_162": PAPER_SPEED_UP_162,
        "gaps": sum(one.gaps for one in found.values()),
    }


def _claims(headline: dict[str, Any], most: int) -> dict[str, bool]:
    claims = {"nothing is missing": headline["gaps"] == 0}
    if most != SIZES[-1]:  # the goals are about a million filters
        return claims
    return claims | {
        f"air: at least {AIR_VS_CHANNEL_MIN} of the rate of channels": headline["air_vs_channel_1M"]
        >= AIR_VS_CHANNEL_MIN,
        f"hard: at least {HARD_VS_INDEX_MIN} of the rate of the bare index": headline["hard_vs_index_1M"]
        >= HARD_VS_INDEX_MIN,
        f"one of two matchers needs at most {MATCHER_CPU_MAX} of the CPU of one alone": headline[
            "matcher_cpu_121_vs_111"
        ]
        <= MATCHER_CPU_MAX,
        f"a filter takes at most {BYTES_MAX:.0f} bytes": headline["bytes_per_subscription"] <= BYTES_MAX,
    }


def _short(size: int) -> str:
    return f"{size / 1_000_000:g}M" if size >= 1_000_000 else f"{size / 1000:g}k"


# Facts and tables


def _facts(one: Point) -> dict[str, Any]:
    return {
        "load": one.load,
        "filters": one.filters,
        "configuration": one.layout,
        "kind": "real",
        "events_per_s": one.engine.events_per_s,
        "matches_per_event": one.matches,
        "deliveries_per_event": one.deliveries,
        "engine_cpu_us_per_event": one.engine.engine_us,
        "all_cpu_us_per_event": one.engine.all_us,
        "compared_with": "channel" if one.load == AIR else "bare index",
        "other_per_s": one.other_per_s,
        "other_cpu_us": one.other_us,
    }


def _projected_facts(load: str, filters: int, layers: Layers, cpu: CpuByOperator) -> dict[str, Any]:
    return {
        "load": load,
        "filters": filters,
        "configuration": text_of(layers),
        "kind": PROJECTED,
        "events_per_s": throughput(cpu, layers),
        "bottleneck": cpu.bottleneck(layers),
        "slices": slices(layers),
        "speed_up": speed_up(cpu, layers),
        "efficiency": efficiency(cpu, layers),
        "karp_flatt": karp_flatt(cpu, layers) if slices(layers) > 1 else None,
    }


def _measured_table(points: dict[tuple[str, int, str], Point]) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            one.load,
            _short(one.filters),
            one.layout,
            f"{one.engine.events_per_s:,.0f}",
            f"{one.matches:,.1f}",
            f"{one.engine.engine_us:,.1f}",
            f"{one.engine.events_per_s / one.other_per_s:.2f} of {'channel' if one.load == AIR else 'index'}",
        )
        for one in points.values()
    ]
    headings = ("load", "filters", "configuration", "events/s", "matches", "engine\nus/event", "compared")
    return Table("measured on this machine", headings, rows)


def _projected_table(cpu: dict[tuple[str, int], CpuByOperator], most: int) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            load,
            text_of(layers),
            f"{throughput(one, layers):,.0f}",
            f"{speed_up(one, layers):.2f}",
            f"{efficiency(one, layers):.2f}",
            one.bottleneck(layers),
        )
        for (load, size), one in cpu.items()
        if size == most
        for layers in PAPER
    ]
    headings = ("load", "configuration", "events/s", "speed-up", "efficiency", "busiest")
    return Table(f"PROJECTED, a core for each operator, {most:,} filters", headings, rows)


def _paragraph(headline: dict[str, Any], most: int) -> str:
    tag = _short(most)
    air, hard = (f"{headline[f'{name}_events_per_s_{tag}_111']:,}" for name in (AIR, HARD))
    return (
        f"With {most:,} filters, 1-1-1 matches {air} events/s of the city "
        f"({headline[f'air_matches_per_event_{tag}']} matches each) and {hard} of the hard load "
        f"({headline[f'hard_matches_per_event_{tag}']} matches each); the paper's 1-1-1 with a million "
        f"matches about {PAPER_EVENTS_PER_S}. The projected speed-up of 1-6-2 is "
        f"{headline[f'projected_speedup_{tag}_162']}; the paper's with a million is {PAPER_SPEED_UP_162}. "
        "Projections have a core for each operator, and nothing else that limits them."
    )


# Drawings


def _drawings(
    points: dict[tuple[str, int, str], Point], cpu: dict[tuple[str, int], CpuByOperator], sizes: tuple[int, ...]
) -> list[Drawing]:
    by_load = {name: {size: cpu[name, size] for size in sizes} for name in NAMES}
    drawings = []
    for name, sized in by_load.items():
        drawings += [
            Drawing(f"esilbops-7-{name}", _figure_7(name, points, sized)),
            Drawing(f"esilbops-8-{name}", _figure_8(name, sized)),
            Drawing(f"esilbops-9-{name}", _by_matchers(name, sized, "9: speed-up", "speed-up", speed_up, (1, 2))),
            Drawing(f"esilbops-10-{name}", _by_matchers(name, sized, "10: speed-up", "speed-up", speed_up, (2,))),
            Drawing(f"esilbops-11-{name}", _figure_11(name, sized)),
            Drawing(
                f"esilbops-12-{name}",
                _by_matchers(name, sized, "12: serial part and overhead", "Karp-Flatt e", karp_flatt, (1, 2), first=2),
            ),
        ]
    return drawings


def _figure_7(name: str, points: dict[tuple[str, int, str], Point], sized: dict[int, CpuByOperator]) -> list[Panel]:
    xs = [float(size) for size in sized]
    measured = [
        Line(layout.name, xs, [points[name, size, layout.name].engine.events_per_s for size in sized])
        for layout in LAYOUTS
        if not layout.alone
    ]
    compared = "channels, same deliveries" if name == AIR else "bare index"
    measured.append(Line(compared, xs, [points[name, size, "1-1-1"].other_per_s for size in sized]))
    panels = [Panel(f"7: {name}, measured on this machine", "filters", "events/s", measured, log=(True, True))]
    for exits in (1, 2):
        lines = [
            Line(
                f"{text_of((matchers, exits))}, {PROJECTED}",
                xs,
                [throughput(one, (matchers, exits)) for one in sized.values()],
                dashed=True,
            )
            for matchers in MATCHERS
            if (matchers, exits) in PAPER
        ]
        title = f"7: {name}, {PROJECTED}: a core for each operator, 1-x-{exits}"
        panels.append(Panel(title, "filters", "events/s", lines, log=(True, True)))
    return panels


def _figure_8(name: str, sized: dict[int, CpuByOperator]) -> list[Panel]:
    xs = [float(size) for size in sized]
    return [
        Panel(
            f"8: {name}, 1-{matchers}-2 over 1-{matchers}-1, {PROJECTED}",
            "filters",
            "speed-up",
            [
                Line(
                    f"1-{matchers}-{exits}, {PROJECTED}",
                    xs,
                    [speed_up(one, (matchers, exits)) for one in sized.values()],
                    dashed=True,
                )
                for exits in (2, 1)
            ],
            log=(True, False),
        )
        for matchers in MATCHERS[1:]
    ]


def _by_matchers(
    name: str,
    sized: dict[int, CpuByOperator],
    title: str,
    y_label: str,
    value: Callable[[CpuByOperator, Layers], float],
    exits: tuple[int, ...],
    first: int = 1,
) -> list[Panel]:
    panels = []
    for each in exits:
        layers = [(matchers, each) for matchers in MATCHERS if matchers >= first and (matchers, each) in PAPER]
        lines = [
            Line(
                f"{_short(size)} filters, {PROJECTED}",
                [float(one[0]) for one in layers],
                [value(cpu, one) for one in layers],
                dashed=True,
            )
            for size, cpu in sized.items()
        ]
        panels.append(Panel(f"{title} of 1-x-{each}, {name}, {PROJECTED}", "matchers", y_label, lines, below_zero=True))
    return panels


def _figure_11(name: str, sized: dict[int, CpuByOperator]) -> list[Panel]:
    """By slices: configurations with as many slices stand above each other."""
    panels = []
    for size, cpu in sized.items():
        lines = []
        for exits in (1, 2):
            layers = [one for one in PAPER if one[1] == exits]
            xs = [float(slices(one)) for one in layers]
            ys = [efficiency(cpu, one) for one in layers]
            lines.append(Line(f"1-x-{exits}, {PROJECTED}", xs, ys, dashed=True))
        panels.append(
            Panel(f"11: efficiency, {name}, {_short(size)} filters, {PROJECTED}", "slices", "efficiency", lines)
        )
    return panels
