"""`shoal pipeline replay`: publishes the messages of an archive again.

Owns the flags, the progress bar and the summary. The work is in `shoal.pipeline.replay`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.cli.output import Subparsers, add_command, note, result
from shoal.cli.pipeline import add_recorded_flags, time_span
from shoal.errors import ConfigError, PipelineError

if TYPE_CHECKING:
    from shoal.pipeline.archive_order import ArchiveOrder
    from shoal.pipeline.replay import Checkpoint, Pace, Progress, ReplayState


def add(jobs: Subparsers) -> None:
    """Add the job."""
    from shoal.pipeline.replay import TO_DEFAULT

    parser = add_command(
        jobs,
        "replay",
        run,
        "publish the messages of an archive again",
        example="shoal pipeline replay --archive archive/ --channel 'orders.*' --since 1d --speed 10\n"
        "shoal pipeline replay --archive s3://bucket/shoal --speed max --to 'test.*' --checkpoint replay/ --json\n"
        "shoal pipeline replay --archive archive/ --speed max --queue orders --key customer --checkpoint replay/",
        description="Publish the messages of an archive again, in the order of each publisher and channel, with their "
        "attributes and an id (attribute shoal_id) that is the same in each replay. By default orders.eu is replayed "
        "into replay.orders.eu. With --queue they are put into a queue, which drops repeated ones by their ids. Needs "
        "no Spark. The exit status is 0 if servers have confirmed all messages.",
    )
    add_recorded_flags(parser)
    parser.add_argument(
        "--speed", default="1", metavar="FACTOR", help="1: as it was; 10: ten times as fast; max: at once (default 1)"
    )
    parser.add_argument(
        "--to",
        default=TO_DEFAULT,
        metavar="NAME",
        help="channel to publish to; * is the original name (default %(default)s)",
    )
    parser.add_argument("--queue", metavar="NAME", help="put the messages into this queue instead")
    parser.add_argument(
        "--key", metavar="ATTRIBUTE", help="attribute with the key of a message in the queue (default: its channel)"
    )
    parser.add_argument(
        "--into-recorded",
        action="store_true",
        help="also publish to channels that are recorded: they grow with each replay",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="directory of the progress; the same command continues from there",
    )
    parser.add_argument("--url", metavar="URL", help="shoal://user:password@host:port (default: as `shoal pub`)")


def run(args: argparse.Namespace) -> int:
    """Replay, and print the summary."""
    from shoal.history.archive_location import ArchiveLocation
    from shoal.pipeline.archive_order import ArchiveOrder
    from shoal.pipeline.event_archive import TimeSpan
    from shoal.pipeline.job_folders import locked
    from shoal.pipeline.replay import TO_DEFAULT, Checkpoint, Pace, ReplayPlan, first_state, read_speed

    archive = args.archive or args.settings.archive_dir
    if not archive:
        raise ConfigError("no archive given", do="give --archive PATH, or set archive_dir")
    if args.queue is None and args.key is not None:
        raise ConfigError("--key is for queues", do="give --queue too")
    if args.queue is not None and (args.to != TO_DEFAULT or args.into_recorded):
        raise ConfigError(
            "--queue is given with --to or --into-recorded, which are for channels", do="give one of them"
        )
    pace, span = Pace(read_speed(args.speed)), time_span(args)
    location = ArchiveLocation.of(archive)
    plan = ReplayPlan(
        archive=location.url,
        channel=args.channel,
        since=args.since,
        until=args.until,
        to=args.to,
        queue=args.queue,
        key=args.key,
    )
    with contextlib.nullcontext() if args.checkpoint is None else locked(args.checkpoint):
        checkpoint = Checkpoint(args.checkpoint)
        state = checkpoint.read(plan)
        order = ArchiveOrder(location, span if state is None else TimeSpan(state.from_us, state.to_us), args.channel)
        if not order.rows:
            wanted = "" if args.channel is None else f" of channels that match {args.channel!r}"
            raise PipelineError(f"the archive {location} has no messages{wanted} in that time", do="give another time")
        state = state or first_state(plan, order.span)
        if state.resumed:
            note(f"continuing after {state.messages} messages")
        began, before = time.monotonic(), state.messages
        if not state.done:
            with _bar() as progress:
                asyncio.run(_replay(args, order, pace, state, checkpoint, progress))
    facts = _facts(args, state, pace, state.messages - before, time.monotonic() - began)
    result(args, facts, _text(facts))
    return 0


async def _replay(
    args: argparse.Namespace,
    order: ArchiveOrder,
    pace: Pace,
    state: ReplayState,
    checkpoint: Checkpoint,
    progress: Progress,
) -> None:
    from shoal.bus import connect
    from shoal.cli.channels import cluster_url
    from shoal.pipeline.queue_target import QueueTarget
    from shoal.pipeline.replay import ChannelTarget, Replay, Target

    url = cluster_url(args.url, args.settings, servers=True)
    async with connect(url, limits=args.settings.limits, name="shoal-replay") as bus:
        target: Target
        if args.queue is None:
            recorded = await bus.recorded_patterns()
            target = ChannelTarget(bus, args.to, recorded, into_recorded=args.into_recorded)
        else:
            target = QueueTarget(bus.queue(args.queue), args.key)
        await Replay(order, target, pace, state, checkpoint).run(progress)


@contextlib.contextmanager
def _bar() -> Iterator[Progress]:
    """A progress bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=sys.stderr), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("replay", total=1.0)

        def progress(state: ReplayState, share: float) -> None:
            bar.update(task, completed=share, description=f"{state.messages:,} messages")

        yield progress


def _facts(args: argparse.Namespace, state: ReplayState, pace: Pace, messages: int, seconds: float) -> dict[str, Any]:
    gaps, missing = state.numbers.gaps()
    return {
        "archive": state.plan.archive,
        "to": state.plan.to if state.plan.queue is None else None,
        "queue": state.plan.queue,
        "speed": args.speed,
        "messages": state.messages,
        "bytes": state.bytes,
        "messages_now": messages,
        "resumed": state.resumed,
        "gaps": gaps,
        "missing": missing,
        "reordered": state.numbers.reordered,
        "lateness_ms_p50": pace.late_ms(0.5),
        "lateness_ms_p99": pace.late_ms(0.99),
        "messages_per_s": round(messages / seconds, 1) if seconds > 0 else 0.0,
        "seconds": round(seconds, 3),
    }


def _text(facts: dict[str, Any]) -> str:
    lines = [
        f"{facts['messages']} messages replayed into {facts['queue'] or facts['to']}, {facts['bytes']} bytes, "
        f"{facts['seconds']:.1f} s, all confirmed"
    ]
    if facts["lateness_ms_p50"] is not None:
        late = f"p50 {facts['lateness_ms_p50']:.1f} ms, p99 {facts['lateness_ms_p99']:.1f} ms"
        lines.append(f"later than scheduled: {late}")
    if facts["gaps"]:
        lines.append(f"{facts['gaps']} gaps in the archive: {facts['missing']} messages are known to be missing")
    if facts["reordered"]:
        lines.append(f"{facts['reordered']} messages came after later ones: a publisher's clock was set back")
    return "\n".join(lines)
