"""`shoal demo`: a live demonstration of Shoal on one machine.

Owns the command's flags, the choice of the output (live, headless or JSON), and its JSON. The demo itself is in
`shoal.lab.demo`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from shoal import logs
from shoal.cli.output import Subparsers, add_command, console, note, result
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.balance.window_source import Way
    from shoal.lab.demo.frames import DemoFrame
    from shoal.lab.demo.run import Summary

SECONDS: Final = 60.0
PLAYERS: Final = 200
PLAYERS_MAX: Final = 2000
SERVERS: Final = 2
SERVERS_MOST: Final = 6
SERVERS_MAX: Final = 16
REFRESH_S: Final = 0.2
SPARK_SECONDS_MIN: Final = 40.0
"""Shorter demos end before Spark is warm."""


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "demo",
        run,
        "show a live demo: a cluster, a balancer and game players, on this machine",
        description="Starts a cluster with a balancer, and game players who use its channels. Players join until "
        "servers fill up: channels move, a hot one is replicated, and servers are added. Then players "
        "leave, and servers are drained and removed. One server is killed in between. The players count "
        "lost messages. Everything is cleaned up at the end. A demo shorter than 40 s ends before the "
        "players leave.",
        example="shoal demo\nshoal demo --seconds 20 --headless --json",
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="N", help=f"duration in s (default {SECONDS:g})"
    )
    parser.add_argument("--headless", action="store_true", help="print two lines per second instead of the live view")
    parser.add_argument(
        "--players", type=int, default=PLAYERS, metavar="N", help=f"largest number of players (default {PLAYERS})"
    )
    parser.add_argument(
        "--servers", type=int, default=SERVERS, metavar="N", help=f"initial number of servers (default {SERVERS})"
    )
    parser.add_argument(
        "--servers-max",
        type=int,
        default=SERVERS_MOST,
        metavar="N",
        help=f"maximum number of servers (default {SERVERS_MOST})",
    )
    parser.add_argument(
        "--windows",
        choices=("in-process", "spark"),
        help="compute load windows in the balancer, or in a Spark job once it is warm "
        f"(default: spark if Java and PySpark are installed and the demo lasts at least {SPARK_SECONDS_MIN:g} s)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo; 0 if nothing was lost, duplicated or reordered."""
    _check(args)
    from shoal.lab.demo.run import DemoOptions, run_demo
    from shoal.lab.demo.view import summary_table

    if args.setting_sources["log_level"] == "default":  # the event list already shows what warnings would
        logs.configure(level="error", format=args.settings.log_format)
    options = DemoOptions(
        seconds=args.seconds,
        players=args.players,
        servers=args.servers,
        servers_max=max(args.servers, args.servers_max),
        limits=args.settings.limits,
        windows=_windows(args),
    )
    screen = console(args)
    try:
        with _headless() if args.headless or not screen.is_terminal else _live(args) as show:
            summary = asyncio.run(run_demo(options, show, note))
    except asyncio.CancelledError:  # interrupted a second time
        return 130
    if not args.json:
        screen.print(summary_table(summary))
    result(args, facts(summary), "")
    return 0 if summary.holds else 1


def _windows(args: argparse.Namespace) -> Way:
    """Return where load windows are computed. If Spark was requested it must be installed; otherwise it is used if it
    is.
    """
    from shoal.balance.window_source import Way
    from shoal.errors import PipelineError
    from shoal.pipeline.session import import_spark
    from shoal.pipeline.spark.java import find_java

    if args.windows == "in-process" or (args.windows is None and args.seconds < SPARK_SECONDS_MIN):
        return Way.IN_PROCESS
    try:
        find_java()
        import_spark()
    except PipelineError as error:
        if args.windows == "spark":
            raise
        note(f"load windows stay in process: {error.what}")
        return Way.IN_PROCESS
    return Way.SPARK


def _check(args: argparse.Namespace) -> None:
    if not 1 <= args.seconds < float("inf"):
        raise ConfigError(f"--seconds is {args.seconds:g}", do="give a number of at least 1")
    if not 1 <= args.players <= PLAYERS_MAX:
        raise ConfigError(f"--players is {args.players}", do=f"give a number from 1 to {PLAYERS_MAX}")
    for name, value in (("--servers", args.servers), ("--servers-max", args.servers_max)):
        if not 1 <= value <= SERVERS_MAX:
            raise ConfigError(f"{name} is {value}", do=f"give a number from 1 to {SERVERS_MAX}")


def facts(summary: Summary) -> dict[str, object]:
    """Return the summary as JSON fields."""
    return {
        "players": summary.players,
        "messages": summary.tally.messages,
        "deliveries": summary.tally.deliveries,
        "lost": summary.tally.lost,
        "duplicated": summary.tally.duplicated,
        "reordered": summary.tally.reordered,
        "gaps_reported": summary.tally.gaps_reported,
        "server_kills": summary.server_kills,
        "moves": summary.moves_ended,
        "moves_asked": summary.moves_asked,
        "proposals": summary.proposals,
        "replicated": summary.replicated,
        "servers_added": summary.servers_added,
        "servers_removed": summary.servers_removed,
        "servers_most": summary.servers_most,
        "response_ms": {"p50": summary.p50_ms, "p99": summary.p99_ms},
        "seconds": summary.seconds,
        "servers": summary.servers,
        "ring_version": summary.ring_version,
        "cpu_share": round(summary.cpu_share_mean, 3),
        "interrupted": summary.interrupted,
        "windows": {"way": summary.windows, "why": summary.windows_why, "spark_at_s": summary.spark_at_s},
        "events": [{"at_s": round(event.at_s, 1), "text": event.text} for event in summary.events],
        "gap_reasons": summary.gap_reasons,
        "troubles": summary.troubles,
    }


@contextlib.contextmanager
def _headless() -> Iterator[Callable[[DemoFrame], None]]:
    """Print events as they occur and two lines per second, to standard error."""
    from shoal.lab.demo.view import event_line, text_lines

    shown = seconds = 0

    def show(frame: DemoFrame) -> None:
        nonlocal shown, seconds
        for event in frame.events[shown:]:
            note(event_line(event))
        shown = len(frame.events)
        if len(frame.history) > seconds:
            seconds = len(frame.history)
            note(text_lines(frame))

    yield show


@contextlib.contextmanager
def _live(args: argparse.Namespace) -> Iterator[Callable[[DemoFrame], None]]:
    """Show the live view from the first frame on; the last frame stays on the screen."""
    import time

    from rich.live import Live

    from shoal.lab.demo.view import LiveView

    shown_at = 0.0
    with contextlib.ExitStack() as stack:
        live: Live | None = None

        def show(frame: DemoFrame) -> None:
            nonlocal live, shown_at
            if live is None:
                live = Live(console=console(args), auto_refresh=False, vertical_overflow="crop")
                stack.enter_context(live)
            if time.monotonic() - shown_at >= REFRESH_S:
                shown_at = time.monotonic()
                live.update(LiveView(frame), refresh=True)

        yield show
