"""Wire tables: many encoded filters or events, back to back.

Owns the form in which filters and events come in bulk, and how a table is made from objects, encoded bytes or the
columns of an Arrow batch. `batch_table` encodes columns without creating an object for each event. Never touches an
index. Arrow is imported by the first call that needs it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.errors import EventError, FilterError
from shoal.filters.event_batches import from_arrow, is_arrow
from shoal.filters.events import plain_event
from shoal.filters.filter import Filter, check_filter, no_filter
from shoal.filters.values import Event, problem_of_name
from shoal.wire.raw_bytes import kernel, part

if TYPE_CHECKING:
    import pyarrow as pa

AnyEvent: TypeAlias = Event | bytes | bytearray | memoryview
"""An event as a mapping, or in its wire form."""
Events: TypeAlias = "WireTable | Iterable[AnyEvent] | pa.RecordBatch | pa.Table"
"""Many events: encoded, one by one, or in columns."""
_encoder: Final = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True, eq=False)
class WireTable:
    """Encoded filters or events: number `i` is `data[offsets[i]:offsets[i + 1]]`."""

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> bytes:
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()


def wire_table(items: Iterable[bytes]) -> WireTable:
    """A table of encoded filters or events."""
    chunks = list(items)
    offsets = np.zeros(len(chunks) + 1, np.int64)
    np.cumsum([len(chunk) for chunk in chunks], out=offsets[1:])
    return WireTable(np.frombuffer(b"".join(chunks), np.uint8), offsets)


def filter_table(filters: Iterable[Filter]) -> WireTable:
    """A table of filters in their wire form. FilterError if one of them is not a filter."""
    if isinstance(filters, Filter):
        raise FilterError("a sequence or a table of filters is needed, and this is one filter", do="use insert")
    try:
        given = list(filters)
    except TypeError as error:
        raise no_filter(filters) from error
    return wire_table(_encoder.encode(check_filter(each)) for each in given)


def event_table(events: Events) -> WireTable:
    """A table of events in their wire form, from mappings, encoded events or the rows of an Arrow batch. EventError if
    something cannot be encoded, or is a single event. Encoded events are checked when they are matched."""
    if isinstance(events, WireTable):
        return events
    if isinstance(events, str | bytes | bytearray | memoryview | Mapping):
        raise EventError("a sequence or a table of events is needed, and this is one event", do="use match")
    try:
        given = from_arrow(events) if is_arrow(events) else list(events)
    except TypeError as error:
        raise EventError(f"events are needed, not something of type {type(events).__name__}") from error
    return wire_table(map(event_wire, given))


def event_wire(event: AnyEvent) -> bytes:
    """An event in its wire form, which it may have already. EventError if it cannot be encoded."""
    if type(event) is dict:
        try:
            return _encoder.encode(event)
        except (TypeError, OverflowError, ValueError):
            return _checked_wire(event)
    return bytes(event) if isinstance(event, bytes | bytearray | memoryview) else _checked_wire(event)


def _checked_wire(event: Event) -> bytes:
    """The wire form of what the encoder does not know: other mappings, and values of other types."""
    return _encoder.encode(plain_event(event))


_HEADER_BYTES: Final = 3
"""A map with a 16-bit count."""
_ATTRIBUTES_MAX: Final = 0xFFFF
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
def _put_bytes(data: Any, at: int, bits: np.uint64, width: int) -> int:
    """Writes the lowest `width` bytes of some bits in big-endian order. Returns the index of the next byte."""
    for place in range(width):
        data[at + place] = np.uint8((bits >> np.uint64(8 * (width - 1 - place))) & np.uint64(0xFF))
    return at + width


@part
def _put_integer(data: Any, at: int, value: int) -> int:
    width = _integer_bytes(value) - 1
    if width:
        data[at] = 0xD1 if width == 2 else (0xD2 if width == 4 else 0xD3)
        at += 1
    return _put_bytes(data, at, np.uint64(value), max(width, 1))


@part
def _put_name(data: Any, at: int, name: Any) -> int:
    for place in range(len(name)):
        data[at + place] = name[place]
    return at + len(name)


@kernel
def _add_numbers(sizes: Any, counts: Any, values: Any, valid: Any, kind: int, name_bytes: int) -> None:
    """Adds to the size of each row the bytes of a column of numbers or booleans. `values` have 64 bits each."""
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
    """Appends a column of numbers or booleans to each row."""
    for row in range(len(cursors)):
        if not valid[row]:
            continue
        at = _put_name(data, cursors[row], name)
        if kind == 0:
            at = _put_integer(data, at, values[row])
        elif kind == 3:
            data[at] = 0xC2 + (values[row] & 1)
            at += 1
        else:
            data[at] = 0xCF if kind == 1 else 0xCB
            at = _put_bytes(data, at + 1, np.uint64(values[row]), 8)
        cursors[row] = at


@part
def _string_header_bytes(length: int) -> int:
    if length <= 31:
        return 1
    return 2 if length <= 0xFF else (3 if length <= 0xFFFF else 5)


@kernel
def _add_strings(sizes: Any, counts: Any, offsets: Any, valid: Any, name_bytes: int) -> None:
    """Adds to the size of each row the bytes of a column of strings."""
    for row in range(len(sizes)):
        if valid[row]:
            length = offsets[row + 1] - offsets[row]
            counts[row] += 1
            sizes[row] += name_bytes + _string_header_bytes(length) + length


@kernel
def _write_strings(data: Any, cursors: Any, offsets: Any, texts: Any, valid: Any, name: Any) -> None:
    """Appends a column of strings to each row."""
    for row in range(len(cursors)):
        if not valid[row]:
            continue
        at = _put_name(data, cursors[row], name)
        first = offsets[row]
        length = offsets[row + 1] - first
        if length <= 31:
            data[at] = 0xA0 + length
            at += 1
        else:
            width = _string_header_bytes(length) - 1
            data[at] = 0xD9 if width == 1 else (0xDA if width == 2 else 0xDB)
            at = _put_bytes(data, at + 1, np.uint64(length), width)
        for place in range(length):
            data[at + place] = texts[first + place]
        cursors[row] = at + length


@kernel
def _write_headers(data: Any, starts: Any, counts: Any) -> None:
    """Writes the number of attributes at the start of each row."""
    for row in range(len(counts)):
        data[starts[row]] = 0xDE
        data[starts[row] + 1] = counts[row] >> 8
        data[starts[row] + 2] = counts[row] & 0xFF


class _NumberColumn:
    """A column of numbers or booleans, 64 bits per value."""

    def __init__(self, name: _Bytes, kind: int, values: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_]) -> None:
        self._name, self._kind, self._values, self._valid = name, kind, values, valid

    def add(self, sizes: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
        """Adds the bytes that each row needs."""
        _add_numbers(sizes, counts, self._values, self._valid, self._kind, len(self._name))

    def write(self, data: _Bytes, cursors: npt.NDArray[np.int64]) -> None:
        """Appends the values to the rows."""
        _write_numbers(data, cursors, self._values, self._valid, self._kind, self._name)


class _StringColumn:
    """A column of strings."""

    def __init__(
        self, name: _Bytes, offsets: npt.NDArray[np.int64], texts: _Bytes, valid: npt.NDArray[np.bool_]
    ) -> None:
        self._name, self._offsets, self._texts, self._valid = name, offsets, texts, valid

    def add(self, sizes: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
        """Adds the bytes that each row needs."""
        _add_strings(sizes, counts, self._offsets, self._valid, len(self._name))

    def write(self, data: _Bytes, cursors: npt.NDArray[np.int64]) -> None:
        """Appends the values to the rows."""
        _write_strings(data, cursors, self._offsets, self._texts, self._valid, self._name)


def batch_table(batch: pa.RecordBatch, names: Collection[str] | None = None) -> WireTable:
    """The events of a batch, one for each row. Nulls are absent attributes; a struct with a field for each type (see
    `event_batches`) gives the field that is set. With `names`, only these attributes are encoded.

    A batch with lists, which are arrays, takes longer. EventError for a column that cannot be an attribute, for NaN and
    infinity, and for a struct with two values in one row.
    """
    import pyarrow as pa

    if any(pa.types.is_list(each.type) for each in batch.schema if names is None or each.name in names):
        return event_table(
            from_arrow(batch.select([each for each in batch.schema.names if not names or each in names]))
        )
    rows = batch.num_rows
    wanted = [place for place, name in enumerate(batch.schema.names) if names is None or name in names]
    titles = [batch.schema.names[place] for place in wanted]
    if len(set(titles)) < len(titles):
        raise EventError("two columns of the batch have the same name", do="give each column a name of its own")
    columns = [column for place in wanted for column in _columns(batch.schema.names[place], batch.column(place))]
    sizes = np.full(rows, _HEADER_BYTES, np.int64)
    counts = np.zeros(rows, np.int64)
    for column in columns:
        column.add(sizes, counts)
    if counts.max(initial=0) > _ATTRIBUTES_MAX:
        raise EventError(f"an event of the batch has more than {_ATTRIBUTES_MAX} attributes", do="select fewer columns")
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    _write_headers(data, offsets, counts)
    cursors = offsets[:-1] + _HEADER_BYTES
    for column in columns:
        column.write(data, cursors)
    data.flags.writeable = False  # like other tables: the kernels are compiled for one type of array
    return WireTable(data, offsets)


def _selected(batch: pa.RecordBatch, names: Collection[str]) -> list[str]:
    return [name for name in batch.schema.names if name in names]


def _columns(name: str, array: pa.Array) -> Iterator[_NumberColumn | _StringColumn]:
    """A column as the kernels take it: itself, or each field of a struct."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if problem := problem_of_name(name):
        raise EventError(problem)
    kind = array.type
    if not pa.types.is_struct(kind):
        yield from _plain_columns(name, array)
        return
    members = [pc.struct_field(array, [place]) for place in range(kind.num_fields)]
    if len(members) > 1:
        present = np.sum([_valid(member) for member in members], axis=0)
        if present.max(initial=0) > 1:
            row = int(np.argmax(present > 1))
            raise EventError(f"attribute {name!r} has {present[row]} values in row {row} of the batch instead of one")
    for member in members:
        yield from _plain_columns(name, member)


def _plain_columns(name: str, array: pa.Array) -> Iterator[_NumberColumn | _StringColumn]:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_null(kind):
        return
    if pa.types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    header, valid = _name_bytes(name), _valid(array)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        yield _string_column(header, array, valid)
    elif pa.types.is_boolean(kind):
        values = pc.fill_null(array, False).cast(pa.int8()).to_numpy().astype(np.int64)
        yield _NumberColumn(header, _BOOLEAN, values, valid)
    elif pa.types.is_integer(kind):
        unsigned = pa.types.is_uint64(kind)
        values = pc.fill_null(array, 0).cast(pa.uint64() if unsigned else pa.int64()).to_numpy()
        yield _NumberColumn(header, _UNSIGNED if unsigned else _INTEGER, np.array(values).view(np.int64), valid)
    elif pa.types.is_floating(kind):
        floats = np.array(pc.fill_null(array.cast(pa.float64()), 0.0).to_numpy())
        finite = np.isfinite(floats)
        if not finite.all():
            raise EventError(
                f"attribute {name!r} is NaN or infinity in row {int(np.argmin(finite))} of the batch",
                do="write null where there is no value",
            )
        yield _NumberColumn(header, _FLOAT, floats.view(np.int64), valid)
    else:
        raise EventError(
            f"the column {name!r} is of type {kind}, which is not a type of attributes",
            do="use strings, numbers or booleans",
        )


def _string_column(header: _Bytes, array: pa.Array, valid: npt.NDArray[np.bool_]) -> _StringColumn:
    import pyarrow as pa

    wide = pa.types.is_large_string(array.type)
    _, places, texts = array.buffers()
    kind: type[np.int32] | type[np.int64] = np.int64 if wide else np.int32
    offsets = np.zeros(len(array) + 1, np.int64)
    if places is not None and len(array):
        offsets[:] = np.frombuffer(places, kind)[array.offset : array.offset + len(array) + 1]
    held = np.frombuffer(texts, np.uint8) if texts is not None else np.zeros(0, np.uint8)
    return _StringColumn(header, offsets, held, valid)


def _valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Which rows have a value."""
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    import pyarrow.compute as pc

    return np.array(pc.is_valid(array).to_numpy(zero_copy_only=False))


def _name_bytes(name: str) -> _Bytes:
    """A name in MessagePack."""
    return np.frombuffer(bytearray(msgspec.msgpack.encode(name)), np.uint8)
