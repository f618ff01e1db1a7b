"""Encoding: the events of an Arrow record batch as a wire table, without an object for any of them.

Owns the step from columns (the form of `shoal.filters.event_batches`) to the msgpack that the kernels read. A null is
an absent attribute and is left out; a struct with a field for each type gives the one that is set. Never touches
filters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shoal.errors import EventError
from shoal.filters.index.tables import WireTable
from shoal.filters.values import problem_of_name
from shoal.wire.rawbytes import kernel, part

HEADER_BYTES: Final = 3
"""A map with 16 bits for its count."""
ATTRIBUTES_MAX: Final = 0xFFFF

_INTEGER: Final = 0
_UNSIGNED: Final = 1
_FLOAT: Final = 2
_BOOLEAN: Final = 3

_Bytes = npt.NDArray[np.uint8]


@part
def _integer_bytes(value: int) -> int:
    if -32 <= value <= 127:
        return 1
    if -32768 <= value <= 32767:
        return 3
    return 5 if -2147483648 <= value <= 2147483647 else 9


@part
def _put(data: Any, at: int, bits: np.uint64, width: int) -> int:
    """Writes the lowest bytes of some bits, the highest first; where the next byte goes."""
    for place in range(width):
        data[at + place] = np.uint8((bits >> np.uint64(8 * (width - 1 - place))) & np.uint64(0xFF))
    return at + width


@part
def _put_integer(data: Any, at: int, value: int) -> int:
    width = _integer_bytes(value) - 1
    if width:
        data[at] = 0xD1 if width == 2 else (0xD2 if width == 4 else 0xD3)
        at += 1
    return _put(data, at, np.uint64(value), max(width, 1))


@kernel
def _add_numbers(sizes: Any, counts: Any, values: Any, valid: Any, kind: int, name_bytes: int) -> None:
    """Adds to the size of each row what a column of numbers or booleans takes there. `values` are 64 bits each."""
    for row in range(len(sizes)):
        if valid[row]:
            counts[row] += 1
            width = 9
            if kind == 0:
                width = _integer_bytes(values[row])
            elif kind == 3:
                width = 1
            sizes[row] += name_bytes + width


@kernel
def _write_numbers(data: Any, cursors: Any, values: Any, valid: Any, kind: int, name: Any) -> None:
    """Writes a column of numbers or booleans behind what each row has so far."""
    for row in range(len(cursors)):
        if not valid[row]:
            continue
        at = cursors[row]
        for place in range(len(name)):
            data[at + place] = name[place]
        at += len(name)
        if kind == 0:
            at = _put_integer(data, at, values[row])
        elif kind == 3:
            data[at] = 0xC2 + (values[row] & 1)
            at += 1
        else:
            data[at] = 0xCF if kind == 1 else 0xCB
            at = _put(data, at + 1, np.uint64(values[row]), 8)
        cursors[row] = at


@part
def _text_header_bytes(length: int) -> int:
    if length <= 31:
        return 1
    return 2 if length <= 0xFF else (3 if length <= 0xFFFF else 5)


@kernel
def _add_texts(sizes: Any, counts: Any, offsets: Any, valid: Any, name_bytes: int) -> None:
    """Adds to the size of each row what a column of strings takes there."""
    for row in range(len(sizes)):
        if valid[row]:
            length = offsets[row + 1] - offsets[row]
            counts[row] += 1
            sizes[row] += name_bytes + _text_header_bytes(length) + length


@kernel
def _write_texts(data: Any, cursors: Any, offsets: Any, texts: Any, valid: Any, name: Any) -> None:
    """Writes a column of strings behind what each row has so far."""
    for row in range(len(cursors)):
        if not valid[row]:
            continue
        at = cursors[row]
        for place in range(len(name)):
            data[at + place] = name[place]
        at += len(name)
        first = offsets[row]
        length = offsets[row + 1] - first
        if length <= 31:
            data[at] = 0xA0 + length
            at += 1
        else:
            width = _text_header_bytes(length) - 1
            data[at] = 0xD9 if width == 1 else (0xDA if width == 2 else 0xDB)
            at = _put(data, at + 1, np.uint64(length), width)
        for place in range(length):
            data[at + place] = texts[first + place]
        cursors[row] = at + length


@kernel
def _write_headers(data: Any, starts: Any, counts: Any) -> None:
    """Writes the count of attributes at the start of each row."""
    for row in range(len(counts)):
        data[starts[row]] = 0xDE
        data[starts[row] + 1] = counts[row] >> 8
        data[starts[row] + 2] = counts[row] & 0xFF


class _Numbers:
    """A column of numbers or booleans, 64 bits a value."""

    def __init__(self, name: _Bytes, kind: int, values: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_]) -> None:
        self._name, self._kind, self._values, self._valid = name, kind, values, valid

    def add(self, sizes: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
        """Adds what each row needs."""
        _add_numbers(sizes, counts, self._values, self._valid, self._kind, len(self._name))

    def write(self, data: _Bytes, cursors: npt.NDArray[np.int64]) -> None:
        """Writes it."""
        _write_numbers(data, cursors, self._values, self._valid, self._kind, self._name)


class _Texts:
    """A column of strings."""

    def __init__(
        self, name: _Bytes, offsets: npt.NDArray[np.int64], texts: _Bytes, valid: npt.NDArray[np.bool_]
    ) -> None:
        self._name, self._offsets, self._texts, self._valid = name, offsets, texts, valid

    def add(self, sizes: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
        """Adds what each row needs."""
        _add_texts(sizes, counts, self._offsets, self._valid, len(self._name))

    def write(self, data: _Bytes, cursors: npt.NDArray[np.int64]) -> None:
        """Writes it."""
        _write_texts(data, cursors, self._offsets, self._texts, self._valid, self._name)


def batch_table(batch: pa.RecordBatch, names: Collection[str] | None = None) -> WireTable:
    """The events of a batch, one for each row. With `names` only these attributes are in them: those that filters ask
    for. EventError for a column that holds no values of attributes, for NaN and infinities, and for a struct with two
    values in one row."""
    rows = batch.num_rows
    wanted = [place for place, name in enumerate(batch.schema.names) if names is None or name in names]
    titles = [batch.schema.names[place] for place in wanted]
    if len(set(titles)) < len(titles):
        raise EventError("the batch has two columns of one name", do="name each column once")
    columns = [column for place in wanted for column in _columns(batch.schema.names[place], batch.column(place))]
    sizes = np.full(rows, HEADER_BYTES, np.int64)
    counts = np.zeros(rows, np.int64)
    for column in columns:
        column.add(sizes, counts)
    if counts.max(initial=0) > ATTRIBUTES_MAX:
        raise EventError(f"an event of the batch has more than {ATTRIBUTES_MAX} attributes")
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    _write_headers(data, offsets, counts)
    cursors = offsets[:-1] + HEADER_BYTES
    for column in columns:
        column.write(data, cursors)
    data.flags.writeable = False  # as tables are that were read: the kernels are compiled for one kind of array
    return WireTable(data, offsets)


def _columns(name: str, array: pa.Array) -> Iterator[_Numbers | _Texts]:
    """What the kernels take for a column: itself, or each field of a struct."""
    if problem := problem_of_name(name):
        raise EventError(problem)
    kind = array.type
    if not pa.types.is_struct(kind):
        yield from _plain(name, array)
        return
    members = [pc.struct_field(array, [place]) for place in range(kind.num_fields)]
    if len(members) > 1:
        present = np.sum([_valid(member) for member in members], axis=0)
        if present.max(initial=0) > 1:
            row = int(np.argmax(present > 1))
            raise EventError(f"attribute {name!r} has {present[row]} values in row {row} of the batch, not one")
    for member in members:
        yield from _plain(name, member)


def _plain(name: str, array: pa.Array) -> Iterator[_Numbers | _Texts]:
    kind = array.type
    if pa.types.is_null(kind):
        return
    if pa.types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    header, valid = _name_bytes(name), _valid(array)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        yield _texts(header, array, valid)
    elif pa.types.is_boolean(kind):
        values = pc.fill_null(array, False).cast(pa.int8()).to_numpy().astype(np.int64)
        yield _Numbers(header, _BOOLEAN, values, valid)
    elif pa.types.is_integer(kind):
        unsigned = pa.types.is_uint64(kind)
        values = pc.fill_null(array, 0).cast(pa.uint64() if unsigned else pa.int64()).to_numpy()
        yield _Numbers(header, _UNSIGNED if unsigned else _INTEGER, np.array(values).view(np.int64), valid)
    elif pa.types.is_floating(kind):
        floats = np.array(pc.fill_null(array.cast(pa.float64()), 0.0).to_numpy())
        finite = np.isfinite(floats)
        if not finite.all():
            raise EventError(
                f"attribute {name!r} is NaN or an infinity in row {int(np.argmin(finite))} of the batch",
                do="write null where there is no value",
            )
        yield _Numbers(header, _FLOAT, floats.view(np.int64), valid)
    else:
        raise EventError(
            f"the column {name!r} is of the type {kind}, which no attribute can be",
            do="give strings, numbers or booleans",
        )


def _texts(header: _Bytes, array: pa.Array, valid: npt.NDArray[np.bool_]) -> _Texts:
    wide = pa.types.is_large_string(array.type)
    _, places, texts = array.buffers()
    kind: type[np.int32] | type[np.int64] = np.int64 if wide else np.int32
    offsets = np.zeros(len(array) + 1, np.int64)
    if places is not None and len(array):
        offsets[:] = np.frombuffer(places, kind)[array.offset : array.offset + len(array) + 1]
    held = np.frombuffer(texts, np.uint8) if texts is not None else np.zeros(0, np.uint8)
    return _Texts(header, offsets, held, valid)


def _valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Which rows have a value."""
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    return np.array(pc.is_valid(array).to_numpy(zero_copy_only=False))


def _name_bytes(name: str) -> _Bytes:
    """The name as msgpack has it."""
    return np.frombuffer(bytearray(msgspec.msgpack.encode(name)), np.uint8)
