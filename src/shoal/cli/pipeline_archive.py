"""`shoal pipeline archive`: writes recorded channels to a table of Parquet files.

Owns the output and the schedule of batches. The work is in `shoal.pipeline.archive`.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

from shoal.bus.times import read_time
from shoal.cli.output import Subparsers, add_command, note, result
from shoal.cli.pipeline_archive_dead import run_dead
from shoal.errors import ConfigError, ShoalError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.history.record_reader import RecordPosition
    from shoal.history.server_reader import Login
    from shoal.pipeline.archive.batch_plan import RecordKey
    from shoal.pipeline.archive.job import ArchiveJob, BatchResult, Runner
    from shoal.plan.ring import ServerAddress

INTERVAL_S: Final = 10.0
"""Pause after everything has been archived, in s."""

VACUUM_EVERY_S: Final = 3600.0
"""Pause between two searches for files to delete; each lists the whole archive."""


def add(jobs: Subparsers) -> None:
    """Add the job to `shoal pipeline`."""
    from shoal.cli.pipeline import add_metrics_flag, add_spark_flags

    parser = add_command(
        jobs,
        "archive",
        run,
        "write recorded channels, or dead letters, to a Delta table",
        example="shoal pipeline archive --once --archive /data/shoal --json\n"
        "shoal pipeline archive --archive s3://bucket/shoal --retain 90d\n"
        "shoal pipeline archive --dead --queue 'orders.*' --archive /data/dead --once",
        description="Write the servers' records to a Delta table of Parquet files, by day and channel. Each record is "
        "archived once, even if the job is killed and restarted. With --dead, write dead letters of queues to a "
        "separate table, each once; this needs no Spark.",
    )
    parser.add_argument(
        "--archive", metavar="PATH", help="directory or URL of the archive (default: the setting archive_dir)"
    )
    parser.add_argument("--dead", action="store_true", help="archive dead letters of queues, not channels")
    parser.add_argument(
        "--queue", metavar="PATTERN", help="with --dead: only this queue, or queues that match (default: all)"
    )
    parser.add_argument(
        "--migrate",
        action="store_true",
        help="turn an archive or kept load windows of an older version into a table, and exit",
    )
    parser.add_argument(
        "--once", action="store_true", help="archive the existing entries and exit; otherwise run until interrupted"
    )
    parser.add_argument("--compact", action="store_true", help="merge small files, even if there are only a few")
    parser.add_argument("--retain", metavar="AGE", help="remove files whose messages are all older: 90d")
    parser.add_argument(
        "--vacuum",
        metavar="AGE",
        default="7d",
        help="delete files that left the table this long ago; at least 1h, for readers that have begun (default 7d)",
    )
    parser.add_argument(
        "--interval",
        type=float,
        default=INTERVAL_S,
        metavar="S",
        help=f"pause between batches in s (default {INTERVAL_S:g})",
    )
    parser.add_argument("--batch-rows", type=int, metavar="N", help="entries per record and batch")
    parser.add_argument("--url", metavar="URL", help="shoal://user:password@host:port (default: as `shoal sub`)")
    add_metrics_flag(parser)
    add_spark_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Archive until done, or until interrupted."""
    from shoal.cli.pipeline import metrics_page, session_options
    from shoal.history.archive_location import ArchiveLocation, require_deltalake
    from shoal.pipeline.archive.job import BATCH_ROWS, ArchiveJob, on_spark
    from shoal.pipeline.session import running

    if args.batch_rows is not None and args.batch_rows < 1:
        raise ConfigError(f"--batch-rows is {args.batch_rows}", do="give a number above 0")
    if args.dead:
        return run_dead(args)
    if args.queue is not None:
        raise ConfigError("--queue is for dead letters", do="give --dead too")
    if not (args.archive or args.settings.archive_dir):
        raise ConfigError("no archive given", do="give --archive PATH, or set archive_dir")
    archive = ArchiveLocation.of(args.archive or args.settings.archive_dir).url
    require_deltalake()
    if args.migrate:
        return _migrate(args, archive)
    ages = _Ages(args)
    options = session_options(args, "shoal archive")
    cluster = _Cluster(args)
    began = time.monotonic()
    done = _Done()
    writer = ArchiveJob(archive, cluster.login, args.batch_rows or BATCH_ROWS)
    with metrics_page(args, lambda: cluster.url), writer as job, running(options) as spark:
        _work(job, on_spark(spark), cluster, args, ages, done)
    seconds = time.monotonic() - began
    facts = {
        "archive": archive,
        "batches": done.batches,
        "rows": done.rows,
        "files": done.files,
        "compacted": done.compacted,
        "removed": done.removed,
        "vacuumed": done.vacuumed,
        "unreachable": job.unreachable,
        "rows_per_s": round(done.rows / done.seconds) if done.seconds else 0,
        "archived_rows": job.table.rows,
        "archived_files": len(job.table.files),
        "seconds": round(seconds, 3),
    }
    result(args, facts, f"{done.rows} rows in {done.files} files, {done.compacted} files merged")
    return 0 if not job.unreachable else 1


def _migrate(args: argparse.Namespace, archive: str) -> int:
    from shoal.history.archive_location import ArchiveLocation
    from shoal.pipeline.archive.migration import migrate
    from shoal.pipeline.window_migration import migrate_windows, old_windows

    old = old_windows(ArchiveLocation.of(archive))
    if old is not None:
        windows = migrate_windows(ArchiveLocation.of(archive), old)
        facts = {"archive": archive, "migrated_windows": windows}
        result(args, facts, f"{archive} is now a table of {windows} load windows")
        return 0
    files = migrate(archive)
    result(args, {"archive": archive, "migrated_files": files}, f"{archive} is now a table of {files} files")
    return 0


class _Ages:
    """How long messages are retained, and files that left the table are kept."""

    def __init__(self, args: argparse.Namespace) -> None:
        from shoal.pipeline.archive.table_writer import VACUUM_S_MIN

        self.retain_s = None if args.retain is None else _seconds("--retain", args.retain)
        self.vacuum_s = _seconds("--vacuum", args.vacuum)
        if self.vacuum_s < VACUUM_S_MIN:
            raise ConfigError(f"--vacuum is {args.vacuum}", do="give at least 1h: readers may still use the files")


def _seconds(flag: str, text: str) -> float:
    """Return an age in seconds."""
    now_s = time.time()
    age_s = now_s - read_time(text, now_s) / 1e6
    if age_s <= 0:
        raise ConfigError(f"{flag} is {text}", do="give an age: 30d, 12h")
    return age_s


class _Done:
    """Totals of the job so far."""

    def __init__(self) -> None:
        from shoal.pipeline.job_metrics import JobMetrics

        self.batches = self.rows = self.files = self.compacted = self.removed = self.vacuumed = 0
        self.seconds = 0.0
        self.metrics = JobMetrics("archive")

    def count(self, progress: BatchResult, behind_s: float) -> None:
        """Add a finished batch, after which the job is behind by this time."""
        self.metrics.count(progress.rows, progress.seconds)
        self.metrics.behind(progress.behind, behind_s)
        self.batches += 1
        self.rows += progress.rows
        self.files += progress.files
        self.seconds += progress.seconds


def _work(
    job: ArchiveJob, runner: Runner, cluster: _Cluster, args: argparse.Namespace, ages: _Ages, done: _Done
) -> None:
    from shoal.pipeline.archive.archived_mark import mark_archived

    ended, refusing = threading.Event(), set[str]()
    vacuum_at_s = time.monotonic()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: ended.set())
    while not ended.is_set():
        _archive(job, runner, cluster, ended, done, once=args.once)
        if not job.ends:
            done.metrics.behind(0, 0.0)
        for server, why in job.unreachable.items():
            note(f"server {server} is unreachable; its records will be archived later: {why}")
        mark_archived(cluster.servers(), cluster.login, job.positions, refusing)
        done.compacted += job.compact(runner, 2) if args.compact else job.compact(runner)
        if ages.retain_s is not None:
            done.removed += job.retain(int((time.time() - ages.retain_s) * 1_000_000))
        if time.monotonic() >= vacuum_at_s:
            done.vacuumed += job.vacuum(ages.vacuum_s)
            vacuum_at_s = time.monotonic() + VACUUM_EVERY_S
        if args.once:
            return
        ended.wait(args.interval)


def _archive(
    job: ArchiveJob, runner: Runner, cluster: _Cluster, ended: threading.Event, done: _Done, *, once: bool
) -> None:
    """Run batches until nothing is left. With `once`, stop at the entries that existed at the start, so that a busy
    channel cannot keep the job running. A batch that could not read anything is retried later.
    """
    goal: Mapping[RecordKey, RecordPosition] | None = None
    while not ended.is_set() and (progress := job.batch(cluster.servers(), runner)) is not None:
        done.count(progress, job.behind_s())
        total = progress.entries + progress.behind
        share = 100 * progress.entries // total if total else 100
        note(
            f"batch {done.batches}: {progress.rows} rows in {progress.files} files, {progress.seconds:.1f} s"
            f" ({share} % of the available entries)"
        )
        goal = job.ends if goal is None else goal
        if not progress.entries or (once and not job.behind(goal)):
            return


class _Cluster:
    """The cluster whose records are archived; its servers may change while the job runs."""

    def __init__(self, args: argparse.Namespace) -> None:
        from shoal.bus.plan_source import PlanSource
        from shoal.cli.channels import cluster_url
        from shoal.cluster.acl import PIPELINE
        from shoal.runtime import PRODUCTION

        self.url = cluster_url(args.url, args.settings, role=PIPELINE)
        self._source = PlanSource(lambda: self.url, args.settings.limits.connect_timeout_s, PRODUCTION)
        self._servers: tuple[ServerAddress, ...] = ()
        self.servers()

    @property
    def login(self) -> Login:
        """The job's login for the servers."""
        from shoal.history.server_reader import Login

        address = self._source.address
        return Login(address.username, address.password, address.tls)

    def servers(self) -> tuple[ServerAddress, ...]:
        """Return the servers of the ring; the last known ones while the coordinator is unavailable."""
        from shoal.plan.signature import Verifier

        try:
            key, ring = asyncio.run(self._source.key_and_ring())
            self._servers = Verifier(key).ring(ring).servers
        except ShoalError:
            if not self._servers:
                raise
        return self._servers
