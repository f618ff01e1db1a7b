"""`shoal engine run|status|scale|plan`: the matching layers of a cluster.

Owns the process of an engine, from start to SIGTERM, the text of its status, and what an operator asks of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import time
from typing import Final

import msgspec

from shoal import logs
from shoal.bus import connect
from shoal.cli.channels import add_url, cluster_url
from shoal.cli.engine_plan import NO_ENGINE, START, is_local, register_plan
from shoal.cli.numbers import positive
from shoal.cli.output import HelpFormatter, Subparsers, add_command, plural, result
from shoal.config import Settings
from shoal.engine.director import Wanted
from shoal.engine.engine_report import EngineReport, encode_wanted, read_report, wanted_key
from shoal.engine.messages import LANES, MAIN
from shoal.errors import ConfigError, EngineUnavailableError
from shoal.extras import require
from shoal.runtime import PRODUCTION

OPERATORS_MAX: Final = 64
"""Operators of a layer."""
PORT_MAX: Final = 65535
NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Names of processes. They are a part of the names of channels."""
AUTO: Final = "auto"
POLL_S: Final = 0.05
CHANGE_S: Final = 60.0


def register(subparsers: Subparsers) -> None:
    """Add the commands."""
    summary = "run the engine that matches events, and show its state"
    parser = subparsers.add_parser(
        "engine",
        help=summary,
        description="Run the engine that delivers events to the readers whose filters they match,\nand show its state. "
        "docs/engine.md explains it.",
        epilog="example:\n  shoal engine run\n  shoal engine status --json\n  shoal engine scale 1-3-1\n"
        "  shoal engine plan",
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
    run.add_argument("--name", metavar="NAME", help="name of the process (default: from its id)", default="")
    add_url(run)
    status = add_command(
        commands, "status", run_status, "show the engine that serves", example="shoal engine status --json"
    )
    add_url(status)
    scale = add_command(
        commands,
        "scale",
        run_scale,
        "change the number of access points, matchers and exit points",
        description="Change the number of access points, matchers and exit points, in any combination, while the "
        "engine runs, and wait until it is done. Each operator of a layer runs in another process; a cluster of "
        "`shoal up` starts these processes, elsewhere start them first with `shoal engine run`. Events and filters "
        "keep working meanwhile. The balancer does not change these numbers until --auto releases them; then it "
        "changes them with the load.",
        example="shoal engine scale 1-3-1\nshoal engine scale 2-2-2 --without engine-4711-9f1c2a33\n"
        "shoal engine scale --auto",
    )
    add_url(scale)
    scale.add_argument(
        "configuration", nargs="?", default="", help="access points, matchers and exit points: 1-3-1; or auto"
    )
    scale.add_argument(
        "--auto", action="store_true", help="let the balancer choose the numbers, starting from the current ones"
    )
    scale.add_argument("--without", action="append", default=[], metavar="NAME", help="a process that gets no operator")
    scale.add_argument(
        "--timeout",
        type=positive,
        default=CHANGE_S,
        metavar="SECONDS",
        help="how long to wait for the change (default: 60)",
    )
    register_plan(commands)


def run_run(args: argparse.Namespace) -> int:
    """Run an engine."""
    require("shoal engine run", "numpy", "numba", "pyarrow")
    if args.setting_sources["log_level"] == "default":  # a long-running process logs its work
        logs.configure(level="info", format=args.settings.log_format)
    if not 0 <= args.metrics_port <= PORT_MAX:
        raise ConfigError(f"--metrics-port is {args.metrics_port}", do="give a port, or 0 for none")
    if args.name and NAME.fullmatch(args.name) is None:
        raise ConfigError(f"--name is {args.name!r}", do="use 1 to 64 letters, digits, '_', '.' or '-'")
    url = cluster_url(args.url, args.settings, role="engine")
    with contextlib.ExitStack() as stack:
        if args.metrics_port:
            from shoal.metrics import MetricsPage

            stack.enter_context(MetricsPage(args.metrics_port, host=args.settings.metrics_host))
        asyncio.run(_serve(url, args.settings, args.name or f"engine-{os.getpid()}"))
    return 0


async def _serve(url: str, settings: Settings, name: str) -> None:
    from shoal.engine import engine_metrics
    from shoal.engine.freed_memory import TidyThreads, give_back_large_blocks
    from shoal.engine.shell import EngineShell
    from shoal.engine.start_notice import while_announced
    from shoal.engine.warm_up import warm_up

    loop = asyncio.get_running_loop()
    give_back_large_blocks()
    limits = settings.limits
    async with (
        connect(url, limits=limits, name="engine") as bus,
        await PRODUCTION.coordinator(url, limits.server_lease_s / 2) as coordinator,
    ):
        await while_announced(bus, asyncio.to_thread(warm_up))
        holder = f"{name}-{PRODUCTION.random.getrandbits(32):08x}"  # another one for each incarnation
        shell = EngineShell(
            *("main", bus, coordinator, holder, limits),
            cpu_s=time.process_time,
            thread_s=time.thread_time,
            background=TidyThreads(),
        )
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
        f"{NO_ENGINE}: {START}" if report is None else _text(report),
    )
    return 0 if report is not None else 1


def _text(report: EngineReport) -> str:
    lines = [
        f"engine main, instance {report.instance}, configuration {report.configuration} ({report.phase})",
        f"{plural(report.clients, 'client')} with {plural(report.filters, 'filter')}, "
        f"{plural(report.in_flight, 'event')} in flight",
        f"{plural(report.events, 'event')} matched, "
        + (f"{report.deliveries} deliveries" if report.deliveries != 1 else "1 delivery"),
    ]
    for member in report.members:
        roles = ["head"] if member.name == report.head else []
        roles += ["access point"] if member.name in report.access_points else []
        roles += [f"matcher of {plural(member.filters, 'filter')}"] if member.name in report.matchers else []
        roles += ["exit point"] if member.name in report.exits else []
        lines.append(f"  {member.name}: {', '.join(roles) or 'stands by'}, {member.cpu_s:.1f} s of CPU")
    lines += [f"  change given up {count} times: {why}" for why, count in report.given_up.items()]
    return "\n".join(lines)


def run_scale(args: argparse.Namespace) -> int:
    """Change the numbers of operators, or let the balancer choose them."""
    if args.auto or args.configuration == AUTO:
        if args.configuration not in ("", AUTO):
            raise ConfigError(f"{args.configuration} and --auto contradict each other", do="give one of them")
        return asyncio.run(_release(args))
    return asyncio.run(_scale(args))


async def _release(args: argparse.Namespace) -> int:
    """Leaves the numbers to the planner; it begins with those in force."""
    url = cluster_url(args.url, args.settings, role="admin")
    async with await PRODUCTION.coordinator(url, args.settings.limits.connect_timeout_s) as coordinator:
        report = await read_report(coordinator, MAIN)
        if report is None:
            raise EngineUnavailableError(NO_ENGINE, do=START)
        _check_members(report, 1, args.without)
        points, matchers, exits = len(report.access_points), len(report.matchers), len(report.exits)
        wanted = Wanted(matchers, exits, tuple(args.without), points, AUTO)
        await coordinator.put(wanted_key(MAIN), encode_wanted(wanted))
    facts = {"configuration": report.configuration, "pinned": False}
    result(args, facts, f"configuration {report.configuration}; a balancer with --auto changes it with the load")
    return 0


async def _scale(args: argparse.Namespace) -> int:
    layers = _layers(args.configuration)
    most = max(layers)
    url = cluster_url(args.url, args.settings, role="admin")
    began = time.monotonic()
    async with await PRODUCTION.coordinator(url, args.settings.limits.connect_timeout_s) as coordinator:
        report = await read_report(coordinator, MAIN)
        if report is None:
            raise EngineUnavailableError(NO_ENGINE, do=START)
        _check_names(report, args.without)
        local = await _start_missing(args, report, most)
        deadline = began + args.timeout
        wants = most + len(args.without)
        while local and len(report.members) < wants and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)
            report = await read_report(coordinator, MAIN) or report
        _check_members(report, most, args.without)
        points, matchers, exits = layers
        wanted = Wanted(matchers, exits, tuple(args.without), points)
        await coordinator.put(wanted_key(MAIN), encode_wanted(wanted))
        while True:
            await asyncio.sleep(POLL_S)
            now = await read_report(coordinator, MAIN)
            if now is not None:
                report = now
                used = {*now.access_points, *now.matchers, *now.exits}
                done = now.configuration == args.configuration and not set(args.without) & used
                if done and now.phase == "idle":
                    break
            if time.monotonic() - began > args.timeout:
                done = False
                break
    facts = {"configuration": report.configuration, "wanted": args.configuration, "done": done}
    facts |= {"access_points": report.access_points, "matchers": report.matchers, "exits": report.exits}
    facts |= {"given_up": report.given_up}
    facts |= {"last_change_s": round(report.last_change_s, 3), "seconds": round(time.monotonic() - began, 3)}
    text = f"configuration {report.configuration}, the change took {report.last_change_s:.2f} s"
    if not done:
        text = f"after {args.timeout:g} s the configuration is {report.configuration}: see `shoal engine status`"
    result(args, facts, text)
    return 0 if done else 1


def _layers(text: str) -> tuple[int, int, int]:
    """Access points, matchers and exit points of a configuration such as `1-3-1`."""
    parts = text.split("-")
    if len(parts) != 3 or any(part not in map(str, range(1, OPERATORS_MAX + 1)) for part in parts):
        raise ConfigError(
            f"{text!r} is not a configuration",
            do=f"give access points, matchers and exit points, each 1 to {OPERATORS_MAX}: 1-3-1; or `auto`",
        )
    points, matchers, exits = map(int, parts)
    if points > LANES:
        raise ConfigError(f"{points} access points are too many: clients have {LANES} lanes", do=f"give 1 to {LANES}")
    return points, matchers, exits


async def _start_missing(args: argparse.Namespace, report: EngineReport, count: int) -> bool:
    """Starts processes if the engine has too few and is of a local cluster; returns whether it is."""
    local = is_local(args)
    if local and count + len(args.without) > len(report.members):
        from shoal.cluster.control_socket import request
        from shoal.cluster.state import StateDir

        directory = StateDir(args.settings.state_path)
        await asyncio.to_thread(request, directory, "engines", count=count + len(args.without))
    return local


def _check_names(report: EngineReport, without: list[str]) -> None:
    names = [member.name for member in report.members]
    unknown = [name for name in without if name not in names]
    if unknown:
        raise ConfigError(f"the engine has no process {unknown[0]!r}", do=f"choose among {', '.join(sorted(names))}")


def _check_members(report: EngineReport, count: int, without: list[str]) -> None:
    _check_names(report, without)
    names = [member.name for member in report.members]
    left = len(names) - len(set(without))
    if left < count:
        raise EngineUnavailableError(
            f"the engine has {left} processes for {count} operators of a layer",
            do=f"run `shoal engine run` {count - left} more times, on any machine",
        )
