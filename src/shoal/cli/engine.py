"""`shoal engine run` and `shoal engine status`: the matching layers of a cluster.

Owns the process of an engine, from start to SIGTERM, and the text of its status.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal

from shoal import logs
from shoal.bus import connect
from shoal.cli.channels import add_url, cluster_url
from shoal.cli.output import HelpFormatter, Subparsers, add_command, result
from shoal.config import Settings
from shoal.extras import require
from shoal.runtime import PRODUCTION


def register(subparsers: Subparsers) -> None:
    """Add the commands."""
    summary = "run the engine that matches events, and show its state"
    parser = subparsers.add_parser(
        "engine",
        help=summary,
        description="Run the engine that brings events to the readers whose filters they match,\nand show its state. "
        "docs/engine.md explains it.",
        epilog="example:\n  shoal engine run\n  shoal engine status --json",
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
    add_url(run)
    status = add_command(
        commands, "status", run_status, "show the engine that serves", example="shoal engine status --json"
    )
    add_url(status)


def run_run(args: argparse.Namespace) -> int:
    """Run an engine."""
    require("shoal engine run", "numpy", "numba", "pyarrow")
    if args.setting_sources["log_level"] == "default":  # a long-running process logs its work
        logs.configure(level="info", format=args.settings.log_format)
    asyncio.run(_serve(cluster_url(args.url, args.settings, role="engine"), args.settings))
    return 0


async def _serve(url: str, settings: Settings) -> None:
    from shoal.engine import seat_groups
    from shoal.engine.shell import EngineShell
    from shoal.filters.index.warm_up import warm_up

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(warm_up)
    await asyncio.to_thread(seat_groups.warm_up)
    limits = settings.limits
    async with (
        connect(url, limits=limits, name="engine") as bus,
        await PRODUCTION.coordinator(url, limits.server_lease_s / 2) as coordinator,
    ):
        holder = f"engine-{os.getpid()}-{PRODUCTION.random.getrandbits(32):08x}"
        task = asyncio.create_task(EngineShell("main", bus, coordinator, holder, limits).run())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task


def run_status(args: argparse.Namespace) -> int:
    """Show what the engine that serves has written down."""
    return asyncio.run(_show(args))


async def _show(args: argparse.Namespace) -> int:
    from shoal.engine.engine_report import EngineReport, decode_report, lease_name, report_key, standby_name

    url = cluster_url(args.url, args.settings, role="admin")
    async with await PRODUCTION.coordinator(url, args.settings.limits.connect_timeout_s) as coordinator:
        lease = await coordinator.lease_of(lease_name("main"))
        waiting = await coordinator.leases(standby_name("main"))
        stored = await coordinator.get(report_key("main"))
    report = EngineReport() if stored is None else decode_report(stored.value)
    serving = lease is not None and lease.token == report.instance
    facts = {"engine": "main", "serving": serving, "holder": lease.holder if lease is not None else None}
    standbys = sum(lease is None or one.holder != lease.holder for one in waiting.values())
    facts |= {"standbys": standbys}
    facts |= {name: getattr(report, name) for name in report.__struct_fields__}
    if not serving:
        text = "no engine serves: run `shoal up --engine`, or `shoal engine run`"
    else:
        text = (
            f"engine main, instance {report.instance}, {lease.holder if lease is not None else ''}; "
            f"{standbys} standing by\n"
            f"{report.clients} clients with {report.filters} filters, {report.in_flight} events in flight\n"
            f"{report.events} events matched, {report.deliveries} deliveries"
        )
    result(args, facts, text)
    return 0 if serving else 1
