"""`shoal history`: what was recorded of a channel.

Owns the words. What is read and how it goes together is decided in `shoal.history`. Needs no Spark.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shoal.cli.output import Subparsers, add_command, note, result
from shoal.cli.times import read_time
from shoal.errors import ConfigError
from shoal.message import Gap, Message

if TYPE_CHECKING:
    from shoal.history.reading import ChannelHistory

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
        "servers, in order, each message once. Gaps are shown where messages are missing.",
    )
    parser.add_argument("channel", metavar="CHANNEL", help="a channel that is recorded")
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

    now_s = time.time()
    since_us = read_time(args.since, now_s)
    until_us = read_time(args.until, now_s) if args.until else int(now_s * 1_000_000)
    if since_us >= until_us:
        raise ConfigError(f"--since {args.since} is not before --until", do="give an earlier time")
    if args.limit is not None and args.limit < 1:
        raise ConfigError(f"--limit is {args.limit}", do="give a number above 0")
    where = parse(args.where, args.settings.limits) if args.where else None
    channel = check_channel_name(args.channel, args.settings.limits)
    history = open_history(args, channel, since_us)
    history.read()
    if until_us > (now_s - LAG_S) * 1_000_000:
        time.sleep(LAG_S)
        history.read()
    table = history.joined(until_us)
    if where is not None:
        table = matching(table, where)
    shown = Shown(args.limit, quiet=args.json)
    for item in to_items(table, args.channel):
        if not shown.take(item):
            break
    for server, why in history.unreachable.items():
        note(f"server {server} cannot be asked, what it recorded is missing: {why}")
    facts = {"channel": args.channel, "messages": shown.messages, "gaps": shown.gaps}
    result(args, {**facts, "items": shown.items, "unreachable": sorted(history.unreachable)}, "")
    return 0 if not shown.gaps and not history.unreachable else 1


def open_history(args: argparse.Namespace, channel: bytes, since_us: int) -> ChannelHistory:
    """The history of a channel of the cluster that a command means."""
    from shoal.bus.plan_source import PlanSource
    from shoal.cli.channels import cluster_url
    from shoal.history.reading import ChannelHistory
    from shoal.history.servers import Login
    from shoal.plan.signing import Verifier

    source = PlanSource(cluster_url(args.url, args.settings), args.settings.limits.connect_timeout_s)
    key, ring = asyncio.run(source.key_and_ring())
    servers = Verifier(key).ring(ring).servers
    archive = args.archive or args.settings.archive_dir
    login = Login(source.address.username, source.address.password)
    return ChannelHistory(servers, login, channel, since_us, Path(archive).expanduser() if archive else None)


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
