"""What the source reads next: offsets from servers, parts from offsets.

Owns the rules of servers that join, leave or do not answer, and of how much a batch takes. Spark's classes around it
are in `source`, reading is in `reading`; nothing here needs Spark.

- The servers are those of the ring when an offset is made. One that is new is read from its oldest entry.
- One that has left is read to its end while it answers, and keeps its offset: what was read of it is not read again if
  it comes back. If it answers no more and entries were left, those are lost.
- A server that does not answer stays where it is, and is warned of, until it answers.
- A stream that was trimmed before it was read, or that began anew, is an error if `failOnDataLoss`, else a warning.
- Who begins with the oldest has no claim on what is dropped until then: the first batch of a stream begins with what is
  there when it is read. An offset does not hold such a stream; it does from the first batch on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from shoal.errors import ConnectError
from shoal.logs import get_log
from shoal.pipeline.source.checking import check_known
from shoal.pipeline.source.kinds import reads_in_time
from shoal.pipeline.source.looking import Looking, Seen
from shoal.pipeline.source.offsets import (
    ANY,
    NOTHING,
    SEQUENCE_MAX,
    START,
    EntryId,
    Position,
    ServerOffset,
    Slice,
    StreamInfo,
    loss,
    shares,
    slices,
)
from shoal.pipeline.source.options import LATEST, SourceOptions, Start
from shoal.pipeline.source.reading import Part, Patience, lose, read_part, table_of
from shoal.pipeline.source.streams import ServerStreams
from shoal.plan.ring import ServerAddress

__all__ = ["Part", "Planning", "read_part", "table_of"]

FEW_ENTRIES: Final = 64
"""So many entries are taken into a batch without a look at how large they are."""

_log: Final = get_log(__name__)

Offset = Mapping[str, ServerOffset]


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What is ahead of the reader in one stream."""

    server: str
    stream: str
    key: bytes
    at: Position | None
    """Where the last offset stands; None: it does not know the stream."""
    base: Position
    """Where reading goes on."""
    info: StreamInfo
    ahead_ms: int

    @property
    def name(self) -> str:
        """Of the stream, among those of all servers."""
        return f"{self.server}/{self.stream}"

    @property
    def count(self) -> int:
        """How many entries there are to read, about: never fewer."""
        start, info = self.base, self.info
        if info.last == start.id:
            return 0
        if start.count is None or info.added is None or info.last < start.id:
            return info.length
        return max(0, min(info.length, info.added - start.count))


class Planning:
    """Makes offsets and parts. Remembers who answers, and nothing that a restart needs.

    `complete` is for a batch that is read once: a server that does not answer is then an error if `failOnDataLoss`, for
    there is no later in which it could be read.
    """

    def __init__(self, options: SourceOptions, complete: bool = False) -> None:
        self._options = options
        self._looking = Looking(options, complete)
        self._missed: set[tuple[str, str]] = set()

    def first(self, starting: Start | None = None) -> dict[str, ServerOffset]:
        """Where a reader begins that has read nothing yet."""
        wanted = self._options.starting if starting is None else starting
        if isinstance(wanted, dict):
            self.check("startingOffsets", wanted)
            return wanted
        found: dict[str, ServerOffset] = {}
        for server, seen in self._looking.around().items():
            # What comes from now on into an empty stream is not to be missed; where there is something, the first batch
            # begins with what of it is left when it is read.
            at = {name: info.end for name, info in seen.infos.items() if wanted == LATEST or not info.length}
            found[server] = ServerOffset(at, seen.ahead_ms)
        if wanted == LATEST:
            found |= {server: ServerOffset({}, waits=True) for server in self._looking.silent_ones()}
        return found

    def check(self, option: str, given: Offset) -> None:
        """ConfigError if an offset names what is not there."""
        seen = self._looking.around()
        check_known(option, given, [server.id for server in self._looking.ring()], seen)

    def next(self, start: Offset, rows_max: int = 0, until: Offset | None = None) -> dict[str, ServerOffset]:
        """How far to read now: to the end, but at most `rows_max` entries (0: no limit), and not beyond `until`."""
        seen = self._looking.around(start)
        aheads = [
            ahead for server, found in seen.items() for ahead in self._aheads(server, found, start.get(server, NOTHING))
        ]
        ends = {ahead.name: ahead.info.end for ahead in aheads}
        if rows_max:
            ends |= self._taken([ahead for ahead in aheads if ahead.count > 0], rows_max)
        if until is not None:
            ends |= {ahead.name: _bounded(ahead, ends[ahead.name], until) for ahead in aheads}
        found = {**start, **self._left(start, seen), **self._gone(start, seen)}
        for server, of_server in seen.items():
            before = start.get(server, NOTHING)
            moved = _moved(before, [ahead for ahead in aheads if ahead.server == server], ends, of_server.ahead_ms)
            if moved is not None and not self._looking.silent(server):
                found[server] = moved
        return found

    def parts(self, start: Offset, end: Offset) -> list[Part]:
        """What is between two offsets, in parts that can be read at the same time."""
        self._looking.ring()
        found: list[Part] = []
        for id, of_server in end.items():
            begins = {name: _begin(start, id, name, of_server) for name in of_server.streams}
            changed = {name for name, at in of_server.streams.items() if at.id != begins[name].id}
            if not changed or start.get(id, NOTHING).waits:  # one that waited begins where the end is
                continue
            address = self._looking.address(id)
            if address is None:
                many = _many([begins[name].count_to(of_server.streams[name]) for name in changed])
                self._lose(id, f"has left the ring, and {many} of it that were planned cannot be read any more")
                continue
            fresh = frozenset(changed - start.get(id, NOTHING).streams.keys())
            found += self._parts_of(address, begins, of_server, changed, fresh)
        return found

    # -- how far ---------------------------------------------------------------------------------------------

    def _aheads(self, server: str, seen: Seen, before: ServerOffset) -> list[_Ahead]:
        """What is ahead in each stream of a server. Where something was lost, it is said here."""
        found = []
        for name, info in seen.infos.items():
            at = before.streams.get(name)
            base = at or (info.end if before.waits else _oldest(info))
            lost = loss(base, info)
            if lost is not None:
                self._lose(f"the stream {name} of {server}", str(lost))
                base = _oldest(info) if lost.reset else base
            found.append(_Ahead(server, name, seen.keys[name], at, base, info, seen.ahead_ms))
        return found

    def _taken(self, aheads: Sequence[_Ahead], rows_max: int) -> dict[str, Position]:
        """How far a batch of limited size reads each of some streams. Where they must be read at the same pace, none is
        read past the time at which the share of another ended; that one moves, so there is always progress."""
        limits = shares({ahead.name: ahead.count for ahead in aheads}, self._fitting(rows_max, aheads))
        ends = {ahead.name: ahead.info.end for ahead in aheads}
        limited = [ahead for ahead in aheads if limits[ahead.name] < ahead.count]
        for ahead in limited:
            ends[ahead.name] = self._nth(ahead, limits[ahead.name])
        moving = [ahead for ahead in limited if ends[ahead.name].id > ahead.base.id]
        if moving and reads_in_time(self._options.kind):
            cut_ms = min(ends[ahead.name].id.ms - ahead.ahead_ms for ahead in moving)
            for ahead in aheads:
                last = EntryId(max(0, cut_ms + ahead.ahead_ms), SEQUENCE_MAX)
                if last < ends[ahead.name].id:
                    ends[ahead.name] = self._nth(ahead, limits[ahead.name], last)
        return ends

    def _fitting(self, rows_max: int, aheads: Sequence[_Ahead]) -> int:
        """How many entries fit into a batch: no more than `rows_max`, nor than its bytes allow."""
        total = sum(ahead.count for ahead in aheads)
        if total <= FEW_ENTRIES:
            return rows_max
        total_bytes = 0
        for server in {ahead.server for ahead in aheads}:
            of_server = [ahead for ahead in aheads if ahead.server == server]

            def size(streams: ServerStreams, of_server: list[_Ahead] = of_server) -> int:
                return sum(ahead.count * streams.entry_bytes(ahead.key, ahead.info.last) for ahead in of_server)

            total_bytes += self._looking.ask(server, size) or 0
        return max(1, min(rows_max, total * self._options.bytes_max // max(1, total_bytes)))

    def _nth(self, ahead: _Ahead, limit: int, last: EntryId | None = None) -> Position:
        """Behind the `limit`-th entry that is ahead, or behind the last up to `last`; where the reader is if there is
        none, or the server does not answer."""

        def ask(streams: ServerStreams) -> tuple[EntryId, int, StreamInfo]:
            return *streams.nth_id(ahead.key, ahead.base.id, limit, last), streams.info(ahead.key)

        answer = None if self._looking.silent(ahead.server) else self._looking.ask(ahead.server, ask)
        if answer is None or not answer[1]:
            return ahead.base
        id, count, now = answer
        before, after = _oldest(ahead.info).count, _oldest(now).count
        if ahead.base.count is None or before is None or after is None:
            return Position(id)
        at = max(ahead.base.count, before)
        return Position(id, at + count if after <= at else None)  # None: trimmed while it was counted

    def _left(self, start: Offset, seen: Mapping[str, Seen]) -> dict[str, ServerOffset]:
        """The offsets of servers that have left the ring and cannot be asked, if they had entries that nobody read:
        those are lost, and are told once."""
        found = {}
        for server in sorted(self._looking.left(start)):
            of_server = start[server]
            if server in seen:
                infos = seen[server].infos
                if all(info.last == START or of_server.streams.get(name) == info.end for name, info in infos.items()):
                    self._looking.forget(server)  # read to its end
                continue
            if of_server.behind:
                many = _many([of_server.behind])
                self._lose(server, f"has left the ring and cannot be asked: at least {many} of it were not read")
                found[server] = replace(of_server, unread={})
            elif self._looking.silent(server):
                _log.warning(
                    "a server left the ring that did not answer; nobody knows what of it is lost", server=server
                )
            self._looking.forget(server)
        return found

    def _gone(self, start: Offset, seen: Mapping[str, Seen]) -> dict[str, ServerOffset]:
        """The offsets of servers that answer and do not know streams any more of which entries were unread: those are
        lost, and are told once. Of the others nobody knows whether something came after they were read."""
        found = {}
        for server, of_server in seen.items():
            before = start.get(server, NOTHING)
            gone = sorted(before.streams.keys() - of_server.keys.keys())
            unread = {name: count for name, count in before.unread.items() if gone and name in (*gone, ANY)}
            if unread:
                names = ", ".join(name for name in gone if ANY in unread or name in unread)
                many = _many([*unread.values()])
                why = f"are not there any more, though it answers: at least {many} of them were not read"
                self._lose(f"the streams {names} of {server}", why)
                left = {name: count for name, count in before.unread.items() if name not in unread}
                found[server] = replace(before, unread=left)
            for name in gone:
                if name not in unread and (server, name) not in self._missed:
                    _log.warning("a stream that was read is not there any more", server=server, stream=name)
            self._missed |= {(server, name) for name in gone}
        return found

    # -- parts -----------------------------------------------------------------------------------------------

    def _parts_of(
        self,
        server: ServerAddress,
        begins: Mapping[str, Position],
        end: ServerOffset,
        changed: set[str],
        fresh: frozenset[str],
    ) -> list[Part]:
        options, per_server = self._options, self._options.partitions_per_server
        keys, infos = self._infos(server.id, changed)
        for name in sorted(changed - keys.keys()):
            many = _many([begins[name].count_to(end.streams[name])])
            self._lose(f"the stream {name} of {server.id}", f"is not there any more, and {many} of it were not read")
        cuts = -(-per_server // max(1, len(infos)))
        found: list[Slice] = []
        for name, info in sorted(infos.items()):
            first_ms = 0 if info.first is None else info.first.ms
            found += slices(name, begins[name], end.streams[name], first_ms, cuts)
        dealt = [found[place::per_server] for place in range(per_server)]
        return [
            Part(
                server,
                options.cluster.login,
                options.kind,
                {name: keys[name] for name in infos},
                {name: begins[name] for name in infos},
                {name: end.streams[name] for name in infos},
                fresh,
                tuple(dealing),
                end.ahead_ms,
                options.fail_on_data_loss,
            )
            for dealing in dealt
            if dealing
        ]

    def _infos(self, server: str, names: set[str]) -> tuple[dict[str, bytes], dict[str, StreamInfo]]:
        """The keys of all streams of a server, and what there is of some. These were planned to be read: a server that
        does not answer is asked again, then it is an error."""
        patience = Patience(server)
        while True:
            try:
                with self._looking.open(server) as streams:
                    keys = self._options.kind.streams(streams.ask)
                    return keys, {name: streams.info(keys[name]) for name in names if name in keys}
            except ConnectError as error:
                patience.wait(error)

    def _lose(self, what: str, why: str) -> None:
        lose(what, why, self._options.fail_on_data_loss)


def _begin(start: Offset, server: str, stream: str, end: ServerOffset) -> Position:
    """Where a batch begins in a stream: where the offset before ends or, if that does not know the stream, before the
    oldest entry that there was when it was first seen."""
    return start.get(server, NOTHING).streams.get(stream) or Position(START, end.began.get(stream))


def _oldest(info: StreamInfo) -> Position:
    """Before the oldest entry that is there now: what is dropped later is lost."""
    return Position(START, None if info.added is None else info.added - info.length)


def _bounded(ahead: _Ahead, end: Position, until: Offset) -> Position:
    """An end that is not beyond another one. A stream that `until` does not know came later."""
    bound = until.get(ahead.server, NOTHING).streams.get(ahead.stream, ahead.base)
    if end.id <= bound.id:
        return end
    return bound if bound.id > ahead.base.id else ahead.base


def _moved(
    before: ServerOffset, aheads: Sequence[_Ahead], ends: Mapping[str, Position], ahead_ms: int
) -> ServerOffset | None:
    """The next offset of a server; None if it stays where it is."""
    streams, began = dict(before.streams), {}
    for ahead in aheads:
        end = ends[ahead.name]
        if ahead.at is None and end.id == START:
            continue  # nothing was read of it yet
        if ahead.at is None and ahead.base.count is not None and end.id != ahead.base.id:
            began[ahead.stream] = ahead.base.count
        streams[ahead.stream] = end
    if streams == dict(before.streams) and not before.waits:
        return None
    unread = {ahead.stream: count for ahead in aheads if (count := _behind(ends[ahead.name], ahead.info))}
    return ServerOffset(streams, ahead_ms, unread, began)


def _behind(end: Position, info: StreamInfo) -> int:
    """How many entries are there that an offset does not cover: at least so many."""
    if end.id >= info.last:
        return 0
    return 1 if end.count is None or info.added is None else max(0, info.added - end.count)


def _many(counts: Sequence[int | None]) -> str:
    """How many entries some numbers are together, in words."""
    known = sum(count for count in counts if count is not None)
    return "entries" if None in counts else "1 entry" if known == 1 else f"{known} entries"
