"""`shoal pipeline report`: latency, traffic and cost by channel, publisher and hour.

Owns the flags, the tables in the terminal, the files and the figure. The figures are in `shoal.pipeline.report`.
"""

from __future__ import annotations

import argparse
import datetime as dt
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shoal.cli.output import Subparsers, add_command, console, note, result
from shoal.cli.pipeline import (
    add_recorded_flags,
    add_spark_flags,
    add_windows_flag,
    session_options,
    time_span,
    wrote,
)
from shoal.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.lab.experiments.result import Drawing
    from shoal.pipeline.report import Report

TOP: Final = 10
"""Rows in each table of the terminal and of the JSON."""
LINES: Final = 5
"""Channels in the figure."""
FIGURE: Final = "report"

Cell = Callable[[Any], str]


def add(jobs: Subparsers) -> None:
    """Add the job."""
    parser = add_command(
        jobs,
        "report",
        run,
        "latency, traffic and cost by channel, publisher and hour",
        example="shoal pipeline report --archive archive/ --windows load/ --out report/\n"
        "shoal pipeline report --archive s3://bucket/shoal --since 7d --channel 'orders.*' --json",
        description="Report the latency of messages (from publication to recording), the traffic, and the cost in "
        "server hours, by channel, publisher and hour. Latency and publishers come from an archive of recorded "
        "channels, deliveries and cost from kept load windows. Give one of them, or both.",
    )
    add_recorded_flags(parser)
    add_windows_flag(parser, required=False)
    parser.add_argument(
        "--top", type=int, default=TOP, metavar="N", help=f"rows in each table that is printed (default {TOP})"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write complete tables (Parquet, CSV) and a figure to this directory"
    )
    parser.add_argument("--in-process", action="store_true", help="run without Spark, on one core")
    add_spark_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Make the report and print it."""
    from shoal.pipeline import report_job
    from shoal.pipeline.job_folders import make_folder

    if args.top < 1:
        raise ConfigError(f"--top is {args.top}", do="give a number above 0")
    archive = args.archive or args.settings.archive_dir or None
    span = time_span(args)
    if args.out is not None:
        make_folder(args.out)
    began = time.monotonic()
    if args.in_process:
        made = report_job.run(archive, args.windows, span, args.channel)
    else:
        from shoal.pipeline.session import running

        options = session_options(args, "shoal report")
        note("starting Spark")
        with running(options) as spark:
            made = report_job.run(archive, args.windows, span, args.channel, spark)
    files = [] if args.out is None else _write(made, args.out)
    facts = {
        "archive": archive,
        "windows": args.windows,
        "totals": made.totals,
        "channels": _json(made.channels.slice(0, args.top)),
        "publishers": _json(made.publishers.slice(0, args.top)),
        "hours": _json(_last(made.hours, args.top)),
        "out": args.out,
        "files": files,
        "seconds": round(time.monotonic() - began, 3),
    }
    if not args.json:
        _show(args, made)
    result(args, facts, wrote(args.out, files) if files else "")
    return 0


def _last(table: pa.Table, rows: int) -> pa.Table:
    return table.slice(max(table.num_rows - rows, 0))


def _json(table: pa.Table) -> list[dict[str, Any]]:
    return [
        {name: value.isoformat() if isinstance(value, dt.datetime) else value for name, value in row.items()}
        for row in table.to_pylist()
    ]


def _write(made: Report, out: Path) -> list[str]:
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    names = []
    for name, table in made.tables.items():
        pq.write_table(table, out / f"{name}.parquet")
        csv.write_csv(table, out / f"{name}.csv")
        names += [f"{name}.parquet", f"{name}.csv"]
    return [*names, *_draw(made, out)]


def _text(value: Any) -> str:
    return str(value)


def _count(value: Any) -> str:
    return "-" if value is None else f"{round(value)}"


def _mega(value: Any) -> str:
    return "-" if value is None else f"{value / 1e6:.1f}"


def _ms(value: Any) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _cost(value: Any) -> str:
    return "-" if value is None else f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"


def _hour(value: dt.datetime) -> str:
    return f"{value:%m-%d %H:00}"


def _publisher(value: int) -> str:
    return f"{value:012x}" if value else "plain clients"


_LATENCY: Final = (("p50\nms", "p50_ms", _ms), ("p90\nms", "p90_ms", _ms), ("p99\nms", "p99_ms", _ms))


def _traffic(made: Report) -> tuple[tuple[str, str, Cell], ...]:
    """Return the columns of messages: those of the archive, or without one those of the load windows."""
    if made.totals["messages"] is not None:
        return (("recorded", "messages", _count), ("MB", "bytes", _mega))
    return (("published", "published", _count), ("MB in", "published_bytes", _mega))


def _show(args: argparse.Namespace, made: Report) -> None:
    """Print the tables; they fit 80 columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    screen = console(args)

    def table(title: str, rows: pa.Table, columns: Sequence[tuple[str, str, Cell]]) -> None:
        if not rows.num_rows:
            return
        shown = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, title_justify="left")
        for number, (heading, _, _) in enumerate(columns):
            shown.add_column(heading, justify="right" if number else "left", overflow="fold", no_wrap=number > 0)
        for row in rows.to_pylist():
            shown.add_row(*(cell(row[name]) for _, name, cell in columns))
        screen.print(shown, "")

    cost, sent = ("server\nhours", "server_hours", _cost), ("MB\nout", "delivered_bytes", _mega)
    traffic, count = _traffic(made), made.totals["channels"]
    both = made.totals["messages"] is not None and made.totals["published"] is not None
    published = (("published", "published", _count),) if both else ()
    title = f"channels: {min(args.top, count)} of {count}, most expensive first"
    table(
        title,
        made.channels.slice(0, args.top),
        (("channel", "channel", _text), *published, *traffic, *_LATENCY, sent, cost),
    )
    if made.totals["publishers"]:
        count = made.totals["publishers"]
        table(
            f"publishers: {min(args.top, count)} of {count}",
            made.publishers.slice(0, args.top),
            (("publisher", "publisher", _publisher), ("channels", "channels", _count), *traffic, cost),
        )
    hours = ("all servers'\nhours", "all_server_hours", _cost)
    table("hours (UTC)", _last(made.hours, args.top), (("hour", "hour", _hour), *traffic, *_LATENCY, sent, cost, hours))
    screen.print("\n".join(_summary(made)))


def _summary(made: Report) -> list[str]:
    totals, lines = made.totals, []
    if totals["messages"] is not None:
        latency = ", ".join(f"{name[:3]} {_ms(totals[name])} ms" for name in ("p50_ms", "p90_ms", "p99_ms"))
        lines.append(f"{totals['messages']} messages, {_mega(totals['bytes'])} MB, latency {latency}")
    if totals["clocks_differ"]:
        lines.append(f"{totals['clocks_differ']} messages were recorded before they were published: clocks differ")
    if totals["all_server_hours"] is not None:
        lines.append(
            f"{_cost(totals['all_server_hours'])} server hours: {_cost(totals['server_hours'])} of these channels, "
            f"{_cost(totals['idle_server_hours'])} idle"
        )
    else:
        lines.append("no cost: give load windows with --windows")
    return lines


def _draw(made: Report, out: Path) -> list[str]:
    from shoal.lab.experiments.figures import draw

    try:
        return [path.name for path in draw([_drawing(made)], out)]
    except ConfigError as error:
        note(f"no figure: {error}")
        return []


def _drawing(made: Report) -> Drawing:
    """Draw latency, traffic and cost over the hours, the last two for the most expensive channels."""
    from shoal.lab.experiments.result import Drawing, Line, Panel

    hours = [hour.timestamp() / 3600 for hour in made.hours["hour"].to_pylist()]
    begin = hours[0] if hours else 0.0
    since = f"hours since {made.hours['hour'][0].as_py():%Y-%m-%dT%H:00}, UTC" if hours else "hours"

    def line(label: str, rows: pa.Table, column: str, factor: float = 1.0) -> Line:
        known = [row for row in rows.select(["hour", column]).to_pylist() if row[column] is not None]
        places = [row["hour"].timestamp() / 3600 - begin for row in known]
        return Line(label, places, [row[column] * factor for row in known])

    panels = []
    if made.totals["p50_ms"] is not None:
        lines = [line(name.removesuffix("_ms"), made.hours, name) for name in ("p50_ms", "p90_ms", "p99_ms")]
        panels.append(Panel("latency from publication to recording", since, "ms", lines))
    by_channel = {name: _of_channel(made, name) for name in made.channels["channel"].slice(0, LINES).to_pylist()}
    column = "bytes" if made.totals["published"] is None else "published_bytes"
    lines = [line(name, rows, column, 1e-6) for name, rows in by_channel.items()]
    panels.append(Panel("traffic: bytes published", since, "MB an hour", lines))
    if made.totals["server_hours"] is not None:
        lines = [line(name, rows, "server_hours") for name, rows in by_channel.items()]
        lines.append(line("all servers", made.hours, "all_server_hours"))
        panels.append(Panel("cost", since, "server hours an hour", lines))
    return Drawing(FIGURE, panels)


def _of_channel(made: Report, name: str) -> pa.Table:
    import pyarrow.compute as pc

    return made.channel_hours.filter(pc.equal(made.channel_hours["channel"], name))
