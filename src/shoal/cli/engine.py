"""`shoal engine run|status|scale`: the matching layers of a cluster.

Owns the process of an engine, from start to SIGTERM, the text of its status, and what an operator asks of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import time
from typing import Final

import msgspec

from shoal import logs
from shoal.bus import connect
from shoal.bus.location import URL_VARIABLE
from shoal.cli.channels import add_url, cluster_url
from shoal.cli.output import HelpFormatter, Subparsers, add_command, result
from shoal.config import Settings
from shoal.engine.director import Wanted
from shoal.engine.engine_report import EngineReport, encode_wanted, read_report, wanted_key
from shoal.engine.messages import MAIN
from shoal.errors import ConfigError, EngineUnavailableError
from shoal.extras import require
from shoal.runtime import PRODUCTION

OPERATORS_MAX: Final = 64
"""Operators of a layer."""
PORT_MAX: Final = 65535
POLL_S: Final = 0.05
CHANGE_S: Final = 60.0


def register(subparsers: Subparsers) -> None:
    """Add the commands."""
    summary = "run the engine that matches events, and show its state"
    parser = subparsers.add_parser(
        "engine",
        help=summary,
        description="Run the engine that brings events to the readers whose filters they match,\nand show its state. "
        "docs/engine.md explains it.",
        epilog="example:\n  shoal engine run\n  shoal engine status --json\n  shoal engine scale 1-3-1",
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    run = add_command(
        commands,
        "run",
        run_run,
        "run an engine until SIGTERM",
        description="Run an engine until SIGTERM. One engine of a cluster serves; the others stand by, and one of them "
        "takes over when its lease ends. `shoal up --engine` runs one.",
        example="shoal engine run\nSHOAL_URL=shoal://engine:PASSWORD@10.0.0.1:7400 shoal engine run",
    )
    run.add_argument(
        "--metrics-port", type=int, metavar="PORT", help="serve metrics on this port (default: none)", default=0
    )
    add_url(run)
    status = add_command(
        commands, "status", run_status, "show the engine that serves", example="shoal engine status --json"
    )
    add_url(status)
    scale = add_command(
        commands,
        "scale",
        run_scale,
        "change the number of matchers and exit points",
        description="Change the number of matchers and exit points while the engine runs, and wait until it is done. "
        "Each operator of a layer is in another process; a cluster of `shoal up` starts them, elsewhere run "
        "`shoal engine run` often enough first. Events and filters go on meanwhile; when the number of exit points "
        "changes, deliveries pause for about a second.",
        example="shoal engine scale 1-3-1\nshoal engine scale 1-2-1 --without engine-4711-9f1c2a33",
    )
    add_url(scale)
    scale.add_argument("configuration", help="access points, matchers and exit points: 1-3-1")
    scale.add_argument(
        "--without", action="append", default=[], metavar="NAME", help="a process that is to have no operator"
    )
    scale.add_argument(
        "--timeout", type=float, default=CHANGE_S, metavar="SECONDS", help="wait so long for the change (default: 60)"
    )


def run_run(args: argparse.Namespace) -> int:
    """Run an engine."""
    require("shoal engine run", "numpy", "numba", "pyarrow")
    if args.setting_sources["log_level"] == "default":  # a long-running process logs its work
        logs.configure(level="info", format=args.settings.log_format)
    if not 0 <= args.metrics_port <= PORT_MAX:
        raise ConfigError(f"--metrics-port is {args.metrics_port}", do="give a port, or 0 for none")
    url = cluster_url(args.url, args.settings, role="engine")
    with contextlib.ExitStack() as stack:
        if args.metrics_port:
            from shoal.metrics import MetricsPage

            stack.enter_context(MetricsPage(args.metrics_port, host=args.settings.metrics_host))
        asyncio.run(_serve(url, args.settings))
    return 0


async def _serve(url: str, settings: Settings) -> None:
    from shoal.engine import engine_metrics, filter_numbers, seat_groups
    from shoal.engine.shell import EngineShell
    from shoal.filters.index.warm_up import warm_up

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(warm_up)
    await asyncio.to_thread(seat_groups.warm_up)
    await asyncio.to_thread(filter_numbers.warm_up)
    limits = settings.limits
    async with (
        connect(url, limits=limits, name="engine") as bus,
        await PRODUCTION.coordinator(url, limits.server_lease_s / 2) as coordinator,
    ):
        holder = f"engine-{os.getpid()}-{PRODUCTION.random.getrandbits(32):08x}"
        shell = EngineShell("main", bus, coordinator, holder, limits)
        engine_metrics.show(lambda: shell.status)
        task = asyncio.create_task(shell.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task


def run_status(args: argparse.Namespace) -> int:
    """Show what the engine that serves has written down."""
    return asyncio.run(_show(args))


async def _show(args: argparse.Namespace) -> int:
    url = cluster_url(args.url, args.settings, role="admin")
    async with await PRODUCTION.coordinator(url, args.settings.limits.connect_timeout_s) as coordinator:
        report = await read_report(coordinator, MAIN)
    facts = {"engine": MAIN, "serving": report is not None}
    facts |= msgspec.to_builtins(report if report is not None else EngineReport())
    result(
        args,
        facts,
        "no engine serves: run `shoal up --engine`, or `shoal engine run`" if report is None else _text(report),
    )
    return 0 if report is not None else 1


def _text(report: EngineReport) -> str:
    lines = [
        f"engine main, instance {report.instance}, configuration {report.configuration} ({report.phase})",
        f"{report.clients} clients with {report.filters} filters, {report.in_flight} events in flight",
        f"{report.events} events matched, {report.deliveries} deliveries",
    ]
    for member in report.members:
        roles = ["access point"] if member.name == report.head else []
        roles += [f"matcher of {member.filters} filters"] if member.name in report.matchers else []
        roles += ["exit point"] if member.name in report.exits else []
        lines.append(f"  {member.name}: {', '.join(roles) or 'stands by'}, {member.cpu_s:.1f} s of CPU")
    lines += [f"  change given up {count} times: {why}" for why, count in report.given_up.items()]
    return "\n".join(lines)


def run_scale(args: argparse.Namespace) -> int:
    """Change the number of matchers and exit points."""
    return asyncio.run(_scale(args))


async def _scale(args: argparse.Namespace) -> int:
    matchers, exits = _layers(args.configuration)
    url = cluster_url(args.url, args.settings, role="admin")
    began = time.monotonic()
    async with await PRODUCTION.coordinator(url, args.settings.limits.connect_timeout_s) as coordinator:
        report = await read_report(coordinator, MAIN)
        if report is None:
            raise EngineUnavailableError("no engine serves", do="run `shoal up --engine`, or `shoal engine run`")
        local = await _start_missing(args, report, max(matchers, exits))
        deadline = began + args.timeout
        wants = max(matchers, exits) + len(args.without)
        while local and len(report.members) < wants and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)
            report = await read_report(coordinator, MAIN) or report
        _check_members(report, max(matchers, exits), args.without)
        wanted = Wanted(matchers, exits, tuple(args.without))
        await coordinator.put(wanted_key(MAIN), encode_wanted(wanted))
        while True:
            await asyncio.sleep(POLL_S)
            now = await read_report(coordinator, MAIN)
            if now is not None:
                report = now
                done = now.configuration == args.configuration and not set(args.without) & {*now.matchers, *now.exits}
                if done and now.phase == "idle":
                    break
            if time.monotonic() - began > args.timeout:
                done = False
                break
    facts = {"configuration": report.configuration, "wanted": args.configuration, "done": done}
    facts |= {"matchers": report.matchers, "exits": report.exits, "given_up": report.given_up}
    facts |= {"last_change_s": round(report.last_change_s, 3), "seconds": round(time.monotonic() - began, 3)}
    text = f"configuration {report.configuration}, the change took {report.last_change_s:.2f} s"
    if not done:
        text = f"after {args.timeout:g} s the configuration is {report.configuration}: see `shoal engine status`"
    result(args, facts, text)
    return 0 if done else 1


def _layers(text: str) -> tuple[int, int]:
    """Matchers and exit points of a configuration such as `1-3-1`."""
    parts = text.split("-")
    if len(parts) != 3 or not all(part.isdecimal() and 1 <= int(part) <= OPERATORS_MAX for part in parts):
        raise ConfigError(
            f"{text!r} is not a configuration",
            do=f"give the numbers of access points, matchers and exit points, each 1 to {OPERATORS_MAX}: 1-3-1",
        )
    points, matchers, exits = map(int, parts)
    if points != 1:
        raise ConfigError("an engine has one access point", do=f"ask for 1-{matchers}-{exits}")
    return matchers, exits


async def _start_missing(args: argparse.Namespace, report: EngineReport, count: int) -> bool:
    """Starts processes if the engine has too few and is of a local cluster; returns whether it is."""
    local = not (args.url or os.environ.get(URL_VARIABLE) or args.settings.coordinator)
    if local and count + len(args.without) > len(report.members):
        from shoal.cluster.control_socket import request
        from shoal.cluster.state import StateDir

        directory = StateDir(args.settings.state_path)
        await asyncio.to_thread(request, directory, "engines", count=count + len(args.without))
    return local


def _check_members(report: EngineReport, count: int, without: list[str]) -> None:
    names = [member.name for member in report.members]
    unknown = [name for name in without if name not in names]
    if unknown:
        raise ConfigError(f"the engine has no process {unknown[0]!r}", do=f"choose among {', '.join(sorted(names))}")
    left = len(names) - len(set(without))
    if left < count:
        raise EngineUnavailableError(
            f"the engine has {left} processes for {count} operators of a layer",
            do=f"run `shoal engine run` {count - left} more times, on any machine",
        )
