"""`shoal pipeline load`: computes load windows on Spark, once or continuously.

Owns the command's flags and output. The work is in `shoal.pipeline.load_job` and `shoal.pipeline.load_service`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shoal.bus.location import URL_VARIABLE
from shoal.cli.output import Subparsers, add_command, note, result
from shoal.cli.pipeline import add_metrics_flag, add_spark_flags, metrics_page, session_options

if TYPE_CHECKING:
    from shoal.pipeline.kept_windows import WindowKeeper

_EXAMPLE: Final = "shoal up && shoal pipeline load --once --json\nshoal pipeline load --heap-mb 768"


def add(jobs: Subparsers) -> None:
    """Add the job."""
    parser = add_command(
        jobs,
        "load",
        run,
        "compute load windows from telemetry",
        example=_EXAMPLE,
        description="Fold the telemetry of a cluster into load windows, on Spark. With --once: the telemetry that "
        "is on the streams now. Without: continuously, until stopped; the cluster's balancer uses these "
        "windows while they arrive in time (see `shoal up --windows spark`).",
    )
    parser.add_argument("--once", action="store_true", help="process the existing telemetry, print the result and exit")
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="directory of the job's progress (default: temporary with --once, else in the state directory)",
    )
    parser.add_argument(
        "--starting",
        choices=("earliest", "latest"),
        help="start without a checkpoint (default: earliest with --once, else latest)",
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        help="shoal://pipeline:password@host:port (default: $SHOAL_URL unless a state directory is given, the setting "
        "coordinator, the local cluster)",
    )
    parser.add_argument(
        "--keep",
        metavar="PATH",
        help="also keep all windows in a Delta table (directory or URL), for report, what-if and forecast",
    )
    add_metrics_flag(parser)
    add_spark_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Run the job."""
    return _run_once(args) if args.once else _follow(args)


def _source(args: argparse.Namespace, starting: str) -> dict[str, str]:
    """Return the options of the source: the cluster of the flag, of $SHOAL_URL or of the settings, else the local one.

    An explicit state directory wins over $SHOAL_URL, because `shoal up --windows spark` starts this job for its own
    cluster.
    """
    named = args.url or ("" if args.settings.state_dir else os.environ.get(URL_VARIABLE))
    url = named or args.settings.coordinator
    where = {"coordinator": url} if url else {"stateDir": str(args.settings.state_path)}
    return {**where, "startingOffsets": args.starting or starting, "failOnDataLoss": "false"}


def _run_once(args: argparse.Namespace) -> int:
    from shoal.pipeline.job_folders import locked
    from shoal.pipeline.load_job import LoadJob, run_once
    from shoal.pipeline.load_service import window_url
    from shoal.pipeline.session import running

    options = session_options(args, "shoal load")
    source = _source(args, "earliest")
    with tempfile.TemporaryDirectory(prefix="shoal-load-") as temporary:
        job = LoadJob(Path(args.checkpoint or temporary), source, args.settings.balance, _refused(args))
        page = metrics_page(args, lambda: window_url(source))
        with page, locked(job.directory), _keeper(args.keep) as keeper:
            note("starting Spark ...")
            with running(options) as spark:
                note("folding the existing telemetry ...")
                began = time.monotonic()
                facts = run_once(spark, job, None if keeper is None else keeper.take).to_json(time.monotonic() - began)
    result(args, facts, _text(facts))
    return 0


def _refused(args: argparse.Namespace) -> Path | None:
    """Return the directory for invalid records of a single run without a checkpoint; it is kept after the run."""
    if args.checkpoint:
        return None
    name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}"
    folder: Path = args.settings.state_path / "pipeline" / "refused" / name
    return folder


def _text(facts: dict[str, Any]) -> str:
    counters = facts["counters"]
    dropped = ", ".join(
        f"{counters[name]} {name}"
        for name in ("garbage", "duplicates", "late", "early", "refused")
        if counters.get(name)
    )
    lines = [f"refused: {why}" for why in facts["refused"]]
    if facts["refused_in"]:
        lines.append(f"{facts['refused_kept']} refused records are in {facts['refused_in']}")
    if facts["refused_only_counted"]:
        lines.append(f"{facts['refused_only_counted']} refused records were counted but not stored")
    if not facts["windows"]:
        lines.insert(0, f"no windows: {facts['records']} records" + (f" ({dropped})" if dropped else ""))
        return "\n".join(lines)
    span_s = facts["last_s"] - facts["first_s"]
    lines[:0] = [
        f"{facts['windows']} windows over {span_s} s: {len(facts['hosts'])} servers, {facts['units']} channels",
        f"{facts['records']} records with {facts['rows']} channel rows, folded in {facts['seconds']:.1f} s"
        + (f"; dropped: {dropped}" if dropped else ""),
    ]
    return "\n".join(lines)


def _follow(args: argparse.Namespace) -> int:
    from shoal.pipeline.job_folders import locked
    from shoal.pipeline.load_service import follow, window_url
    from shoal.pipeline.session import running

    options = session_options(args, "shoal load")
    directory = Path(args.checkpoint) if args.checkpoint else args.settings.state_path / "pipeline" / "load"
    note("folding telemetry into load windows until stopped")
    began = time.monotonic()
    source = _source(args, "latest")
    page = metrics_page(args, lambda: window_url(source))
    with page, locked(directory), _keeper(args.keep) as keeper, running(options) as spark:
        done = follow(spark, directory, source, args.settings.balance, keeper)
    facts = done.to_json(time.monotonic() - began)
    result(args, facts, f"{done.windows} windows of {done.records} records in {done.batches} batches")
    return 0


def _keeper(place: str | None) -> contextlib.AbstractContextManager[WindowKeeper | None]:
    from shoal.pipeline.kept_windows import WindowKeeper

    return contextlib.nullcontext() if place is None else WindowKeeper(place)
