"""`shoal fuzz`: tests the filter language with random texts for a given time.

Owns the flags and the clock. The texts and the checks are in `shoal.filters.fuzz`.
"""

from __future__ import annotations

import argparse
import time

import msgspec

from shoal.cli.numbers import positive
from shoal.cli.output import Subparsers, add_command, note, result
from shoal.filters.fuzz import fuzz


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "fuzz",
        run_fuzz,
        "parse random texts as filters and events; only the documented errors may be raised",
        example="shoal fuzz --seconds 60 --json\nshoal fuzz --seed 17 --seconds 5",
    )
    parser.add_argument("--seconds", type=positive, default=10.0, metavar="N", help="duration in s (default 10)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the texts (default 1)")


def run_fuzz(args: argparse.Namespace) -> int:
    """Run the test and report; 0 only if every text was accepted or rejected as expected."""
    note(f"parsing texts for {args.seconds:g} s")
    ends_at = time.monotonic() + args.seconds
    report = fuzz(args.seed, lambda: time.monotonic() < ends_at)
    facts = msgspec.structs.asdict(report)
    text = f"{report.texts} texts: {report.accepted} filters, {report.refused} rejected, {report.events} events"
    result(args, facts, "\n".join([text, *map(str, report.failures)]))
    return 1 if report.failures else 0
