"""`shoal pipeline forecast`: forecasts the load of the next day from past days, with a backtest.

Owns the flags, the files and the output. The model is in `shoal.pipeline.forecast`. It reads the windows on
this machine: a window is reduced to one number per group, which needs no Spark.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shoal.cli.output import Subparsers, add_command, note, result
from shoal.cli.pipeline import add_windows_flag, wrote
from shoal.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.lab.experiments.result import Drawing
    from shoal.pipeline.forecast import Backtest

FORECAST_FILE: Final = "forecast.parquet"
FIGURE: Final = "forecast"


def add(jobs: Subparsers) -> None:
    """Add the job."""
    parser = add_command(
        jobs,
        "forecast",
        run_forecast,
        "forecast the load of the next day, by group of servers",
        example="shoal pipeline forecast --windows load/ --json\n"
        "shoal pipeline forecast --windows made/ --generate days=5,seed=1 --out report/",
        description="Forecast the load of the next day from recorded load windows, for each group of servers (eu-1 and "
        'eu-2 are eu), and compare past forecasts with the actual load and with "the same as a day before".',
    )
    add_windows_flag(parser, required=True)
    parser.add_argument(
        "--generate", metavar="days=N,seed=K", help="generate windows first if there are none (days of 24 min)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write the forecast (Parquet) and a figure to this directory"
    )


def run_forecast(args: argparse.Namespace) -> int:
    """Compute and print the forecast and its backtest."""
    import pyarrow.parquet as pq

    from shoal.cli.pipeline_what_if import generate
    from shoal.pipeline import forecast
    from shoal.pipeline.job_folders import make_folder
    from shoal.pipeline.kept_windows import open_windows

    if args.out is not None:
        make_folder(args.out)
    generate(args)
    windows = open_windows(args.windows)
    day_s = windows.info.day_s
    loads = forecast.loads_of(windows.windows())
    table = forecast.forecasts(loads, day_s)
    tests = forecast.backtest(loads, day_s)
    new = forecast.new_groups(loads, day_s)
    files: list[str] = []
    if args.out is not None:
        pq.write_table(table, args.out / FORECAST_FILE)
        files = [FORECAST_FILE, *_draw(loads, table, day_s, args.out)]
    facts: dict[str, Any] = {
        "windows": args.windows,
        "day_s": day_s,
        "groups": [_facts(test, table) | {"is_new": test.group in new} for test in tests],
        "out": args.out,
        "files": files,
    }
    lines = [*map(_line, facts["groups"]), *([wrote(args.out, files)] if args.out is not None else [])]
    result(args, facts, "\n".join(lines))
    return 0


def _facts(test: Backtest, table: pa.Table) -> dict[str, Any]:
    import pyarrow.compute as pc

    rows = table.filter(pc.equal(table["group"], test.group))
    peak = int(rows["bytes_out"].to_numpy().argmax())
    return {
        "group": test.group,
        "backtest": {
            "points": test.forecasts,
            "error": None if math.isnan(test.error) else test.error,
            "error_day_before": None if math.isnan(test.error_day_before) else test.error_day_before,
            "better": test.better,
        },
        "from_s": rows["at_s"][0].as_py(),
        "peak_bytes_out": rows["bytes_out"][peak].as_py(),
        "peak_at_s": rows["at_s"][peak].as_py(),
    }


def _line(facts: dict[str, Any]) -> str:
    test = facts["backtest"]
    if facts["is_new"]:
        return f"{facts['group']}: too new for a forecast; expected to stay at {facts['peak_bytes_out'] / 1e6:.1f} MB/s"
    words = "too little history for a backtest"
    if test["error"] is not None:
        words = f"mean error {test['error']:.1%} in {test['points']} past points, same as a day before: "
        words += f"{test['error_day_before']:.1%}"
    peak = f"peak {facts['peak_bytes_out'] / 1e6:.1f} MB/s at second {facts['peak_at_s']:.0f}"
    return f"{facts['group']}: {peak}; {words}"


def _draw(loads: pa.Table, table: pa.Table, day_s: int, out: Path) -> list[str]:
    from shoal.lab.experiments.figures import draw

    try:
        return [path.name for path in draw([_drawing(loads, table, day_s)], out)]
    except ConfigError as error:
        note(f"no figure: {error}")
        return []


def _drawing(loads: pa.Table, table: pa.Table, day_s: int) -> Drawing:
    """Draw the last two days and the forecast day for each group."""
    import pyarrow.compute as pc

    from shoal.lab.experiments.result import Drawing, Line, Panel

    panels = []
    for group in dict.fromkeys(table["group"].to_pylist()):
        past = loads.filter(pc.equal(loads["group"], group))
        past = past.filter(pc.greater(past["at_s"], pc.subtract(pc.max(past["at_s"]), 2 * day_s)))
        ahead = table.filter(pc.equal(table["group"], group))

        def line(label: str, rows: pa.Table, column: str, *, dashed: bool = False) -> Line:
            known = rows.filter(pc.is_valid(rows[column]))
            return Line(label, known["at_s"].to_pylist(), (known[column].to_numpy() / 1e6).tolist(), dashed=dashed)

        lines = [
            line("measured", past, "bytes_out"),
            line("forecast", ahead, "bytes_out"),
            line("the same as a day before", ahead, "bytes_out_day_before", dashed=True),
        ]
        panels.append(Panel(f"servers {group}", "second", "MB/s out", lines))
    return Drawing(FIGURE, panels)
