"""A load window: what every channel and every server did in one interval, as one Arrow table.

Owns the schema, what each column means, and the bytes of a window. How windows come about is decided in `fold`.

Rates are amounts a second over the time that the host really observed, so a second that is missing makes a rate less
sure but not smaller. A host that reported nothing at all in the interval has no rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from shoal.errors import ProtocolError

WINDOW_VERSION: Final = b"2"
VERSION_KEY: Final = b"shoal.window.version"
START_KEY: Final = b"shoal.window.start_s"
END_KEY: Final = b"shoal.window.end_s"


def _column(name: str, kind: pa.DataType, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


WINDOW_SCHEMA: Final = pa.schema(
    [
        _column("host", pa.string()),
        _column("unit", pa.binary(), nullable=True),  # the channel; null in the one row of the host itself
        _column("seconds", pa.int32()),  # of the interval that the host reported
        # Rates a second. In the row of a host: all its channels together.
        _column("publications", pa.float64()),  # forwarded ones not
        _column("forwarded", pa.float64()),
        _column("messages_sent", pa.float64()),
        _column("bytes_in", pa.float64()),
        _column("bytes_out", pa.float64()),
        # The most that one second saw; null in the row of a host, which cannot tell clients of two channels apart.
        _column("publishers", pa.int64(), nullable=True),
        _column("subscribers", pa.int64(), nullable=True),
        _column("pattern_subscribers", pa.int64(), nullable=True),  # connections, once for each pattern that matches
        # In the row of a host only.
        _column("capacity_bytes_per_s", pa.float64(), nullable=True),  # configured; null: nobody said
        _column("bandwidth_bytes_per_s", pa.float64(), nullable=True),  # measured out; null: nothing to compare with
        _column("cpu_share", pa.float64(), nullable=True),  # of one core; null as above
        _column("connections", pa.int64(), nullable=True),
        # A unit: no limit kept publishers from being recorded. A host: every second is there, was measured, and no
        # limit kept channels from being recorded.
        _column("complete", pa.bool_()),
    ]
)

RATES: Final = ("publications", "forwarded", "messages_sent", "bytes_in", "bytes_out")
COUNTS: Final = ("publishers", "subscribers", "pattern_subscribers")

_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """The interval from `start_s` up to and without `end_s`, in seconds of the wall clock."""

    start_s: int
    end_s: int
    table: pa.Table

    @property
    def hosts(self) -> pa.Table:
        """The rows of the hosts themselves, sorted by host."""
        return self.table.filter(pc.is_null(self.table["unit"]))

    @property
    def units(self) -> pa.Table:
        """The rows of units, host by host."""
        return self.table.filter(pc.is_valid(self.table["unit"]))

    def to_bytes(self) -> bytes:
        """One Arrow IPC stream; the interval stands in the metadata of its schema."""
        sink = pa.BufferOutputStream()
        metadata = {VERSION_KEY: WINDOW_VERSION, START_KEY: b"%d" % self.start_s, END_KEY: b"%d" % self.end_s}
        with pa.ipc.new_stream(sink, WINDOW_SCHEMA.with_metadata(metadata), options=_OPTIONS) as writer:
            writer.write_table(self.table.replace_schema_metadata(metadata))
        data: bytes = sink.getvalue().to_pybytes()
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> LoadWindow:
        """The window in some bytes; `ProtocolError` when they are none, or of another version."""
        try:
            with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
                metadata = reader.schema.metadata or {}
                table = reader.read_all()
            table.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise ProtocolError(f"not a load window: {error}") from error
        if metadata.get(VERSION_KEY) != WINDOW_VERSION:
            raise ProtocolError(
                f"a load window of version {metadata.get(VERSION_KEY)!r}, this reader knows {WINDOW_VERSION!r}"
            )
        if not table.schema.equals(WINDOW_SCHEMA):
            raise ProtocolError("a load window has columns that its version does not have")
        try:
            start_s, end_s = int(metadata[START_KEY]), int(metadata[END_KEY])
        except (KeyError, ValueError) as error:
            raise ProtocolError("a load window does not say which interval it is of") from error
        return cls(start_s, end_s, table.replace_schema_metadata(None))
