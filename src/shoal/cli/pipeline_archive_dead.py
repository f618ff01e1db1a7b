"""`shoal pipeline archive --dead`: writes dead letters of queues to a table of their own.

Owns the output and the schedule of batches. The work is in `shoal.pipeline.archive.dead_letters`.
"""

from __future__ import annotations

import argparse
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

from shoal.cli.output import note, plural, result
from shoal.errors import ConfigError, ConnectError

if TYPE_CHECKING:
    from shoal.pipeline.archive.dead_letters import DeadLetterArchive

_NOT_FOR_DEAD: Final = ("migrate", "compact", "retain", "master", "heap_mb", "ui", "conf")
"""Flags of the archive of channels, and of Spark."""


def run_dead(args: argparse.Namespace) -> int:
    """Archive dead letters until done, or until interrupted; in this process, without Spark."""
    from shoal.cli.channels import cluster_url
    from shoal.cli.pipeline import metrics_page
    from shoal.cluster.acl import PIPELINE
    from shoal.history.archive_location import ArchiveLocation
    from shoal.pipeline.archive.dead_letters import BATCH_ROWS, DeadLetterArchive
    from shoal.pipeline.source.options import read_options

    if not args.archive:
        raise ConfigError("dead letters need a table of their own", do="give --archive PATH")
    for name in _NOT_FOR_DEAD:
        if getattr(args, name):
            raise ConfigError(f"--{name.replace('_', '-')} is not for dead letters", do="leave it out")
    url = cluster_url(args.url, args.settings, role=PIPELINE)
    options = read_options({"coordinator": url, "kind": "dead", "queue": args.queue or "*", "serverWait": "0"})
    archive = ArchiveLocation.of(args.archive).url
    began = time.monotonic()
    writer = DeadLetterArchive(archive, options, args.batch_rows or BATCH_ROWS)
    with metrics_page(args, lambda: url), writer as job:
        done = _Done()
        _work(job, args, done)
        facts = {
            "archive": archive,
            "rows": done.rows,
            "read": done.read,
            "unreadable": done.unreadable,
            "unreachable": job.silent,
            "archived_rows": job.rows,
            "seconds": round(time.monotonic() - began, 3),
        }
    text = f"{plural(done.rows, 'dead letter')} added, {facts['archived_rows']} in the table"
    if done.unreadable:
        text += f"; {plural(done.unreadable, 'damaged one')} left on the stores"
    result(args, facts, text)
    return 0 if not job.silent else 1


class _Done:
    """Totals of the job so far."""

    def __init__(self) -> None:
        from shoal.pipeline.job_metrics import JobMetrics

        self.rows = self.read = self.unreadable = 0
        self.metrics = JobMetrics("dead_letters")


def _work(job: DeadLetterArchive, args: argparse.Namespace, done: _Done) -> None:
    ended = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: ended.set())
    while not ended.is_set():
        try:
            _archive(job, ended, done)
        except ConnectError as error:
            if args.once:
                raise
            note(f"trying again in {args.interval:g} s: {error}")
        for store in job.silent:
            note(f"store {store} is unreachable; its dead letters will be archived later")
        if args.once:
            return
        ended.wait(args.interval)


def _archive(job: DeadLetterArchive, ended: threading.Event, done: _Done) -> None:
    """Run batches until no letter is left that has not been read."""
    while not ended.is_set() and (batch := job.batch()) is not None:
        done.rows += batch.rows
        done.read += batch.read
        done.unreadable += batch.unreadable
        done.metrics.count(batch.read, batch.seconds)
        note(f"{plural(batch.rows, 'dead letter')} added, {batch.read - batch.rows} not: known or damaged")
