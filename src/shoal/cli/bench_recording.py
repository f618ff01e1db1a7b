"""`shoal bench recording`: its flags and output.

The measurement is in `shoal.lab.bench.recording`.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from shoal.cli.numbers import positive_int
from shoal.cli.output import console, figures_table, note


def add_flags(parser: argparse._ArgumentGroup) -> None:
    """Add the flags."""
    parser.add_argument(
        "--rate-messages", type=positive_int, metavar="N", help="messages of a sustained run (default 300,000)"
    )
    parser.add_argument(
        "--burst-max", type=positive_int, metavar="N", help="largest burst that is tried (default 2,000,000)"
    )


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure the recorder."""
    from shoal.lab.bench import recording

    defaults = recording.RecordingOptions()
    options = recording.RecordingOptions(
        messages=args.rate_messages or defaults.messages,
        burst_first=min(defaults.burst_first, args.burst_max or defaults.burst_first),
        burst_max=args.burst_max or defaults.burst_max,
        rounds=args.rounds or defaults.rounds,
    )
    return asyncio.run(recording.measure(options, note))


def show(args: argparse.Namespace, facts: dict[str, Any]) -> None:
    """Print the figures."""
    screen = console(args)
    machine = facts["machine"]
    title = f"recording, {machine['cores']} cores, {machine['cpu']}"
    table = figures_table(title, ("run", "messages", "recorded", "gaps", "rows/s"))
    for row in facts["rows"]:
        recorded = row.get("recorded", row["messages"])
        table.add_row(
            row["contender"],
            *(f"{value:,}" for value in (row["messages"], recorded, row.get("gaps", 0), row["rows_per_s"])),
        )
    screen.print(table)
    screen.print(facts["workload"]["all"])
    more = "more messages had gaps" if facts["burst_is_limit"] else "a larger one was not tried"
    screen.print(
        f"{facts['rows_per_s']:,} messages a second sustained, a burst of {facts['burst_messages']:,} absorbed ({more})"
    )
