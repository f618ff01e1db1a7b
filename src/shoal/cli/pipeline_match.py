"""`shoal pipeline match`: matches a set of filters against an archive.

Owns its flags and output. The work is in `shoal.pipeline.bulk_match_job`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal.cli.output import Subparsers, add_command, note, result
from shoal.cli.pipeline import add_archive_flags, add_spark_flags, session_options, time_span

if TYPE_CHECKING:
    from shoal.pipeline.bulk_match_job import MatchResult
    from shoal.pipeline.filter_sets import FilterSet


def add(jobs: Subparsers) -> None:
    """Add the job."""
    parser = add_command(
        jobs,
        "match",
        run_match,
        "match filters against an archive",
        example="shoal pipeline match --filters mine.txt --archive archive/ --json\n"
        "shoal pipeline match --filters mine.txt --archive week.parquet --output rows --out received/",
        description="Match a set of filters (a text file, one filter per line, with an id: `17: class = "
        "'STOCK'`) against "
        "an archive: which messages would they have received? Events are in the column `attributes`, or every column "
        "is an attribute.",
    )
    parser.add_argument("--filters", type=Path, required=True, metavar="FILE", help="file with one filter per line")
    add_archive_flags(parser)
    parser.add_argument(
        "--output",
        choices=("counts", "ids", "rows"),
        default="counts",
        help="counts: events by filter; ids: filters by event; rows: the matching events (default %(default)s)",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the output to this directory, as Parquet")
    parser.add_argument("--in-process", action="store_true", help="run without Spark, on one core")
    add_spark_flags(parser)


def run_match(args: argparse.Namespace) -> int:
    """Match, and print the result."""
    from shoal.pipeline import bulk_match_job

    if args.out is not None:
        bulk_match_job.check_out(args.out, args.archive)
    span = time_span(args)
    filters = filter_set(args)
    if args.in_process:
        found = bulk_match_job.match_in_process(filters, args.archive, args.output, args.out, span)
    else:
        from shoal.pipeline.session import running

        options = session_options(args, "shoal match")
        note("starting Spark")
        with running(options) as spark:
            found = bulk_match_job.match_on_spark(spark, filters, args.archive, args.output, args.out, span)
    facts = msgspec.to_builtins(found) | {"events_per_s": found.events / found.seconds, "archive": args.archive}
    result(args, facts, _text(found))
    return 0


def filter_set(args: argparse.Namespace) -> FilterSet:
    """Read the filter set of the given file; its index is cached for the next run."""
    from shoal.folders import default_cache_dir
    from shoal.pipeline.filter_sets import keep, read_filters

    began = time.monotonic()
    filters = read_filters(args.filters)
    made = keep(list(filters), list(filters.values()), default_cache_dir() / "filters")
    note(f"{made.filters} filters, version {made.version}, ready in {time.monotonic() - began:.1f} s")
    return made


def _text(found: MatchResult) -> str:
    lines = [
        f"{found.matches} matches of {found.matching_filters} of {found.filters} filters in {found.events} events, "
        f"{found.seconds:.1f} s",
        *(f"  filter {number}: {matches} events" for number, matches in found.top),
    ]
    return "\n".join([*lines, f"wrote {found.out}"] if found.out else lines)
