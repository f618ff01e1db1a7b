"""`shoal channels record` and `shoal channels recorded`: which channels are recorded.

Owns the output. The marks are stored beside the plan (`shoal.plan.recording_marks`); agents do the recording.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Final

from shoal.cli.output import HelpFormatter, Subparsers, add_command, result
from shoal.wire.envelope import check_channel_name

_TIMEOUT_S: Final = 5.0
_EXAMPLE: Final = "shoal channels record 'orders.*'\n  shoal channels recorded --json"


def register(subparsers: Subparsers) -> None:
    """Add the commands."""
    parser = subparsers.add_parser(
        "channels",
        help="list, start and stop recorded channels",
        description="Start and stop recording channels, and list recorded ones.",
        epilog=f"example:\n  {_EXAMPLE}",
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    record = add_command(
        group,
        "record",
        run_record,
        "record a channel, or all channels that match a pattern",
        example="shoal channels record orders.eu\nshoal channels record 'orders.*'\n"
        "shoal channels record 'orders.*' --off",
        description="Record a channel: the agent of each server that carries it appends its messages to a "
        "stream on that "
        "server, for `shoal history`, `subscribe(since=...)` and `shoal pipeline archive`.",
    )
    record.add_argument("name", metavar="NAME", help="a channel or a Redis pattern: orders.*")
    record.add_argument("--off", action="store_true", help="stop recording; recorded messages stay")
    add_command(
        group, "recorded", run_recorded, "list recorded channels and patterns", example="shoal channels recorded --json"
    )


def run_record(args: argparse.Namespace) -> int:
    """Set or remove a mark, and wait until the agents have applied it."""
    from shoal.history.recording_switch import switch_recording

    pattern = check_channel_name(args.name, args.settings.limits)
    news, waiting = asyncio.run(switch_recording(_url(args), pattern, not args.off))
    state = "no longer recorded" if args.off else "recorded"
    facts = {"name": args.name, "recorded": not args.off, "changed": news, "waiting": waiting}
    text = f"{args.name} is {state}" + ("" if news else ", as before")
    if waiting:
        text += f"; the agents of these servers have not applied it yet: {', '.join(waiting)}"
    result(args, facts, text)
    return 0 if not waiting else 1


def run_recorded(args: argparse.Namespace) -> int:
    """List the marks."""
    patterns = [pattern.decode("utf-8", "backslashreplace") for pattern in asyncio.run(_recorded(_url(args)))]
    result(args, {"recorded": patterns}, "\n".join(patterns) or "nothing is recorded")
    return 0


def _url(args: argparse.Namespace) -> str:
    from shoal.cli.plan import coordinator_of

    return coordinator_of(args)[0]


async def _recorded(url: str) -> list[bytes]:
    from shoal.plan.recording_marks import recorded_patterns
    from shoal.runtime import PRODUCTION

    async with await PRODUCTION.coordinator(url, _TIMEOUT_S) as coordinator:
        return await recorded_patterns(coordinator)
