"""`shoal experiment`: an experiment of a paper.

Owns the flags, the output files and the table. The experiments are in `shoal.lab.experiments`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from shoal.cli.numbers import positive_int
from shoal.cli.output import Subparsers, add_command, console, figures_table, note, result
from shoal.errors import ConfigError
from shoal.lab.experiments import MODES, SEEDS, ExperimentOptions, experiments
from shoal.lab.experiments.result import ExperimentResult
from shoal.limits import DEFAULT_LIMITS

OUT = Path("experiments-out")
FILTERS_MIN = 1000
FILTERS_MAX = DEFAULT_LIMITS.engine_filters_max


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    names = sorted({name for mode in MODES for name in experiments(mode)})
    parser = add_command(
        subparsers,
        "experiment",
        run_experiment,
        "run an experiment of a paper: table, figure, JSON",
        example="shoal experiment dynamoth-2 --seeds 20 --json\nshoal experiment dynamoth-3 --out figures\n"
        "shoal experiment esilbops-7 --filters 1000000",
        description="Repeat an experiment of a paper and compare the results. Figures (SVG and PNG) and the "
        "JSON result are "
        "written to a directory. Exits with 1 if a claim does not hold.",
    )
    parser.add_argument("name", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument(
        "--mode",
        choices=MODES,
        help="sim: in the flow simulator, at the paper's scale; real: with real servers, scaled to this machine "
        f"(default: {MODES[0]} where available)",
    )
    parser.add_argument(
        "--seeds", type=positive_int, default=SEEDS, metavar="N", help="number of seeds (default %(default)s)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="esilbops-7 to 12: up to 10,000 filters and one round, to see that everything runs",
    )
    parser.add_argument(
        "--filters",
        type=positive_int,
        action="append",
        metavar="N",
        help="esilbops-7 to 12: this number of filters only, at least 1,000; can be repeated "
        "(default: 1,000, 10,000, 100,000 and 1,000,000)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"directory for figures and JSON (default: {OUT}/NAME or {OUT}/NAME-real)",
    )
    parser.add_argument(
        "--latencies",
        type=Path,
        metavar="PATH",
        help="matrix of round trips in milliseconds (CSV, one row and one column per city); "
        "default: a built-in distance model",
    )


def run_experiment(args: argparse.Namespace) -> int:
    """Run the experiment, write its files, and show the result."""
    mode = args.mode or next(mode for mode in MODES if args.name in experiments(mode))
    table = experiments(mode)
    if args.name not in table:
        raise ConfigError(f"{args.name} does not run in mode {mode}", do=f"choose one of {', '.join(table)}")
    sizes = tuple(sorted({*(args.filters or ())}))
    if sizes and sizes[-1] > FILTERS_MAX:
        raise ConfigError(f"--filters {sizes[-1]} is too many", do=f"give at most {FILTERS_MAX}, as an engine has")
    if sizes and (sizes[0] < FILTERS_MIN or not args.name.startswith("esilbops-") or args.name == "esilbops-13"):
        raise ConfigError(
            f"--filters {sizes[0]} does not fit {args.name}", do=f"give {FILTERS_MIN} or more, to esilbops-7 to 12"
        )
    found = table[args.name](ExperimentOptions(args.seeds, args.latencies, args.quick, note, sizes))
    out: Path = args.out or OUT / (args.name if mode == MODES[0] else f"{args.name}-{mode}")
    for path in _write(found, out):
        note(f"wrote {path}")
    if not args.json:
        _show(args, found)
    for claim, holds in found.claims.items():
        if not holds:
            note(f"does not hold: {claim}")
    result(args, found.facts(), "")
    return 0 if found.holds else 1


def _write(found: ExperimentResult, out: Path) -> list[Path]:
    import json

    from shoal.lab.experiments.figures import draw

    paths = draw(found.drawings, out)
    path = out / f"{found.name}.json"
    path.write_text(json.dumps(found.facts(), indent=1) + "\n", encoding="utf-8")
    return [*paths, path]


def _show(args: argparse.Namespace, found: ExperimentResult) -> None:
    screen = console(args)
    for rows in found.tables:
        table = figures_table(rows.title, rows.headings, fold=True)
        for row in rows.rows:
            table.add_row(*row)
        screen.print(table)
    screen.print(found.paragraph)
