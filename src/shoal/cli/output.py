"""What every command shares: its flags, its one JSON object, its colours.

Owns: the rules of the two streams. Standard output carries the result: text for people, or with --json one
JSON object as its last line and nothing else. Standard error carries progress, logs and errors. Never
touches: what a command does.

A command group is a module of `shoal.cli` with `register(subparsers)`, which calls `add_command` once per
command:

    def register(subparsers: Subparsers) -> None:
        parser = add_command(subparsers, "up", run_up, "start a cluster", example="shoal up --servers 3")
        parser.add_argument("--servers", type=int, help="how many servers (default 3)")

    def run_up(args: argparse.Namespace) -> int:
        note("starting ...")
        result(args, {"servers": 3}, "3 servers run")
        return 0
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Handler: TypeAlias = Callable[[argparse.Namespace], int]


def add_command(
    subparsers: Subparsers, name: str, run: Handler, summary: str, *, example: str, description: str = ""
) -> argparse.ArgumentParser:
    """Add a command with an example and the flags that all commands share; return its parser for more flags.

    `main` calls `run(args)` and exits with what it returns. `args.json` says whether --json was given, and
    `args.settings` holds the settings (`shoal.config`).
    """
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=description or summary[:1].upper() + summary[1:] + ".",
        epilog="example:\n" + "\n".join(f"  {line}" for line in example.splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run, json=False)
    shared = parser.add_argument_group("shared options")
    shared.add_argument("--json", action="store_true", help="print one JSON object as the last line of standard output")
    add_shared_flags(shared, default=argparse.SUPPRESS)
    return parser


def add_shared_flags(parser: argparse._ActionsContainer, *, default: Any) -> None:
    """Add the flags that may stand before or after the command's name."""
    parser.add_argument("--config", metavar="FILE", default=default, help="read settings from this TOML file")
    parser.add_argument("--state-dir", metavar="DIR", default=default, help="where the local cluster keeps its state")
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default=default,
        help="least important record that is written to standard error (default: warning)",
    )
    parser.add_argument("--debug", action="store_true", default=default, help="with an error, print its traceback too")


def note(text: str) -> None:
    """Say something about the progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


def result(args: argparse.Namespace, facts: Mapping[str, object], text: str) -> None:
    """Print the result: the facts as one JSON object with --json, else the text. Call it once, at the end."""
    if args.json:
        sys.stdout.write(json.dumps(facts, separators=(", ", ": "), default=_encode) + "\n")
    elif text:
        print(text)
    sys.stdout.flush()


def _encode(value: object) -> object:
    """What JSON has no word for: bytes and paths as text, sets as sorted lists, NumPy's as plain numbers."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # a scalar or an array of NumPy
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not for JSON")


def colour_wanted(stream: Any) -> bool:
    """Whether to colour what goes to the stream: on a terminal, unless NO_COLOR is set or the terminal is
    dumb."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(stream.isatty())


def console(args: argparse.Namespace) -> Console:
    """A rich console for live views and tables: on standard output, or on standard error when --json wants
    that."""
    from rich.console import Console

    stream = sys.stderr if args.json else sys.stdout
    return Console(file=stream, no_color=not colour_wanted(stream), highlight=False)
