"""`shoal soak`: the simulator's checks against real processes on real servers, with faults on request.

Owns the command's words and what it prints. The run is `shoal.soak.run`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING, Any

from shoal.cli.output import Subparsers, add_command, note, result
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.soak.run import Options, Outcome, Progress

SERVERS_MAX = 64
SUBSCRIBERS_MIN = 4
SUBSCRIBERS_MAX = 2000
SECONDS_MIN = 2.0


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "soak",
        run,
        "the same checks against real processes, with faults on request",
        description="Start a cluster of its own, put a load of publishers and subscribers on it, kill what is\n"
        "asked for, and judge by what the applications wrote down: exit status 0 only if nothing was lost,\n"
        "doubled or reordered without a report, and every corner that the run can meet was met.",
        example="shoal soak channels --servers 4 --subscribers 200 --seconds 60 --json\n"
        "shoal soak channels --seconds 30 --kill-agents\n"
        "shoal soak channels --seconds 30 --kill-server --seed 7",
    )
    parser.add_argument("protocol", choices=["channels"], help="which protocol")
    parser.add_argument("--servers", type=int, default=4, metavar="N", help="how many servers (default 4)")
    parser.add_argument("--subscribers", type=int, default=200, metavar="N", help="how many subscribers (default 200)")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="N", help="how long a load (default 60)")
    parser.add_argument("--kill-agents", action="store_true", help="kill agents all the time")
    parser.add_argument("--kill-server", action="store_true", help="kill servers now and then")
    parser.add_argument("--kill-coordinator", action="store_true", help="kill the coordinator now and then")
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="draws load and faults; real processes do not repeat exactly (default 1)",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the soak; 0 only if every promise was kept and every corner was met."""
    options = _options(args)
    outcome = _run_with_progress(options)
    facts = outcome.facts()
    result(args, facts, _text(facts))
    for violation in facts["violations"]:
        note(violation)
    for directory in outcome.kept:
        note(f"the logs of the round are in {directory}")
    return 0 if outcome.holds else 1


def _options(args: argparse.Namespace) -> Options:
    from shoal.soak.faults import FaultPlan
    from shoal.soak.run import Options

    if not 2 <= args.servers <= SERVERS_MAX:
        raise ConfigError(f"--servers is {args.servers}", do=f"give a number from 2 to {SERVERS_MAX}")
    if not SUBSCRIBERS_MIN <= args.subscribers <= SUBSCRIBERS_MAX:
        raise ConfigError(
            f"--subscribers is {args.subscribers}", do=f"give a number from {SUBSCRIBERS_MIN} to {SUBSCRIBERS_MAX}"
        )
    if not SECONDS_MIN <= args.seconds < float("inf"):
        raise ConfigError(f"--seconds is {args.seconds:g}", do=f"give at least {SECONDS_MIN:g}")
    return Options(
        servers=args.servers,
        subscribers=args.subscribers,
        seconds=args.seconds,
        faults=FaultPlan(args.kill_agents, args.kill_server, args.kill_coordinator),
        seed=args.seed,
        limits=args.settings.limits,
    )


def _run_with_progress(options: Options) -> Outcome:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from shoal.soak.run import run_soak

    columns = BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Bar(*columns, console=Console(file=sys.stderr), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("soak", total=options.seconds)
        before = {"done": 0.0, "last": 0.0}

        def tell(progress: Progress) -> None:
            if progress.load_s < before["last"]:  # the next round begins
                before["done"] += before["last"]
            before["last"] = progress.load_s
            text = (
                f"{progress.phase}: {progress.messages:,} messages, {progress.deliveries:,} deliveries, "
                f"{progress.faults} faults"
            )
            bar.update(task, completed=before["done"] + progress.load_s, description=text)

        return asyncio.run(run_soak(options, tell))


def _text(facts: dict[str, Any]) -> str:
    names = ("messages", "deliveries", "moves", "faults", "lost", "duplicated", "reordered", "gaps_reported", "seconds")
    lines = [f"{name:>14}  {facts[name]:,}" for name in names]
    latency = ", ".join(f"{name} {value:g} ms" for name, value in facts["latency_ms"].items())
    return "\n".join([*lines, f"{'latency':>14}  {latency}", f"{'violations':>14}  {facts['violation_count']}"])
