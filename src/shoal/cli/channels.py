"""`shoal pub` and `shoal sub`: channels from the command line.

Owns the conversion between lines and messages. Everything else is in the bus.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import datetime as dt
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final

from shoal.bus import Bus, Subscription, connect
from shoal.bus.location import ROLE, URL_VARIABLE, find_url
from shoal.bus.times import read_time
from shoal.cli.numbers import positive_int
from shoal.cli.output import Subparsers, add_command, note, result
from shoal.config import Settings
from shoal.errors import ConfigError, UnreachableError
from shoal.message import AttributeScalar, Gap, Item, Message, Retraction
from shoal.wire.envelope import check_channel_name

READ_BYTES_MAX: Final = 1 << 20
"""Bytes read from standard input at a time."""


def register(subparsers: Subparsers) -> None:
    """Add the commands."""
    pub = add_command(
        subparsers,
        "pub",
        run_pub,
        "publish the lines of standard input on a channel",
        example="echo north | shoal pub tile.3.4\ntail -f app.log | shoal pub logs --attribute host=web1 --confirm",
    )
    pub.add_argument("channel", metavar="CHANNEL", help="channel name")
    pub.add_argument(
        "--attribute",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an attribute of every message; numbers and true/false are sent as such (can be repeated)",
    )
    pub.add_argument("--confirm", action="store_true", help="wait after each message until a server has confirmed it")
    add_url(pub)
    sub = add_command(
        subparsers,
        "sub",
        run_sub,
        "print the messages of channels",
        example=(
            "shoal sub tile.3.4 tile.3.5\nshoal sub orders.eu --since 15m\n"
            "shoal sub --pattern 'tile.*' --format json --count 10\n"
            "shoal sub quotes --where \"symbol = 'YHOO' and volume > 300000\""
        ),
    )
    sub.add_argument("names", metavar="CHANNEL", nargs="+", help="channel names, or patterns with --pattern")
    sub.add_argument("--pattern", action="store_true", help="treat the names as Redis patterns: tile.*")
    sub.add_argument(
        "--where", metavar="FILTER", help='only messages whose attributes match the filter: "volume > 300000"'
    )
    sub.add_argument(
        "--since",
        metavar="TIME",
        help="start with recorded messages since this time: 2026-11-01T10:00 (UTC), or an age: 15m, 2h, 3d",
    )
    sub.add_argument("--count", type=positive_int, metavar="N", help="stop after N messages")
    sub.add_argument("--seconds", type=float, metavar="N", help="stop after N seconds")
    sub.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="print payloads, or one JSON object per line (default: text)",
    )
    add_url(sub)


def add_url(parser: argparse.ArgumentParser) -> None:
    """Add the flag with the cluster's address."""
    parser.add_argument(
        "--url",
        metavar="URL",
        help=f"shoal://user:password@host:port,... (default: ${URL_VARIABLE}, else the local cluster)",
    )


def cluster_url(url: str | None, settings: Settings, role: str = ROLE, *, servers: bool = False) -> str:
    """Return the address of the cluster for a role: the flag, $SHOAL_URL, the setting `coordinator`, or the local
    cluster, with `servers` all its servers.
    """
    if url:
        return url
    if os.environ.get(URL_VARIABLE):
        return os.environ[URL_VARIABLE]
    return settings.coordinator or find_url(settings.state_path, role=role, servers=servers)


def run_pub(args: argparse.Namespace) -> int:
    """Publish standard input, line by line."""
    check_channel_name(args.channel, args.settings.limits)
    attributes = dict(map(_attribute, args.attribute))
    published = asyncio.run(_publish(args, attributes))
    noun = "message" if published == 1 else "messages"
    result(
        args,
        {"channel": args.channel, "published": published},
        f"{published} {noun} published on {args.channel}",
    )
    return 0


async def _publish(args: argparse.Namespace, attributes: dict[str, AttributeScalar]) -> int:
    url = cluster_url(args.url, args.settings, servers=True)
    async with connect(url, limits=args.settings.limits) as bus:
        async for line in _lines():
            await bus.publish(args.channel, line, attributes=attributes or None, confirm=args.confirm)
        await bus.drain()
        return bus.published


def _attribute(text: str) -> tuple[str, AttributeScalar]:
    """Parse NAME=VALUE; numbers and true/false are converted."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigError(f"{text!r} is not an attribute", do="write --attribute NAME=VALUE")
    if value in ("true", "false"):
        return name, value == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


async def _lines() -> AsyncIterator[bytes]:
    """Yield the lines of standard input without line ends, as they arrive."""
    async for lines in line_batches():
        for line in lines:
            yield line


async def line_batches() -> AsyncIterator[list[bytes]]:
    """Yield the lines of standard input without line ends, those that arrive together as one list.

    A daemon thread reads, because not every kind of input can be awaited; it does not delay the exit of the process.
    """
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(maxsize=1)
    threading.Thread(target=_read_input, args=(asyncio.get_running_loop(), chunks), daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise ConfigError(f"cannot read standard input: {chunk.strerror}", do="give it lines to read") from chunk
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


def _read_input(loop: asyncio.AbstractEventLoop, chunks: asyncio.Queue[bytes | OSError]) -> None:
    """Read standard input in chunks, no faster than it is published; an empty chunk or an error is the end."""
    chunk: bytes | OSError = b"-"
    while chunk and not isinstance(chunk, OSError) and not loop.is_closed():
        try:
            chunk = os.read(sys.stdin.fileno(), READ_BYTES_MAX)
        except OSError as error:
            chunk = error
        with contextlib.suppress(RuntimeError, concurrent.futures.CancelledError):  # the loop has ended, or ends
            asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()


def run_sub(args: argparse.Namespace) -> int:
    """Print messages until the count or the time is reached, or the user interrupts."""
    printer = _Printer(args)
    try:
        asyncio.run(_subscribe(args, printer))
    except KeyboardInterrupt:
        if not args.json:
            raise
    facts = {
        "names": args.names,
        "messages": printer.messages,
        "gaps": printer.gaps,
        "lost": printer.lost,
        "retracted": printer.retracted,
    }
    result(args, facts, "")
    complete = args.count is None or printer.messages >= args.count
    return 0 if complete and not printer.gaps else 1


async def _subscribe(args: argparse.Namespace, printer: _Printer) -> None:
    deadline = None if args.seconds is None else time.monotonic() + args.seconds
    url = cluster_url(args.url, args.settings, servers=True)
    archive = args.settings.archive_dir or None
    async with connect(url, limits=args.settings.limits, archive=archive) as bus, AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(_one(bus, name, args)) for name in args.names]
        note(f"subscribed to {', '.join(args.names)}")
        tasks = [asyncio.create_task(_read(subscription, printer)) for subscription in opened]
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        enough = asyncio.create_task(printer.enough.wait())
        done, _ = await asyncio.wait({*tasks, enough}, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
        for task in (*tasks, enough):
            task.cancel()
        await asyncio.gather(*tasks, enough, return_exceptions=True)
        for task in done - {enough}:
            task.result()


def _one(bus: Bus, name: str, args: argparse.Namespace) -> Subscription:
    if args.pattern:
        if args.since is not None:
            raise ConfigError("--since cannot be combined with --pattern", do="give the channel names")
        return bus.psubscribe(name, where=args.where)
    if args.since is None:
        return bus.subscribe(name, where=args.where)
    since_us = read_time(args.since, time.time())
    return bus.subscribe(name, where=args.where, since=dt.datetime.fromtimestamp(since_us / 1e6, dt.UTC))


async def _read(subscription: Subscription, printer: _Printer) -> None:
    while True:
        try:
            async for item in subscription:
                if not printer.print(item):
                    return
            return
        except UnreachableError as error:
            note(f"waiting for {subscription.name}: {error}")


class _Printer:
    """Prints and counts items; with --json, standard output has only the summary."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.messages = 0
        self.gaps = 0
        self.lost = 0
        self.retracted = 0
        self.enough = asyncio.Event()
        self._count = args.count
        self._json_lines = args.format == "json"
        self._show_channel = args.pattern or len(args.names) > 1
        self._quiet = args.json

    def print(self, item: Item) -> bool:
        """Print one item; return whether more are wanted."""
        if self._count is not None and self.messages >= self._count:
            return False
        if isinstance(item, Gap):
            self.gaps += 1
            self.lost += item.count or 0
            note(f"gap on {item.channel}: {missing_text(item)} ({item.reason})")
        elif isinstance(item, Retraction):
            self.retracted += 1
            note(
                f"message {item.sequence} of {item.publisher:012x} on {item.channel} was false: "
                "another client published it under that name"
            )
        else:
            self.messages += 1
        if not self._quiet and (self._json_lines or isinstance(item, Message)):
            stream = sys.stdout.buffer
            stream.write(self._line(item) + b"\n")
            stream.flush()
        if self._count is not None and self.messages >= self._count:
            self.enough.set()
            return False
        return True

    def _line(self, item: Item) -> bytes:
        if self._json_lines:
            return json.dumps(item_facts(item)).encode()
        assert isinstance(item, Message)
        prefix = item.channel.encode("utf-8", "surrogateescape") + b" " if self._show_channel else b""
        return prefix + item.payload


def missing_text(gap: Gap) -> str:
    """Describe the number of missing messages."""
    if gap.count is None:
        return f"everything from {gap.first} on" if gap.publisher is not None else "an unknown number of messages"
    return "1 message" if gap.count == 1 else f"{gap.count} messages"


def item_facts(item: Item) -> dict[str, Any]:
    """Return an item as the fields of a JSON object; payloads that are not text are in hexadecimal."""
    channel = item.channel.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(item, Gap):
        return {
            "type": "gap",
            "channel": channel,
            "publisher": item.publisher,
            "first": item.first,
            "last": item.last,
            "reason": item.reason,
        }
    if isinstance(item, Retraction):
        return {"type": "retraction", "channel": channel, "publisher": item.publisher, "sequence": item.sequence}
    facts: dict[str, Any] = {"type": "message", "channel": channel}
    try:
        facts["payload"] = item.payload.decode()
    except UnicodeDecodeError:
        facts["payload_hex"] = item.payload.hex()
    facts |= {
        "publisher": item.publisher,
        "sequence": item.sequence,
        "published_at_us": item.published_at_us,
        "attributes": dict(item.attributes or {}),
    }
    if item.pattern is not None:
        facts["pattern"] = item.pattern
    return facts
