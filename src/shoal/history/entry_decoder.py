"""Decodes entries of records into Arrow rows.

Owns the decoding of entries. Does no I/O; the schema of the rows belongs to `table`.

Nearly every page of a record holds only Shoal messages. Such a page is decoded column by column with NumPy. A page that
holds anything else (a gap, the end of a stream, a message of a plain Redis client, an envelope of format 1 or with an
extension, a hole in the entry numbers, a corrupt entry) is decoded entry by entry. Both ways give the same rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.errors import ProtocolError
from shoal.history.table import EPOCH_MASK, SCHEMA, gap_columns
from shoal.wire.envelope import ATTRIBUTES, BEACON, EPOCH_BITS, FOREIGN, HEADER_BYTES, MAGIC, UNKNOWN_FLAGS
from shoal.wire.record_entry import (
    MESSAGE_FIELD,
    NUMBER_FIELD,
    NUMBER_MAX,
    STREAMS_FIELD,
    RecordedGap,
    RecordedMessage,
    read_entry,
    split_finite,
)

Entries = Sequence[tuple[str, Any]]
"""Ids and fields of entries, as a server returns them."""

TIME_US_MAX: Final = int(dt.datetime(9999, 12, 31, tzinfo=dt.UTC).timestamp() * 1_000_000)
"""Later times are clamped to this one; Python's datetime ends with the year 9999."""

_HEADER: Final = np.dtype(
    [
        ("magic", "<u2"),
        ("flags", "u1"),
        ("extension", "u1"),
        ("version", "<u4"),
        ("stream", "<u8"),
        ("sequence", "<u8"),
        ("time_us", "<u8"),
        ("tag", "<u8"),
    ]
)
assert _HEADER.itemsize == HEADER_BYTES

_PUBLISHED_AT: Final = SCHEMA.get_field_index("published_at") - SCHEMA.get_field_index("publisher")
_CORRUPT: Final = "an entry of the record cannot be read"
_json: Final = msgspec.json.Encoder()


def recorded_ms(entry: str) -> int:
    """When an entry was written, by the server's clock, in milliseconds since 1970; at most `TIME_US_MAX`."""
    return min(int(entry.partition("-")[0]), TIME_US_MAX // 1000)


def decode_entries(channel: str, server: str, entries: Entries, after: int | None = None) -> pa.RecordBatch:
    """One row for each message, stream end and gap among the entries. A corrupt entry becomes a gap.

    `after` is the number of the entry that was read before this page. If entries between it and the first one here are
    missing, a gap row says so. None: the number is not known, and no such gap is reported.
    """
    columns = _message_columns(entries, after)
    if columns is not None:
        return _message_batch(channel, server, columns)
    return decode_one_by_one(channel, server, entries, after)


# -- pages that hold only messages


class _MessageColumns(NamedTuple):
    """Messages of one page, one at each index of all columns."""

    entries: list[str]
    numbers: npt.NDArray[np.int64]
    recorded_ms: npt.NDArray[np.int64]
    streams: npt.NDArray[np.uint64]
    sequences: npt.NDArray[np.uint64]
    times_us: npt.NDArray[np.uint64]
    payloads: list[bytes]
    attributes: list[str | None]


def _message_columns(entries: Entries, after: int | None) -> _MessageColumns | None:
    """The messages of a page. Stream positions are skipped; None if the page holds anything else."""
    try:
        fields = [
            (flat[2], flat[3], int(flat[1])) if flat[0] == NUMBER_FIELD and len(flat) == 4 else None
            for flat in (part if type(part) is list else _flat(part) for _, part in entries)
        ]
    except (TypeError, ValueError, IndexError):
        return None
    if not fields or not all(field is not None and 0 <= field[2] <= NUMBER_MAX for field in fields):
        return None
    all_numbers = np.array([field[2] for field in fields if field is not None], np.int64)
    if (np.diff(all_numbers) != 1).any() or (after is not None and all_numbers[0] != after + 1):
        return None
    chosen = [row for row, field in enumerate(fields) if field is not None and field[0] == MESSAGE_FIELD]
    if any(field is not None and field[0] not in (MESSAGE_FIELD, STREAMS_FIELD) for field in fields):
        return None
    blobs = [field[1] for field in fields if field is not None and field[0] == MESSAGE_FIELD]
    headers = np.frombuffer(b"".join([blob[:HEADER_BYTES] for blob in blobs]), _HEADER) if _fit(blobs) else None
    if headers is None or not _are_messages(headers):
        return None
    attributes: list[str | None] = [None] * len(blobs)
    payloads = [blob[HEADER_BYTES:] for blob in blobs]
    try:
        for row in np.flatnonzero(headers["flags"] & ATTRIBUTES):
            decoded, payloads[row] = split_finite(blobs[row], HEADER_BYTES)
            attributes[row] = _json.encode(decoded).decode()
    except ProtocolError:
        return None
    ids = [entries[row][0] for row in chosen]
    return _MessageColumns(
        ids,
        all_numbers[chosen],
        np.array([recorded_ms(entry) for entry in ids], np.int64),
        headers["stream"],
        headers["sequence"],
        headers["time_us"],
        payloads,
        attributes,
    )


def _flat(fields: dict[bytes, bytes]) -> list[bytes]:
    return [word for pair in fields.items() for word in pair]


def _fit(blobs: list[bytes]) -> bool:
    return all(len(blob) >= HEADER_BYTES for blob in blobs)


def _are_messages(headers: npt.NDArray[Any]) -> bool:
    flags = headers["flags"]
    wrong = (headers["magic"] != MAGIC) | ((flags & (UNKNOWN_FLAGS | BEACON | FOREIGN)) != 0)
    wrong |= headers["extension"] != 0
    wrong |= (headers["stream"] == 0) | (headers["sequence"] == 0) | (headers["sequence"] >> np.uint64(63) != 0)
    return not wrong.any()


def _message_batch(channel: str, server: str, messages: _MessageColumns) -> pa.RecordBatch:
    rows = len(messages.entries)
    at_us = messages.recorded_ms * 1000
    times_us = np.where(messages.times_us == 0, at_us, np.minimum(messages.times_us, TIME_US_MAX).astype(np.int64))
    columns: dict[str, Any] = {
        "channel": [channel] * rows,
        "server": [server] * rows,
        "entry": messages.entries,
        "number": messages.numbers,
        "recorded_at": at_us,
        "publisher": (messages.streams >> np.uint64(EPOCH_BITS)).astype(np.int64),
        "epoch": (messages.streams & np.uint64(EPOCH_MASK)).astype(np.int32),
        "sequence": messages.sequences.astype(np.int64),
        "published_at": times_us,
        "payload": messages.payloads,
        "attributes": messages.attributes,
        "is_gap": np.zeros(rows, np.bool_),
        "is_end": np.zeros(rows, np.bool_),
    }
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


# -- pages that hold anything


def decode_one_by_one(channel: str, server: str, entries: Entries, after: int | None) -> pa.RecordBatch:
    """The same as `decode_entries`, always entry by entry."""
    rows: list[tuple[Any, ...]] = []
    expected = None if after is None else after + 1
    for entry, fields in entries:
        at_us = recorded_ms(entry) * 1000
        try:
            number, content = read_entry(fields)
            message = _content(content, at_us)
        except ProtocolError as error:
            rows.append((entry, None, at_us, *gap_columns(0, 0, 0, at_us, f"{_CORRUPT}: {error.what}")))
            expected = None if expected is None else expected + 1
            continue
        if expected is not None and number != expected:
            gap_us = at_us if message is None else min(at_us, message[_PUBLISHED_AT])
            rows.append((entry, number, at_us, *gap_columns(0, 0, 0, gap_us, _dropped(expected, number))))
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


def _content(content: Any, at_us: int) -> tuple[Any, ...] | None:
    """The columns from `publisher` on; None for an entry without a row (stream positions).

    ProtocolError for numbers that do not fit their columns; any client can publish such a message.
    """
    if isinstance(content, RecordedMessage):
        _check_numbers(content.sequence)
        publisher, epoch = content.stream >> EPOCH_BITS, content.stream & EPOCH_MASK
        if content.is_end:  # the time of a beacon says how old its number is, not when it was published
            return (publisher, epoch, content.sequence, at_us, None, None, False, None, None, None, True)
        time_us = min(content.time_us, TIME_US_MAX) or at_us
        attributes, payload = content.split()
        text = None if attributes is None else _json.encode(attributes).decode()
        return (publisher, epoch, content.sequence, time_us, payload, text, False, None, None, None, False)
    if isinstance(content, RecordedGap):
        _check_numbers(content.stream >> EPOCH_BITS, content.first, content.last)
        return gap_columns(content.stream, content.first, content.last, at_us, content.reason)
    return None


def _check_numbers(*numbers: int) -> None:
    for number in numbers:
        if not 0 <= number <= NUMBER_MAX:
            raise ProtocolError(f"the number {number} is out of range")
