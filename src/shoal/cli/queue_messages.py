"""`shoal queue put` and `shoal queue take`: messages as lines.

Owns the conversion between lines and messages, as `channels` does for `shoal pub` and `shoal sub`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from shoal.cli.channels import add_url, cluster_url, line_batches
from shoal.cli.numbers import positive, positive_int
from shoal.cli.output import Subparsers, add_command, note, plural, result
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.errors import ShoalError
    from shoal.queues.job import Job

ERRORS_MAX: Final = 100
"""Refused messages that --json lists; the others are counted."""


def register_messages(group: Subparsers) -> None:
    """Add the commands to `shoal queue`."""
    put = add_command(
        group,
        "put",
        run_put,
        "store a message, or the lines of standard input",
        example="shoal queue put orders '{\"order\": 7}' --key customer-17\n"
        "shoal queue put orders --full wait < orders.txt",
        description="Store a message, or each line of standard input as one, and return when all are safe. The queue "
        "is created if it does not exist.",
    )
    put.add_argument("name", metavar="QUEUE", help="name of the queue")
    put.add_argument("payload", metavar="PAYLOAD", nargs="?", help="the message (default: lines of standard input)")
    put.add_argument("--key", metavar="KEY", help="messages of a key are processed one after the other")
    put.add_argument(
        "--id", metavar="ID", help="a second message with this id is refused; several lines get ID-1, ID-2 ..."
    )
    put.add_argument("--delay", type=positive, default=0.0, metavar="S", help="seconds until the message can be taken")
    put.add_argument(
        "--full",
        choices=("raise", "wait"),
        default="raise",
        help="what to do while the queue is full: fail, or wait (default: raise)",
    )
    add_url(put)
    take = add_command(
        group,
        "take",
        run_take,
        "take messages and print them as lines",
        example="shoal queue take orders\nshoal queue take orders --count 10 --format json\n"
        "shoal queue take orders --count 1 --no-ack",
        description="Take messages, print each as a line, and acknowledge it, until Ctrl-C or SIGTERM. With --no-ack "
        "the messages go back when the command ends, which counts as an attempt, and only one message of each key is "
        "printed; `shoal queue peek` shows them without taking them. With --json, messages are counted and not "
        "printed; --format json prints them.",
    )
    take.add_argument("name", metavar="QUEUE", help="name of the queue")
    take.add_argument("--count", type=positive_int, metavar="N", help="stop after N messages")
    take.add_argument("--seconds", type=positive, metavar="S", help="stop after S seconds")
    take.add_argument(
        "--ack", action=argparse.BooleanOptionalAction, default=True, help="acknowledge printed messages (default)"
    )
    take.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="print payloads, or one JSON object per line (default: text)",
    )
    add_url(take)


def run_put(args: argparse.Namespace) -> int:
    """Store messages."""
    stored, refused = asyncio.run(_put(args))
    facts: dict[str, Any] = {"queue": args.name, "stored": stored, "refused": len(refused)}
    if refused:
        facts["errors"] = [{"line": line, "error": str(error)} for line, error in refused[:ERRORS_MAX]]
    text = f"{plural(stored, 'message')} stored in {args.name}"
    if not refused:
        result(args, facts, text)
        return 0
    line, error = refused[0]
    if args.json:
        result(args, facts, "")
    if args.payload is not None:
        note(f"shoal: {error}")
    else:
        note(f"shoal: {text}, {len(refused)} refused, the first in line {line}: {error}")
    return 1


async def _put(args: argparse.Namespace) -> tuple[int, list[tuple[int, ShoalError]]]:
    """The number of stored messages, and line and error of each refused one."""
    from shoal.bus import connect
    from shoal.queues.message_format import check_delay
    from shoal.queues.queue import NewMessage

    try:
        check_delay(args.delay)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    lines, refused = 0, list[tuple[int, "ShoalError"]]()
    url = cluster_url(args.url, args.settings, servers=True)
    async with connect(url, limits=args.settings.limits) as bus:
        queue = bus.queue(args.name)
        step = bus.limits.queue_batch_messages_max
        async for payloads in _payloads(args.payload):
            for start in range(0, len(payloads), step):
                batch = []
                for number, payload in enumerate(payloads[start : start + step], lines + 1):
                    id = args.id if args.id is None or args.payload is not None else f"{args.id}-{number}"
                    batch.append(NewMessage(payload, args.key, id, args.delay))
                outcome = await queue.put_many(batch, full=args.full)
                refused += [(lines + 1 + at, error) for at, error in outcome.refused]
                lines += len(batch)
    return lines - len(refused), refused


async def _payloads(given: str | None) -> AsyncIterator[list[bytes]]:
    if given is not None:
        yield [os.fsencode(given)]
        return
    async for lines in line_batches():
        yield lines


def run_take(args: argparse.Namespace) -> int:
    """Print messages until the count or the time is reached, or a signal ends the command."""
    printed = [0]
    try:
        asyncio.run(_take(args, printed))
    except KeyboardInterrupt:
        if not args.json:
            raise
    except asyncio.CancelledError:  # SIGTERM
        if not args.json:
            return 128 + signal.SIGTERM
    result(args, {"queue": args.name, "messages": printed[0], "acknowledged": args.ack}, "")
    return 0 if args.count is None or printed[0] >= args.count else 1


async def _take(args: argparse.Namespace, printed: list[int]) -> None:
    from shoal.bus import connect

    url = cluster_url(args.url, args.settings, servers=True)
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(ValueError, RuntimeError):  # only the main thread gets signals
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with connect(url, limits=args.settings.limits) as bus:
        in_flight = 64 if args.count is None else min(64, args.count)
        async with bus.queue(args.name).take(max_in_flight=in_flight) as jobs:
            note(f"takes from {args.name}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(args.seconds):
                    async for job in jobs:
                        _print(args, job)
                        printed[0] += 1
                        if args.ack:
                            await job.done(confirm=False)
                        if printed[0] == args.count:
                            return


def _print(args: argparse.Namespace, job: Job) -> None:
    if args.json:
        return
    stream = sys.stdout.buffer
    stream.write((_json_line(job) if args.format == "json" else job.payload) + b"\n")
    stream.flush()


def _json_line(job: Job) -> bytes:
    facts: dict[str, Any] = {
        "number": job.number,
        "key": _text(job.key),
        "id": None if job.id is None else _text(job.id),
        "payload": _text(job.payload),
        "attempt": job.attempt,
        "put_at": job.put_at,
    }
    if job.attributes:
        facts["attributes"] = job.attributes
    return json.dumps(facts).encode()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
