"""`shoal pipeline profiles`: what filters receive of an archive, by samples, and how much they have in common.

Owns its flags and what it prints. What is done is decided in `shoal.pipeline.profiles_job`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from shoal.cli.output import Subparsers, add_command, note, result
from shoal.cli.pipeline import add_spark_flags, session_options


def add(jobs: Subparsers) -> None:
    """Add the job."""
    parser = add_command(
        jobs,
        "profiles",
        run_profiles,
        "loads and overlaps of filters, by samples of an archive",
        example="shoal pipeline profiles --filters mine.txt --archive archive/ --sample 2048 --out profiles/ --json",
        description="Sample publications of an archive and profile filters by them, as PRESS does: a bit vector, rate "
        "and bandwidth for each filter, and the overlap of each pair that has one. Writes tables in Parquet.",
    )
    parser.add_argument("--filters", type=Path, required=True, metavar="FILE", help="one filter a line")
    parser.add_argument(
        "--archive", type=Path, required=True, metavar="PATH", help="a Parquet file, or a folder of them"
    )
    parser.add_argument("--sample", type=int, default=2048, metavar="N", help="publications (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="K", help="which ones (default %(default)s)")
    parser.add_argument(
        "--rate", type=float, metavar="R", help="publications a second of all (default: as the archive has it)"
    )
    parser.add_argument(
        "--overlap-min",
        type=float,
        default=0.1,
        metavar="X",
        help="leave out pairs with less in common, of all that one of them matches (default %(default)s)",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the tables go")
    parser.add_argument("--in-process", action="store_true", help="without Spark, on one core")
    add_spark_flags(parser)


def run_profiles(args: argparse.Namespace) -> int:
    """Make the profiles, and say how many."""
    from shoal.cli.pipeline_match import filter_set
    from shoal.errors import ConfigError
    from shoal.pipeline import profiles_job
    from shoal.pipeline.filter_sets import read_filters
    from shoal.pipeline.job_folders import make_folder

    if args.sample < 1 or not 0 <= args.overlap_min <= 1:
        raise ConfigError("--sample or --overlap-min cannot be", do="give a number above 0, and one from 0 to 1")
    options = profiles_job.ProfileOptions(
        samples=args.sample, seed=args.seed, rate=args.rate, overlap_min=args.overlap_min
    )
    make_folder(args.out)
    filters, ids = filter_set(args), read_filters(args.filters)
    if args.in_process:
        found = profiles_job.run(filters, ids, args.archive, options, args.out)
    else:
        from shoal.pipeline.session import running
        from shoal.pipeline.spark.progress import shown

        spark_options = session_options(args, "shoal profiles")
        note("starting Spark")
        with running(spark_options) as spark, shown(spark, "tasks", note):
            found = profiles_job.run(filters, ids, args.archive, options, args.out, spark)
    rate = "unknown" if found.rate is None else f"{found.rate:.1f}/s"
    text = (
        f"{found.matching_filters} of {found.filters} filters match some of {found.samples} samples "
        f"of {found.publications} publications (rate {rate}); {found.pairs} pairs overlap\nwrote {args.out}"
    )
    result(args, msgspec.to_builtins(found) | {"out": args.out, "seed": args.seed}, text)
    return 0
