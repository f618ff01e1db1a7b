"""`shoal engine plan`: what the planner sees of an engine, what it would do, and why.

Owns the command and its output. It repeats what the balancer does in each round, with the settings of this command;
nothing is changed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shoal.bus.location import URL_VARIABLE
from shoal.cli.channels import add_url, cluster_url
from shoal.cli.output import Subparsers, add_command, ms_text, result
from shoal.engine.engine_report import decode_wanted, read_report, wanted_key
from shoal.engine.messages import MAIN
from shoal.errors import EngineUnavailableError
from shoal.runtime import PRODUCTION

if TYPE_CHECKING:
    from shoal.balance.engine_entry import EngineEntry
    from shoal.balance.engine_planner import Advice
    from shoal.balance.settings import BalanceSettings

NO_ENGINE: Final = "no engine serves"
START: Final = (
    "in a cluster of `shoal up` the first `shoal emit` or `shoal match` starts it, and `shoal up --engine` at once; "
    "elsewhere run `shoal engine run`"
)


def register_plan(commands: Subparsers) -> None:
    """Add the command to `shoal engine`."""
    plan = add_command(
        commands,
        "plan",
        run_plan,
        "show the load of the engine, and which numbers of operators it needs",
        description="Show the load of the engine's processes, how long events wait, what to expect of other numbers "
        "of operators, and what the planner would do. This changes nothing: a balancer with --auto does.",
        example="shoal engine plan\nshoal engine plan --json",
    )
    add_url(plan)


def run_plan(args: argparse.Namespace) -> int:
    """Show what the planner sees and would do."""
    from shoal.balance.engine_planner import advise

    entry = asyncio.run(_read(args))
    settings: BalanceSettings = args.settings.balance
    advice = advise(entry, settings)
    expected = _expected(entry, advice)
    facts: dict[str, Any] = {
        "engine": MAIN,
        "configuration": entry.layers.text,
        "phase": entry.phase,
        "wanted": None if entry.wanted is None else entry.wanted.text,
        "pinned": entry.is_pinned,
        "after": advice.after.text,
        "ideal": None if advice.ideal is None else advice.ideal.text,
        "missing": advice.missing,
        "startable": entry.startable,
        "reason": advice.reason,
        "figures": advice.figures,
        "expected": expected,
        "load": msgspec.to_builtins(entry.load),
        "target_ms": settings.engine_latency_ms,
        "operators_max": settings.engine_operators_max,
    }
    result(args, facts, _text(entry, advice, expected, settings))
    return 0


async def _read(args: argparse.Namespace) -> EngineEntry:
    from shoal.leader.engine_units import engine_entry

    url = cluster_url(args.url, args.settings, role="admin")
    async with await PRODUCTION.coordinator(url, args.settings.limits.connect_timeout_s) as coordinator:
        report = await read_report(coordinator, MAIN)
        if report is None:
            raise EngineUnavailableError(NO_ENGINE, do=START)
        stored = await coordinator.get(wanted_key(MAIN))
    wanted, version = (None, 0) if stored is None else (decode_wanted(stored.value), stored.version)
    return engine_entry(MAIN, report, wanted, version, _processes_max() if is_local(args) else 0)


def is_local(args: argparse.Namespace) -> bool:
    """Whether the engine is that of a local cluster, whose supervisor can start processes."""
    return not (args.url or os.environ.get(URL_VARIABLE) or args.settings.coordinator)


def _processes_max() -> int:
    from shoal.cluster.parts import engine_processes_max

    return engine_processes_max()


def _expected(entry: EngineEntry, advice: Advice) -> list[dict[str, Any]]:
    """What the model expects of the present configuration, of those beside it, and of the one that is wanted."""
    from shoal.balance.engine_model import model_of

    if not entry.load.window_s:
        return []
    model, layers = model_of(entry), entry.layers
    beside = [layers._replace(matchers=layers.matchers + step) for step in (-1, 1)]
    beside += [layers._replace(exits=layers.exits + step) for step in (-1, 1)]
    shown = {layers, advice.after, advice.ideal or layers, *(one for one in beside if min(one) > 0)}
    return [
        {"configuration": one.text, "busy": round(found.busy, 4), "wait_ms_p99": round(found.wait_ms_p99, 3)}
        for one, found in sorted((one, model.expect(one)) for one in shown)
    ]


def _text(entry: EngineEntry, advice: Advice, expected: list[dict[str, Any]], settings: BalanceSettings) -> str:
    load = entry.load
    chosen = "pinned by an operator" if entry.is_pinned else "left to the planner"
    lines = [
        f"engine main: {entry.layers.text} ({entry.phase}) with {len(load.processes)} processes, {chosen}",
        f"{load.events_per_s:.0f} events/s, {load.deliveries_per_s:.0f} deliveries/s, "
        f"{load.changes_per_s:.0f} changes of filters/s",
        f"events wait {ms_text(load.wait_ms_p50)} (p50), {ms_text(load.wait_ms_p99)} (p99); target "
        f"{ms_text(settings.engine_latency_ms)}",
    ]
    for process in load.processes:
        lines.append(
            f"  {process.name}: {process.cpu:.2f} cores\n"
            f"    access {process.access:.2f}, matching {process.matching:.2f}, merging {process.merging:.2f}, "
            f"rest {process.rest:.2f}; slowed down {process.slowdown:.2g} times"
        )
    lines += [
        f"  {one['configuration']}: busiest process {one['busy']:.0%}, events wait {ms_text(one['wait_ms_p99'])} (p99)"
        for one in expected
    ]
    if advice.after != entry.layers:
        lines.append(f"wanted: {advice.after.text}, because {advice.reason}")
    else:
        lines.append(f"no change: {advice.reason}")
    if advice.ideal is not None:
        do = "a balancer starts them" if entry.startable else "run `shoal engine run` as often"
        lines.append(f"{advice.ideal.text} would be better; processes missing: {advice.missing} ({do})")
    return "\n".join(lines)
