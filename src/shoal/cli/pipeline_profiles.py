"""`shoal pipeline profiles`: loads and overlaps of filters, from samples of an archive.

Owns its flags and output. The work is in `shoal.pipeline.profiles_job`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from shoal.cli.output import Subparsers, add_command, note, result
from shoal.cli.pipeline import add_archive_flags, add_spark_flags, session_options, time_span


def add(jobs: Subparsers) -> None:
    """Add the job."""
    parser = add_command(
        jobs,
        "profiles",
        run_profiles,
        "compute loads and overlaps of filters from samples of an archive",
        example="shoal pipeline profiles --filters mine.txt --archive archive/ --sample 2048 --out profiles/ --json",
        description="Sample publications of an archive and compute filter profiles from them, as PRESS does: "
        "a bit vector, rate "
        "and bandwidth for each filter, and the overlap of each overlapping pair. Writes tables in Parquet.",
    )
    parser.add_argument("--filters", type=Path, required=True, metavar="FILE", help="file with one filter per line")
    add_archive_flags(parser)
    parser.add_argument(
        "--sample", type=int, default=2048, metavar="N", help="number of sampled publications (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="K", help="seed of the sample (default %(default)s)")
    parser.add_argument(
        "--rate", type=float, metavar="R", help="total publications per second (default: as in the archive)"
    )
    parser.add_argument(
        "--overlap-min",
        type=float,
        default=0.1,
        metavar="X",
        help="smallest overlap of a listed pair, as a share of either filter's matches (default %(default)s)",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory of the tables")
    parser.add_argument("--in-process", action="store_true", help="run without Spark, on one core")
    add_spark_flags(parser)


def run_profiles(args: argparse.Namespace) -> int:
    """Compute the profiles, and print a summary."""
    from shoal.cli.pipeline_match import filter_set
    from shoal.errors import ConfigError
    from shoal.pipeline import profiles_job
    from shoal.pipeline.filter_sets import read_filters
    from shoal.pipeline.job_folders import make_folder

    if args.sample < 1 or not 0 <= args.overlap_min <= 1:
        raise ConfigError(
            "--sample or --overlap-min is out of range", do="give --sample above 0, and --overlap-min from 0 to 1"
        )
    options = profiles_job.ProfileOptions(
        samples=args.sample, seed=args.seed, rate=args.rate, overlap_min=args.overlap_min, span=time_span(args)
    )
    make_folder(args.out)
    filters, ids = filter_set(args), read_filters(args.filters)
    if args.in_process:
        found = profiles_job.run(filters, ids, args.archive, options, args.out)
    else:
        from shoal.pipeline.session import running

        spark_options = session_options(args, "shoal profiles")
        note("starting Spark")
        with running(spark_options) as spark:
            found = profiles_job.run(filters, ids, args.archive, options, args.out, spark)
    rate = "unknown" if found.rate is None else f"{found.rate:.1f}/s"
    text = (
        f"{found.matching_filters} of {found.filters} filters match some of {found.samples} samples "
        f"of {found.publications} publications (rate {rate}); {found.pairs} pairs overlap\nwrote {args.out}"
    )
    result(args, msgspec.to_builtins(found) | {"out": args.out, "seed": args.seed}, text)
    return 0
