"""`shoal pipeline what-if`: finds the policy and settings that would have been best for recorded load.

Owns its flags, its report and its files. The runs and the choice are in `shoal.pipeline.what_if_job`.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shoal.cli.output import Subparsers, add_command, console, note, result
from shoal.cli.pipeline import add_spark_flags, add_windows_flag, session_options, wrote
from shoal.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.lab.experiments.result import Drawing
    from shoal.pipeline.what_if_job import Days, WhatIfResult

CONFIG_FILE: Final = "best.toml"
RUNS_FILE: Final = "runs.parquet"
FIGURE: Final = "what-if"
SHOWN: Final = 12
"""Cases in the table, cheapest first."""
_GENERATE: Final = re.compile(r"days=(\d+),seed=(\d+)")


def add(jobs: Subparsers) -> None:
    """Add the job."""
    parser = add_command(
        jobs,
        "what-if",
        run_what_if,
        "replay policies and settings over recorded load",
        example="shoal pipeline what-if --windows load/ --out report/\n"
        "shoal pipeline what-if --windows made/ --generate days=4,seed=1 --out report/ --json",
        description="Replay recorded load windows under every case of a grid in the flow simulator, choose the "
        "cheapest, and check it on a held-back day. Writes a table of all runs, a figure, and a file for "
        "--config: the cheapest settings, or the defaults if the cheapest are worse on that day.",
    )
    add_windows_flag(parser, required=True)
    parser.add_argument(
        "--generate", metavar="days=N,seed=K", help="generate windows first if there are none (days of 24 min)"
    )
    parser.add_argument(
        "--grid", default="default", metavar="FILE", help="TOML with [[grid]] tables, or default (%(default)s)"
    )
    parser.add_argument(
        "--hold-back", default="last", metavar="DAY", help="day that is used only for the check (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="directory for table, figure and settings"
    )
    parser.add_argument("--servers-max", type=int, default=8, metavar="N", help="maximum number of servers (default 8)")
    parser.add_argument(
        "--server-start-s", type=int, default=20, metavar="S", help="start time of a new server in s (default 20)"
    )
    parser.add_argument("--in-process", action="store_true", help="run without Spark, on one core")
    add_spark_flags(parser)


def run_what_if(args: argparse.Namespace) -> int:
    """Run the grid, write the files, and print the best case."""
    import pyarrow.parquet as pq

    from shoal.pipeline import what_if, what_if_job
    from shoal.pipeline.job_folders import make_folder

    cases = what_if.read_grid(None if args.grid == "default" else Path(args.grid))
    generate(args)
    days = what_if_job.read_days(args.windows, servers_min=1, servers_max=args.servers_max, start_s=args.server_start_s)
    held_back = what_if_job.day_held_back(days, args.hold_back)
    make_folder(args.out)
    if args.in_process:
        found = what_if_job.find(days, cases, held_back, note=note)
    else:
        from shoal.pipeline.session import running

        options = session_options(args, "shoal what-if")
        note("starting Spark")
        with running(options) as spark:
            found = what_if_job.find(days, cases, held_back, spark, note)
    pq.write_table(found.runs, args.out / RUNS_FILE)
    what_if_job.write_config(found.chosen, args.out / CONFIG_FILE, _why(found, len(cases)))
    drawn = _draw(days, found, args.out)
    facts = _facts(found, cases=len(cases)) | {"out": args.out, "files": [*drawn, RUNS_FILE, CONFIG_FILE]}
    if not args.json:
        _show(args, found)
    result(args, facts, wrote(args.out, facts["files"]))
    return 0  # the written settings are never worse than the defaults; `best_no_worse` has the verdict


def generate(args: argparse.Namespace) -> None:
    """Generate windows if requested and if there are none."""
    from shoal.pipeline.kept_windows import WindowKeeper, find_windows

    if args.generate is None:
        return
    match = _GENERATE.fullmatch(args.generate)
    if match is None or not int(match[1]):
        raise ConfigError(f"--generate is {args.generate!r}", do="write it as days=4,seed=1, with at least one day")
    if find_windows(args.windows) is not None:
        note(f"{args.windows} already has windows; none were generated")
        return
    from shoal.pipeline import generated_windows

    days, seed = int(match[1]), int(match[2])
    with WindowKeeper(args.windows, day_s=generated_windows.DAY_S, source=f"made, {days} days, seed {seed}") as keeper:
        for window in generated_windows.make_windows(days, seed):
            keeper.add(window)
    note(f"generated {days} days of load in {args.windows}")


def _facts(found: WhatIfResult, *, cases: int) -> dict[str, Any]:
    from shoal.pipeline import what_if, what_if_job

    return {
        "runs": found.runs.num_rows + found.held_back.num_rows,
        "cases": cases,
        "best": msgspec.to_builtins(found.best),
        "chosen": msgspec.to_builtins(found.chosen),
        "held_back": {
            "day": found.held_back_day,
            "chosen_cost": found.chosen_cost,
            "best_cost": found.best_cost,
            "default_cost": found.default_cost,
            "no_worse": found.chosen_cost <= found.default_cost,
            "best_no_worse": found.best_no_worse,
            "rows": found.held_back.to_pylist(),
            "with_forecast": None if found.with_forecast is None else found.with_forecast.to_pylist()[0],
        },
        "cost_by_defaults": what_if_job.shares_of_defaults(found.runs),
        "top": what_if.summary(found.runs).slice(0, SHOWN).to_pylist(),
    }


def _why(found: WhatIfResult, cases: int) -> str:
    days = len(set(found.runs["day"].to_pylist()))
    asked = f"of {cases} cases over {days} days of recorded load, by shoal pipeline what-if"
    day = f"on the held-back day (day {found.held_back_day})"
    if found.chosen != found.best:
        return (
            f"The defaults: the cheapest {asked}, was worse {day}.\n"
            f"The defaults cost {found.default_cost:.3f} server hours there."
        )
    return (
        f"The cheapest {asked}.\n"
        f"It costs {found.chosen_cost:.3f} server hours {day}, the defaults {found.default_cost:.3f}."
    )


def _verdict(found: WhatIfResult) -> str:
    """Describe how the best case of the grid did on the held-back day, whichever settings were written."""
    from shoal.pipeline.what_if import WhatIfCase

    if found.best == WhatIfCase():
        words = "the defaults are the best case"
    else:
        words = "no worse than the defaults" if found.best_no_worse else "worse than the defaults"
    costs = f"{found.best_cost:.3f} server hours, defaults {found.default_cost:.3f}"
    return f"best case of the grid on the held-back day: {words} ({costs})"


def _case(row: dict[str, Any]) -> str:
    """Format a case for 80 columns: its policy, then one setting per line."""
    settings = msgspec.json.decode(row["settings"])
    lines = [f"  {name} {value}" for name, value in settings.items()]
    return "\n".join([row["policy"], *(lines or ["  defaults"])])


def _show(args: argparse.Namespace, found: WhatIfResult) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from shoal.pipeline import what_if

    screen = console(args)
    headings = ("case", "cost", "overload\ns", "server\nhours", "moves", "response\nms", "p99\nms")

    def table(title: str, rows: list[dict[str, Any]]) -> None:
        made = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, title_justify="left")
        for index, heading in enumerate(headings):
            made.add_column(heading, justify="right" if index else "left", no_wrap=not index)
        for row in rows:
            response = [f"{row[name]:.2f}" if row[name] is not None else "-" for name in _RESPONSES]
            figures = (f"{row['cost']:.3f}", str(row["overload_s"]), f"{row['server_hours']:.3f}", str(row["moves"]))
            made.add_row(_case(row), *figures, *response)
        screen.print(made, "")

    table("days used for the choice", what_if.summary(found.runs).slice(0, SHOWN).to_pylist())
    table(f"held-back day ({found.held_back_day})", found.held_back.to_pylist())
    if found.with_forecast is not None:
        table("held-back day, with a forecast from the days before", found.with_forecast.to_pylist())
    screen.print(_why(found, len(set(found.runs["case"].to_pylist()))))
    screen.print(_verdict(found))


_RESPONSES: Final = ("response_ms_mean", "response_ms_p99")


def _draw(days: Days, found: WhatIfResult, out: Path) -> list[str]:
    """Draw the figure; without matplotlib, print a note and return nothing."""
    from shoal.lab.experiments.figures import draw

    try:
        return [path.name for path in draw([_drawing(days, found)], out)]
    except ConfigError as error:
        note(f"no figure: {error}")
        return []


def _drawing(days: Days, found: WhatIfResult) -> Drawing:
    """Draw the cost of every case, and the held-back day under the defaults and the chosen case."""
    from shoal.lab.experiments.result import Drawing, Line, Panel
    from shoal.pipeline import what_if

    runs = what_if.summary(found.runs)
    panels = [
        Panel(
            "all cases, cheapest first: cost over the days used for the choice",
            "place",
            "server hours",
            _by_policy(runs),
        )
    ]
    traffic = days.traffic[found.held_back_day]
    cases = {"defaults": what_if.WhatIfCase(), "chosen": found.chosen}
    series = {name: what_if.replay(traffic, case, days.pool) for name, case in cases.items()}
    if found.with_forecast is not None:
        expected = days.forecast(found.held_back_day)
        series["chosen, with a forecast"] = what_if.replay(traffic, found.chosen, days.pool, expected)
    for title, column, label in (
        ("held-back day: busiest server", "ratio_max", "load ratio"),
        ("held-back day: servers", "servers", "servers"),
    ):
        lines = [
            Line(name, list(map(float, range(len(each)))), each.column(column).tolist(), steps=column == "servers")
            for name, each in series.items()
        ]
        panels.append(Panel(title, "second", label, lines, level=1.0 if column == "ratio_max" else None))
    return Drawing(FIGURE, panels)


def _by_policy(runs: pa.Table) -> list[Any]:
    from shoal.lab.experiments.result import Line

    costs, policies = runs["cost"].to_pylist(), runs["policy"].to_pylist()
    lines = []
    for name in dict.fromkeys(policies):
        places = [place for place, policy in enumerate(policies) if policy == name]
        lines.append(Line(name, [float(place) for place in places], [costs[place] for place in places]))
    return lines
