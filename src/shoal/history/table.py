"""The table of recorded messages: its schema, and functions over its rows.

Owns the schema, which is also that of archived Parquet files. The functions do no I/O; they run in a command, in a bus
and on Spark.

    channel        string     as text; a name that is not UTF-8 or contains \\x has those bytes and each \\ as \\xNN
    server         string     whose record the row was read from
    entry          string     id of the entry in that record
    number         int64      number of the entry in that record; grows by one with each entry
    recorded_at    timestamp  by the server's clock, microseconds, UTC
    publisher      int64      the client that published; 0 for a plain Redis client, null if unknown
    epoch          int32      which of the publisher's streams on the channel; sequence numbers belong to a stream
    sequence       int64      from 1, without holes; 0 for a message of a plain Redis client
    published_at   timestamp  by the publisher's clock, UTC; recorded_at if the publisher gave no time, and for an end
    payload        binary     null in a gap
    attributes     string     a JSON object, null if there are none; NaN and infinite values are left out
    is_gap         bool       messages are missing from the record of this server
    gap_from       int64      the first missing sequence number, null if unknown
    gap_to         int64      the last one, null for an open gap
    reason         string     why messages are missing; null for a message
    is_end         bool       not a message: the stream ended with this sequence number

Two rows with the same channel, publisher, epoch and sequence are the same message, read from two records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from shoal.filters.filter import Filter
from shoal.history.row_selection import take
from shoal.message import Attributes, Gap, Message
from shoal.wire.envelope import EPOCH_BITS
from shoal.wire.glob import glob_match

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

EPOCH_MASK: Final = (1 << EPOCH_BITS) - 1
_ESCAPED: Final = re.compile(rb"\\x([0-9a-f]{2})")
_attributes: Final = msgspec.json.Decoder(dict[str, str | int | float | bool | list[str | int | float | bool] | None])


def channel_text(channel: bytes) -> str:
    """A channel's name as text; different names have different texts.

    Bytes that are not UTF-8 become `\\xNN`. If the text then contains `\\x`, every backslash of the name becomes
    `\\x5c` too, so that a name that really contains `\\xff` differs from one with the byte 0xff.
    """
    text = channel.decode("utf-8", "backslashreplace")
    return channel.replace(b"\\", b"\\x5c").decode("utf-8", "backslashreplace") if "\\x" in text else text


def channel_name(text: str) -> bytes:
    """The name of a channel, from its text."""
    name = text.encode()
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), name) if "\\x" in text else name


def channel_matches(pattern: str, text: str) -> bool:
    """Whether a channel, by its text, has a name or matches a pattern."""
    wanted, name = pattern.encode("utf-8", "surrogateescape"), channel_name(text)
    return name == wanted or glob_match(wanted, name)


def text_array(names: pa.ChunkedArray) -> pa.ChunkedArray:
    """`channel_text` of a column of names, with nulls as they are."""
    try:
        texts = names.cast(pa.string())
        if not pc.any(pc.match_substring(texts, "\\x")).as_py():
            return texts
    except pa.ArrowInvalid:  # a name is not UTF-8
        pass
    return pa.chunked_array([[None if name is None else channel_text(name) for name in names.to_pylist()]], pa.string())


def name_array(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """`channel_name` of a column of texts, with nulls as they are."""
    if not pc.any(pc.match_substring(texts, "\\x")).as_py():
        return texts.cast(pa.binary())
    return pa.chunked_array([[None if text is None else channel_name(text) for text in texts.to_pylist()]], pa.binary())


def gap_columns(stream: int, first: int, last: int, at_us: int, reason: str) -> tuple[Any, ...]:
    """The columns of a gap from `publisher` on. 0 for `stream`, `first` or `last`: unknown."""
    publisher, epoch = (stream >> EPOCH_BITS, stream & EPOCH_MASK) if stream else (None, None)
    return (publisher, epoch, None, at_us, None, None, True, first or None, last or None, reason, False)


def gap_row(channel: str, server: str, at_us: int, reason: str) -> pa.Table:
    """A gap that is in no record, of which neither publisher nor numbers are known."""
    columns = (f"{at_us // 1000}-0", None, at_us, *gap_columns(0, 0, 0, at_us, reason))
    arrays = [pa.array([value], field.type) for value, field in zip((channel, server, *columns), SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def dedupe(table: pa.Table) -> pa.Table:
    """Removes repeated messages and repeated gaps; the first row of each stays, in its place."""
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
    """The attributes of a row, without nulls: older archives have null where an attribute was NaN."""
    if text is None:
        return None
    return {name: value for name, value in _attributes.decode(text).items() if value is not None}


def matching(table: pa.Table, where: Filter) -> pa.Table:
    """The messages whose attributes satisfy a filter. Gaps stay: the missing messages might have matched."""
    kept = [
        is_gap or (not is_end and where.matches(read_attributes(text) or {}))
        for text, is_gap, is_end in zip(
            table["attributes"].to_pylist(), table["is_gap"].to_pylist(), table["is_end"].to_pylist(), strict=True
        )
    ]
    return table.filter(pa.array(kept, pa.bool_()))


def to_items(table: pa.Table, channel: str | None = None) -> Iterable[Message | Gap]:
    """The rows as messages and gaps, in order, without stream ends. `channel` replaces the name in the rows."""
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
