"""`shoal bench`: side-by-side measurements from the command line.

Owns their flags and how their figures look. What is measured is decided in `shoal.bench`.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from shoal.bench import channels
from shoal.cli.output import Subparsers, add_command, console, note, result


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "bench",
        run_bench,
        "a side-by-side measurement",
        example="shoal bench channels\nshoal bench channels --rounds 3 --json",
        description="Measure the bus beside other clients, on a cluster of its own, on this machine.",
    )
    defaults = channels.Options()
    parser.add_argument("name", choices=("channels",), metavar="NAME", help="channels")
    parser.add_argument(
        "--rounds",
        type=_positive_int,
        default=defaults.rounds,
        metavar="N",
        help=f"how often each contender runs each workload (default {defaults.rounds})",
    )
    parser.add_argument(
        "--run-seconds",
        type=_positive,
        default=defaults.run_s,
        metavar="S",
        help=f"about how long one run takes (default {defaults.run_s:g})",
    )
    parser.add_argument(
        "--payload-bytes",
        type=_positive_int,
        default=defaults.payload_bytes,
        metavar="N",
        help=f"size of a payload (default {defaults.payload_bytes})",
    )
    parser.add_argument(
        "--tasks",
        type=_positive_int,
        default=defaults.tasks,
        metavar="N",
        help=f"tasks that publish at a time, but for the fan-out (default {defaults.tasks})",
    )
    parser.add_argument(
        "--connections",
        type=_positive_int,
        default=defaults.connections,
        metavar="N",
        help=f"subscribing connections of the fan-out (default {defaults.connections})",
    )


def _positive(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError("give a number above 0")
    return number


def _positive_int(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("give a number above 0")
    return number


def run_bench(args: argparse.Namespace) -> int:
    """Measure, and show the figures."""
    options = channels.Options(
        rounds=args.rounds,
        run_s=args.run_seconds,
        payload_bytes=args.payload_bytes,
        tasks=args.tasks,
        connections=args.connections,
    )
    facts = asyncio.run(channels.measure(options, note))
    if not args.json:
        _show(args, facts)
    result(args, facts, "")
    return 0


def _show(args: argparse.Namespace, facts: dict[str, Any]) -> None:
    from rich.table import Table

    screen = console(args)
    machine = facts["machine"]
    table = Table(title=f"channels, {machine['cores']} cores, {machine['cpu']}")
    for heading in ("workload", "contender"):
        table.add_column(heading, no_wrap=True)
    for heading in ("sent/s", "taken/s", "pub. us", "sub. us", "p50 us", "p99 us"):
        table.add_column(heading, justify="right", no_wrap=True)
    *rows, agent = facts["rows"]
    names = ("messages_per_s", "deliveries_per_s", "cpu_us_publisher", "cpu_us_subscriber")
    for row in rows:
        cells = [_number(row.get(name)) for name in (*names, "latency_us_p50", "latency_us_p99")]
        table.add_row(row["workload"], row["contender"], *cells)
    screen.print(table)
    screen.print("pub. us, sub. us: CPU of the publisher per message and of the subscriber per message taken\n")
    ratios = Table(title="the bus against the others")
    ratios.add_column("ratio")
    ratios.add_column("", justify="right")
    for name, value in facts["ratios"].items():
        ratios.add_row(name, f"{value:.2f}")
    screen.print(ratios)
    screen.print(
        f"The agent took {agent['cpu_us_agent']:.2f} us of CPU for each message it observed at "
        f"{agent['messages_per_s']:,.0f} messages/s and {'kept up' if agent['kept_up'] else 'did not keep up'}; "
        f"the server took {agent['cpu_us_server']:.2f} us, {agent['cpu_us_server_without_agent']:.2f} without it."
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"
