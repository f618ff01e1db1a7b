"""The job behind `shoal up --windows spark`: folds telemetry on Spark and hands windows over to the balancer.

Owns the job's life: start, heartbeat, end. A window that cannot be handed over (the coordinator does not answer, or the
window is too large) is reported and left: the balancer has folded its own.
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
from msgspec import structs

from shoal.balance.settings import BalanceSettings
from shoal.balance.window import LoadWindow
from shoal.balance.window_feed import WINDOW_BYTES_MAX, alive_command, feed_command, gone_command
from shoal.bus.locate import find_url
from shoal.coordination.link import Address, parse_address
from shoal.errors import ShoalError
from shoal.logs import get_log
from shoal.pipeline.folders import locked
from shoal.pipeline.kept_windows import WindowKeeper
from shoal.pipeline.load import LoadFacts, LoadJob, Take, start
from shoal.pipeline.session import SessionOptions, running
from shoal.wire.blocking import BlockingConnection
from shoal.wire.commands import Command

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

ROLE: Final = "pipeline"
"""Who the job is: it reads telemetry and the ring, and writes windows."""

BEAT_S: Final = 1.0
"""How often the job says that it is alive."""

_log: Final = get_log(__name__)


class Feed:
    """Writes to the coordinator. Trouble is reported once, and what could not be written is left."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._trouble = ""
        self._lock = threading.Lock()

    def take(self, batch: int, windows: list[LoadWindow]) -> None:
        """Hands windows over."""
        for window in windows:
            data = window.to_bytes()
            if len(data) <= WINDOW_BYTES_MAX:
                self._write(feed_command(data))
            else:
                self._complain(f"a window of {len(data)} bytes is larger than {WINDOW_BYTES_MAX}")

    def alive(self, word: str) -> None:
        """Says that the job is alive."""
        self._write(alive_command(word))

    def gone(self) -> None:
        """Says that it has ended."""
        self._write(gone_command())

    def _write(self, command: Command) -> None:
        where = self._address
        try:
            with self._lock, BlockingConnection(where.host, where.port, where.username, where.password) as asking:
                asking.ask(*command)
            self._trouble = ""
        except (ShoalError, hiredis.ReplyError) as error:
            self._complain(str(error))

    def _complain(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            _log.warning("load windows are not handed over", why=trouble)


def follow(
    options: SessionOptions,
    directory: Path,
    source: Mapping[str, str],
    settings: BalanceSettings,
    keeper: WindowKeeper | None = None,
) -> LoadFacts:
    """Runs the job until SIGTERM or SIGINT, and returns what it did; raises what ended it otherwise. A keeper gets all
    windows too. CheckpointError if another job has the directory."""
    url = source.get("coordinator") or find_url(source.get("stateDir"), role=ROLE)
    feed = Feed(parse_address(url, None, None))
    facts = LoadFacts(detailed=False)
    job = LoadJob(directory, source, settings)
    options = structs.replace(options, write_archive=False)  # whoever ends the job does not wait for that
    with locked(directory), _ended_by_signals() as ended, running(options) as spark:
        _log.info("Spark has started", master=options.master, pid=os.getpid())
        query = start(spark, job, _both(feed, keeper), facts, once=False)
        try:
            _beat(query, feed, facts, ended)
        finally:
            feed.gone()
            with contextlib.suppress(Exception):  # it is going anyway
                query.stop()
    return facts


def _both(feed: Feed, keeper: WindowKeeper | None) -> Take:
    """Hands windows over, and keeps them."""

    def take(batch: int, windows: list[LoadWindow]) -> None:
        feed.take(batch, windows)
        if keeper is not None:
            keeper.take(batch, windows)

    return take


def _beat(query: StreamingQuery, feed: Feed, facts: LoadFacts, ended: threading.Event) -> None:
    """Says that the job is alive for as long as it is, and that it has closed a window."""
    warm = False
    while query.isActive and not ended.is_set():
        if facts.windows and not warm:
            warm = True
            _log.info("the first load windows are handed over", batches=facts.batches)
        feed.alive(f"pid {os.getpid()}, {facts.batches} batches, {facts.windows} windows")
        ended.wait(BEAT_S)
    if not ended.is_set():
        query.awaitTermination()  # raises what ended it


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set."""
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
