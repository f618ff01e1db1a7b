"""`shoal history`: what was recorded of a channel.

Owns the words. What is read and how it goes together is decided in `shoal.history`. Needs no Spark.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shoal.bus.times import read_time
from shoal.cli.output import Subparsers, add_command, note, result
from shoal.errors import ConfigError
from shoal.message import Gap, Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.bus.plan_source import PlanSource
    from shoal.history.channel_history import ChannelHistory

LAG_S: Final = 0.2
"""How long agents may take to write down what they hear: records are read once more after it."""


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "history",
        run,
        "what was recorded of a channel",
        example="shoal history orders.eu --since 2026-11-01T10:00\n"
        "shoal history orders.eu --since 15m --where \"symbol = 'YHOO'\" --limit 100 --json",
        description="Print what was recorded of a channel: the archive, and what is still only in the records of the "
        "servers, in order, each message once. Gaps are shown where messages are missing.\n\n"
        "TIME is a date and time, UTC unless it says otherwise (2026-11-01T10:00, 2026-11-01T10:00+02:00),\n"
        "or an age: a number and s, m, h or d (90s, 15m, 2h, 1.5d).",
    )
    parser._negative_number_matcher = re.compile(r"-\d")  # "--since -5m" is a wrong time, not a missing one
    parser.add_argument("channel", metavar="CHANNEL", help="a channel that is recorded; not a pattern")
    parser.add_argument("--since", required=True, metavar="TIME", help="2026-11-01T10:00 (UTC), or an age: 15m, 2h, 3d")
    parser.add_argument("--until", metavar="TIME", help="up to before this time (default: now)")
    parser.add_argument("--where", metavar="FILTER", help='only messages whose attributes match: "volume > 300000"')
    parser.add_argument("--limit", type=int, metavar="N", help="at most N messages, the first ones")
    parser.add_argument("--archive", metavar="DIR", help="the archive (default: the setting archive_dir, else none)")
    parser.add_argument("--url", metavar="URL", help="shoal://user:password@host:port (default: as `shoal sub`)")


def run(args: argparse.Namespace) -> int:
    """Print the history of a channel."""
    from shoal.filters.language import parse
    from shoal.history.table import matching, to_items
    from shoal.wire.envelope import check_channel_name
    from shoal.wire.glob import glob_match

    now_s = time.time()
    since_us = read_time(args.since, now_s)
    until_us = read_time(args.until, now_s) if args.until else int(now_s * 1_000_000)
    if since_us >= until_us:
        raise ConfigError(f"--since {args.since} is not before --until", do="give an earlier time")
    if args.limit is not None and args.limit < 1:
        raise ConfigError(f"--limit is {args.limit}", do="give a number above 0")
    where = parse(args.where, args.settings.limits) if args.where else None
    channel = check_channel_name(args.channel, args.settings.limits)
    history, marks = open_history(args, channel, since_us)
    history.read()
    if until_us > (now_s - LAG_S) * 1_000_000:
        time.sleep(LAG_S)
        history.read()
    table = history.joined(until_us)
    is_recorded = any(glob_match(mark, channel) for mark in marks)
    if not table.num_rows:
        _say_nothing(args.channel, marks, is_recorded=is_recorded)
    if where is not None:
        table = matching(table, where)
    shown = Shown(args.limit, quiet=args.json)
    for item in to_items(table, args.channel):
        if not shown.take(item):
            break
    for server, why in history.unreachable.items():
        note(f"server {server} cannot be asked, what it recorded is missing: {why}")
    facts = {"channel": args.channel, "is_recorded": is_recorded, "messages": shown.messages, "gaps": shown.gaps}
    result(args, {**facts, "items": shown.items, "unreachable": sorted(history.unreachable)}, "")
    return 0 if not shown.gaps and not history.unreachable else 1


def _say_nothing(channel: str, marks: Sequence[bytes], *, is_recorded: bool) -> None:
    """Says why there is nothing of a channel. ConfigError if it is a pattern: history is of one channel."""
    listed = ", ".join(mark.decode("utf-8", "backslashreplace") for mark in marks)
    recorded = f"recorded are {listed}" if listed else "no channel is recorded"
    if any(sign in channel for sign in "*?["):
        raise ConfigError(f"{channel} is a pattern, and no channel of that name was recorded", do="name one channel")
    if is_recorded:
        note(f"nothing of {channel} was recorded in that time")
    else:
        note(f"nothing of {channel} was recorded; {recorded}")


def open_history(args: argparse.Namespace, channel: bytes, since_us: int) -> tuple[ChannelHistory, Sequence[bytes]]:
    """The history of a channel of the cluster that a command means, and which channels are recorded there."""
    from shoal.bus.plan_source import PlanSource
    from shoal.cli.channels import cluster_url
    from shoal.history.channel_history import ChannelHistory
    from shoal.history.server_reader import Login
    from shoal.plan.signing import Verifier

    source = PlanSource(cluster_url(args.url, args.settings), args.settings.limits.connect_timeout_s)
    key, ring, marks = asyncio.run(_asked(source))
    servers = Verifier(key).ring(ring).servers
    archive = args.archive or args.settings.archive_dir
    login = Login(source.address.username, source.address.password)
    folder = Path(archive).expanduser() if archive else None
    return ChannelHistory(servers, login, channel, since_us, folder), marks


async def _asked(source: PlanSource) -> tuple[bytes, bytes, list[bytes]]:
    """The key, the ring and the marks of recorded channels."""
    key, ring = await source.key_and_ring()
    return key, ring, await source.recorded()


class Shown:
    """What is printed, and counted."""

    def __init__(self, limit: int | None, *, quiet: bool) -> None:
        self.items: list[dict[str, Any]] = []
        self.messages = self.gaps = 0
        self._limit = limit
        self._quiet = quiet

    def take(self, item: Message | Gap) -> bool:
        """Prints an item; False if there have been enough."""
        from shoal.cli.channels import item_facts, missing_words

        if isinstance(item, Gap):
            self.gaps += 1
            if not self._quiet:
                note(f"gap: {missing_words(item)} ({item.reason})")
        else:
            if self._limit is not None and self.messages >= self._limit:
                return False
            self.messages += 1
            if not self._quiet:
                at = dt.datetime.fromtimestamp(item.published_at_us / 1e6, dt.UTC).isoformat(timespec="milliseconds")
                sys.stdout.buffer.write(at.removesuffix("+00:00").encode() + b"  " + item.payload + b"\n")
        if self._quiet:
            self.items.append(item_facts(item))
        return True
