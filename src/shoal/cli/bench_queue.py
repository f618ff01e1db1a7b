"""`shoal bench queue`: its flags and output.

The measurements are in `shoal.lab.bench.queue`.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any, Final

from shoal.cli.numbers import positive_int
from shoal.cli.output import console, figure_text, note
from shoal.errors import ConfigError

PARTS: Final = ("throughput", "latency", "stall", "join", "moves", "memory")
_COLUMNS: Final = {
    "backlog_per_s": "backlog/s",
    "small_puts_backlog_per_s": "small puts/s",
    "flow_per_s": "flow/s",
    "put_per_s": "put/s",
    "take_per_s": "take/s",
}
_CPU: Final = {
    "put_server_us": "put",
    "take_server_us": "take",
    "flow_server_us": "flow",
    "put_client_us": "put",
    "take_client_us": "take",
    "flow_client_us": "flow",
}
_OTHERS: Final = {
    "latency_us_p50": "p50 us",
    "latency_us_p99": "p99 us",
    "take_per_s": "take/s",
    "join_share_s": "share after s",
    "join_share_s_max": "at most s",
    "move_pause_ms_p50": "pause p50 ms",
    "move_pause_ms_p99": "p99 ms",
    "bytes_per_key": "bytes per key",
}
"""Field of a row to its column heading, for each table."""


def add_flags(parser: argparse._ArgumentGroup) -> None:
    """Add the flags. --only and --messages are those of `bench pipeline` too."""
    parser.add_argument("--keys", type=positive_int, metavar="N", help="memory: number of keys (default 1,000,000)")
    parser.add_argument("--pairs", type=positive_int, metavar="N", help="stall: pairs of runs (default 15)")
    parser.add_argument(
        "--arq-python", metavar="PATH", help="an interpreter that has arq (default: the one that ./shoal made)"
    )


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure queues."""
    from shoal.lab.bench import queue

    unknown = set(args.only or ()) - set(PARTS)
    if unknown:
        raise ConfigError(f"bench queue has no part {min(unknown)}", do=f"choose from {', '.join(PARTS)}")
    defaults = queue.QueueOptions()
    options = queue.QueueOptions(
        parts=tuple(args.only or queue.PARTS),
        messages=args.messages or defaults.messages,
        rounds=args.rounds or defaults.rounds,
        pairs=args.pairs or defaults.pairs,
        timed=min(defaults.timed, max((args.messages or defaults.messages) // 20, 20)),
        moves=min(defaults.moves, max((args.messages or defaults.messages) // 1000, 2)),
        memory_keys=args.keys or defaults.memory_keys,
        arq_python=args.arq_python,
    )
    return asyncio.run(queue.measure(options, note))


def show(args: argparse.Namespace, facts: dict[str, Any]) -> None:
    """Print the figures as tables."""
    from rich import box
    from rich.table import Table

    screen = console(args)
    machine = facts["machine"]
    screen.print(f"queue, {machine['cores']} cores, {machine['cpu']}")
    fast = [row for row in facts["rows"] if row["part"] == "throughput"]
    for title, rows, columns in (
        ("messages a second", fast, _COLUMNS),
        ("CPU us per message: store, then clients", fast, _CPU),
        ("", [row for row in facts["rows"] if row["part"] != "throughput"], _OTHERS),
    ):
        if not rows:
            continue
        table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
        table.add_column("contender", no_wrap=True)
        shown = [name for name in columns if any(name in row for row in rows)]
        for name in shown:
            table.add_column(columns[name], justify="right", no_wrap=True)
        for row in rows:
            label = row["contender"] if rows is fast else f"{row['part']}, {row['contender']}"
            table.add_row(label, *(figure_text(row.get(name)) for name in shown))
        screen.print(table)
    screen.print(facts["workload"]["all"])
    for name, value in facts["ratios"].items():
        low, high = facts["spreads"].get(name, (value, value))
        goal = "  MISSED" if name in facts["missed"] else ""
        aim = f"goal {facts['goals'][name]}" if name in facts["goals"] else "no goal"
        screen.print(f"{name}: {value:.2f} ({low:.2f} to {high:.2f}), {aim}{goal}")
