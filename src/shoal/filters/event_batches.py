"""Event batches: many events as the columns of one Arrow record batch, and back.

Owns the columnar form of events. Never touches filters. Arrow is imported by the first call, not with the module.

Every attribute that any event of the batch has is a column of its name, in order of first appearance; a null is an
absent attribute. Where all values of a column are of one kind it has a plain type:

    string      string
    bool        boolean
    int64       number, all of them integers; uint64 if they reach past 2**63
    double      number, where every integer among them is exact as a float64

Where kinds mix, or integers past 2**53 occur with fractions, the column is a struct with one nullable field for each
type that occurs (`string`, `bool`, `int64`, `uint64`, `double`), at most one of which is set. Parquet, Spark and
DataFrame libraries read plain columns and structs, but not unions. No number loses digits either way. `from_arrow` also
reads other widths of integers and floats, large strings and dictionary-encoded strings. Arrays are lists of a plain
type.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from shoal.errors import EventError
from shoal.filters.events import check_event
from shoal.filters.values import EXACT_MAX, INTEGER_MAX, Event, Value
from shoal.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    import pyarrow

_SIGNED_MAX: Final = INTEGER_MAX >> 1
_Column: TypeAlias = list[Any]


def to_arrow(events: Iterable[Event], limits: Limits = DEFAULT_LIMITS) -> pyarrow.RecordBatch:
    """The events, checked, as a record batch with one row for each."""
    import pyarrow

    columns: dict[str, _Column] = {}
    rows = 0
    for event in events:
        for name, value in check_event(event, limits).items():
            column = columns.setdefault(name, [])
            column.extend([None] * (rows - len(column)))
            column.append(value)
        rows += 1
    arrays = {name: _array(column + [None] * (rows - len(column))) for name, column in columns.items()}
    fields = [pyarrow.field(name, array.type) for name, array in arrays.items()]
    if not arrays:  # a record batch without columns keeps its row count only if it is made from structs
        return pyarrow.RecordBatch.from_struct_array(pyarrow.array([{}] * rows, pyarrow.struct([])))
    return pyarrow.RecordBatch.from_arrays(list(arrays.values()), schema=pyarrow.schema(fields))


def is_arrow(found: object) -> bool:
    """Whether an object is an Arrow record batch or table. It cannot be one if Arrow was never imported."""
    arrow = sys.modules.get("pyarrow")
    return arrow is not None and isinstance(found, arrow.RecordBatch | arrow.Table)


def from_arrow(batch: pyarrow.RecordBatch | pyarrow.Table, limits: Limits = DEFAULT_LIMITS) -> list[dict[str, Any]]:
    """The events of a record batch or table, checked, one for each row."""
    if not is_arrow(batch):
        raise EventError(f"an Arrow record batch or table is needed, not something of type {type(batch).__name__}")
    events: list[dict[str, Any]] = [{} for _ in range(batch.num_rows)]
    for field, column in zip(batch.schema, batch.columns, strict=True):
        values = _values(field, column)
        for event, value in zip(events, values, strict=True):
            if value is None:
                continue
            if field.name in event:
                raise EventError(f"two columns of the batch are named {field.name!r}")
            event[field.name] = value
    return [_row(row, event, limits) for row, event in enumerate(events)]


def _values(field: pyarrow.Field, column: pyarrow.Array | pyarrow.ChunkedArray) -> list[Any]:
    """The values of a column, None for nulls."""
    import pyarrow

    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError as error:
        raise EventError(f"the column {field.name!r} contains a string that is not UTF-8 ({error})") from error
    return [_only_member(field.name, value) for value in values] if pyarrow.types.is_struct(field.type) else values


def _row(row: int, event: Event, limits: Limits) -> dict[str, Any]:
    try:
        return check_event(event, limits)
    except EventError as error:
        raise EventError(f"row {row}: {error.what}", do=error.do) from error


def _only_member(name: str, members: Mapping[str, Any] | None) -> Any:
    """The one value in a struct that has a field for each type."""
    present = [member for member in (members or {}).values() if member is not None]
    if len(present) > 1:
        raise EventError(f"attribute {name!r} has {len(present)} values in one row of the batch instead of one")
    return present[0] if present else None


def _array(column: _Column) -> pyarrow.Array:
    """The column as the plain type that holds all values, or as a struct of several types."""
    import pyarrow

    if any(isinstance(value, list) for value in column):
        return _list_array(column)
    types = {_type_name(value) for value in column if value is not None}
    if types == {"int64", "uint64"} and all(not isinstance(value, int) or value >= 0 for value in column):
        types = {"uint64"}
    elif types == {"int64", "double"} and all(not isinstance(v, int) or abs(v) <= EXACT_MAX for v in column):
        types = {"double"}
    if len(types) == 1:
        return _plain_array(column, types.pop())
    names = sorted(types)
    members = [
        [value if value is not None and _type_name(value) == name else None for value in column] for name in names
    ]
    return pyarrow.StructArray.from_arrays(
        [_plain_array(member, name) for name, member in zip(names, members, strict=True)],
        names,
        mask=pyarrow.array([value is None for value in column]),
    )


def _list_array(column: _Column) -> pyarrow.Array:
    """A column of arrays. An attribute that is sometimes a single value is an array of one there."""
    import pyarrow

    lists = [value if isinstance(value, list) else [value] for value in column if value is not None]
    elements = _array([each for some in lists for each in some])
    if pyarrow.types.is_struct(elements.type):
        raise EventError("the arrays of an attribute have elements of several kinds, which no column holds")
    found = iter(lists)
    rows = [None if value is None else next(found) for value in column]
    floats = pyarrow.types.is_floating(elements.type)
    return pyarrow.array(
        [None if row is None else [float(each) if floats else each for each in row] for row in rows],
        pyarrow.list_(elements.type),
    )


def _plain_array(column: _Column, type_name: str) -> pyarrow.Array:
    import pyarrow

    if type_name == "double":
        column = [None if value is None else float(value) for value in column]
    return pyarrow.array(column, pyarrow.type_for_alias(type_name))


def _type_name(value: Value) -> str:
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64" if value <= _SIGNED_MAX else "uint64"
    return "double"
