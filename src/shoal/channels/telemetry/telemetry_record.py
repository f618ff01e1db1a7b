"""Telemetry: what an agent reports about each second, as Arrow, on a Redis stream of its server.

Owns the two schemas, their version, the id of a record, and how a record is written and read. Never touches a
socket: `xadd` makes the command, somebody else sends it. What the figures mean is decided in `analyzer`.

A record is two Arrow IPC streams, one behind the other: a row for each channel, then one row for the
server. Each schema carries the version and the record's id in its metadata. A record is the same record
when the whole id is equal: a repeated XADD shows as a duplicate, a restarted agent as another instance, a
lost record as a hole in the sequence of an instance.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

from shoal.errors import ProtocolError
from shoal.wire.envelope import TELEMETRY_KEY

SCHEMA_VERSION: Final = b"1"
VERSION_KEY: Final = b"shoal.telemetry.version"
TABLE_KEY: Final = b"shoal.telemetry.table"
ID_KEY: Final = b"shoal.telemetry.id"

ID_FIELD: Final = b"id"
DATA_FIELD: Final = b"data"

_CLIENTS: Final = pa.list_(pa.field("item", pa.uint64(), nullable=False))


def _column(name: str, kind: pa.DataType, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


CHANNELS_SCHEMA: Final = pa.schema(
    [
        _column("channel", pa.binary()),
        _column("publishers", pa.int64()),  # distinct clients; foreign publications have no known one
        _column("publisher_ids", _CLIENTS),  # at most listed_max of them
        _column("publications", pa.int64()),  # foreign ones included; forwarded ones and beacons not
        _column("subscribers", pa.int64()),  # connections, as the server counts them; patterns not
        _column("registered", pa.int64()),  # those that said hello to the agent
        _column("subscriber_ids", _CLIENTS),  # at most listed_max of the registered ones
        _column("pattern_subscribers", pa.int64()),  # connections with a pattern that matches, once for each
        _column("messages_sent", pa.int64()),  # (publications + forwarded) x receivers
        _column("bytes_in", pa.int64()),  # payloads with their envelopes, beacons included
        _column("bytes_out", pa.int64()),  # RESP frames of all of them to all receivers
        _column("foreign", pa.int64()),
        _column("forwarded", pa.int64()),
        _column("beacons", pa.int64()),
        _column("complete", pa.bool_()),  # False: a limit kept publishers from being recorded
    ],
    metadata={VERSION_KEY: SCHEMA_VERSION, TABLE_KEY: b"channels"},
)

SERVER_SCHEMA: Final = pa.schema(
    [
        # Rates are null when there is nothing to compare with: the agent's or the server's first second.
        _column("interval_s", pa.float64(), nullable=True),  # between the two samples that are compared
        _column("bytes_out_per_s", pa.float64(), nullable=True),  # measured, without the agent's own copy
        _column("net_output_bytes_per_s", pa.float64(), nullable=True),  # measured, all connections
        _column("net_input_bytes_per_s", pa.float64(), nullable=True),
        _column("max_out_bytes_per_s", pa.float64()),  # configured
        _column("load_ratio", pa.float64(), nullable=True),  # bytes_out_per_s / max_out_bytes_per_s
        _column("cpu_share", pa.float64(), nullable=True),  # of one core; threads may push it above 1
        _column("connections", pa.int64()),
        _column("memory_bytes", pa.int64()),
        _column("observed_bytes", pa.int64()),  # the agent's own copy, in this time unit
        _column("internal", pa.int64()),  # messages on inboxes
        _column("internal_bytes", pa.int64()),
        _column("uncounted", pa.int64()),  # messages on channels that a limit kept out of the table
        _column("uncounted_bytes", pa.int64()),
    ],
    metadata={VERSION_KEY: SCHEMA_VERSION, TABLE_KEY: b"server"},
)

_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


class RecordId(NamedTuple):
    """What makes a record unique: the server, the life of its agent, the second, a count within that life."""

    server: str
    instance: str
    second: int
    sequence: int

    def encode(self) -> bytes:
        """One line; the instance holds no slash."""
        return f"{self.server}/{self.instance}/{self.second}/{self.sequence}".encode()

    @classmethod
    def decode(cls, text: bytes) -> RecordId:
        """The id in a line, or `ProtocolError`."""
        try:
            server, instance, second, sequence = text.decode().rsplit("/", 3)
            return cls(server, instance, int(second), int(sequence))
        except ValueError as error:
            raise ProtocolError(f"not the id of a telemetry record: {text[:80]!r}") from error


class Record(NamedTuple):
    """One second of one server."""

    id: RecordId
    channels: pa.RecordBatch
    server: pa.RecordBatch


def encode(record: Record) -> bytes:
    """The bytes of a record."""
    sink = pa.BufferOutputStream()
    for batch, schema in ((record.channels, CHANNELS_SCHEMA), (record.server, SERVER_SCHEMA)):
        named = schema.with_metadata({**schema.metadata, ID_KEY: record.id.encode()})
        with pa.ipc.new_stream(sink, named, options=_OPTIONS) as writer:
            writer.write_batch(batch.replace_schema_metadata(named.metadata))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode(data: bytes, columns: tuple[str, ...] = ()) -> Record:
    """The record in some bytes; `ProtocolError` when they are none, or of another version.

    With `columns` only these of the channels are read, which takes about half the time.
    """
    source = pa.BufferReader(data)
    try:
        channels = _read_batch(source, CHANNELS_SCHEMA, columns)
        server = _read_batch(source, SERVER_SCHEMA)
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise ProtocolError(f"not a telemetry record: {error}") from error
    if server.num_rows != 1 or channels.schema.metadata[ID_KEY] != server.schema.metadata[ID_KEY]:
        raise ProtocolError("not a telemetry record: its two parts do not belong together")
    return Record(RecordId.decode(channels.schema.metadata[ID_KEY]), channels, server)


def _read_batch(source: pa.BufferReader, schema: pa.Schema, columns: tuple[str, ...] = ()) -> pa.RecordBatch:
    """The only batch of the next IPC stream, or some of its columns, checked against what it must look like."""
    fields = [schema.get_field_index(name) for name in columns]
    if fields:
        schema = pa.schema([schema.field(index) for index in sorted(fields)])
    with pa.ipc.open_stream(source, options=_reading(fields)) as reader:
        found = reader.schema.metadata or {}
        version = found.get(VERSION_KEY)
        if version != SCHEMA_VERSION:
            raise ProtocolError(f"telemetry of version {version!r}, this reader knows {SCHEMA_VERSION!r}")
        if not reader.schema.equals(schema) or ID_KEY not in found:
            raise ProtocolError("a telemetry record has columns that its version does not have")
        batch = reader.read_next_batch()
        if next(reader, None) is not None:
            raise ProtocolError("a telemetry record has more than one batch")
    batch.validate(full=True)
    return batch


def _reading(fields: list[int]) -> pa.ipc.IpcReadOptions:
    """Records are small: threads would cost more than they save."""
    return pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields)


def xadd(record: Record, records_max: int) -> tuple[bytes, ...]:
    """The command that appends a record and keeps about `records_max` (the oldest are dropped)."""
    return (
        *(b"XADD", TELEMETRY_KEY, b"MAXLEN", b"~", b"%d" % records_max, b"*"),
        *(ID_FIELD, record.id.encode(), DATA_FIELD, encode(record)),
    )
