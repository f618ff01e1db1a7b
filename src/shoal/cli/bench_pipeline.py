"""`shoal bench pipeline`: its flags and output.

The measurements are in `shoal.lab.bench.pipeline`.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from shoal.cli.bench_engine import PARTS as ENGINE_PARTS
from shoal.cli.bench_queue import PARTS as QUEUE_PARTS
from shoal.cli.numbers import positive_int
from shoal.cli.output import console, figures_table, note, short_number
from shoal.errors import ConfigError

PARTS: Final = ("sql", "source", "sink", "load", "archive", "match")


def add_flags(parser: argparse._ArgumentGroup) -> None:
    """Add the flags."""
    parser.add_argument(
        "--only",
        choices=tuple(dict.fromkeys((*PARTS, *QUEUE_PARTS, *ENGINE_PARTS))),
        action="append",
        metavar="PART",
        help=f"{', '.join(PARTS)}; queue: {', '.join(QUEUE_PARTS)}; engine: {', '.join(ENGINE_PARTS)}; can be repeated "
        "(default: all)",
    )
    parser.add_argument(
        "--events",
        type=positive_int,
        metavar="N",
        help="match: events in the archive (default 2,000,000); engine: events (default 20,000)",
    )
    parser.add_argument(
        "--filters", type=positive_int, metavar="N", help="match, engine: number of filters (default 100,000)"
    )
    parser.add_argument(
        "--live-seconds", type=positive_int, metavar="S", help="load: seconds of live input (default 20)"
    )
    parser.add_argument(
        "--messages",
        type=positive_int,
        metavar="N",
        help="archive: messages per channel (default 100,000); source: messages (default 200,000); "
        "sink, queue: messages (default 100,000)",
    )


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure the jobs."""
    from shoal.lab.bench import (
        pipeline,
        pipeline_archive,
        pipeline_load,
        pipeline_match,
        pipeline_sink,
        pipeline_source,
    )

    unknown = set(args.only or ()) - set(PARTS)
    if unknown:
        raise ConfigError(f"bench pipeline has no part {min(unknown)}", do=f"choose from {', '.join(PARTS)}")
    defaults = pipeline.PipelineOptions()
    options = pipeline.PipelineOptions(
        parts=tuple(args.only or PARTS),
        rounds=args.rounds or defaults.rounds,
        source=pipeline_source.SourceBenchOptions(messages=args.messages or defaults.source.messages),
        sink=pipeline_sink.SinkOptions(messages=args.messages or defaults.sink.messages),
        load=pipeline_load.LoadOptions(live_s=args.live_seconds or defaults.load.live_s),
        archive=pipeline_archive.ArchiveOptions(messages=args.messages or defaults.archive.messages),
        match=pipeline_match.BulkMatchOptions(
            events=args.events or defaults.match.events, filters=args.filters or defaults.match.filters
        ),
    )
    return pipeline.measure(options, note)


_COLUMNS: Final = {
    "rows_per_s": "rows/s",
    "rows_per_s_min": "least",
    "rows_per_s_max": "most",
    "rows_per_cpu_s": "rows/\nCPU s",
    "batch_ms_p50": "batch\np50 ms",
    "seconds": "s",
}
"""Field of a row to its column heading."""


def show(args: argparse.Namespace, facts: dict[str, Any]) -> None:
    """Print the figures as a table."""
    screen = console(args)
    machine = facts["machine"]
    table = figures_table(f"pipeline, {machine['cores']} cores, {machine['cpu']}", ("job", *_COLUMNS.values()))
    for row in facts["rows"]:
        table.add_row(row["contender"], *(short_number(row.get(name)) for name in _COLUMNS))
    screen.print(table)
    screen.print(facts["workload"]["all"])
    for name, value in facts["ratios"].items():
        screen.print(f"{name}: {value:.2f}")
