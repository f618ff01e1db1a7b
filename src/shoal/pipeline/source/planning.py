"""What the source reads next, and reading it: offsets from servers, parts from offsets, rows from parts.

Owns the rules of servers that join, leave or do not answer, and of streams that were trimmed. Spark's classes around it
are in `source`; nothing here needs Spark.

- The servers are those of the ring when an offset is made. One that is new is read from its oldest entry. One that has
  left keeps its offset: what was read of it is not read again if it comes back.
- A server that does not answer stays where it is, and is warned of, until it answers.
- A stream that was trimmed before it was read, or that began anew, is an error if `failOnDataLoss`, else a warning. So
  is a server that has gone before the part of it that was planned could be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from shoal.errors import ConnectError, TrimmedError
from shoal.history.servers import Login
from shoal.logs import get_log
from shoal.pipeline.source.kinds import Kind
from shoal.pipeline.source.offsets import (
    NOTHING,
    OLDEST,
    START,
    Loss,
    Position,
    ServerOffset,
    Slice,
    StreamInfo,
    loss,
    shares,
    slices,
)
from shoal.pipeline.source.options import LATEST, SourceOptions, Start
from shoal.pipeline.source.streams import ServerStreams
from shoal.plan.ring import ServerAddress

FEW_ENTRIES: Final = 64
"""So many entries are taken into a batch without a look at how large they are."""

_log: Final = get_log(__name__)

Offset = Mapping[str, ServerOffset]


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
    slices: tuple[Slice, ...]
    ahead_ms: int
    fail_on_data_loss: bool


@dataclass(frozen=True, slots=True)
class _Seen:
    """The streams of a server that answered."""

    keys: Mapping[str, bytes]
    infos: Mapping[str, StreamInfo]
    ahead_ms: int


class Planning:
    """Makes offsets and parts. Remembers the last ring and who did not answer, and nothing that a restart needs."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._servers: tuple[ServerAddress, ...] = ()
        self._silent: set[str] = set()

    def first(self, starting: Start | None = None) -> dict[str, ServerOffset]:
        """Where a reader begins that has read nothing yet."""
        wanted = self._options.starting if starting is None else starting
        if isinstance(wanted, dict):
            return wanted
        found: dict[str, ServerOffset] = {}
        for server, seen in self._look_around().items():
            at = {name: info.end if wanted == LATEST else _oldest(info) for name, info in seen.infos.items()}
            found[server] = ServerOffset(at, seen.ahead_ms)
        return found

    def next(self, start: Offset, rows_max: int = 0, until: Offset | None = None) -> dict[str, ServerOffset]:
        """How far to read now: to the end, but at most `rows_max` entries (0: no limit), and not beyond `until`."""
        seen = self._look_around()
        pending = {
            f"{server}/{name}": count
            for server, of_server in seen.items()
            for name, info in of_server.infos.items()
            if (count := _pending(_position(start, server, name), info)) > 0
        }
        limits = shares(pending, self._fitting(rows_max, pending, seen)) if rows_max else pending
        found = dict(start)
        for server, of_server in seen.items():
            allowed = {name: limits.get(f"{server}/{name}", 0) for name in of_server.infos}
            moved = self._move(server, of_server, start, until, allowed)
            if moved is not None:
                found[server] = moved
        return found

    def parts(self, start: Offset, end: Offset) -> list[Part]:
        """What is between two offsets, in parts that can be read at the same time."""
        servers = {server.id: server for server in self._ring()}
        found: list[Part] = []
        for id, of_server in end.items():
            begins = {name: _position(start, id, name) for name in of_server.streams}
            changed = {name for name, at in of_server.streams.items() if at.id != begins[name].id}
            if not changed:
                continue
            if id not in servers:
                self._lose(id, "has left the cluster before what it held was read")
                continue
            try:
                found += self._parts_of(servers[id], begins, of_server, changed)
            except ConnectError as error:
                self._lose(f"what was planned to be read of {id}", f"cannot be read: {error}")
        return found

    def _fitting(self, rows_max: int, pending: Mapping[str, int], seen: Mapping[str, _Seen]) -> int:
        """How many entries fit into a batch: no more than `rows_max`, nor than its bytes allow."""
        if sum(pending.values()) <= FEW_ENTRIES:
            return rows_max
        addresses = {server.id: server for server in self._servers}
        total_bytes = 0
        for server, of_server in seen.items():
            names = [name for name in of_server.keys if f"{server}/{name}" in pending]
            if names:
                with self._open(addresses[server]) as streams:
                    total_bytes += sum(
                        pending[f"{server}/{name}"]
                        * streams.entry_bytes(of_server.keys[name], of_server.infos[name].last)
                        for name in names
                    )
        fit = sum(pending.values()) * self._options.bytes_max // max(1, total_bytes)
        return max(1, min(rows_max, fit))

    # -- one server ------------------------------------------------------------------------------------------

    def _move(
        self, server: str, seen: _Seen, start: Offset, until: Offset | None, limits: Mapping[str, int]
    ) -> ServerOffset | None:
        """The next offset of a server; None if it stays where it is."""
        before = start.get(server, NOTHING)
        streams = dict(before.streams)
        for name, info in seen.infos.items():
            at = before.streams.get(name, OLDEST)
            self._judge(server, name, at, info)
            base = at if at.id <= info.last else OLDEST
            end = info.end
            if 0 < limits[name] < _pending(at, info):
                end = self._nth(server, seen.keys[name], base, info, limits[name])
            bound = _position(until, server, name) if until is not None else None
            if bound is not None and bound.id < end.id:
                end = bound if bound.id > base.id else base
            if info.last != START or at.id != START:
                streams[name] = end
        return None if streams == dict(before.streams) else ServerOffset(streams, seen.ahead_ms)

    def _nth(self, server: str, key: bytes, base: Position, info: StreamInfo, limit: int) -> Position:
        address = next(known for known in self._servers if known.id == server)
        with self._open(address) as streams:
            id, count = streams.nth_id(key, base.id, limit)
        known = None if base.count is None or info.added is None else max(base.count, info.added - info.length) + count
        return Position(id, known)

    def _parts_of(
        self, server: ServerAddress, begins: Mapping[str, Position], end: ServerOffset, changed: set[str]
    ) -> list[Part]:
        per_server = self._options.partitions_per_server
        with self._open(server) as streams:
            keys = self._options.kind.streams(streams.ask)
            infos = {name: streams.info(keys[name]) for name in changed if name in keys}
        for name in changed - keys.keys():
            self._lose(f"{name} of {server.id}", "is not there any more")
        cuts = -(-per_server // max(1, len(infos)))
        found: list[Slice] = []
        for name, info in sorted(infos.items()):
            first_ms = 0 if info.first is None else info.first.ms
            found += slices(name, begins[name], end.streams[name], first_ms, cuts)
        dealt = [found[place::per_server] for place in range(per_server)]
        options = self._options
        return [
            Part(
                server,
                options.cluster.login,
                options.kind,
                {name: keys[name] for name in infos},
                {name: begins[name] for name in infos},
                tuple(dealing),
                end.ahead_ms,
                options.fail_on_data_loss,
            )
            for dealing in dealt
            if dealing
        ]

    def _look_around(self) -> dict[str, _Seen]:
        """The streams of all servers that answer."""
        seen: dict[str, _Seen] = {}
        for server in self._ring():
            try:
                with self._open(server) as streams:
                    keys = self._options.kind.streams(streams.ask)
                    infos = {name: streams.info(key) for name, key in keys.items()}
                    seen[server.id] = _Seen(keys, infos, streams.ahead_ms())
                self._silent.discard(server.id)
            except ConnectError as error:
                self._warn_of_silence(server, error)
        if not seen:
            raise ConnectError(f"no server of {self._options.cluster.name} answers", do="see `shoal status`")
        return seen

    def _open(self, server: ServerAddress) -> ServerStreams:
        return ServerStreams(server, self._options.cluster.login)

    # -- what is in the way ----------------------------------------------------------------------------------

    def _ring(self) -> tuple[ServerAddress, ...]:
        """The servers there are; those of the last time while the coordinator does not answer."""
        try:
            self._servers = self._options.cluster.servers()
            self._silent.discard("")
        except ConnectError as error:
            if not self._servers:
                raise
            if "" not in self._silent:
                self._silent.add("")
                _log.warning("the coordinator does not answer; the last ring is used", why=str(error))
        return self._servers

    def _warn_of_silence(self, server: ServerAddress, error: ConnectError) -> None:
        if server.id not in self._silent:
            self._silent.add(server.id)
            _log.warning("a server is not read until it answers", server=server.id, why=str(error))

    def _judge(self, server: str, stream: str, start: Position, info: StreamInfo) -> None:
        lost = loss(start, info)
        if lost is not None:
            lose(f"the stream {stream} of {server}", lost, self._options.fail_on_data_loss)

    def _lose(self, what: str, why: str) -> None:
        lose(what, why, self._options.fail_on_data_loss)


def lose(what: str, why: Loss | str, fail: bool) -> None:
    """Says that something cannot be read any more: as an error, or as a warning."""
    if fail:
        raise TrimmedError(
            f"{what} {why}",
            do="set failOnDataLoss to false to go on with the oldest that is left, or begin anew with a new checkpoint",
        )
    _log.warning("entries are lost; the oldest that is left comes next", what=what, why=str(why))


def read_part(part: Part) -> Iterator[pa.RecordBatch]:
    """The rows of a part, in the order of each stream."""
    try:
        with ServerStreams(part.server, part.login) as streams:
            for slice in part.slices:
                lost = loss(part.starts[slice.stream], streams.info(part.keys[slice.stream]))
                if lost is not None:
                    lose(f"the stream {slice.stream} of {part.server.id}", lost, part.fail_on_data_loss)
                for page in streams.entries(part.keys[slice.stream], slice):
                    arrived_s = [(id.ms - part.ahead_ms) / 1000 for id, _ in page]
                    yield part.kind.rows(part.server.id, slice.stream, page, arrived_s)
    except ConnectError as error:
        lose(f"what was planned to be read of {part.server.id}", f"cannot be read: {error}", part.fail_on_data_loss)


def _position(offset: Offset, server: str, stream: str) -> Position:
    return offset.get(server, NOTHING).streams.get(stream, OLDEST)


def _oldest(info: StreamInfo) -> Position:
    """Before the oldest entry that is there now: what is dropped later is lost."""
    return Position(START, None if info.added is None else info.added - info.length)


def _pending(start: Position, info: StreamInfo) -> int:
    """How many entries there are to read, about: never fewer."""
    if info.last == start.id:
        return 0
    if start.count is None or info.added is None or info.last < start.id:
        return info.length
    return max(0, min(info.length, info.added - start.count))


def table_of(parts: Sequence[Part], kind: Kind) -> pa.Table:
    """The rows of some parts, read one after the other in this process."""
    batches = [batch for part in parts for batch in read_part(part)]
    return pa.Table.from_batches(batches, kind.schema)
