"""The history of one channel, from an archive and the records of all servers.

Owns where reading starts and continues. Blocks while it reads from servers; code with an event loop calls it in a
thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.errors import ShoalError
from shoal.history.archive import read_archive
from shoal.history.archive_table import Positions
from shoal.history.entry_decoder import TIME_US_MAX, decode_entries, recorded_ms
from shoal.history.merge import HOLE, merge_rows
from shoal.history.record_reader import BEGINNING, RecordPosition, RecordReader, entry_key, last_position
from shoal.history.row_selection import take
from shoal.history.server_reader import Login
from shoal.history.table import EPOCH_MASK, SCHEMA, TIME, channel_text, dedupe, gap_row
from shoal.plan.keys import unit_text as record_name
from shoal.plan.ring import ServerAddress
from shoal.runtime import PRODUCTION, Runtime
from shoal.wire.envelope import client_of, stream_id
from shoal.wire.record_entry import NUMBER_MAX

PLAIN_MAX: Final = 1000
"""Number of plain Redis clients' messages that are compared with those that also arrived live."""

_NUMBERED: Final = ["publisher", "epoch", "sequence", "is_end"]

CLOCKS_S_MAX: Final = 60.0
"""Largest difference between clocks of publishers and servers. Records are read from this much before `since`."""


class ChannelHistory:
    """The recorded messages of a channel since a time."""

    def __init__(
        self,
        servers: Iterable[ServerAddress],
        login: Login,
        channel: bytes,
        since_us: int,
        archive: str | Path | None,
        runtime: Runtime = PRODUCTION,
    ) -> None:
        self.channel = channel
        self.unreachable: dict[str, str] = {}
        """Servers whose records the last `read` could not read, and why."""
        self._servers = tuple(servers)
        self._login = login
        self._runtime = runtime
        self._name = channel_text(channel)
        self._since_us = since_us
        self._archive = archive
        self._positions: dict[str, RecordPosition] = {}
        self._lost: dict[str, pa.Table] = {}
        """By server: a gap for a record that was lost."""
        self._archived: Positions | None = None
        self._rows = SCHEMA.empty_table()

    def read(self) -> None:
        """Reads the entries that are new since the last call; the first call also reads the archive."""
        tables = [self._rows]
        if self._archive is not None and self._archived is None:
            archived, rows = read_archive(self._archive, self._name, self._since_us)
            self._archived = archived.positions
            tables.append(rows)
        self.unreachable = {}
        for server in self._servers:
            try:
                tables += self._read_server(server)
            except ShoalError as error:
                self.unreachable[server.id] = str(error)
        self._rows = dedupe(pa.concat_tables(tables))

    def follow(self, servers: Iterable[ServerAddress]) -> None:
        """Reads from these servers from now on."""
        self._servers = tuple(servers)

    def _read_server(self, server: ServerAddress) -> list[pa.Table]:
        read: list[pa.RecordBatch] = []
        with RecordReader(server, self._login, self._runtime) as reader:
            position = self._positions.get(server.id)
            number: int | None
            if position is None:
                position, number = self._begin(reader)
            else:
                number = position.number
            for page in reader.pages(self.channel, position.entry):
                read.append(decode_entries(self._name, server.id, page, number))
                position = last_position(page, position)
                number = position.number
            self._note_lost(reader, position)
        self._positions[server.id] = position
        return [pa.Table.from_batches(read, SCHEMA)] if read else []

    def _note_lost(self, reader: RecordReader, position: RecordPosition) -> None:
        """Notes a gap if a server has no record although part of one is archived. The server was restarted without its
        data, so entries after the archived ones may be lost. If the server has a new record, its first entry says so.
        """
        server = reader.server.id
        self._lost.pop(server, None)
        last = self._archived.of(server, record_name(self.channel)) if self._archived else BEGINNING
        if position == BEGINNING != last and self._may_concern(reader.started_ms() * 1000):
            why = f"server {server} has lost its record, which was archived up to {last.entry}"
            self._lost[server] = self._gap_after(server, last, why)

    def _may_concern(self, gone_us: int) -> bool:
        """Whether entries lost up to `gone_us` can be later than `since`."""
        return gone_us + CLOCKS_S_MAX * 1_000_000 >= self._since_us

    def _gap_after(self, server: str, last: RecordPosition, why: str) -> pa.Table:
        """A gap after the last archived entry of a server."""
        at_us = max((recorded_ms(last.entry) + 1) * 1000, self._since_us)
        return gap_row(self._name, server, at_us, f"{why}: later entries, if there were any, are lost")

    def _begin(self, reader: RecordReader) -> tuple[RecordPosition, int | None]:
        """Where reading starts: after the archived entries or at `since`, whichever is later. Also the number of the
        entry before, by which dropped entries are noticed; None if dropped entries do not matter."""
        archived = BEGINNING
        if self._archived is not None:
            archived = self._archived.of(reader.server.id, record_name(self.channel))
        begin_ms = max(int(self._since_us / 1000 - CLOCKS_S_MAX * 1000), 0)
        wanted = f"{begin_ms}-0"
        end = reader.end(self.channel)
        if end.key < archived.key:
            return BEGINNING, archived.number
        if archived.key >= entry_key(wanted):
            return archived, archived.number
        if reader.holds_before(self.channel, wanted):
            return RecordPosition(wanted, 0), None
        return RecordPosition(wanted, 0), archived.number

    def _gaps_of_left_servers(self) -> list[pa.Table]:
        """A gap for each server that has left the cluster and may have recorded more than was archived. No gap if the
        archive job found the server gone before `since`. Without an archive, servers that have left are not known."""
        if self._archived is None:
            return []
        here = {server.id for server in self._servers} | {*self._positions}
        gaps = []
        for server, records in self._archived.records.items():
            last = records.get(record_name(self.channel))
            gone_us = self._archived.left.get(server, TIME_US_MAX)
            if last is not None and server not in here and self._may_concern(gone_us):
                why = f"records of server {server}, which has left, were not archived beyond {last.entry}"
                gaps.append(self._gap_after(server, last, why))
        return gaps

    def ends(self) -> Mapping[int, int]:
        """The last sequence number of each stream in the records of all reachable servers."""
        ends: dict[int, int] = {}
        for server in self._servers:
            try:
                with RecordReader(server, self._login, self._runtime) as reader:
                    for stream, last in reader.ends(self.channel).items():
                        ends[stream] = max(ends.get(stream, 0), last)
            except ShoalError as error:
                self.unreachable[server.id] = str(error)
        return ends

    def reached(self, before: Mapping[int, int]) -> dict[int, int]:
        """The last number that was read of each stream, up to its limit in `before` (exclusive)."""
        rows = _before(self._rows, before)
        rows = rows.filter(pc.and_(pc.invert(rows["is_end"]), pc.greater(pc.fill_null(rows["sequence"], 0), 0)))
        last = rows.group_by(["publisher", "epoch"], use_threads=False).aggregate([("sequence", "max")])
        return {stream_id(row["publisher"], row["epoch"]): row["sequence_max"] for row in last.to_pylist()}

    def unsettled(self, before: Mapping[int, int], heal_s_max: float) -> bool:
        """Whether a message is missing that an agent may still record. An agent that was away records new messages at
        once and asks their publishers for those before; after `heal_s_max` it records the rest as a gap."""
        table = self.joined(None, before)
        holes = table.filter(pc.and_(table["is_gap"], pc.equal(pc.fill_null(table["reason"], ""), HOLE)))
        if not holes.num_rows:
            return False
        newest = pc.max(self._rows["recorded_at"])
        age = pc.subtract(newest, self._rows["recorded_at"])
        new = self._rows.filter(pc.less(age, pa.scalar(int(heal_s_max * 1_000_000), pa.duration("us"))))
        given_up = new.filter(new["is_gap"]).to_pylist()
        found = new.filter(pc.greater(pc.fill_null(new["sequence"], 0), 0)).select(_NUMBERED).to_pylist()
        behind = {(row["publisher"], row["epoch"], row["sequence"] + row["is_end"]) for row in found}
        return any(
            (hole["publisher"], hole["epoch"], hole["gap_to"] + 1) in behind
            and not any(_covers(gap, hole) for gap in given_up)
            for hole in holes.to_pylist()
        )

    def ended(self) -> set[int]:
        """The streams whose end was read."""
        ends = self._rows.filter(self._rows["is_end"])
        pairs = zip(ends["publisher"].to_pylist(), ends["epoch"].to_pylist(), strict=True)
        return {stream_id(publisher, epoch) for publisher, epoch in pairs}

    def joined(
        self, until_us: int | None = None, before: Mapping[int, int] | None = None, live: Sequence[bytes] = ()
    ) -> pa.Table:
        """The history in order, with gaps, from `since` up to `until_us` (exclusive).

        `before` limits streams to numbers below the given one. `live` are payloads of plain Redis clients' messages
        that arrived live. They have no numbers, so equal messages at the end of the history count as the same
        ones and left out.
        """
        missing = [
            gap_row(self._name, server, self._since_us, f"server {server} cannot be read: {why}")
            for server, why in self.unreachable.items()
        ]
        missing += [*self._gaps_of_left_servers(), *self._lost.values()]
        rows = _without_live(_before(self._rows, before or {}), live)
        table = merge_rows(pa.concat_tables([rows, *missing]))
        since = pa.scalar(self._since_us, pa.int64()).cast(TIME)
        kept = pc.greater_equal(table["published_at"], since)
        if until_us is not None:
            kept = pc.and_(kept, pc.less(table["published_at"], pa.scalar(until_us, pa.int64()).cast(TIME)))
        return table.filter(kept)


def _covers(gap: Mapping[str, Any], hole: Mapping[str, Any]) -> bool:
    """Whether an agent has already recorded the missing messages as a gap."""
    same = (gap["publisher"], gap["epoch"]) == (hole["publisher"], hole["epoch"])
    return same and (gap["gap_from"] or 1) <= hole["gap_from"] and (gap["gap_to"] or NUMBER_MAX) >= hole["gap_to"]


def _before(rows: pa.Table, before: Mapping[int, int]) -> pa.Table:
    """The rows of each stream below a number. A gap that reaches further is cut, and so is an open one."""
    if not before or not rows.num_rows:
        return rows
    limits = pa.table(
        {
            "publisher": pa.array([client_of(stream) for stream in before], pa.int64()),
            "epoch": pa.array([stream & EPOCH_MASK for stream in before], pa.int32()),
            "limit": pa.array([min(limit, NUMBER_MAX) for limit in before.values()], pa.int64()),
        }
    )
    numbered = rows.append_column("row", pa.array(range(rows.num_rows), pa.int64()))
    found = numbered.select(["row", "publisher", "epoch"]).join(limits, ["publisher", "epoch"], use_threads=False)
    limit = found.sort_by("row")["limit"].combine_chunks()
    first = pc.coalesce(rows["sequence"], rows["gap_from"], pa.scalar(0, pa.int64()))
    kept = pc.or_(pc.is_null(limit), pc.less(first, pc.fill_null(limit, 0)))
    last = pc.subtract(pc.if_else(rows["is_gap"], limit, None), 1)
    cut = pc.if_else(pc.is_null(last), rows["gap_to"], pc.min_element_wise(rows["gap_to"], last))
    return rows.set_column(rows.schema.get_field_index("gap_to"), SCHEMA.field("gap_to"), cut).filter(kept)


def _without_live(rows: pa.Table, live: Sequence[bytes]) -> pa.Table:
    """Removes the newest messages of plain Redis clients if they equal the first ones that arrived live."""
    if not live:
        return rows
    foreign = pc.and_(pc.invert(rows["is_gap"]), pc.equal(pc.fill_null(rows["publisher"], -1), 0))
    numbered = rows.append_column("row", pa.array(range(rows.num_rows), pa.int64())).filter(foreign)
    live = live[:PLAIN_MAX]
    order = pc.sort_indices(numbered, [("recorded_at", "ascending"), ("number", "ascending")])
    newest = take(numbered, order[-len(live) :])
    payloads = newest["payload"].to_pylist()
    same = max((n for n in range(len(payloads) + 1) if payloads[len(payloads) - n :] == [*live[:n]]), default=0)
    gone = newest["row"].to_pylist()[newest.num_rows - same :]
    kept = np.ones(rows.num_rows, np.bool_)
    kept[gone] = False
    return rows.filter(pa.array(kept))
