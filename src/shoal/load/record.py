"""A telemetry record: the figures of one host and its units in one second. Format 2.

Owns the record, its id, its encoding, and the command that appends it to a Redis stream. Uses only struct, msgspec and
NumPy, because agents write records and need not load pyarrow. The kinds define the meaning of the figures.

    at 0    2 bytes   magic F5 54
    at 2    1 byte    version, 2
    at 3    1 byte    0
    at 4    4 bytes   length of the head, little-endian
    at 8    head      msgpack: host, instance, second, sequence, kind of host, site, checksum of the host's columns,
                      tables: (kind, checksum of its columns, rows, widths, counts)
            body      the row of the host, then the buffers of each table in the order of its columns

A column of whole numbers is one buffer of `rows` numbers of `width` bytes, little-endian: 0 (all are 0), 1, 2, 4 or 8.
Floats have width 8. A list is two buffers: the lengths of the rows, and `count` ids, of width 1 to 8. The name of the
unit comes first, as a list of bytes; `complete` comes last: width 0 (all rows are), or one byte for each row. A table
without rows has no buffers.

All sizes follow from the head and are compared with the actual size before anything is read or allocated. A table has
at most one row more than its names have bytes.

Two records are the same if the whole id is equal: a repeated XADD is a duplicate, a restarted agent is another
instance, and a lost record is a hole in the sequence of an instance.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from shoal.errors import ProtocolError
from shoal.load.kinds import Column, HostKind, Kinds, Type, UnitKind
from shoal.load.table import Numbers, Ragged, UnitTable, empty_table
from shoal.wire.envelope import TELEMETRY_KEY

MAGIC: Final = b"\xf5\x54"
VERSION: Final = 2

ID_FIELD: Final = b"id"
DATA_FIELD: Final = b"data"
"""The fields of an entry of the stream."""

NARROW_ROWS_MIN: Final = 64
"""Tables with fewer rows keep 8 bytes for each number: finding the width costs more than it saves."""

_START: Final = struct.Struct("<2sBBI")
_ARROW_STREAM: Final = b"\xff\xff\xff\xff"
"""The first bytes of a record of version 1."""
_INT_MAX: Final = 2**31 - 1
_WIDTHS: Final = ((0, 0), (0xFF, 1), (0xFFFF, 2), (0xFFFFFFFF, 4))
_NUMBERS: Final = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}
_FLOAT: Final = np.dtype("<f8")

HostRow: TypeAlias = Mapping[str, float | int | None]


class RecordId(NamedTuple):
    """The identity of a record: the host, the incarnation of its agent, the second, and a counter within that
    incarnation."""

    host: str
    instance: str
    second: int
    sequence: int

    def encode(self) -> bytes:
        """The id as one line; the instance contains no slash."""
        return f"{self.host}/{self.instance}/{self.second}/{self.sequence}".encode()

    @classmethod
    def decode(cls, text: bytes) -> RecordId:
        """The id in a line, or `ProtocolError`."""
        try:
            host, instance, second, sequence = text.decode().rsplit("/", 3)
            return cls(host, instance, int(second), int(sequence))
        except ValueError as error:
            raise ProtocolError(f"not the id of a telemetry record: {text[:80]!r}") from error


class TelemetryRecord(NamedTuple):
    """One second of one host."""

    id: RecordId
    host_kind: HostKind
    host: HostRow
    """The columns of the host's kind."""
    tables: Mapping[str, UnitTable]
    """By kind of unit."""
    site: str = ""
    """The site of the host; empty if it is not configured."""


class _TableHead(msgspec.Struct, array_like=True):
    kind: str
    layout: int
    rows: int
    widths: bytes
    """The width of each buffer except the bytes of the names."""
    counts: list[int]
    """The number of values of each list, the bytes of the names first."""


class _Head(msgspec.Struct, array_like=True):
    host: str
    instance: str
    second: int
    sequence: int
    host_kind: str
    site: str
    layout: int
    tables: list[_TableHead]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Head)


# -- writing -------------------------------------------------------------------------------------------------


def encode(record: TelemetryRecord) -> bytes:
    """The bytes of a record."""
    kind = record.host_kind
    body = [kind.form.pack(*[_number(record.host[column.name]) for column in kind.row])]
    heads = [_write_table(table, body) for table in record.tables.values()]
    head = _encoder.encode(_Head(*record.id, kind.name, record.site, kind.layout, heads))
    return b"".join((_START.pack(MAGIC, VERSION, 0, len(head)), head, *body))


def _number(value: float | int | None) -> float | int:
    return math.nan if value is None else value


def _write_table(table: UnitTable, body: list[bytes]) -> _TableHead:
    """Appends the buffers of a table; returns its head."""
    kind, rows = table.kind, len(table)
    if not rows:
        return _TableHead(kind.name, kind.layout, 0, b"", [])
    widths, counts = bytearray(), [len(table.units.values)]
    widths.append(_write_numbers(table.units.lengths, body))
    body.append(table.units.values.tobytes())
    for column in kind.columns:
        values = table.columns[column.name]
        if isinstance(values, Ragged):
            counts.append(len(values.values))
            widths.append(_write_numbers(values.lengths, body))
            widths.append(_write_numbers(values.values, body, least=1))
        elif column.type is Type.FLOAT:
            body.append(values.astype(_FLOAT, copy=False).tobytes())
            widths.append(8)
        else:
            widths.append(_write_numbers(values, body))
    whole = bool(table.complete.all())
    if not whole:
        body.append(table.complete.tobytes())
    widths.append(not whole)
    return _TableHead(kind.name, kind.layout, rows, bytes(widths), counts)


def _write_numbers(values: Numbers, body: list[bytes], least: int = 0) -> int:
    """Appends whole numbers with the smallest width that holds all of them; returns the width."""
    width = 8 if 0 < len(values) < NARROW_ROWS_MIN else max(_width(values), least)
    if width:
        body.append(values.astype(_NUMBERS[width], copy=False).tobytes())
    return width


def _width(values: Numbers) -> int:
    """The smallest width that holds all numbers. Readers refuse negative numbers."""
    bits = int(np.bitwise_or.reduce(values))
    return 8 if bits < 0 else next((width for limit, width in _WIDTHS if bits <= limit), 8)


def xadd(record: TelemetryRecord, records_max: int) -> tuple[bytes, ...]:
    """The command that appends a record and keeps about `records_max` (the oldest are dropped)."""
    return (
        *(b"XADD", TELEMETRY_KEY, b"MAXLEN", b"~", b"%d" % records_max, b"*"),
        *(ID_FIELD, record.id.encode(), DATA_FIELD, encode(record)),
    )


# -- reading -------------------------------------------------------------------------------------------------


def decode(data: bytes, kinds: Kinds, *, folded_only: bool = False) -> TelemetryRecord:
    """The record in `data`; `ProtocolError` if it is invalid, of another version, or of unknown kinds.

    With `folded_only` tables have only the columns that load windows need.
    """
    head, at = _read_head(data)
    host_kind = kinds.host_kinds.get(head.host_kind)
    if host_kind is None:
        raise _unknown("a host", head.host_kind, kinds.host_kinds)
    if head.layout != host_kind.layout:
        raise _other_columns(f"hosts of kind {head.host_kind!r}")
    buffers = _Buffers(memoryview(data), at)
    host = _read_host(buffers.take(host_kind.form.size), host_kind)
    tables: dict[str, UnitTable] = {}
    for table in head.tables:
        kind = kinds.unit_kinds.get(table.kind)
        if kind is None:
            raise _unknown("units", table.kind, kinds.unit_kinds)
        if table.layout != kind.layout:
            raise _other_columns(f"units of kind {table.kind!r}")
        if table.kind in tables:
            raise ProtocolError(f"a telemetry record has two tables of kind {table.kind!r}")
        tables[table.kind] = _read_table(buffers, table, kind, folded_only)
    if buffers.left:
        raise ProtocolError(f"a telemetry record has {buffers.left} bytes too many")
    record_id = RecordId(head.host, head.instance, head.second, head.sequence)
    return TelemetryRecord(record_id, host_kind, host, tables, head.site)


def _read_head(data: bytes) -> tuple[_Head, int]:
    """The head, and where the body begins."""
    if data[:4] == _ARROW_STREAM:
        raise _other_version(1)
    if len(data) < _START.size or data[:2] != MAGIC:
        raise ProtocolError(f"not a telemetry record: it begins with {data[:4]!r}")
    _, version, _, length = _START.unpack_from(data)
    if version != VERSION:
        raise _other_version(version)
    if length > len(data) - _START.size:
        raise ProtocolError(f"a telemetry record has {len(data)} bytes, but its head has {length}")
    try:
        return _decoder.decode(memoryview(data)[_START.size : _START.size + length]), _START.size + length
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the head of a telemetry record cannot be read: {error}") from error


def _other_version(version: int) -> ProtocolError:
    do = "upgrade this process" if version > VERSION else "upgrade the agent that wrote it"
    return ProtocolError(f"a telemetry record of version {version}; this process knows version {VERSION}", do=do)


def _unknown(what: str, kind: str, known: Mapping[str, object]) -> ProtocolError:
    return ProtocolError(
        f"a telemetry record of {what} of kind {kind[:80]!r}; this process knows {', '.join(known)}",
        do="upgrade this process",
    )


def _other_columns(what: str) -> ProtocolError:
    return ProtocolError(
        f"a telemetry record has other columns for {what} than this process knows",
        do="run the same version of Shoal everywhere",
    )


class _Buffers:
    """Takes bytes from the front; `ProtocolError` if there are too few."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> memoryview:
        if not 0 <= size <= self.left:
            raise ProtocolError(f"a telemetry record is cut short: {self.left} bytes are left, {size} expected")
        self._at += size
        return self._data[self._at - size : self._at]

    def numbers(self, count: int, width: int) -> memoryview:
        """The bytes of some numbers; the caller has checked `count`."""
        if width and width not in _NUMBERS:
            raise ProtocolError(f"a telemetry record has numbers of {width} bytes")
        return self.take(count * width)


def _read_host(data: memoryview, kind: HostKind) -> dict[str, float | int | None]:
    row: dict[str, float | int | None] = {}
    for column, value in zip(kind.row, kind.form.unpack(data), strict=True):
        is_null = column.nullable and math.isnan(value)
        if not is_null and not math.isfinite(value):
            raise ProtocolError(f"a telemetry record has {column.name} = {value!r}")
        row[column.name] = None if is_null else value
    return row


def _read_table(buffers: _Buffers, head: _TableHead, kind: UnitKind, folded_only: bool) -> UnitTable:
    rows, lists = head.rows, sum(column.type is Type.IDS for column in kind.columns)
    if rows == 0 and not head.widths and not head.counts:
        return empty_table(kind)
    names, *counts = head.counts or [0]
    if not 0 < rows <= names + 1 or names > buffers.left or len(counts) != lists:
        raise ProtocolError(f"a telemetry record has {rows} rows of kind {kind.name!r} with {names} bytes of names")
    if len(head.widths) != len(kind.columns) + lists + 2:
        raise ProtocolError(f"a telemetry record has {len(head.widths)} buffers of kind {kind.name!r}")
    widths, sizes = iter(head.widths), iter(counts)
    lengths = _int_column(buffers.numbers(rows, next(widths)), rows)
    units = _ragged(lengths, np.frombuffer(buffers.take(names), np.uint8))
    columns: dict[str, Numbers | Ragged] = {}
    for column in kind.columns:
        wanted = column.folding is not None or not folded_only
        if column.type is Type.IDS:
            lengths_data, count, width = buffers.numbers(rows, next(widths)), next(sizes), next(widths)
            if not 0 <= count <= buffers.left or (count and not width):
                raise ProtocolError(f"a telemetry record has {count} ids in {column.name}, of {width} bytes each")
            ids = buffers.numbers(count, width)
            if wanted:
                columns[column.name] = _ragged(_int_column(lengths_data, rows), _ids(ids, count, width))
        else:
            found = buffers.numbers(rows, next(widths))
            if wanted:
                columns[column.name] = _figures(found, rows, column)
    complete = buffers.numbers(rows, next(widths))
    return UnitTable(kind, units, columns, _flags(complete, rows))


def _int_column(data: memoryview, rows: int) -> Numbers:
    """Whole numbers of any width as 64-bit numbers, without a copy if they are 64 bits wide and aligned."""
    if not len(data):
        return np.zeros(rows, np.int64)
    values = np.frombuffer(data, _NUMBERS[len(data) // rows])
    if values.itemsize < 8:
        return values.astype(np.int64)
    signed = _aligned(values).view(np.int64)
    if signed.min() < 0:
        raise ProtocolError("a telemetry record has a number above 2^63 - 1")
    return signed


def _aligned(values: Numbers) -> Numbers:
    """The values in aligned memory."""
    return values if values.flags.aligned else values.copy()


def _ids(data: memoryview, count: int, width: int) -> Numbers:
    if not count:
        return np.zeros(0, np.uint64)
    return _aligned(np.frombuffer(data, _NUMBERS[width])).astype(np.uint64, copy=False)


def _figures(data: memoryview, rows: int, column: Column) -> Numbers:
    if column.type is Type.INT:
        return _int_column(data, rows)
    if len(data) != rows * 8:
        raise ProtocolError(f"a telemetry record has floats of {len(data) // rows} bytes in {column.name}")
    values = _aligned(np.frombuffer(data, _FLOAT))
    if not (np.isfinite(values).all() and values.min() >= 0):
        raise ProtocolError(f"a telemetry record has a negative or infinite figure in {column.name}")
    return values


def _ragged(lengths: Numbers, values: Numbers) -> Ragged:
    if len(values) > _INT_MAX or lengths.max() > len(values) or lengths.sum() != len(values):
        raise ProtocolError("a telemetry record has lists whose lengths do not fit their values")
    return Ragged.of_lengths(lengths, values)


def _flags(data: memoryview, rows: int) -> Numbers:
    if not len(data):
        return np.ones(rows, np.bool_)
    flags = np.frombuffer(data, np.uint8)
    if len(flags) != rows or flags.max() > 1:
        raise ProtocolError("a telemetry record has flags that are neither true nor false")
    return flags.view(np.bool_)
