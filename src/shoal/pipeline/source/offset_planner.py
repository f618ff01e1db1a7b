"""Plans what the source reads next: offsets from servers, parts from offsets.

Owns the rules for servers that join, leave or do not answer, and the size of a batch. Spark's classes are in
`datasource`, the reading is in `parts`; nothing here needs Spark.

- The servers are those of the ring when an offset is made. A new server is read from its oldest entry.
- A server that left the ring is read to its end while it answers. It keeps its offset, so entries are not read again if
  it comes back. If it no longer answers, its unread entries are lost.
- A server that does not answer keeps its offset, with one warning, until it answers. The others wait for it, for a
  limited time.
- All streams are read at the same pace: a batch ends at one time, for streams that moved, joined or came back too. So
  a query with a watermark does not take the entries of a busy stream for late because a quiet one has run ahead.
- A stream that was trimmed or restarted before it was read is an error with `failOnDataLoss`, else a warning.
- With `earliest`, entries trimmed before the first batch are not counted as lost: that batch starts with the oldest
  entry that exists when it is read. Offsets contain such a stream only from its first batch on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from shoal.errors import ConfigError, ConnectError, PipelineError
from shoal.logs import get_log
from shoal.pipeline.source.backlog import Backlog, BacklogProbe, End, ServerSilentError
from shoal.pipeline.source.cluster_view import ClusterView, ServerView, SourceSnapshot
from shoal.pipeline.source.offsets import (
    ANY,
    NOTHING,
    START,
    Position,
    ServerOffset,
    Slice,
    StreamInfo,
    check_known,
    loss,
    slices,
)
from shoal.pipeline.source.options import LATEST, SourceOptions, Start
from shoal.pipeline.source.parts import Part, ReadRetry, report_loss
from shoal.pipeline.source.streams import CLOCK_STEP_MS
from shoal.pipeline.source.time_cut import find_cut
from shoal.plan.ring import ServerAddress

WAIT_PAUSE_S: Final = 0.5
"""Pause between two attempts to reach a server that the others wait for."""

_log: Final = get_log(__name__)

Offset = Mapping[str, ServerOffset]


class OffsetPlanner:
    """Makes offsets and parts. Remembers which servers answer, and nothing that a restart needs.

    `complete` is for a batch, which is read only once: with `failOnDataLoss`, a server that does not answer is then an
    error, because its entries would not be read later.
    """

    def __init__(self, options: SourceOptions, complete: bool = False) -> None:
        self._options = options
        self._complete = complete
        self._cluster = ClusterView(options, complete)
        self._missed: set[tuple[str, str]] = set()
        self._warned = False

    @property
    def silent(self) -> list[str]:
        """The servers that did not answer their last query."""
        return self._cluster.silent_servers()

    def first(self, starting: Start | None = None) -> dict[str, ServerOffset]:
        """The offset of a reader that has read nothing yet."""
        wanted = self._options.starting if starting is None else starting
        if isinstance(wanted, dict):
            self.check("startingOffsets", wanted)
            return wanted
        snapshot = self._cluster.refresh()
        self._warn_if_unrecorded(snapshot)
        if wanted == LATEST:
            return self._latest(snapshot)
        if isinstance(wanted, int):
            return self._since(snapshot, wanted)
        # Entries that come into an empty stream from now on count. Where a stream has entries, the first batch starts
        # with the oldest one that exists when it is read.
        return {
            server: ServerOffset(
                {name: info.end for name, info in view.infos.items() if not info.length}, view.ahead_ms
            )
            for server, view in snapshot.servers.items()
        }

    def check(self, option: str, given: Offset) -> None:
        """ConfigError if an offset names a server or stream that does not exist."""
        streams = {server: view.keys for server, view in self._cluster.refresh().servers.items()}
        check_known(option, given, [server.id for server in self._cluster.ring()], streams)

    def next(self, start: Offset, rows_max: int = 0, until: Offset | None = None) -> dict[str, ServerOffset]:
        """How far to read now: to the end, but at most `rows_max` entries (0: no limit), and not beyond `until`. Waits
        for servers that do not answer, up to the option `serverWait`."""
        while True:
            snapshot = self._cluster.refresh(start)
            if not self._cluster.wait_s():
                found = self._next(start, snapshot, rows_max, until)
                if not self._cluster.wait_s():
                    return found
            time.sleep(min(self._cluster.wait_s(), WAIT_PAUSE_S))

    def _next(
        self, start: Offset, snapshot: SourceSnapshot, rows_max: int, until: Offset | None
    ) -> dict[str, ServerOffset]:
        self._warn_if_unrecorded(snapshot)
        views = snapshot.servers
        backlogs = [
            backlog
            for server, view in views.items()
            for backlog in self._backlogs(server, view, start.get(server, NOTHING), snapshot.at_ms)
        ]
        ends = self._ends(backlogs, snapshot.at_ms, rows_max)
        if until is not None:
            ends |= {each.name: _bounded(each, ends[each.name], until) for each in backlogs if each.name in ends}
        found = {**start, **self._servers_left(start, views), **self._streams_gone(start, views)}
        reached: dict[str, ServerOffset] = {}
        for server, view in views.items():
            if not self._cluster.silent(server):
                of_server = [backlog for backlog in backlogs if backlog.server == server]
                reached[server] = _reached(start.get(server, NOTHING), of_server, ends, view.ahead_ms)
        moved = {server for server, offset in reached.items() if _has_moved(start.get(server, NOTHING), offset)}
        found |= {server: reached[server] for server in moved}
        for server in reached.keys() - moved if moved else ():  # unread entries alone make no batch
            before = start.get(server, NOTHING)
            if reached[server].unread != before.unread:
                found[server] = replace(before, unread=reached[server].unread)
        return found

    def parts(self, start: Offset, end: Offset) -> list[Part]:
        """What is between two offsets, in parts that can be read at the same time."""
        self._cluster.ring()
        found: list[Part] = []
        for id, of_server in end.items():
            begins = {name: _begin(start, id, name, of_server) for name in of_server.streams}
            changed = {name for name, at in of_server.streams.items() if at.id != begins[name].id}
            if not changed or start.get(id, NOTHING).at_latest:  # then reading starts at `end`
                continue
            address = self._cluster.address(id)
            if address is None:
                entries = _entries([begins[name].count_to(of_server.streams[name]) for name in changed])
                self._report_loss(id, f"has left the ring; {entries} that this batch planned to read are lost")
                continue
            fresh = frozenset(changed - start.get(id, NOTHING).streams.keys())
            found += self._parts_of(address, begins, of_server, changed, fresh)
        return found

    # -- offsets

    def _latest(self, snapshot: SourceSnapshot) -> dict[str, ServerOffset]:
        """The offset after everything recorded until now. Servers that do not answer start when they do."""
        backlogs = _everything(snapshot)
        found = _offset_at(snapshot, backlogs, self._ends(backlogs, snapshot.at_ms, 0))
        return found | {server: ServerOffset({}, at_latest=True) for server in self._cluster.silent_servers()}

    def _since(self, snapshot: SourceSnapshot, from_ms: int) -> dict[str, ServerOffset]:
        """The offset before everything recorded from a time on. A stream without older entries is not in it, and is
        read from its oldest entry."""
        if from_ms > snapshot.at_ms:
            raise ConfigError("startingTimestamp is in the future", do="give a time in the past, or use latest")
        for server in self._cluster.silent_servers():
            raise ConnectError(f"{server} does not answer, so it is not known which of its entries are new enough")
        backlogs = _everything(snapshot)
        with BacklogProbe(self._cluster, self._options.kind) as probe:
            ends = probe.ends(backlogs, from_ms - 1, 0)
        older = {each.name: ends[each.name] for each in backlogs if ends[each.name].unread or not each.info.length}
        return _offset_at(snapshot, backlogs, {name: end.position for name, end in older.items()})

    def _warn_if_unrecorded(self, snapshot: SourceSnapshot) -> None:
        """Warns once if there is nothing to read and no agent is going to write anything."""
        kind = self._options.kind
        if self._warned or any(view.keys for view in snapshot.servers.values()):
            return
        self._warned = True
        with suppress(PipelineError):  # a login that may not read the marks
            if not any(
                self._cluster.ask(server, lambda each: kind.is_written(each.ask)) for server in snapshot.servers
            ):
                _log.warning("nothing to read: no server records this channel", **kind.asked)

    def _backlogs(self, server: str, view: ServerView, before: ServerOffset, at_ms: int) -> list[Backlog]:
        """The unread entries of each stream of a server. Reports lost entries."""
        found = []
        for name, info in view.infos.items():
            at = before.streams.get(name)
            base = at or (info.end if before.at_latest else info.oldest)
            lost = loss(base, info)
            if lost is not None:
                self._report_loss(f"the stream {name} of {server}", str(lost))
                base = info.oldest if lost.reset else base
            found.append(Backlog(server, name, view.keys[name], at, base, info, _ahead_ms(info, view, at_ms)))
        return found

    def _ends(self, backlogs: Sequence[Backlog], at_ms: int, rows_max: int) -> dict[str, Position]:
        """How far each stream is read, by name. Servers that do not answer are left out. A batch that is read only once
        need not end at one time."""
        if self._complete:
            return {backlog.name: backlog.info.end for backlog in backlogs}
        left = list(backlogs)
        while True:
            try:
                with BacklogProbe(self._cluster, self._options.kind) as probe:
                    ends = self._aligned_ends(probe, left, at_ms, rows_max)
            except ServerSilentError as error:
                left = [backlog for backlog in left if backlog.server != error.server]
            else:
                return {name: end.position for name, end in ends.items()}

    def _aligned_ends(
        self, probe: BacklogProbe, backlogs: Sequence[Backlog], at_ms: int, rows_max: int
    ) -> dict[str, End]:
        """Ends of a batch that holds everything recorded until one time, `at_ms` or earlier, and nothing recorded
        later. If one millisecond has more than a batch may hold, it holds some of that millisecond."""
        fitting = self._fitting(rows_max, backlogs)
        found: dict[int, dict[str, End]] = {}

        def count(until_ms: int) -> int:
            found[until_ms] = probe.ends(backlogs, until_ms, fitting + 1 if fitting else 0)
            return sum(end.unread for end in found[until_ms].values())

        total = count(at_ms)
        if not fitting or total <= fitting:
            return found[at_ms]
        unread = [backlog for backlog in backlogs if backlog.count]
        low_ms = min(backlog.from_ms for backlog in unread) - 1
        high_ms = min(at_ms, max(backlog.to_ms for backlog in unread))
        cut_ms = find_cut(count, low_ms, high_ms, total, fitting)
        if cut_ms > low_ms and any(end.unread for end in found[cut_ms].values()):
            return found[cut_ms]
        return probe.first_ends(backlogs, cut_ms + 1, fitting)

    def _fitting(self, rows_max: int, backlogs: Sequence[Backlog]) -> int:
        """How many entries fit into a batch, by `rows_max` (0: no limit) and by its size in bytes."""
        if not rows_max:
            return 0
        total = sum(backlog.count for backlog in backlogs)
        total_bytes = sum(backlog.count * backlog.info.last_bytes for backlog in backlogs)
        return max(1, min(rows_max, total * self._options.bytes_max // max(1, total_bytes)))

    def _servers_left(self, start: Offset, views: Mapping[str, ServerView]) -> dict[str, ServerOffset]:
        """New offsets of servers that left the ring with unread entries and no longer answer. Reports the loss once."""
        found = {}
        for server in sorted(self._cluster.left(start)):
            of_server = start[server]
            if server in views:
                infos = views[server].infos
                if all(info.last == START or of_server.streams.get(name) == info.end for name, info in infos.items()):
                    self._cluster.forget(server)  # read to its end
                continue
            if of_server.behind:
                entries = _entries([of_server.behind])
                self._report_loss(server, f"has left the ring and does not answer: at least {entries} were not read")
                found[server] = replace(of_server, unread={})
            elif self._cluster.silent(server):
                _log.warning("server left the ring while it did not answer; entries may be lost", server=server)
            self._cluster.forget(server)
        return found

    def _streams_gone(self, start: Offset, views: Mapping[str, ServerView]) -> dict[str, ServerOffset]:
        """New offsets of servers that answer but no longer have streams with unread entries. Reports the loss once. For
        a stream without unread entries it only warns, since later entries may have existed."""
        found = {}
        for server, view in views.items():
            before = start.get(server, NOTHING)
            gone = sorted((before.streams.keys() | before.unread.keys()) - {ANY} - view.keys.keys())
            unread = {name: count for name, count in before.unread.items() if gone and name in (*gone, ANY)}
            if unread:
                names = ", ".join(name for name in gone if ANY in unread or name in unread)
                entries = _entries([*unread.values()])
                why = f"no longer exist, although the server answers: at least {entries} were not read"
                self._report_loss(f"the streams {names} of {server}", why)
                left = {name: count for name, count in before.unread.items() if name not in unread}
                found[server] = replace(before, unread=left)
            for name in gone:
                if name not in unread and (server, name) not in self._missed:
                    _log.warning("stream no longer exists", server=server, stream=name)
            self._missed |= {(server, name) for name in gone}
        return found

    # -- parts

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
            entries = _entries([begins[name].count_to(end.streams[name])])
            self._report_loss(f"the stream {name} of {server.id}", f"no longer exists; {entries} were not read")
        cuts = -(-per_server // max(1, len(infos)))
        found: list[Slice] = []
        for name, info in sorted(infos.items()):
            first_ms = 0 if info.first is None else info.first.ms
            found += slices(name, begins[name], end.streams[name], first_ms, cuts)
        by_task = [found[place::per_server] for place in range(per_server)]
        return [
            Part(
                server,
                options.cluster.login,
                options.kind,
                {name: keys[name] for name in infos},
                {name: begins[name] for name in infos},
                {name: end.streams[name] for name in infos},
                fresh,
                tuple(of_task),
                end.ahead_ms,
                options.fail_on_data_loss,
            )
            for of_task in by_task
            if of_task
        ]

    def _infos(self, server: str, names: set[str]) -> tuple[dict[str, bytes], dict[str, StreamInfo]]:
        """The keys of all streams of a server, and the state of some. A batch is planned for these, so a server that
        does not answer is retried, and then it is an error."""
        retry, kind = ReadRetry(server), self._options.kind
        while True:
            try:
                with self._cluster.open(server) as streams:
                    keys = self._cluster.stream_keys(streams)
                    there = sorted(names & keys.keys())
                    infos = streams.infos([keys[name] for name in there], kind.number)
                    return keys, dict(zip(there, infos, strict=True))
            except ConnectError as error:
                retry.wait(error)

    def _report_loss(self, what: str, why: str) -> None:
        if self._options.kind.deletes:
            return
        report_loss(what, why, self._options.fail_on_data_loss)


def _begin(start: Offset, server: str, stream: str, end: ServerOffset) -> Position:
    """Where a batch starts in a stream: at the previous offset or, if that does not contain the stream, before the
    oldest entry that existed when the stream was first seen."""
    return start.get(server, NOTHING).streams.get(stream) or Position(START, end.began.get(stream))


def _ahead_ms(info: StreamInfo, view: ServerView, at_ms: int) -> int:
    """How far the ids of a stream are ahead of the reader's clock: as far as its server's clock. If that clock was set
    back, new entries continue after the old ids; then the newest entry counts as recorded at `at_ms`."""
    is_future = info.last.ms - view.ahead_ms > view.answered_ms + CLOCK_STEP_MS
    return info.last.ms - at_ms if is_future else view.ahead_ms


def _everything(snapshot: SourceSnapshot) -> list[Backlog]:
    """All entries of all streams."""
    return [
        Backlog(server, name, view.keys[name], None, info.oldest, info, _ahead_ms(info, view, snapshot.at_ms))
        for server, view in snapshot.servers.items()
        for name, info in view.infos.items()
    ]


def _offset_at(
    snapshot: SourceSnapshot, backlogs: Sequence[Backlog], ends: Mapping[str, Position]
) -> dict[str, ServerOffset]:
    """The offset with these ends of backlogs, by name."""
    return {
        server: ServerOffset(
            {each.stream: ends[each.name] for each in backlogs if each.server == server and each.name in ends},
            view.ahead_ms,
        )
        for server, view in snapshot.servers.items()
    }


def _bounded(backlog: Backlog, end: Position, until: Offset) -> Position:
    """`end`, but not beyond `until`. A stream that `until` does not contain is newer, and is not read."""
    bound = until.get(backlog.server, NOTHING).streams.get(backlog.stream, backlog.base)
    if end.id <= bound.id:
        return end
    return bound if bound.id > backlog.base.id else backlog.base


def _reached(
    before: ServerOffset, backlogs: Sequence[Backlog], ends: Mapping[str, Position], ahead_ms: int
) -> ServerOffset:
    """The next offset of a server."""
    streams, began = dict(before.streams), {}
    for backlog in backlogs:
        end = ends[backlog.name]
        if backlog.at is None and end.id == START:
            continue  # nothing to read yet
        if backlog.at is None and backlog.base.count is not None and end.id != backlog.base.id:
            began[backlog.stream] = backlog.base.count
        streams[backlog.stream] = end
    unread = {each.stream: count for each in backlogs if (count := _unread(ends[each.name], each.info))}
    return ServerOffset(streams, ahead_ms, unread, began)


def _has_moved(before: ServerOffset, after: ServerOffset) -> bool:
    """Whether there is something to read between two offsets of a server."""
    return dict(after.streams) != dict(before.streams) or before.at_latest


def _unread(end: Position, info: StreamInfo) -> int:
    """A lower bound for the entries of a stream after a position."""
    if end.id >= info.last:
        return 0
    return 1 if end.count is None or info.added is None else max(0, info.added - end.count)


def _entries(counts: Sequence[int | None]) -> str:
    """The sum of some numbers of entries, in words."""
    known = sum(count for count in counts if count is not None)
    return "entries" if None in counts else "1 entry" if known == 1 else f"{known} entries"
