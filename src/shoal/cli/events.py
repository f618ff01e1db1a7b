"""`shoal emit` and `shoal match`: content matching from the command line.

Owns the conversion between lines and events. Everything else is in the bus.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from shoal.bus import connect
from shoal.cli.channels import add_url, cluster_url, line_batches
from shoal.cli.numbers import positive, positive_int
from shoal.cli.output import Subparsers, add_command, note, plural, result
from shoal.errors import EventError, PayloadTooLargeError
from shoal.filters.events import check_event, parse_event
from shoal.message import Gap, Match


def register(subparsers: Subparsers) -> None:
    """Add the commands."""
    emit = add_command(
        subparsers,
        "emit",
        run_emit,
        "emit events: to every reader with a filter that matches",
        description="Emit events. Each is a JSON object of attributes, or in the papers' spelling "
        "[class,'STOCK'],[volume,10]. Without arguments, the lines of standard input are emitted.",
        example="""shoal emit '{"class": "STOCK", "volume": 310000}'\nshoal emit < events.jsonl""",
    )
    emit.add_argument("events", metavar="EVENT", nargs="*", help="an event (default: lines of standard input)")
    emit.add_argument("--payload", default="", metavar="TEXT", help="the payload of each event (default: empty)")
    add_url(emit)
    match = add_command(
        subparsers,
        "match",
        run_match,
        "print the events that match filters",
        example="shoal match \"class = 'STOCK' and volume > 300000\" --count 10",
    )
    match.add_argument("filters", metavar="FILTER", nargs="+", help="filters; an event that matches several comes once")
    match.add_argument("--count", type=positive_int, metavar="N", help="stop after N events")
    match.add_argument("--seconds", type=positive, metavar="N", help="stop after N seconds")
    add_url(match)


def run_emit(args: argparse.Namespace) -> int:
    """Emit events; returns when all deliveries are safe."""
    emitted = asyncio.run(_emit(args))
    result(args, {"emitted": emitted}, f"{plural(emitted, 'event')} emitted")
    return 0


async def _emit(args: argparse.Namespace) -> int:
    """Emit events. All before one that cannot be emitted are safe when this raises."""
    emitted = line_number = 0
    wrong: EventError | PayloadTooLargeError | None = None
    given = [read_event(text, args) for text in args.events]  # all are checked before one is emitted
    payload = args.payload.encode("utf-8", "surrogateescape")  # the bytes of the command line
    async with connect(cluster_url(args.url, args.settings, servers=True), limits=args.settings.limits) as bus:
        try:
            for event in given:
                await bus.emit(event, payload)
                emitted += 1
            async for line in _lines(args):
                line_number += 1
                if line.strip():
                    await bus.emit(read_event(line.decode("utf-8", "surrogateescape"), args), payload)
                    emitted += 1
        except (EventError, PayloadTooLargeError) as error:
            wrong = error
    if wrong is not None:
        what = f"line {line_number} of standard input" if line_number else f"event {emitted + 1}"
        why = "is not an event" if isinstance(wrong, EventError) else "is too large"
        raise EventError(f"{what} {why}, {plural(emitted, 'event')} before it emitted:\n{wrong}")
    return emitted


async def _lines(args: argparse.Namespace) -> AsyncIterator[bytes]:
    """Lines of standard input, if no events are given."""
    if args.events:
        return
    async for lines in line_batches():
        for line in lines:
            yield line


def read_event(text: str, args: argparse.Namespace) -> dict[str, Any]:
    """An event as JSON or in the papers' spelling, checked."""
    if not text.lstrip().startswith("{"):
        return parse_event(text, args.settings.limits)
    try:
        found: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EventError(f"{text[:80]!r} is not a JSON object ({error})") from error
    return check_event(found, args.settings.limits)


def run_match(args: argparse.Namespace) -> int:
    """Print events until the count or the time is reached, or the user interrupts."""
    counts = {"events": 0, "gaps": 0}
    try:
        asyncio.run(_match(args, counts))
    except KeyboardInterrupt:
        if not args.json:
            raise
    result(args, {"filters": args.filters, **counts}, "")
    return 0 if not counts["gaps"] and (args.count is None or counts["events"] >= args.count) else 1


async def _match(args: argparse.Namespace, counts: dict[str, int]) -> None:
    async with (
        connect(cluster_url(args.url, args.settings, servers=True), limits=args.settings.limits) as bus,
        bus.match() as events,
    ):
        await events.add_many({text: text for text in args.filters})
        note(f"matching {', '.join(args.filters)}")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(args.seconds):
                async for item in events:
                    counts["gaps" if isinstance(item, Gap) else "events"] += 1
                    if isinstance(item, Gap):
                        note(f"events may be missing here: {item.reason}")
                    elif not args.json:
                        print(json.dumps(event_facts(item)), flush=True)
                    if args.count is not None and counts["events"] >= args.count:
                        return


def event_facts(event: Match) -> dict[str, Any]:
    """An event as the fields of a JSON object."""
    facts: dict[str, Any] = {"attributes": dict(event.attributes or {}), "emitter": event.publisher}
    facts |= {"number": event.sequence, "emitted_at_us": event.published_at_us}
    if event.payload:
        facts["payload"] = event.payload.decode("utf-8", "backslashreplace")
    if len(event.matched) > 1:
        facts["matched"] = list(event.matched)
    return facts
