"""`shoal bench match` and `shoal bench quotes`: their flags and output.

The measurements are in `shoal.lab.bench`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from shoal.cli.numbers import positive_int
from shoal.cli.output import console, figures_table, note, short_number
from shoal.lab.bench.loads import load as loads

CHURN: Final = "churn"
WORKLOADS: Final = (*loads.NAMES, CHURN)
SUBSCRIPTIONS: Final = {"match": 1_000_000, "quotes": 10_000}
"""Default number of subscriptions."""


def add_flags(parser: argparse._ArgumentGroup) -> None:
    """Add the flags of both benchmarks."""
    parser.add_argument(
        "--workload",
        choices=WORKLOADS,
        default=loads.STOCK,
        metavar="NAME",
        help=f"match: {', '.join(WORKLOADS[:-1])} or {CHURN} (default {loads.STOCK})",
    )
    parser.add_argument(
        "--subscriptions",
        type=positive_int,
        metavar="N",
        help=f"largest number of subscriptions (default {SUBSCRIPTIONS['match']}, quotes: {SUBSCRIPTIONS['quotes']})",
    )
    parser.add_argument(
        "--quotes",
        type=Path,
        metavar="PATH",
        help="stock, churn, quotes: archive or directory of real quotes (default: generated ones)",
    )


def measure_match(args: argparse.Namespace) -> dict[str, Any]:
    """Measure matching."""
    from shoal.lab.bench import match, match_churn

    defaults = match.MatchOptions()
    options = match.MatchOptions(
        workload=args.workload,
        subscriptions=args.subscriptions or SUBSCRIPTIONS["match"],
        rounds=args.rounds or defaults.rounds,
        run_s=args.run_seconds or defaults.run_s,
        seed=args.seed,
        quotes=args.quotes,
    )
    return match_churn.measure(options, note) if args.workload == CHURN else match.measure(options, note)


def measure_quotes(args: argparse.Namespace) -> dict[str, Any]:
    """Measure quotes."""
    from shoal.lab.bench import match_quotes

    subscriptions = args.subscriptions or SUBSCRIPTIONS["quotes"]
    options = match_quotes.QuotesOptions(subscriptions=subscriptions, quotes=args.quotes, seed=args.seed)
    return match_quotes.measure(options, note)


_COLUMNS: Final = {
    "subscriptions": "subs",
    "events_per_s": "events/s",
    "cpu_us_per_event": "CPU us",
    "matches_per_event": "ids",
    "bytes_per_subscription": "B/sub",
    "inserts_per_s": "ins/s",
    "inserts_one_by_one_per_s": "1 by 1/s",
    "match_us_p50": "p50 us",
    "match_us_p99": "p99 us",
    "match_us_p999": "p99.9 us",
    "changes_per_s": "chg/s",
    "deliveries": "ids in all",
    "deliveries_per_s": "ids/s",
    "seconds": "s",
}
"""Field of a row to its column heading."""
_FILLING: Final = ("bytes_per_subscription", "inserts_per_s", "inserts_one_by_one_per_s")
"""Columns that churn omits to save space."""


def show(args: argparse.Namespace, facts: dict[str, Any]) -> None:
    """Print the figures as a table."""
    screen = console(args)
    machine, rows = facts["machine"], facts["rows"]
    hidden = _FILLING if "match_us_p50" in rows[0] else ()
    shown = [name for name in _COLUMNS if name in rows[0] and name not in hidden]
    title = f"{facts['name']}, {machine['cores']} cores, {machine['cpu']}"
    table = figures_table(title, ("contender", *(_COLUMNS[name] for name in shown)))
    for row in rows:
        table.add_row(row["contender"], *(short_number(row.get(name)) for name in shown))
    screen.print(table)
    screen.print("CPU us: per event; ids: found per event; ins/s: filters inserted in bulk")
    screen.print(facts["workload"]["all"])
    for name, value in facts["ratios"].items():
        screen.print(f"{name}: {short_number(value)}")
    if facts["name"] == "quotes":
        screen.print(
            f"{facts['quotes']:,} quotes of {facts['stocks']:,} stocks, {facts['deliveries']:,} deliveries in "
            f"{facts['seconds']:.1f} s; the reference evaluator agreed for {facts['checked_events']:,} quotes."
        )
