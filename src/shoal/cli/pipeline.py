"""`shoal pipeline`: jobs on Spark.

Owns the group and the flags that all jobs share. Each job has its own module, `pipeline_<job>`, with `add`.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shoal.cli.output import HelpFormatter, Subparsers
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.pipeline.event_archive import TimeSpan
    from shoal.pipeline.session import SessionOptions

JOBS: Final = ("load", "archive", "match", "profiles", "what_if", "forecast", "report", "replay")
"""The jobs, in the order of `--help`."""

PORT_MAX: Final = 65_535

_EXAMPLE: Final = "shoal pipeline load --once --json\nshoal pipeline load --master 'local[4]' --heap-mb 2048"


def register(subparsers: Subparsers) -> None:
    """Add the command group."""
    parser = subparsers.add_parser(
        "pipeline",
        help="run a Spark job",
        description="Run a job on Spark: on this machine, or on a cluster with --master and --conf.",
        epilog="example:\n  " + _EXAMPLE.replace("\n", "\n  "),
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    jobs = parser.add_subparsers(title="jobs", metavar="JOB", required=True)
    for job in JOBS:
        importlib.import_module(f"shoal.cli.pipeline_{job}").add(jobs)


def add_spark_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for a new Spark session; `session_options` reads them."""
    group = parser.add_argument_group("Spark")
    group.add_argument("--master", metavar="URL", help="Spark master (default local[2])")
    group.add_argument("--heap-mb", type=int, metavar="N", help="heap of the driver in MB (default 1024)")
    group.add_argument("--ui", action="store_true", help="serve Spark's web UI while the job runs")
    group.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a Spark setting; can be repeated"
    )


def add_archive_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a job that reads any archive; `time_span` reads them."""
    parser.add_argument(
        "--archive",
        required=True,
        metavar="PATH",
        help="an archive of recorded channels (a directory or a URL), a Parquet file, or a folder of them",
    )
    add_time_flags(parser)


def add_recorded_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a job that reads recorded channels only; `time_span` reads them."""
    parser.add_argument(
        "--archive", metavar="PATH", help="archive of recorded channels (default: the setting archive_dir)"
    )
    parser.add_argument("--channel", metavar="PATTERN", help="only this channel, or channels that match: 'orders.*'")
    add_time_flags(parser)


def add_time_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a time span; `time_span` reads them."""
    parser.add_argument("--since", metavar="TIME", help="only messages published from then on: 2026-11-01T10:00, or 3d")
    parser.add_argument("--until", metavar="TIME", help="only messages published before then")


def add_windows_flag(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the flag of a job that reads kept load windows."""
    parser.add_argument(
        "--windows",
        required=required,
        metavar="PATH",
        help="load windows kept by `shoal pipeline load --keep`: a directory or a URL",
    )


def time_span(args: argparse.Namespace) -> TimeSpan:
    """Return the span of time that `--since` and `--until` give."""
    from shoal.bus.times import read_time
    from shoal.pipeline.event_archive import TimeSpan

    since_us, until_us = (read_time(text, time.time()) if text else None for text in (args.since, args.until))
    if since_us is not None and until_us is not None and since_us >= until_us:
        raise ConfigError(f"--since {args.since} is not before --until", do="give an earlier time")
    return TimeSpan(since_us, until_us)


def add_metrics_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag of a job that can run as a service; `metrics_page` reads it."""
    parser.add_argument(
        "--metrics-port",
        type=int,
        default=0,
        metavar="PORT",
        help="serve metrics on this port of the loopback interface (default: none)",
    )


def metrics_page(args: argparse.Namespace, url: Callable[[], str]) -> AbstractContextManager[object]:
    """Serve the metrics of a job while the block runs, if the flag asks for it; with the certificate of its address."""
    from shoal.coordination.link import parse_address
    from shoal.metrics import MetricsPage
    from shoal.wire.tls import page_context

    if not 0 <= args.metrics_port <= PORT_MAX:
        raise ConfigError(f"--metrics-port is {args.metrics_port}", do="give a port, or 0 for none")
    if not args.metrics_port:
        return nullcontext()
    return MetricsPage(args.metrics_port, tls=page_context(parse_address(url(), None, None).tls))


def session_options(args: argparse.Namespace, name: str) -> SessionOptions:
    """Return the session options from the flags. Raises early if Spark cannot start."""
    from shoal.pipeline.session import SessionOptions, check_ready, current_session

    conf: dict[str, str] = {}
    for text in args.conf:
        key, equals, value = text.partition("=")
        if not equals or not key.startswith("spark."):
            raise ConfigError(f"--conf is {text!r}", do="write it as spark.<name>=<value>")
        conf[key] = value
    given = {name: value for name in ("master", "heap_mb") if (value := getattr(args, name)) is not None}
    if (given or args.ui or args.conf) and current_session() is not None:
        raise ConfigError(
            "--master, --heap-mb, --ui and --conf are for a new session, and one already runs",
            do="give the settings to whatever started it, for example to spark-submit",
        )
    options = SessionOptions(**given, ui=args.ui, conf=conf, name=name)
    check_ready(options)
    return options


def wrote(out: Path, files: Sequence[str]) -> str:
    """Describe the files that a job wrote."""
    return f"wrote {', '.join(str(out / name) for name in files)}"
