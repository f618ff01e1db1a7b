"""Pages of entries that are all plain messages, as columns: nearly all of a record is.

Owns the quick way. Whatever is not plain (a gap, an end, a plain client's message, a hole in the numbers, garbage) is
for the way that takes entries one by one (`table`), which gives the same rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.errors import ProtocolError
from shoal.wire.envelope import ATTRIBUTES, BEACON, FOREIGN, HEADER_BYTES, KNOWN_FLAGS, MAGIC
from shoal.wire.recorded import MESSAGE_FIELD, NUMBER_FIELD, NUMBER_MAX, STREAMS_FIELD, split_finite

Entries = Sequence[tuple[str, Any]]
"""Ids and fields of entries, as a server lists them."""

_HEADER: Final = np.dtype(
    [
        ("magic", "<u2"),
        ("flags", "u1"),
        ("version", "<u4"),
        ("stream", "<u8"),
        ("sequence", "<u8"),
        ("time_us", "<u8"),
    ]
)
assert _HEADER.itemsize == HEADER_BYTES

TIME_US_MAX: Final = int(dt.datetime(9999, 12, 31, tzinfo=dt.UTC).timestamp() * 1_000_000)
"""Times beyond it are taken for this one: no calendar has them."""

_json: Final = msgspec.json.Encoder()


class PlainColumns(NamedTuple):
    """Messages, one in each place of all columns."""

    entries: list[str]
    numbers: npt.NDArray[np.int64]
    recorded_ms: npt.NDArray[np.int64]
    streams: npt.NDArray[np.uint64]
    sequences: npt.NDArray[np.uint64]
    times_us: npt.NDArray[np.uint64]
    payloads: list[bytes]
    attributes: list[str | None]


def recorded_ms(entry: str) -> int:
    """When an entry was written, in milliseconds since 1970, by its server's clock, as far as a calendar goes."""
    return min(int(entry.partition("-")[0]), TIME_US_MAX // 1000)


def plain_columns(entries: Entries, after: int | None) -> PlainColumns | None:
    """The messages of a page in which nothing else is, but for what says how far streams have come; else None."""
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
            said, payloads[row] = split_finite(blobs[row])
            attributes[row] = _json.encode(said).decode()
    except ProtocolError:
        return None
    ids = [entries[row][0] for row in chosen]
    return PlainColumns(
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
    wrong = (headers["magic"] != MAGIC) | ((flags & (0xFF & ~KNOWN_FLAGS | BEACON | FOREIGN)) != 0)
    wrong |= (headers["stream"] == 0) | (headers["sequence"] == 0) | (headers["sequence"] >> np.uint64(63) != 0)
    return not wrong.any()
