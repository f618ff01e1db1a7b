"""The command line: parses the arguments, calls one function and returns its exit status.

Owns the table of commands, the choice of the module to import, and how errors are shown. The commands themselves are in
the modules of this package, one per group (see `output` for their structure). Only the module of the given command is
imported, so that each command starts quickly; commands whose module is missing are not listed.

Exit status: 0 success, 1 failure or an error, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from shoal import config, logs
from shoal.cli.output import HelpFormatter, add_shared_flags, colour_wanted, shown
from shoal.errors import ShoalError
from shoal.extras import needed
from shoal.version import __version__

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "demo": ("demo", "show a live demo: a cluster, a balancer and game players, on this machine"),
    "up": ("cluster", "start a local cluster in the background"),
    "down": ("cluster", "stop the local cluster and clean up"),
    "status": ("cluster", "show what runs, where, and how loaded it is"),
    "doctor": ("cluster", "check this machine for problems, with fixes"),
    "pub": ("channels", "publish the lines of standard input on a channel"),
    "sub": ("channels", "print the messages of channels"),
    "emit": ("events", "emit events: to every reader with a filter that matches"),
    "match": ("events", "print the events that match filters"),
    "engine": ("engine", "run the engine that matches events, and show its state"),
    "queue": ("queue", "use and manage queues: put, take, stats, dead letters"),
    "channels": ("recording", "list, start and stop recorded channels"),
    "history": ("history", "print the recorded messages of a channel"),
    "worker": ("worker", "run the workers of an application"),
    "top": ("top", "show live load by server and channel, and the balancer's actions"),
    "agent": ("agent", "run the agent of one server"),
    "balancer": ("balancer", "run a balancer: it maintains the ring, moves channels, and adds and removes servers"),
    "tls": ("tls", "make and renew the certificates of a cluster with TLS"),
    "plan": ("plan", "show the plan and explain placements"),
    "users": ("users", "change the passwords of a running cluster"),
    "coordinator": ("coordinator", "save and restore the coordinator's data"),
    "sim": ("sim", "run a simulation campaign of a protocol, by seed"),
    "soak": ("soak", "run the same checks against real processes, optionally with faults"),
    "fuzz": ("fuzz", "test the filter language with random texts"),
    "bench": ("bench", "run a side-by-side benchmark"),
    "experiment": ("experiment", "run an experiment of a paper: table, figure, JSON"),
    "pipeline": ("pipeline", "run a Spark job"),
}
"""Command to its module in `shoal.cli`, and its line in `shoal --help`."""

FRONT_DOOR_COMMANDS: Final = {
    "test": "run the tests (with ./shoal)",
    "check": "check lint, types and import directions (with ./shoal)",
}

EXAMPLES: Final = """examples:
  shoal demo --seconds 20
  shoal up && echo north | shoal pub tile.3.4
  shoal COMMAND --help"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    _open_closed_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    try:
        with needed(f"shoal {next((word for word in words if not word.startswith('-')), '')}".strip()):
            return _run(words)
    except SystemExit as leaving:  # argparse: help, version, wrong usage
        return leaving.code if isinstance(leaving.code, int) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output exited, as with `| head`
        _discard_output()
        return 1
    except ShoalError as error:  # some are an OSError too
        if debug:
            traceback.print_exc()
        _print_error(str(error))
        return 1
    except OSError as error:  # our output cannot be written, for example
        if debug:
            traceback.print_exc()
        _print_error(str(error))
        _discard_output()
        return 1


def _open_closed_streams() -> None:
    """Open standard streams that the caller closed as the null device: Python has None for them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _discard_output() -> None:
    """Discard the rest of standard output, which Python would write when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> int:
    """Parse the arguments and run the command."""
    args = _parse(words)
    loaded = config.load(flags={"state_dir": args.state_dir, "log_level": args.log_level}, file=args.config)
    args.settings = loaded.settings
    args.setting_sources = loaded.sources
    logs.configure(level=loaded.settings.log_level, format=loaded.settings.log_format)
    os.environ.update(config.environment_of(tls=loaded.settings.tls))  # addresses are completed from there
    status: int = args.run(args)
    sys.stdout.flush()
    return status


def available_commands() -> dict[str, tuple[str, str]]:
    """Return the commands whose module exists."""
    modules = {module for module, _ in COMMANDS.values()}
    there = {module for module in modules if importlib.util.find_spec(f"{__name__}.{module}") is not None}
    return {name: entry for name, entry in COMMANDS.items() if entry[0] in there}


class _Parser(argparse.ArgumentParser):
    """A parser that reports wrong usage in one line with a hint."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; report unknown arguments here, where the help of the command is known. argparse leaves them to the
        parser of all commands."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            near = difflib.get_close_matches(unknown[0], self._option_string_actions, n=1)
            self.error(f"unrecognized arguments: {' '.join(unknown)}" + (f", did you mean {near[0]}?" if near else ""))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print the problem and exit with 2."""
        _print_error(f"{message} (see {self.prog} --help)")
        self.exit(2)


def _parse(words: list[str]) -> argparse.Namespace:
    """Import the module of the given command, and parse the arguments with its parser."""
    parser = _Parser(
        prog="shoal",
        description="Elastic publish/subscribe without message loss, on unmodified Redis and Valkey servers.",
        epilog=EXAMPLES,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"shoal {__version__}")
    add_shared_flags(parser, default=None)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", parser_class=_Parser)
    available = available_commands()
    command = _command_of(parser, words)
    if command in available:
        importlib.import_module(f"{__name__}.{available[command][0]}").register(subparsers)
        return parser.parse_args(words)
    for name, (_, summary) in available.items():
        subparsers.add_parser(name, help=summary)
    for name, summary in FRONT_DOOR_COMMANDS.items():
        subparsers.add_parser(name, help=summary)
    if command in FRONT_DOOR_COMMANDS:
        parser.error(f"{command} runs only from a checkout: run ./shoal {command}")
    if command is not None:
        near = difflib.get_close_matches(command, available, n=1)
        parser.error(f"unknown command {command!r}" + (f", did you mean {near[0]}?" if near else ""))
    parser.parse_args(words)  # --help and --version exit here
    parser.print_help()
    parser.exit(0 if not words else 2)


def _command_of(parser: argparse.ArgumentParser, words: list[str]) -> str | None:
    """Return the first word that is neither a flag nor the value of one; None if --help, --version or nothing comes
    first.
    """
    takes_value = {flag for action in parser._actions if action.nargs is None for flag in action.option_strings}
    expects_value = False
    for word in words:
        if expects_value:
            expects_value = False
        elif word in ("-h", "--help", "--version"):
            return None
        elif word.startswith("-"):
            expects_value = word in takes_value
        else:
            return word
    return None


def _print_error(message: str) -> None:
    """Print one line to standard error."""
    mark = "\x1b[31mshoal:\x1b[0m" if colour_wanted(sys.stderr) else "shoal:"
    print(f"{mark} {shown(message)}", file=sys.stderr)
