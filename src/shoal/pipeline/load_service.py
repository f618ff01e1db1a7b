"""The long-running job behind `shoal up --windows spark`: folds telemetry on Spark, sends load windows to the balancer.

Owns the start, heartbeat and end of the job. A window that cannot be sent (the coordinator does not answer, or the
window is too large) is logged and dropped; the balancer then uses its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import hiredis

from shoal.balance.settings import BalanceSettings
from shoal.bus.location import find_url
from shoal.coordination.link import Address, parse_address
from shoal.errors import ShoalError
from shoal.load.window import LoadWindow
from shoal.load.window_feed import WINDOW_BYTES_MAX, alive_command, ended_command, feed_command
from shoal.logs import get_log
from shoal.pipeline.job_metrics import JobMetrics
from shoal.pipeline.kept_windows import WindowKeeper
from shoal.pipeline.load_job import LoadFacts, LoadJob, Take, start
from shoal.runtime import PRODUCTION
from shoal.wire.blocking_connection import ask
from shoal.wire.commands import Command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROLE: Final = "pipeline"
"""The job's user. It may read telemetry and the ring, and write load windows."""

HEARTBEAT_S: Final = 1.0
"""Interval of heartbeats to the coordinator."""

_log: Final = get_log(__name__)


class WindowSender:
    """Writes load windows and heartbeats to the coordinator. Logs a repeated error once, and drops what it could not
    write."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._last_error = ""
        self._lock = threading.Lock()

    def take(self, batch: int, windows: list[LoadWindow]) -> None:
        """Sends windows."""
        for window in windows:
            data = window.to_bytes()
            if len(data) <= WINDOW_BYTES_MAX:
                self._write(feed_command(data))
            else:
                self._log_error(f"a window of {len(data)} bytes is larger than {WINDOW_BYTES_MAX}")

    def heartbeat(self, text: str) -> None:
        """Sends a heartbeat; `text` is shown by `shoal status`."""
        self._write(alive_command(text))

    def end(self) -> None:
        """Tells the balancer that the job has ended."""
        self._write(ended_command())

    def _write(self, command: Command) -> None:
        where = self._address
        try:
            with self._lock:
                dial = PRODUCTION.with_tls(where.tls).coordinator_dial
                ask(where.host, where.port, where.username, where.password, *command, dial=dial)
            self._last_error = ""
        except (ShoalError, hiredis.ReplyError) as error:
            self._log_error(str(error))

    def _log_error(self, error: str) -> None:
        if error != self._last_error:
            self._last_error = error
            _log.warning("load windows not sent to the balancer", why=error)


def window_url(source: Mapping[str, str]) -> str:
    """The coordinator to which windows of a source are sent."""
    return source.get("coordinator") or find_url(source.get("stateDir"), role=ROLE)


def follow(
    spark: SparkSession,
    directory: Path,
    source: Mapping[str, str],
    settings: BalanceSettings,
    keeper: WindowKeeper | None = None,
) -> LoadFacts:
    """Runs the job until SIGTERM or SIGINT, and returns what it did; raises the error if it ends otherwise. A keeper
    gets all windows too. The caller holds the lock of the directory (`job_folders.locked`)."""
    sender = WindowSender(parse_address(window_url(source), None, None))
    facts = LoadFacts(detailed=False)
    job = LoadJob(directory, source, settings)
    with _ended_by_signals() as ended:
        _log.info("Spark has started", master=spark.sparkContext.master, pid=os.getpid())
        query = start(spark, job, _both(sender, keeper), facts, once=False)
        try:
            _send_heartbeats(query, sender, facts, ended)
        finally:
            sender.end()
            with contextlib.suppress(Exception):  # it ends with the session anyway
                query.stop()
    return facts


def _both(sender: WindowSender, keeper: WindowKeeper | None) -> Take:
    """Sends windows, and keeps them."""

    def take(batch: int, windows: list[LoadWindow]) -> None:
        sender.take(batch, windows)
        if keeper is not None:
            keeper.take(batch, windows)

    return take


def _send_heartbeats(query: StreamingQuery, sender: WindowSender, facts: LoadFacts, ended: threading.Event) -> None:
    """Sends heartbeats and sets the metrics while the query runs, and logs the first windows."""
    warm, metrics = False, JobMetrics("load")
    while query.isActive and not ended.is_set():
        if facts.windows and not warm:
            warm = True
            _log.info("first load windows sent", batches=facts.batches)
        metrics.follow(query)
        sender.heartbeat(f"pid {os.getpid()}, {facts.batches} batches, {facts.windows} windows")
        ended.wait(HEARTBEAT_S)
    if not ended.is_set():
        query.awaitTermination()  # raises what ended it


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[threading.Event]:
    """An event that is set by SIGTERM and SIGINT."""
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
