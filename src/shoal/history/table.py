"""Entries of records as Arrow rows, and rows as messages and gaps.

Owns the schema of recorded rows, which is also that of archived files. Functions from Arrow to Arrow without I/O: they
run in a command, in a bus and on Spark.

    channel        string     a name that is no UTF-8, or that has \\x in it, has such bytes and all \\ as \\xNN
    server         string     whose record it was found in
    entry          string     the id of the entry there
    number         int64      the number of the entry in the record: it grows by one
    recorded_at    timestamp  by the server's clock, microseconds, UTC
    publisher      int64      the client that published; 0 a plain Redis client, null nobody knows
    epoch          int32      which of its streams on the channel: sequence numbers are those of a stream
    sequence       int64      from 1, without holes; 0 for a plain client's message
    published_at   timestamp  by the publisher's clock, UTC; recorded_at where the publisher said nothing
    payload        binary     null in a gap
    attributes     string     a JSON object, null if there are none; without those that are NaN or infinite
    is_gap         bool       messages that are missing from the record of this server
    gap_from       int64      the first missing number, null if nobody knows
    gap_to         int64      the last, null for an open gap
    reason         string     why, null for a message
    is_end         bool       no message: the stream has ended with this sequence number

Two rows with the same channel, publisher, epoch and sequence are the same message, wherever they were found.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.errors import ProtocolError
from shoal.filters.filter import Filter
from shoal.history.plain import TIME_US_MAX, Entries, PlainColumns, plain_columns, recorded_ms
from shoal.history.taking import take
from shoal.message import Attributes, Gap, Item, Message
from shoal.wire.envelope import EPOCH_BITS
from shoal.wire.recorded import NUMBER_MAX, RecordedGap, RecordedMessage, read_entry

SCHEMA_VERSION: Final = "1"
VERSION_KEY: Final = b"shoal.recorded.version"

TIME: Final = pa.timestamp("us", tz="UTC")

SCHEMA: Final = pa.schema(
    [
        pa.field("channel", pa.string()),
        pa.field("server", pa.string()),
        pa.field("entry", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("recorded_at", TIME),
        pa.field("publisher", pa.int64()),
        pa.field("epoch", pa.int32()),
        pa.field("sequence", pa.int64()),
        pa.field("published_at", TIME),
        pa.field("payload", pa.binary()),
        pa.field("attributes", pa.string()),
        pa.field("is_gap", pa.bool_()),
        pa.field("gap_from", pa.int64()),
        pa.field("gap_to", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("is_end", pa.bool_()),
    ],
    metadata={VERSION_KEY: SCHEMA_VERSION.encode()},
)

_EPOCH_MASK: Final = (1 << EPOCH_BITS) - 1
_PUBLISHED_AT: Final = SCHEMA.get_field_index("published_at") - SCHEMA.get_field_index("publisher")
_CORRUPT: Final = "an entry of the record cannot be read"
_json: Final = msgspec.json.Encoder()
_attributes: Final = msgspec.json.Decoder(dict[str, str | int | float | bool | None])


def channel_text(channel: bytes) -> str:
    """A channel's name as text, another one for each name. UTF-8 stands as it is, unless it could be taken for a name
    that is none and has its bytes as `\\xNN`: then, and there, a backslash is a byte like those."""
    text = channel.decode("utf-8", "backslashreplace")
    return channel.replace(b"\\", b"\\x5c").decode("utf-8", "backslashreplace") if "\\x" in text else text


def entries_to_batch(channel: str, server: str, entries: Entries, after: int | None = None) -> pa.RecordBatch:
    """A row for each message, end and gap among the entries; an entry that is none is a gap.

    `after` is the number of the last entry that was read before: if entries are missing between it and the first one
    here, a gap says so. None: nobody knows which entry came before.
    """
    plain = plain_columns(entries, after)
    if plain is not None:
        return _plain_batch(channel, server, plain)
    return one_by_one(channel, server, entries, after)


def _plain_batch(channel: str, server: str, plain: PlainColumns) -> pa.RecordBatch:
    rows = len(plain.entries)
    at_us = plain.recorded_ms * 1000
    times_us = np.where(plain.times_us == 0, at_us, np.minimum(plain.times_us, TIME_US_MAX).astype(np.int64))
    columns: dict[str, Any] = {
        "channel": [channel] * rows,
        "server": [server] * rows,
        "entry": plain.entries,
        "number": plain.numbers,
        "recorded_at": at_us,
        "publisher": (plain.streams >> np.uint64(EPOCH_BITS)).astype(np.int64),
        "epoch": (plain.streams & np.uint64(_EPOCH_MASK)).astype(np.int32),
        "sequence": plain.sequences.astype(np.int64),
        "published_at": times_us,
        "payload": plain.payloads,
        "attributes": plain.attributes,
        "is_gap": np.zeros(rows, np.bool_),
        "is_end": np.zeros(rows, np.bool_),
    }
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def one_by_one(channel: str, server: str, entries: Entries, after: int | None) -> pa.RecordBatch:
    """The same, for entries of any kind."""
    rows: list[tuple[Any, ...]] = []
    expected = None if after is None else after + 1
    for entry, fields in entries:
        at_us = recorded_ms(entry) * 1000
        try:
            number, said = read_entry(fields)
            message = _content(said, at_us)
        except ProtocolError as error:
            rows.append((entry, None, at_us, *_gap_columns(0, 0, 0, at_us, f"{_CORRUPT}: {error.what}")))
            expected = None if expected is None else expected + 1
            continue
        if expected is not None and number != expected:
            stands_us = at_us if message is None else min(at_us, message[_PUBLISHED_AT])
            rows.append((entry, number, at_us, *_gap_columns(0, 0, 0, stands_us, _dropped(expected, number))))
        expected = number + 1
        if message is not None:
            rows.append((entry, number, at_us, *message))
    columns = list(zip(*rows, strict=True)) or [()] * (len(SCHEMA) - 2)
    arrays = [pa.array([name] * len(rows), pa.string()) for name in (channel, server)]
    arrays += [pa.array(column, field.type) for column, field in zip(columns, list(SCHEMA)[2:], strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _dropped(expected: int, number: int) -> str:
    if number > expected:
        return f"{number - expected} entries of the record were dropped before they were read: it is too short"
    return "the server has lost its record and begun another one"


def _content(said: Any, at_us: int) -> tuple[Any, ...] | None:
    """The columns from `publisher` on; None for an entry that is no row. ProtocolError for numbers that no column
    takes: anybody may publish a message that says so."""
    if isinstance(said, RecordedMessage):
        _check_numbers(said.sequence)
        publisher, epoch = said.stream >> EPOCH_BITS, said.stream & _EPOCH_MASK
        time_us = min(said.time_us, TIME_US_MAX) or at_us
        if said.is_end:
            return (publisher, epoch, said.sequence, time_us, None, None, False, None, None, None, True)
        attributes, payload = said.split()
        text = None if attributes is None else _json.encode(attributes).decode()
        return (publisher, epoch, said.sequence, time_us, payload, text, False, None, None, None, False)
    if isinstance(said, RecordedGap):
        _check_numbers(said.stream >> EPOCH_BITS, said.first, said.last)
        return _gap_columns(said.stream, said.first, said.last, at_us, said.reason)
    return None


def _check_numbers(*numbers: int) -> None:
    for number in numbers:
        if not 0 <= number <= NUMBER_MAX:
            raise ProtocolError(f"it has the number {number}, which no publisher counts to")


def _gap_columns(stream: int, first: int, last: int, at_us: int, reason: str) -> tuple[Any, ...]:
    publisher, epoch = (stream >> EPOCH_BITS, stream & _EPOCH_MASK) if stream else (None, None)
    return (publisher, epoch, None, at_us, None, None, True, first or None, last or None, reason, False)


def dedupe(table: pa.Table) -> pa.Table:
    """Each message once, each gap of a record once, in the order in which they are first met."""
    if table.num_rows < 2:
        return table
    known = pc.and_(pc.invert(table["is_gap"]), pc.greater(pc.fill_null(table["publisher"], 0), 0))
    origin = pc.binary_join_element_wise(table["server"], table["entry"], "/")
    reason = pc.fill_null(table["reason"], "")
    keys = {
        "channel": table["channel"],
        "publisher": pc.if_else(known, table["publisher"], None),
        "epoch": pc.if_else(known, table["epoch"], None),
        "sequence": pc.if_else(known, table["sequence"], None),
        "is_end": table["is_end"],
        "origin": pc.if_else(known, None, pc.binary_join_element_wise(origin, reason, "/")),
    }
    numbered = pa.table({**keys, "row": pa.array(range(table.num_rows), pa.int64())})
    first = numbered.group_by([*keys], use_threads=False).aggregate([("row", "min")])["row_min"]
    if len(first) == table.num_rows:
        return table
    return take(table, first.combine_chunks().sort())


def read_attributes(text: str | None) -> Attributes | None:
    """The attributes of a row. A null stands for NaN in archives from before that was left out: it is none."""
    if text is None:
        return None
    return {name: value for name, value in _attributes.decode(text).items() if value is not None}


def matching(table: pa.Table, where: Filter) -> pa.Table:
    """The messages whose attributes satisfy a filter. Gaps stay: nobody knows what they held."""
    kept = [
        is_gap or (not is_end and where.matches(read_attributes(text) or {}))
        for text, is_gap, is_end in zip(
            table["attributes"].to_pylist(), table["is_gap"].to_pylist(), table["is_end"].to_pylist(), strict=True
        )
    ]
    return table.filter(pa.array(kept, pa.bool_()))


def to_items(table: pa.Table, channel: str | None = None) -> Iterable[Item]:
    """The rows as messages and gaps, in their order; ends are left out. `channel` is the name that they get."""
    names = ("channel", "publisher", "sequence", "payload", "attributes", "is_gap", "gap_from", "gap_to", "reason")
    for batch in table.to_batches(max_chunksize=4096):
        times = batch.column("published_at").cast(pa.int64()).to_pylist()
        ends = batch.column("is_end").to_pylist()
        columns = [batch.column(name).to_pylist() for name in names]
        for row, time_us, is_end in zip(zip(*columns, strict=True), times, ends, strict=True):
            name, publisher, sequence, payload, attributes, is_gap, first, last, reason = row
            name = name if channel is None else channel
            if is_gap:
                yield Gap(name, publisher, first or 0, last, reason)
            elif not is_end:
                yield Message(name, payload, publisher, sequence, time_us, read_attributes(attributes))


def gap_row(channel: str, server: str, at_us: int, reason: str) -> pa.Table:
    """A gap that no record tells of: nobody knows what is missing."""
    columns = (f"{at_us // 1000}-0", None, at_us, *_gap_columns(0, 0, 0, at_us, reason))
    arrays = [pa.array([value], field.type) for value, field in zip((channel, server, *columns), SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)
