"""Backlogs: the unread entries of streams, and where they end at a given time.

Owns counting. Redis cannot count the entries of a stream up to a time. But entries of all kinds carry a number that
grows by one, so one entry, the last one up to that time, tells how many come before it. Where numbers have holes (a
corrupt entry, telemetry after a restart of its agent), the ids are read instead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from shoal.errors import ConnectError
from shoal.pipeline.source.cluster_view import ClusterView
from shoal.pipeline.source.kinds import Entry, Kind
from shoal.pipeline.source.offsets import SEQUENCE_MAX, START, EntryId, Position, Slice, StreamInfo
from shoal.pipeline.source.streams import ServerStreams


@dataclass(frozen=True, slots=True)
class Backlog:
    """The unread entries of one stream. Times are milliseconds by the reader's clock."""

    server: str
    stream: str
    key: bytes
    at: Position | None
    """The position in the last offset; None if it does not contain the stream."""
    base: Position
    """Where reading continues."""
    info: StreamInfo
    ahead_ms: int

    @property
    def name(self) -> str:
        """Unique among the streams of all servers."""
        return f"{self.server}/{self.stream}"

    @property
    def count(self) -> int:
        """Upper bound for the number of unread entries."""
        info = self.info
        return 0 if info.last == self.base.id else info.length - (self._read or 0)

    @property
    def from_ms(self) -> int:
        """Lower bound for the time of the first unread entry."""
        first_ms = 0 if self.info.first is None else self.info.first.ms
        return max(self.base.id.ms, first_ms) - self.ahead_ms

    @property
    def to_ms(self) -> int:
        """The time of the last entry."""
        return self.info.last.ms - self.ahead_ms

    @property
    def _read(self) -> int | None:
        """How many of the entries that exist were read; None if unknown."""
        if self.base.id == START:
            return 0
        if self.base.count is None or self.info.added is None or self.info.last < self.base.id:
            return None
        return min(max(0, self.base.count - (self.info.added - self.info.length)), self.info.length)

    @property
    def is_counted(self) -> bool:
        """Whether `count` is exact."""
        return self._read is not None

    @property
    def is_numbered(self) -> bool:
        """Whether the number of an entry tells how many unread ones come before it."""
        return self.info.last_number is not None and self.is_counted

    @property
    def end(self) -> End:
        """After the last entry."""
        return End(self.info.end, self.count)

    @property
    def begin(self) -> End:
        """Before the first unread entry."""
        return End(self.base, 0)

    def last_id(self, until_ms: int) -> EntryId:
        """The largest possible id of an entry that was recorded until a time."""
        return EntryId(max(0, until_ms + self.ahead_ms), SEQUENCE_MAX)

    def end_at(self, id: EntryId, number: int) -> End:
        """After the entry with this id and number, of a stream that `is_numbered`."""
        assert self.info.last_number is not None
        assert self._read is not None
        later = self.info.last_number - number
        unread = self.info.length - later - self._read
        if id <= self.base.id or not 0 < unread <= self.info.length:
            return self.begin
        return End(Position(id, None if self.info.added is None else self.info.added - later), unread)


class End(NamedTuple):
    """Where a batch ends in a stream, and how many of its unread entries come before."""

    position: Position
    unread: int


class ServerSilentError(ConnectError):
    """A server did not answer."""

    def __init__(self, server: str) -> None:
        super().__init__(f"{server} does not answer")
        self.server = server


class _Listing(NamedTuple):
    """Unread entries of a stream whose ids were read."""

    ids: list[EntryId]
    before: int | None
    """How many entries the stream had received before the first one; None if unknown."""


class BacklogProbe:
    """Finds where backlogs end at a time. `with` keeps one connection to each server that is asked. ServerSilentError
    if one does not answer."""

    def __init__(self, cluster: ClusterView, kind: Kind) -> None:
        self._cluster = cluster
        self._kind = kind
        self._open: dict[str, ServerStreams] = {}
        self._closing = ExitStack()
        self._listings: dict[str, _Listing] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def ends(self, backlogs: Iterable[Backlog], until_ms: int, listed_max: int) -> dict[str, End]:
        """Where each backlog ends that is read until a time. Of a stream without usable numbers `listed_max` ids are
        read, and its end is not after them; 0: none are read, and the count at its end is unknown."""
        found: dict[str, End] = {}
        asked: list[Backlog] = []
        for backlog in backlogs:
            if backlog.to_ms <= until_ms and (backlog.is_counted or not listed_max):
                found[backlog.name] = backlog.end
            elif backlog.from_ms > until_ms or not backlog.count:
                found[backlog.name] = backlog.begin
            elif backlog.is_numbered or not listed_max:
                asked.append(backlog)
            else:
                found[backlog.name] = self._listed_end(backlog, until_ms, listed_max)
        for server in {backlog.server for backlog in asked}:
            found |= self._last_ends(server, [each for each in asked if each.server == server], until_ms)
        return found

    def first_ends(self, backlogs: Iterable[Backlog], until_ms: int, rows_max: int) -> dict[str, End]:
        """Where a batch of the first `rows_max` entries ends, taken stream by stream, none recorded after a time."""
        found, left = {}, rows_max
        for backlog in backlogs:
            found[backlog.name] = backlog.begin
            if left and backlog.from_ms <= until_ms and backlog.count:
                listing = self._list(backlog, left, backlog.last_id(until_ms))
                found[backlog.name] = _end_of(backlog, listing, len(listing.ids))
                left -= len(listing.ids)
        return found

    def _last_ends(self, server: str, backlogs: Sequence[Backlog], until_ms: int) -> dict[str, End]:
        with self._asking(server) as streams:
            entries = streams.last_entries([(each.key, each.last_id(until_ms)) for each in backlogs])
        return {
            backlog.name: backlog.begin if entry is None else self._end_after(backlog, entry)
            for backlog, entry in zip(backlogs, entries, strict=True)
        }

    def _end_after(self, backlog: Backlog, entry: Entry) -> End:
        id, number = EntryId.parse(entry[0]), self._kind.number(entry[1])
        if backlog.is_numbered and number is not None:
            return backlog.end_at(id, number)
        return End(Position(id), backlog.count) if id > backlog.base.id else backlog.begin

    def _listed_end(self, backlog: Backlog, until_ms: int, listed_max: int) -> End:
        if backlog.name not in self._listings:
            self._listings[backlog.name] = self._list(backlog, listed_max, backlog.info.last)
        listing = self._listings[backlog.name]
        if backlog.to_ms <= until_ms and len(listing.ids) < listed_max:
            return End(backlog.info.end, len(listing.ids))
        return _end_of(backlog, listing, bisect_right(listing.ids, backlog.last_id(until_ms)))

    def _list(self, backlog: Backlog, count_max: int, last: EntryId) -> _Listing:
        ids: list[EntryId] = []
        with self._asking(backlog.server) as streams:
            for page in streams.entries(backlog.key, Slice(backlog.stream, backlog.base.id, last)):
                ids += [EntryId.parse(id) for id, _ in page]
                if len(ids) >= count_max:
                    break
            dropped = streams.info(backlog.key).dropped
        if backlog.base.count is None or backlog.info.dropped is None or dropped is None:
            return _Listing(ids[:count_max], None)
        before = max(backlog.base.count, backlog.info.dropped)
        return _Listing(ids[:count_max], before if dropped <= before else None)  # None: trimmed while it was listed

    @contextmanager
    def _asking(self, server: str) -> Iterator[ServerStreams]:
        try:
            if server not in self._open:
                self._open[server] = self._closing.enter_context(self._cluster.open(server))
            yield self._open[server]
        except ConnectError as error:
            self._cluster.note_silent(server, error)
            raise ServerSilentError(server) from error


def _end_of(backlog: Backlog, listing: _Listing, entries: int) -> End:
    """After the first entries of a listing."""
    if not entries:
        return backlog.begin
    count = None if listing.before is None else listing.before + entries
    return End(Position(listing.ids[entries - 1], count), entries)
