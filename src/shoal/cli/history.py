"""`shoal history`: prints the recorded messages of a channel.

Owns the output. Reading and merging is in `shoal.history`. Needs no Spark.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import re
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from shoal.bus.times import read_time
from shoal.cli.output import Subparsers, add_command, note, result
from shoal.errors import ConfigError, ShoalError
from shoal.extras import needed
from shoal.message import Gap, Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.bus.plan_source import PlanSource
    from shoal.history.channel_history import ChannelHistory

AGENTS_S_MAX: Final = 5.0
"""How long to wait for agents to write down the latest messages."""


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "history",
        run,
        "print the recorded messages of a channel",
        example="shoal history orders.eu --since 2026-11-01T10:00\n"
        "shoal history orders.eu --since 15m --where \"symbol = 'YHOO'\" --limit 100 --json",
        description="Print the recorded messages of a channel, from the archive and from the servers' "
        "records, in order "
        "and each message once. Gaps are shown where messages are missing.\n\n"
        "TIME is a date and time, in UTC unless a zone is given (2026-11-01T10:00, 2026-11-01T10:00+02:00), "
        "or an age: a number and s, m, h or d (90s, 15m, 2h, 1.5d).",
    )
    parser._negative_number_matcher = re.compile(r"-\d")  # "--since -5m" is an invalid time, not a missing one
    parser.add_argument("channel", metavar="CHANNEL", help="a recorded channel; not a pattern")
    parser.add_argument(
        "--since", required=True, metavar="TIME", help="start: 2026-11-01T10:00 (UTC), or an age: 15m, 2h, 3d"
    )
    parser.add_argument("--until", metavar="TIME", help="end, exclusive (default: now)")
    parser.add_argument(
        "--where", metavar="FILTER", help='only messages whose attributes match the filter: "volume > 300000"'
    )
    parser.add_argument("--limit", type=int, metavar="N", help="print at most the first N messages")
    parser.add_argument(
        "--archive",
        metavar="PATH",
        help="directory or URL of the archive (default: the setting archive_dir, else none)",
    )
    parser.add_argument("--url", metavar="URL", help="shoal://user:password@host:port (default: as `shoal sub`)")


def run(args: argparse.Namespace) -> int:
    """Print the history of a channel."""
    from shoal.filters.language import parse

    with needed("shoal history", "records"):
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
    is_recorded = any(glob_match(mark, channel) for mark in marks)
    if is_recorded and until_us > (now_s - AGENTS_S_MAX) * 1_000_000:
        asyncio.run(_wait_for_agents(args))
    history.read()
    table = history.joined(until_us)
    if not table.num_rows:
        _explain_empty(args.channel, marks, is_recorded=is_recorded)
    if where is not None:
        table = matching(table, where)
    shown = Shown(args.limit, quiet=args.json)
    for item in to_items(table, args.channel):
        if not shown.take(item):
            break
    for server, why in history.unreachable.items():
        note(f"server {server} is unreachable, its records are missing: {why}")
    facts = {"channel": args.channel, "is_recorded": is_recorded, "messages": shown.messages, "gaps": shown.gaps}
    result(args, {**facts, "items": shown.items, "unreachable": sorted(history.unreachable)}, "")
    return 0 if not shown.gaps and not history.unreachable else 1


async def _wait_for_agents(args: argparse.Namespace) -> None:
    """Wait until agents have recorded everything published so far: they do so before they answer a subscriber."""
    from shoal.bus import connect
    from shoal.cli.channels import cluster_url

    url = cluster_url(args.url, args.settings, servers=True)
    try:
        async with (
            asyncio.timeout(AGENTS_S_MAX),
            connect(url, limits=args.settings.limits) as bus,
            bus.subscribe(args.channel),
        ):
            pass
    except (ShoalError, TimeoutError) as error:
        why = error if isinstance(error, ShoalError) else f"an agent did not answer within {AGENTS_S_MAX:g} s"
        note(f"messages of the last seconds may be missing: {why}")


def _explain_empty(channel: str, marks: Sequence[bytes], *, is_recorded: bool) -> None:
    """Explain an empty result. Raises ConfigError for a pattern: history is for one channel."""
    listed = ", ".join(mark.decode("utf-8", "backslashreplace") for mark in marks)
    recorded = f"recorded channels: {listed}" if listed else "no channel is recorded"
    if any(sign in channel for sign in "*?["):
        raise ConfigError(f"{channel} is a pattern, and no channel of that name is recorded", do="give one channel")
    if is_recorded:
        note(f"no messages of {channel} were recorded in that time")
    else:
        note(f"{channel} is not recorded; {recorded}")


def open_history(args: argparse.Namespace, channel: bytes, since_us: int) -> tuple[ChannelHistory, Sequence[bytes]]:
    """Open the history of a channel in the command's cluster; also return the patterns of recorded channels."""
    from shoal.bus.plan_source import PlanSource
    from shoal.cli.channels import cluster_url
    from shoal.history.channel_history import ChannelHistory
    from shoal.history.server_reader import Login
    from shoal.plan.signature import Verifier
    from shoal.runtime import PRODUCTION

    source = PlanSource(
        lambda: cluster_url(args.url, args.settings), args.settings.limits.connect_timeout_s, PRODUCTION
    )
    key, ring, marks = asyncio.run(_read_plan(source))
    servers = Verifier(key).ring(ring).servers
    archive = args.archive or args.settings.archive_dir
    login = Login(source.address.username, source.address.password, source.address.tls)
    return ChannelHistory(servers, login, channel, since_us, archive or None), marks


async def _read_plan(source: PlanSource) -> tuple[bytes, bytes, list[bytes]]:
    """Return the key, the ring and the patterns of recorded channels."""
    key, ring = await source.key_and_ring()
    return key, ring, await source.recorded()


class Shown:
    """Prints and counts items."""

    def __init__(self, limit: int | None, *, quiet: bool) -> None:
        self.items: list[dict[str, Any]] = []
        self.messages = self.gaps = 0
        self._limit = limit
        self._quiet = quiet

    def take(self, item: Message | Gap) -> bool:
        """Print an item; return False once the limit is reached."""
        from shoal.cli.channels import item_facts, missing_text

        if isinstance(item, Gap):
            self.gaps += 1
            if not self._quiet:
                note(f"gap: {missing_text(item)} ({item.reason})")
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
