"""`shoal channels record` and `shoal channels recorded`: which channels are written down.

Owns the words. The marks are beside the plan (`shoal.plan.recorded`); agents do the writing.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Final

from shoal.cli.output import Subparsers, add_command, result
from shoal.wire.envelope import check_channel_name

_TIMEOUT_S: Final = 5.0
_EXAMPLE: Final = "shoal channels record 'orders.*'\n  shoal channels recorded --json"


def register(subparsers: Subparsers) -> None:
    """Add the commands."""
    parser = subparsers.add_parser(
        "channels",
        help="which channels are recorded",
        description="Which channels are recorded.",
        epilog=f"example:\n  {_EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    record = add_command(
        group,
        "record",
        run_record,
        "record a channel, or all that a pattern matches",
        example="shoal channels record orders.eu\nshoal channels record 'orders.*'\n"
        "shoal channels record 'orders.*' --off",
        description="Record a channel: the agent of each server that hears it writes its messages into a stream beside "
        "it, for `shoal history`, `subscribe(since=...)` and `shoal pipeline archive`.",
    )
    record.add_argument("name", metavar="NAME", help="a channel, or a pattern as in Redis: orders.*")
    record.add_argument("--off", action="store_true", help="record it no longer; what is recorded stays")
    add_command(group, "recorded", run_recorded, "list what is recorded", example="shoal channels recorded --json")


def run_record(args: argparse.Namespace) -> int:
    """Set or take away a mark."""
    pattern = check_channel_name(args.name, args.settings.limits)
    news = asyncio.run(_record(_url(args), pattern, not args.off))
    state = "no longer recorded" if args.off else "recorded"
    facts = {"name": args.name, "recorded": not args.off, "changed": news}
    result(args, facts, f"{args.name} is {state}" + ("" if news else ", as before"))
    return 0


def run_recorded(args: argparse.Namespace) -> int:
    """List the marks."""
    patterns = [pattern.decode("utf-8", "backslashreplace") for pattern in asyncio.run(_recorded(_url(args)))]
    result(args, {"recorded": patterns}, "\n".join(patterns) or "nothing is recorded")
    return 0


def _url(args: argparse.Namespace) -> str:
    from shoal.cli.plan import coordinator_of

    return coordinator_of(args)[0]


async def _record(url: str, pattern: bytes, on: bool) -> bool:
    from shoal.coordination.redis import RedisCoordinator
    from shoal.plan.recorded import set_recorded

    async with await RedisCoordinator.connect(url, timeout_s=_TIMEOUT_S) as coordinator:
        return await set_recorded(coordinator, pattern, on)


async def _recorded(url: str) -> list[bytes]:
    from shoal.coordination.redis import RedisCoordinator
    from shoal.plan.recorded import recorded_patterns

    async with await RedisCoordinator.connect(url, timeout_s=_TIMEOUT_S) as coordinator:
        return await recorded_patterns(coordinator)
