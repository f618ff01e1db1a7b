"""Decodes entries of records into Arrow rows.

Owns the decoding of entries. Does no I/O; the schema of the rows belongs to `table`.

Nearly every page of a record holds only Shoal messages. Such a page is decoded column by column with NumPy. A page that
holds anything else (a gap, the end of a stream, a message of a plain Redis client, an envelope of format 1 or with an
extension, a hole in the entry numbers, a corrupt entry) is decoded entry by entry. Both ways give the same rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import sliding_window_view

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
"""Ids and fields of entries: names and values of fields in turn."""
RawEntries = Sequence[tuple[bytes | str, Any]]
"""The same, as a server returns them."""

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

_BLOB_BYTES_MAX: Final = 1 << 30
"""More than an entry can have. Arrow 26 fails to slice many values without an end."""
_PUBLISHED_AT: Final = SCHEMA.get_field_index("published_at") - SCHEMA.get_field_index("publisher")
_CORRUPT: Final = "an entry of the record cannot be read"
_json: Final = msgspec.json.Encoder()


def recorded_ms(entry: str) -> int:
    """When an entry was written, by the server's clock, in milliseconds since 1970; at most `TIME_US_MAX`."""
    return min(int(entry.partition("-")[0]), TIME_US_MAX // 1000)


def decode_entries(channel: str, server: str, entries: RawEntries, after: int | None = None) -> pa.RecordBatch:
    """One row for each message, stream end and gap among the entries. A corrupt entry becomes a gap.

    `after` is the number of the entry that was read before this page. If entries between it and the first one here are
    missing, a gap row says so. None: the number is not known, and no such gap is reported.
    """
    batch = _decode_messages(channel, server, entries, after)
    return decode_one_by_one(channel, server, entries, after) if batch is None else batch


# -- pages that hold only messages


def _decode_messages(channel: str, server: str, entries: RawEntries, after: int | None) -> pa.RecordBatch | None:
    """The messages of a page. Stream positions are skipped; None if the page holds anything else."""
    fields = [flat for _, flat in entries]
    if set(map(len, fields)) != {4}:
        return None
    words = list(chain.from_iterable(fields))
    kinds = words[2::4]
    messages = kinds.count(MESSAGE_FIELD)
    if words[0::4].count(NUMBER_FIELD) < len(fields) or messages + kinds.count(STREAMS_FIELD) < len(fields):
        return None
    try:
        numbers = np.array(list(map(int, words[1::4])), np.int64)
    except (ValueError, OverflowError):
        return None
    if numbers[0] < 0 or (np.diff(numbers) != 1).any() or (after is not None and numbers[0] != after + 1):
        return None
    ids, blobs = [id for id, _ in entries], words[3::4]
    if messages < len(fields):
        chosen = [row for row, kind in enumerate(kinds) if kind == MESSAGE_FIELD]
        ids, blobs, numbers = [ids[row] for row in chosen], [blobs[row] for row in chosen], numbers[chosen]
    return _message_batch(channel, server, ids, numbers, blobs)


def _message_batch(
    channel: str, server: str, ids: list[bytes | str], numbers: npt.NDArray[np.int64], blobs: list[bytes]
) -> pa.RecordBatch | None:
    """The rows of some messages, from their ids, numbers and envelopes; None if one is not a message."""
    envelopes, rows = pa.array(blobs, pa.binary()), len(blobs)
    headers = _read_headers(envelopes)
    if headers is None or not _are_messages(headers):
        return None
    payloads, attributes = pc.binary_slice(envelopes, HEADER_BYTES, _BLOB_BYTES_MAX), pa.nulls(rows, pa.string())
    if (headers["flags"] & ATTRIBUTES).any():
        try:
            payloads, attributes = _split(blobs, headers["flags"])
        except ProtocolError:
            return None
    entries = pa.array(ids, pa.string())
    at_us = _recorded_ms(entries) * 1000
    times_us = headers["time_us"]
    columns: dict[str, Any] = {
        "channel": pa.repeat(channel, rows),
        "server": pa.repeat(server, rows),
        "entry": entries,
        "number": numbers,
        "recorded_at": at_us,
        "publisher": (headers["stream"] >> np.uint64(EPOCH_BITS)).astype(np.int64),
        "epoch": (headers["stream"] & np.uint64(EPOCH_MASK)).astype(np.int32),
        "sequence": headers["sequence"].astype(np.int64),
        "published_at": np.where(times_us == 0, at_us, np.minimum(times_us, TIME_US_MAX).astype(np.int64)),
        "payload": payloads,
        "attributes": attributes,
        "is_gap": np.zeros(rows, np.bool_),
        "is_end": np.zeros(rows, np.bool_),
    }
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _read_headers(envelopes: pa.BinaryArray) -> npt.NDArray[Any] | None:
    """The headers of envelopes; None if one is too short."""
    if not len(envelopes):
        return np.empty(0, _HEADER)
    _, offsets, data = envelopes.buffers()
    begins = np.frombuffer(offsets, np.int32, len(envelopes) + 1)
    if (np.diff(begins) < HEADER_BYTES).any():
        return None
    windows = sliding_window_view(np.frombuffer(data, np.uint8), HEADER_BYTES)
    return windows[begins[:-1]].view(_HEADER)[:, 0]


def _split(blobs: list[bytes], flags: npt.NDArray[np.uint8]) -> tuple[pa.Array, pa.Array]:
    """Payloads, and attributes as JSON, of envelopes of which some have attributes."""
    payloads = [blob[HEADER_BYTES:] for blob in blobs]
    attributes: list[bytes | None] = [None] * len(blobs)
    for row in np.flatnonzero(flags & ATTRIBUTES).tolist():
        decoded, payloads[row] = split_finite(blobs[row], HEADER_BYTES)
        attributes[row] = _json.encode(decoded)
    return pa.array(payloads, pa.binary()), pa.array(attributes, pa.string())


def _recorded_ms(entries: pa.StringArray) -> npt.NDArray[np.int64]:
    """`recorded_ms` of a column of ids."""
    milliseconds = pc.list_element(pc.split_pattern(entries, "-", max_splits=1), 0).cast(pa.uint64())
    found: npt.NDArray[np.int64] = np.minimum(milliseconds.to_numpy(), TIME_US_MAX // 1000).astype(np.int64)
    return found


def _are_messages(headers: npt.NDArray[Any]) -> bool:
    flags = headers["flags"]
    wrong = (headers["magic"] != MAGIC) | ((flags & (UNKNOWN_FLAGS | BEACON | FOREIGN)) != 0)
    wrong |= headers["extension"] != 0
    wrong |= (headers["stream"] == 0) | (headers["sequence"] == 0) | (headers["sequence"] >> np.uint64(63) != 0)
    return not wrong.any()


# -- pages that hold anything


def decode_one_by_one(channel: str, server: str, entries: RawEntries, after: int | None) -> pa.RecordBatch:
    """The same as `decode_entries`, always entry by entry."""
    rows: list[tuple[Any, ...]] = []
    expected = None if after is None else after + 1
    for id, fields in entries:
        entry = id.decode() if isinstance(id, bytes) else id
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
