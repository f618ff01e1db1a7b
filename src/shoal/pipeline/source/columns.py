"""Column types of the source: which columns a reader may select, and which types a writer accepts.

Owns the types. They are checked when a query is planned, so that a wrong one is reported before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import from_arrow_schema

from shoal.errors import ConfigError
from shoal.history.table import read_attributes

if TYPE_CHECKING:
    import pyarrow as pa

TEXT: Final = (spark.StringType, spark.CharType, spark.VarcharType)
SCALARS: Final = (*TEXT, spark.IntegralType, spark.FloatType, spark.DoubleType, spark.BooleanType)
"""Types of an attribute's value."""


def chosen(asked: spark.StructType, existing: pa.Schema) -> list[str]:
    """The columns that a reader selects; ConfigError if the source does not have them with these types."""
    types = {field.name: field.dataType for field in from_arrow_schema(existing)}
    for field in asked:
        if field.name not in types:
            raise ConfigError(
                f"the schema has a column {field.name!r}, which the source does not have",
                do=f"leave the schema out, or choose from {', '.join(types)}",
            )
        if field.dataType != types[field.name]:
            raise ConfigError(
                f"the schema has {field.name} as {field.dataType.simpleString()}, "
                f"but the source has it as {types[field.name].simpleString()}",
                do="leave the schema out, and cast the column after reading",
            )
    return [field.name for field in asked]


def _is_text(type: spark.DataType) -> bool:
    return isinstance(type, (*TEXT, spark.BinaryType))


def _is_attributes(type: spark.DataType) -> bool:
    if isinstance(type, spark.MapType):
        value = type.valueType.elementType if isinstance(type.valueType, spark.ArrayType) else type.valueType
        return isinstance(type.keyType, TEXT) and isinstance(value, SCALARS)
    return isinstance(type, TEXT)


COLUMNS: Final[dict[str, tuple[Callable[[spark.DataType], bool], str]]] = {
    "channel": (_is_text, "text or bytes"),
    "payload": (_is_text, "text or bytes"),
    "attributes": (
        _is_attributes,
        "a map of strings to strings, numbers, booleans or arrays of them, or the JSON text of one",
    ),
}
"""Columns of rows to write: a test of the type, and the accepted types in words."""


def check_written(schema: spark.StructType, channel: str | None) -> None:
    """ConfigError if rows with these columns are not messages. `channel` is the option: the channel of all rows."""
    names = schema.fieldNames()
    if unknown := [name for name in names if name not in COLUMNS]:
        raise ConfigError(
            f"the column {unknown[0]!r} cannot be written", do=f"select only {', '.join(COLUMNS)} before writing"
        )
    if "payload" not in names:
        raise ConfigError("there is no column payload", do="rename the column to publish to payload")
    if (channel is None) == ("channel" not in names):
        raise ConfigError(
            "the channel is not given, or given twice", do="give either a column channel or the option channel"
        )
    for field in schema:
        fits, words = COLUMNS[field.name]
        if not fits(field.dataType):
            raise ConfigError(
                f"the column {field.name} is {field.dataType.simpleString()}", do=f"cast it: it must be {words}"
            )


def row_attributes(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The attributes of each row, without nulls. Arrow gives a map as pairs, and JSON as text."""
    if "attributes" not in batch.schema.names:
        return [{} for _ in range(batch.num_rows)]
    return [_attributes(found) for found in batch["attributes"].to_pylist()]


def _attributes(found: str | list[tuple[str, Any]] | None) -> dict[str, Any]:
    if not isinstance(found, str):
        return {name: value for name, value in found or () if value is not None}
    try:
        return dict(read_attributes(found) or {})
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"the attributes of a row are not a JSON object of strings, numbers, booleans and arrays of them ({error})",
            do='write them like {"country": "FR", "amount": 250}',
        ) from error
