"""`shoal pipeline`: jobs on Spark.

Owns the group and the flags that all its jobs share. Each job has a module of its own, `pipeline_<job>`, with `add`.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shoal.cli.output import Subparsers
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.pipeline.session import SessionOptions

JOBS: Final = ("load", "archive", "match", "profiles", "what_if", "forecast")
"""The jobs, in the order in which `--help` shows them."""

_HEAP_MB: Final = 1024
_EXAMPLE: Final = "shoal pipeline load --once --json\nshoal pipeline load --master 'local[4]' --heap-mb 2048"


def register(subparsers: Subparsers) -> None:
    """Add the command group."""
    parser = subparsers.add_parser(
        "pipeline",
        help="a Spark job",
        description="A job on Spark: on this machine, or on a cluster by --master and --conf.",
        epilog="example:\n  " + _EXAMPLE.replace("\n", "\n  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    jobs = parser.add_subparsers(title="jobs", metavar="JOB", required=True)
    for job in JOBS:
        importlib.import_module(f"shoal.cli.pipeline_{job}").add(jobs)


def add_spark_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where the job runs; `session_options` reads them."""
    group = parser.add_argument_group("Spark")
    group.add_argument("--master", default="local[2]", metavar="URL", help="where it runs (default local[2])")
    group.add_argument(
        "--heap-mb", type=int, default=_HEAP_MB, metavar="N", help=f"heap of the driver, in MB (default {_HEAP_MB})"
    )
    group.add_argument("--ui", action="store_true", help="show Spark's own web page while it runs")
    group.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark; may stand several times"
    )


def session_options(args: argparse.Namespace, name: str) -> SessionOptions:
    """What the flags ask for. Raises what would keep Spark from starting, before anything else is done or said."""
    from shoal.pipeline.session import SessionOptions, check_ready

    conf: dict[str, str] = {}
    for text in args.conf:
        key, equals, value = text.partition("=")
        if not equals or not key.startswith("spark."):
            raise ConfigError(f"--conf is {text!r}", do="write it as spark.<name>=<value>")
        conf[key] = value
    options = SessionOptions(master=args.master, heap_mb=args.heap_mb, ui=args.ui, conf=conf, name=name)
    check_ready(options)
    return options


def wrote(out: Path, files: Sequence[str]) -> str:
    """Which files of a job are where."""
    return f"wrote {', '.join(str(out / name) for name in files)}"
