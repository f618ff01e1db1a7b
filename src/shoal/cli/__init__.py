"""The command line: from words to one function call and an exit status.

Owns: the table of commands, the choice of the module to import, and what an error looks like to the person
who typed. Never touches: what commands do; each group of them is one module of this package (see `output` for
its shape). Only the module of the command that was asked for is imported, so that each command starts
quickly; a command whose module is not there is not listed.

Exit status: 0 what was asked holds, 1 it does not (or an error), 2 wrong usage, 130 interrupted.
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
from typing import Final, NoReturn

from shoal import config, logs
from shoal.cli.output import add_shared_flags, colour_wanted
from shoal.errors import ShoalError
from shoal.version import __version__

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "demo": ("demo", "a cluster, a balancer and a crowd on channels, on this machine, live"),
    "up": ("cluster", "start a local cluster in the background"),
    "down": ("cluster", "stop the local cluster and leave nothing behind"),
    "status": ("cluster", "what runs, where, how loaded"),
    "doctor": ("cluster", "what this machine has and lacks, and what to do about it"),
    "pub": ("channels", "publish the lines of standard input on a channel"),
    "sub": ("channels", "print the messages of channels"),
    "channels": ("recording", "which channels are recorded"),
    "history": ("history", "what was recorded of a channel"),
    "top": ("top", "live load by server and channel, and what the balancer does"),
    "agent": ("agent", "run the agent of one server"),
    "balancer": ("balancer", "run a balancer: it keeps the ring, moves channels, and adds and removes servers"),
    "plan": ("plan", "the plan, and why each channel is where it is"),
    "sim": ("sim", "a simulation campaign of a protocol, by seed"),
    "soak": ("soak", "the same checks against real processes, with faults on request"),
    "fuzz": ("fuzz", "random texts against the filter language"),
    "bench": ("bench", "a side-by-side measurement"),
    "experiment": ("experiment", "an experiment of a paper: table, figure, JSON"),
    "pipeline": ("pipeline", "a Spark job"),
}
"""Command to the module of `shoal.cli` that has it, and the line that `shoal --help` shows."""

FRONT_DOOR_COMMANDS: Final = {
    "test": "run the tests (through ./shoal)",
    "check": "lint, types and import directions (through ./shoal)",
}

EXAMPLES: Final = """examples:
  shoal demo --seconds 20
  shoal up && echo north | shoal pub tile.3.4
  shoal COMMAND --help"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    try:
        args = _parse(words)
        debug = bool(args.debug)
        loaded = config.load(flags={"state_dir": args.state_dir, "log_level": args.log_level}, file=args.config)
        args.settings = loaded.settings
        args.setting_sources = loaded.sources
        logs.configure(level=loaded.settings.log_level, format=loaded.settings.log_format)
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except SystemExit as leaving:  # argparse: help, version, wrong usage
        return leaving.code if isinstance(leaving.code, int) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ShoalError as error:
        if debug:
            traceback.print_exc()
        _complain(str(error))
        return 1


def available_commands() -> dict[str, tuple[str, str]]:
    """The commands whose module is there."""
    modules = {module for module, _ in COMMANDS.values()}
    there = {module for module in modules if importlib.util.find_spec(f"{__name__}.{module}") is not None}
    return {name: entry for name, entry in COMMANDS.items() if entry[0] in there}


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint about wrong usage is one line and a hint, not a page."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and exit with 2."""
        _complain(f"{message} (see {self.prog} --help)")
        self.exit(2)


def _parse(words: list[str]) -> argparse.Namespace:
    """Import the module of the command that the words ask for, and let its parser read them."""
    parser = _Parser(
        prog="shoal",
        description="Publish/subscribe on unmodified Redis and Valkey servers that loses nothing.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
        parser.error(f"{command} is a command of the front door: run ./shoal {command} in a checkout")
    if command is not None:
        near = difflib.get_close_matches(command, available, n=1)
        parser.error(f"unknown command {command!r}" + (f", did you mean {near[0]}?" if near else ""))
    parser.parse_args(words)  # --help and --version leave here
    parser.print_help()
    parser.exit(0 if not words else 2)


def _command_of(parser: argparse.ArgumentParser, words: list[str]) -> str | None:
    """The first word that is neither a flag nor the value of one; None if --help, --version or nothing comes
    first."""
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


def _complain(message: str) -> None:
    """One line on standard error."""
    mark = "\x1b[31mshoal:\x1b[0m" if colour_wanted(sys.stderr) else "shoal:"
    print(f"{mark} {message}", file=sys.stderr)
