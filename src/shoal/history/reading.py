"""The history of one channel: what an archive and the records of all servers hold together.

Owns where reading begins and goes on. Blocks while it asks servers; who has an event loop calls it in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.errors import ShoalError
from shoal.history.archive import read_archive
from shoal.history.joining import join
from shoal.history.manifest import Manifest
from shoal.history.plain import TIME_US_MAX, recorded_ms
from shoal.history.records import BEGINNING, Position, RecordReader, entry_key, last_position
from shoal.history.servers import Login
from shoal.history.table import SCHEMA, TIME, channel_text, dedupe, entries_to_batch, gap_row
from shoal.history.taking import take
from shoal.plan.keys import channel_text as record_name
from shoal.plan.ring import ServerAddress
from shoal.wire.envelope import EPOCH_BITS, client_of, stream_id
from shoal.wire.recorded import NUMBER_MAX

LATE_S_MAX: Final = 5
"""How long an agent may take to write down what it hears: what is missing among the newest messages may yet come."""

PLAIN_MAX: Final = 1000
"""Messages of plain clients among which those are looked for that came live too."""

EPOCH_MASK: Final = (1 << EPOCH_BITS) - 1

CLOCKS_S_MAX: Final = 60.0
"""How much publishers' clocks may differ from servers': records are read from so much earlier than asked for."""


class ChannelHistory:
    """What was published on a channel since a time, as far as it was recorded."""

    def __init__(
        self, servers: Iterable[ServerAddress], login: Login, channel: bytes, since_us: int, archive: Path | None
    ) -> None:
        self.channel = channel
        self.unreachable: dict[str, str] = {}
        """Servers whose records could not be read the last time, and why."""
        self._servers = tuple(servers)
        self._login = login
        self._name = channel_text(channel)
        self._since_us = since_us
        self._archive = archive
        self._positions: dict[str, Position] = {}
        self._lost: dict[str, pa.Table] = {}
        """By server: a gap for a record that is gone."""
        self._archived: Manifest | None = None
        self._rows = SCHEMA.empty_table()

    def read(self) -> None:
        """Reads what has come since the last time; the archive once."""
        tables = [self._rows]
        if self._archive is not None and self._archived is None:
            self._archived, rows = read_archive(self._archive, self._name, self._since_us)
            tables.append(rows)
        self.unreachable = {}
        for server in self._servers:
            try:
                tables += self._read_server(server)
            except ShoalError as error:
                self.unreachable[server.id] = str(error)
        self._rows = dedupe(pa.concat_tables(tables))

    def follow(self, servers: Iterable[ServerAddress]) -> None:
        """The ring has other servers now."""
        self._servers = tuple(servers)

    def _read_server(self, server: ServerAddress) -> list[pa.Table]:
        read: list[pa.RecordBatch] = []
        with RecordReader(server, self._login) as reader:
            position = self._positions.get(server.id)
            number: int | None
            if position is None:
                position, number = self._begin(reader)
            else:
                number = position.number
            for page in reader.pages(self.channel, position.entry):
                read.append(entries_to_batch(self._name, server.id, page, number))
                position = last_position(page, position)
                number = position.number
            self._note_lost(reader, position)
        self._positions[server.id] = position
        return [pa.Table.from_batches(read, SCHEMA)] if read else []

    def _note_lost(self, reader: RecordReader, position: Position) -> None:
        """Notes that a server has no record of which something was archived: it was started again without its data, and
        nobody knows what it had recorded by then. Where it has begun another one, that one tells."""
        server = reader.server.id
        self._lost.pop(server, None)
        last = self._archived.position(server, record_name(self.channel)) if self._archived else BEGINNING
        if position == BEGINNING != last and self._may_concern(reader.started_ms() * 1000):
            why = f"server {server} has lost its record, which was archived up to {last.entry}"
            self._lost[server] = self._gap_behind(server, last, why)

    def _may_concern(self, gone_us: int) -> bool:
        """Whether what is gone since then can be of the time that was asked for."""
        return gone_us + CLOCKS_S_MAX * 1_000_000 >= self._since_us

    def _gap_behind(self, server: str, last: Position, why: str) -> pa.Table:
        """A gap behind the last entry of a server that was archived."""
        at_us = max((recorded_ms(last.entry) + 1) * 1000, self._since_us)
        return gap_row(self._name, server, at_us, f"{why}: nobody knows whether there was more")

    def _begin(self, reader: RecordReader) -> tuple[Position, int | None]:
        """Where reading begins, and the number of the entry before, None if that does not matter: behind what is
        archived, or where the time begins. If the record begins later than either, entries were dropped."""
        archived = BEGINNING
        if self._archived is not None:
            archived = self._archived.position(reader.server.id, record_name(self.channel))
        begin_ms = max(int(self._since_us / 1000 - CLOCKS_S_MAX * 1000), 0)
        wanted = f"{begin_ms}-0"
        end = reader.end(self.channel)
        if end.key < archived.key:
            return BEGINNING, archived.number
        if archived.key >= entry_key(wanted):
            return archived, archived.number
        if reader.holds_before(self.channel, wanted):
            return Position(wanted, 0), None
        return Position(wanted, 0), archived.number

    def _left_behind(self) -> list[pa.Table]:
        """A gap for each server that has left the cluster and may have recorded more than was archived: nobody can ask
        it. A job that found it gone before the time that was asked for says that it recorded nothing then. Without an
        archive nobody knows which servers there were."""
        if self._archived is None:
            return []
        here = {server.id for server in self._servers} | {*self._positions}
        gaps = []
        for server, records in self._archived.positions.items():
            last = records.get(record_name(self.channel))
            gone_us = self._archived.left.get(server, TIME_US_MAX)
            if last is not None and server not in here and self._may_concern(gone_us):
                why = f"records of server {server}, which has left, were not archived beyond {last.entry}"
                gaps.append(self._gap_behind(server, last, why))
        return gaps

    def ends(self) -> Mapping[int, int]:
        """How far each stream has come by the records of all servers that can be asked."""
        ends: dict[int, int] = {}
        for server in self._servers:
            try:
                with RecordReader(server, self._login) as reader:
                    for stream, last in reader.ends(self.channel).items():
                        ends[stream] = max(ends.get(stream, 0), last)
            except ShoalError as error:
                self.unreachable[server.id] = str(error)
        return ends

    def reached(self, before: Mapping[int, int]) -> dict[int, int]:
        """The last number of each stream among what was read, of those that are before a number."""
        rows = _before(self._rows, before)
        rows = rows.filter(pc.and_(pc.invert(rows["is_end"]), pc.greater(pc.fill_null(rows["sequence"], 0), 0)))
        last = rows.group_by(["publisher", "epoch"], use_threads=False).aggregate([("sequence", "max")])
        return {stream_id(row["publisher"], row["epoch"]): row["sequence_max"] for row in last.to_pylist()}

    def unsettled(self, before: Mapping[int, int]) -> bool:
        """Whether something is missing that may only be late: another server's agent may be slower to write it down."""
        table = self.joined(None, before)
        if not table.num_rows:
            return False
        newest = pc.max(table["published_at"])
        late = pc.less(pc.subtract(newest, table["published_at"]), pa.scalar(LATE_S_MAX * 1_000_000, pa.duration("us")))
        missing = pc.and_(table["is_gap"], pc.is_valid(table["publisher"]))
        return bool(pc.any(pc.and_(missing, late)).as_py())

    def ended(self) -> set[int]:
        """The streams that have ended, by what was read."""
        ends = self._rows.filter(self._rows["is_end"])
        pairs = zip(ends["publisher"].to_pylist(), ends["epoch"].to_pylist(), strict=True)
        return {stream_id(publisher, epoch) for publisher, epoch in pairs}

    def joined(
        self, until_us: int | None = None, before: Mapping[int, int] | None = None, live: Sequence[bytes] = ()
    ) -> pa.Table:
        """The history: in order, with gaps, from the time that was asked for to before `until_us`, and of each stream
        only what comes before a number, if there is one for it. `live` are messages of plain clients that came live:
        they have no numbers, so those at the end of the history that are the same are taken for them."""
        missing = [
            gap_row(self._name, server, self._since_us, f"server {server} cannot be asked: {why}")
            for server, why in self.unreachable.items()
        ]
        missing += [*self._left_behind(), *self._lost.values()]
        rows = _without_live(_before(self._rows, before or {}), live)
        table = join(pa.concat_tables([rows, *missing]))
        since = pa.scalar(self._since_us, pa.int64()).cast(TIME)
        kept = pc.greater_equal(table["published_at"], since)
        if until_us is not None:
            kept = pc.and_(kept, pc.less(table["published_at"], pa.scalar(until_us, pa.int64()).cast(TIME)))
        return table.filter(kept)


def _before(rows: pa.Table, before: Mapping[int, int]) -> pa.Table:
    """The rows of each stream up to before a number. A gap that reaches further is cut; so is an open one, since the
    stream goes on."""
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
    """The rows without the newest plain clients' messages that are the first ones which came live."""
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
