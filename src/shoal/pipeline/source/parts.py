"""Parts: what one Spark task reads, and how it reads it.

Owns the work of one task in its worker. If a stream was trimmed or restarted after its part was planned, that is an
error with `failOnDataLoss`, else a warning. A server that does not answer is not a loss, because its entries still
exist: the task tries again a few times, then fails, and the batch is not committed. Entries dropped from a stream that
is read for the first time, from its oldest entry, do not count as lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from shoal.errors import AuthenticationError, ConnectError, ServerTooOldError, TrimmedError
from shoal.history.server_reader import Login
from shoal.logs import get_log
from shoal.pipeline.source.conditions import Condition, matching_rows
from shoal.pipeline.source.kinds import Kind
from shoal.pipeline.source.offsets import EntryId, Loss, Position, Slice, StreamInfo, loss
from shoal.pipeline.source.streams import ServerStreams
from shoal.plan.ring import ServerAddress

ATTEMPTS: Final = 4
"""How often a server is tried that does not answer."""

PAUSE_S: Final = 0.5
"""Pause before the second attempt; each later pause is twice as long."""

_log: Final = get_log(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """What one task reads: slices of the streams of one server. It contains everything that a worker needs."""

    server: ServerAddress
    login: Login
    kind: Kind
    keys: Mapping[str, bytes]
    """The key of each stream."""
    starts: Mapping[str, Position]
    """Where the batch starts in each stream. Missing entries after it are lost."""
    ends: Mapping[str, Position]
    """Where the batch ends in each stream. A stream that does not reach this far was restarted."""
    fresh: frozenset[str]
    """Streams that are read for the first time, from the oldest entry that exists."""
    slices: tuple[Slice, ...]
    ahead_ms: int
    fail_on_data_loss: bool
    conditions: tuple[Condition, ...] = ()
    """Rows that do not satisfy all of them are left out."""


def report_loss(what: str, why: Loss | str, fail: bool) -> None:
    """Reports that entries can no longer be read: as an error if `fail`, else as a warning."""
    if fail:
        raise TrimmedError(
            f"{what} {why}",
            do="set failOnDataLoss to false to continue with the oldest entry left, or start with a new checkpoint",
        )
    _log.warning("entries are lost; reading continues with the oldest entry left", what=what, why=str(why))


class ReadRetry:
    """Counts failed attempts to reach a server, and pauses between them."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._failures = 0

    def reset(self) -> None:
        """The server has answered."""
        self._failures = 0

    def wait(self, error: ConnectError) -> None:
        """Pauses before the next attempt. Raises after `ATTEMPTS`, or at once if another attempt cannot help."""
        self._failures += 1
        if self._failures >= ATTEMPTS or isinstance(error, AuthenticationError | ServerTooOldError):
            raise ConnectError(
                f"{self._server} cannot be read now; none of its entries were skipped: {error}",
                do="see `shoal status`; restart the query when the server answers, and it reads the same batch",
            ) from error
        time.sleep(PAUSE_S * 2 ** (self._failures - 1))


def read_part(part: Part) -> Iterator[pa.RecordBatch]:
    """The rows of a part, in the order of each stream."""
    reader, retry = _PartReader(part), ReadRetry(part.server.id)
    while not reader.done:
        try:
            with ServerStreams(part.server, part.login) as streams:
                for rows in reader.read(streams):
                    retry.reset()
                    yield rows
        except ConnectError as error:
            retry.wait(error)


class _PartReader:
    """Reads a part, and remembers how far, so that it can continue on another connection."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._slices = list(part.slices)
        self._start_slice()

    @property
    def done(self) -> bool:
        """Whether everything was read."""
        return not self._slices

    def _start_slice(self) -> None:
        self._after = self._slices[0].after if self._slices else None
        self._count = 0
        self._reported = False

    def read(self, streams: ServerStreams) -> Iterator[pa.RecordBatch]:
        """The rows that were not read yet."""
        part = self._part
        while self._slices:
            slice = self._slices[0]
            assert self._after is not None
            for page in streams.entries(part.keys[slice.stream], replace(slice, after=self._after)):
                if slice.count is None:
                    self._check_uncounted(slice, streams)
                self._after = EntryId.parse(page[-1][0])
                self._count += len(page)
                for rows in part.kind.rows(part.server.id, slice.stream, page, part.ahead_ms):
                    yield matching_rows(rows, part.conditions)
            self._check_end(slice, streams)
            self._slices.pop(0)
            self._start_slice()

    def _check_end(self, slice: Slice, streams: ServerStreams) -> None:
        """After the last page: reports a loss if fewer entries came than planned."""
        assert self._after is not None
        if slice.count is not None and self._count < slice.count:
            lost = self._lost(slice.stream, streams.info(self._part.keys[slice.stream]))
            missing = Loss(slice.count - self._count, reset=False)
            self._report(slice, lost if lost is not None and lost.reset else missing)
        elif slice.count is None and self._after < slice.last:
            self._check_uncounted(slice, streams)

    def _check_uncounted(self, slice: Slice, streams: ServerStreams) -> None:
        """Reports a loss if entries after the last one read may have been dropped. When a stream is read in several
        slices, the number of entries in each is unknown, so the last entry read must still exist."""
        info = streams.info(self._part.keys[slice.stream])
        lost = self._lost(slice.stream, info)
        if lost is not None and (lost.reset or not self._still_exists(info)):
            self._report(slice, lost)

    def _lost(self, stream: str, info: StreamInfo) -> Loss | None:
        """The entries lost since the batch was planned. A restart is checked at the end of the batch too, because at
        the very start of a stream it cannot be seen."""
        end = self._part.ends[stream]
        at_end = None if end.count is None else loss(end, info)
        return at_end if at_end is not None and at_end.reset else loss(self._part.starts[stream], info)

    def _still_exists(self, info: StreamInfo) -> bool:
        return info.first is not None and self._after is not None and info.first <= self._after

    def _report(self, slice: Slice, lost: Loss) -> None:
        """Reports a loss, once for each slice."""
        if self._reported or self._part.kind.deletes:
            return
        self._reported = True
        what = f"the stream {slice.stream} of {self._part.server.id}"
        if slice.stream in self._part.fresh and not lost.reset:
            _log.info("stream starts later: its oldest entries were dropped", what=what, entries=lost.count)
        else:
            report_loss(what, lost, self._part.fail_on_data_loss)
