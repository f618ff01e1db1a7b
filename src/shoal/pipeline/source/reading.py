"""Reading a part: its rows, whole or with word of what is missing.

Owns what one task does, in the worker that does it. A stream that was trimmed, or that began anew, after its part was
planned is an error if `failOnDataLoss`, else a warning. A server that does not answer is never a loss, for what it
holds is still there: it is asked again a few times, then the task ends with an error and the batch is not committed.
What is dropped of a stream that is read for the first time, from its oldest entry, is no loss: it begins later.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from shoal.errors import AuthenticationError, ConnectError, ServerTooOldError, TrimmedError
from shoal.history.servers import Login
from shoal.logs import get_log
from shoal.pipeline.source.kinds import Kind
from shoal.pipeline.source.offsets import Loss, Position, Slice, StreamInfo, loss
from shoal.pipeline.source.streams import ServerStreams
from shoal.plan.ring import ServerAddress

ATTEMPTS: Final = 4
"""How often a server is asked that does not answer."""

PAUSE_S: Final = 0.5
"""Before it is asked the second time; each pause is twice the one before."""

_log: Final = get_log(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """What one task reads: slices of the streams of one server. It holds all that a worker elsewhere must know."""

    server: ServerAddress
    login: Login
    kind: Kind
    keys: Mapping[str, bytes]
    """The key of each stream."""
    starts: Mapping[str, Position]
    """Where the batch began in each stream: what is missing behind it was lost."""
    ends: Mapping[str, Position]
    """Where it ends: a stream that does not reach as far is another one."""
    fresh: frozenset[str]
    """Streams of which nothing was read before: they begin with the oldest entry that is there."""
    slices: tuple[Slice, ...]
    ahead_ms: int
    fail_on_data_loss: bool


def lose(what: str, why: Loss | str, fail: bool) -> None:
    """Says that something cannot be read any more: as an error, or as a warning."""
    if fail:
        raise TrimmedError(
            f"{what} {why}",
            do="set failOnDataLoss to false to go on with the oldest that is left, or begin anew with a new checkpoint",
        )
    _log.warning("entries are lost; the oldest that is left comes next", what=what, why=str(why))


class Patience:
    """How often a server that does not answer is asked again."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._failures = 0

    def renew(self) -> None:
        """It has answered."""
        self._failures = 0

    def wait(self, error: ConnectError) -> None:
        """Pauses; raises when that was often enough, or when asking again does not help."""
        self._failures += 1
        if self._failures >= ATTEMPTS or isinstance(error, AuthenticationError | ServerTooOldError):
            raise ConnectError(
                f"{self._server} cannot be read now, and nothing of it was skipped: {error}",
                do="see `shoal status`; the same batch is read when the query is started again and the server answers",
            ) from error
        time.sleep(PAUSE_S * 2 ** (self._failures - 1))


def read_part(part: Part) -> Iterator[pa.RecordBatch]:
    """The rows of a part, in the order of each stream."""
    reading, patience = _Reading(part), Patience(part.server.id)
    while not reading.done:
        try:
            with ServerStreams(part.server, part.login) as streams:
                for rows in reading.go_on(streams):
                    patience.renew()
                    yield rows
        except ConnectError as error:
            patience.wait(error)


class _Reading:
    """How far a part was read, so that it goes on there when a connection broke."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._slices = list(part.slices)
        self._begin()

    @property
    def done(self) -> bool:
        """Whether all was read."""
        return not self._slices

    def _begin(self) -> None:
        """Stands before the first of the slices that are left."""
        self._after = self._slices[0].after if self._slices else None
        self._read = 0
        self._told = False

    def go_on(self, streams: ServerStreams) -> Iterator[pa.RecordBatch]:
        """The rows that are left to read."""
        part = self._part
        while self._slices:
            slice = self._slices[0]
            assert self._after is not None
            for page in streams.entries(part.keys[slice.stream], replace(slice, after=self._after)):
                if slice.count is None:
                    self._check_uncounted(slice, streams)
                self._after = page[-1][0]
                self._read += len(page)
                arrived_s = [(id.ms - part.ahead_ms) / 1000 for id, _ in page]
                yield part.kind.rows(part.server.id, slice.stream, page, arrived_s)
            self._check_end(slice, streams)
            self._slices.pop(0)
            self._begin()

    def _check_end(self, slice: Slice, streams: ServerStreams) -> None:
        """Behind the last page: whether all that was planned was there."""
        assert self._after is not None
        if slice.count is not None and self._read < slice.count:
            lost = self._lost(slice.stream, streams.info(self._part.keys[slice.stream]))
            missing = Loss(slice.count - self._read, reset=False)
            self._lose(slice, lost if lost is not None and lost.reset else missing)
        elif slice.count is None and self._after < slice.last:
            self._check_uncounted(slice, streams)

    def _check_uncounted(self, slice: Slice, streams: ServerStreams) -> None:
        """Whether anything was dropped behind the entry that was read last before now. Where a batch is read in several
        slices nobody knows how many entries each has; so the stream must still begin before that entry."""
        info = streams.info(self._part.keys[slice.stream])
        lost = self._lost(slice.stream, info)
        if lost is not None and (lost.reset or not self._still_there(info)):
            self._lose(slice, lost)

    def _lost(self, stream: str, info: StreamInfo) -> Loss | None:
        """What was lost since the batch was planned. That a stream began anew shows at the end of the batch also where
        it does not at its start: before the first entry nothing was read yet that could be missing."""
        end = self._part.ends[stream]
        at_end = None if end.count is None else loss(end, info)
        return at_end if at_end is not None and at_end.reset else loss(self._part.starts[stream], info)

    def _still_there(self, info: StreamInfo) -> bool:
        return info.first is not None and self._after is not None and info.first <= self._after

    def _lose(self, slice: Slice, lost: Loss) -> None:
        """Says it, once for each slice."""
        if self._told:
            return
        self._told = True
        what = f"the stream {slice.stream} of {self._part.server.id}"
        if slice.stream in self._part.fresh and not lost.reset:
            _log.info("a stream begins later: its oldest entries were dropped", what=what, entries=lost.count)
        else:
            lose(what, lost, self._part.fail_on_data_loss)


def table_of(parts: Sequence[Part], kind: Kind) -> pa.Table:
    """The rows of some parts, read one after the other in this process."""
    batches = [batch for part in parts for batch in read_part(part)]
    return pa.Table.from_batches(batches, kind.schema)
