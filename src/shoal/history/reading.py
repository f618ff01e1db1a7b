"""The history of one channel: what an archive and the records of all servers hold together.

Owns where reading begins and goes on. Blocks while it asks servers; who has an event loop calls it in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from shoal.errors import ShoalError
from shoal.history.archive import read_archive
from shoal.history.joining import join
from shoal.history.manifest import Manifest
from shoal.history.records import BEGINNING, Login, Position, RecordReader, entry_key, last_position
from shoal.history.table import SCHEMA, TIME, channel_text, dedupe, entries_to_batch, gap_row
from shoal.plan.keys import channel_text as record_name
from shoal.plan.ring import ServerAddress

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
        self._positions[server.id] = position
        return [pa.Table.from_batches(read, SCHEMA)] if read else []

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

    def rows(self) -> pa.Table:
        """All that was read, as it was found, each message once."""
        return self._rows

    def joined(self, until_us: int | None = None) -> pa.Table:
        """The history: in order, with gaps, from the time that was asked for to before `until_us`."""
        missing = [
            gap_row(self._name, server, self._since_us, f"server {server} cannot be asked: {why}")
            for server, why in self.unreachable.items()
        ]
        table = join(pa.concat_tables([self._rows, *missing]))
        since = pa.scalar(self._since_us, pa.int64()).cast(TIME)
        kept = pc.greater_equal(table["published_at"], since)
        if until_us is not None:
            kept = pc.and_(kept, pc.less(table["published_at"], pa.scalar(until_us, pa.int64()).cast(TIME)))
        return table.filter(kept)
