"""Shared parts of all commands: common flags, the JSON result, colours.

Owns the rules for the two streams. Standard output has the result: text for people, or with --json one JSON object as
its last line and nothing else. Standard error has progress, logs and errors.

A command group is a module of `shoal.cli` with `register(subparsers)`, which calls `add_command` once per command:

    def register(subparsers: Subparsers) -> None:
        parser = add_command(subparsers, "up", run_up, "start a cluster", example="shoal up --servers 3")
        parser.add_argument("--servers", type=int, help="number of servers (default 3)")

    def run_up(args: argparse.Namespace) -> int:
        note("starting ...")
        result(args, {"servers": 3}, "3 servers run")
        return 0
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from shoal.engine.engine_report import EngineReport

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Handler: TypeAlias = Callable[[argparse.Namespace], int]

_ITEM: Final = re.compile(r"[\w-]+: ")
_EXAMPLES: Final = ("example:", "examples:")


class HelpFormatter(argparse.HelpFormatter):
    """Fits descriptions into the terminal, line by line; `name: text` is an item of a list. Long examples continue on
    the next line as in a shell, so that they can be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(_EXAMPLES):
            return "\n".join(_folded(line, width) for line in text.splitlines())
        lines = []
        for line in text.splitlines():
            hanging = "  " if _ITEM.match(line) else ""
            lines.append(textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent + hanging))
        return "\n".join(lines)


def _folded(command: str, width: int) -> str:
    """A command in lines of a shell, broken before options."""
    end = command.rfind(" --", 0, width - 2)
    if len(command) <= width or end < 0:
        return command
    return f"{command[:end]} \\\n{_folded('     ' + command[end:], width)}"


def add_command(
    subparsers: Subparsers, name: str, run: Handler, summary: str, *, example: str, description: str = ""
) -> argparse.ArgumentParser:
    """Add a command with an example and the shared flags; return its parser for more flags.

    `main` calls `run(args)` and exits with its result. `args.json` is whether --json was given, and `args.settings` has
    the settings (`shoal.config`).
    """
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=description or summary[:1].upper() + summary[1:] + ".",
        epilog="example:\n" + "\n".join(f"  {line}" for line in example.splitlines()),
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run, json=False)
    shared = parser.add_argument_group("shared options")
    shared.add_argument("--json", action="store_true", help="print one JSON object as the last line of standard output")
    add_shared_flags(shared, default=argparse.SUPPRESS)
    return parser


def add_shared_flags(parser: argparse._ActionsContainer, *, default: Any) -> None:
    """Add the flags that are valid before and after the command's name."""
    parser.add_argument("--config", metavar="FILE", default=default, help="read settings from this TOML file")
    parser.add_argument("--state-dir", metavar="DIR", default=default, help="state directory of the local cluster")
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default=default,
        help="lowest level that is logged to standard error (default: warning)",
    )
    parser.add_argument("--debug", action="store_true", default=default, help="also print the traceback of an error")


def note(text: str) -> None:
    """Print progress to standard error."""
    print(shown(text), file=sys.stderr, flush=True)


def result(args: argparse.Namespace, facts: Mapping[str, object], text: str) -> None:
    """Print the result: with --json the facts as one JSON object, else the text. Call it once, at the end."""
    if args.json:
        sys.stdout.write(json.dumps(_plain(facts), separators=(", ", ": "), default=_encode) + "\n")
    elif text:
        print(shown(text))
    sys.stdout.flush()


def shown(text: str) -> str:
    """A text that can be printed anywhere: bytes of the command line that are not UTF-8 are shown as `\\xff`."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _plain(value: Any) -> Any:
    """A value for JSON in which no text has bytes that are not UTF-8."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _encode(value: object) -> object:
    """Convert values for JSON: bytes and paths to text, sets to sorted lists, NumPy values to plain numbers."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # a NumPy scalar or array
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def plural(count: int, what: str) -> str:
    """A count and its noun: 1 move, 2 moves."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def colour_wanted(stream: Any) -> bool:
    """Return whether to use colours: on a terminal, unless NO_COLOR is set or TERM is dumb."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(stream.isatty())


def console(args: argparse.Namespace) -> Console:
    """Create a rich console for live views and tables: on standard output, or on standard error with --json."""
    from rich.console import Console

    stream = sys.stderr if args.json else sys.stdout
    return Console(file=stream, no_color=not colour_wanted(stream), highlight=False)


def figures_table(title: str, headings: Sequence[str], *, fold: bool = False) -> Table:
    """Create a narrow table: names in the first column, figures in the others, on one line each unless `fold`."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    box = None if fold else SIMPLE_HEAD
    table = Table(title=title, box=box, padding=(0, 1, 0, 0), show_edge=False, title_justify="left")
    for index, heading in enumerate(headings):
        word = max(map(len, heading.split()), default=1)
        justify: Literal["left", "right"] = "right" if index else "left"
        table.add_column(heading, justify=justify, no_wrap=not fold, overflow="fold", min_width=word)
    return table


def short_number(value: float | None) -> str:
    """Format with three significant digits; measurements are not more precise than that."""
    if value is None:
        return ""
    for unit, word in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{word}" if value < 1000 * unit else f"{value / unit:,.0f}{word}"
    return f"{value:.3g}"


def short_count(value: float | None) -> str:
    """A number of at most six characters; `-` if it is unknown."""
    if value is None:
        return "-"
    if value < 100_000:
        return f"{value:,.0f}"
    return f"{value / 1e3:.0f} k" if value < 1e6 else f"{value / 1e6:.3g} M"


def count_text(value: float | None) -> str:
    """A whole number; `-` if it is unknown."""
    return "-" if value is None else f"{value:,.0f}"


def share_text(value: float | None) -> str:
    """A share in per cent; `-` if it is unknown."""
    return "-" if value is None else f"{100 * value:.0f} %"


def size_text(value: float | None, per: str = "") -> str:
    """A number of bytes with three digits; `-` if it is unknown. `per` follows the unit, as in `kB/s`."""
    if value is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.3g} {unit}{per}"
        value /= 1000
    return f"{value:,.0f} TB{per}" if value >= 10 else f"{value:.3g} TB{per}"


def ms_text(value: float) -> str:
    """A duration in milliseconds with three digits, in seconds from one second on."""
    return f"{value:.3g} ms" if value < 999.5 else f"{value / 1000:,.1f} s"


def figure_text(value: float | None) -> str:
    """A figure of a benchmark: three digits, or all of a large number; empty if it was not measured."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def age_text(seconds: float | None) -> str:
    """An age; `-` if it is unknown or 0, because nothing waits."""
    return "-" if not seconds else f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def engine_line(engine: EngineReport) -> str:
    """The engine in one line, for `status` and `top`."""
    return (
        f"engine {engine.configuration}, instance {engine.instance}: {plural(engine.clients, 'client')}, "
        f"{plural(engine.filters, 'filter')}, {engine.events_per_s:,.0f} events/s, {engine.in_flight} in flight"
    )
