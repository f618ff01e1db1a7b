"""`shoal fuzz`: the filter language against texts that nobody would write, for as long as wanted.

Owns the flags and the clock. What the texts are and what must hold is in `shoal.filters.fuzz`.
"""

from __future__ import annotations

import argparse
import time

import msgspec

from shoal.cli.output import Subparsers, add_command, note, result
from shoal.filters.fuzz import fuzz


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "fuzz",
        run_fuzz,
        "read random texts as filters and events: nothing but their own errors may be raised",
        example="shoal fuzz --seconds 60 --json\nshoal fuzz --seed 17 --seconds 5",
    )
    parser.add_argument("--seconds", type=float, default=10.0, metavar="N", help="how long (default 10)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="draws the texts (default 1)")


def run_fuzz(args: argparse.Namespace) -> int:
    """Run it and say what was seen; 0 only if every text was accepted or refused as it should be."""
    note(f"reading texts for {args.seconds:g} s")
    ends_at = time.monotonic() + args.seconds
    report = fuzz(args.seed, lambda: time.monotonic() < ends_at)
    facts = msgspec.structs.asdict(report)
    text = f"{report.texts} texts: {report.accepted} filters, {report.refused} refused, {report.events} events"
    result(args, facts, "\n".join([text, *map(str, report.failures)]))
    return 1 if report.failures else 0
