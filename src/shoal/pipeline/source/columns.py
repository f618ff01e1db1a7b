"""Columns of the source: which a reader may ask for, and what those of rows to write must be.

Owns the types. They are looked at when a query is planned, so that a wrong one is told before anything runs.
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
"""What the value of an attribute may be."""


def chosen(asked: spark.StructType, there: pa.Schema) -> list[str]:
    """The columns that a reader asks for; ConfigError if the source does not have them so."""
    types = {field.name: field.dataType for field in from_arrow_schema(there)}
    for field in asked:
        if field.name not in types:
            raise ConfigError(
                f"the schema has a column {field.name!r}, which is not there",
                do=f"leave the schema out, or name columns out of {', '.join(types)}",
            )
        if field.dataType != types[field.name]:
            raise ConfigError(
                f"the schema has {field.name} as {field.dataType.simpleString()}, "
                f"and it is {types[field.name].simpleString()}",
                do="leave the schema out, and cast the column behind the source",
            )
    return [field.name for field in asked]


def _is_text(type: spark.DataType) -> bool:
    return isinstance(type, (*TEXT, spark.BinaryType))


def _is_attributes(type: spark.DataType) -> bool:
    if isinstance(type, spark.MapType):
        return isinstance(type.keyType, TEXT) and isinstance(type.valueType, SCALARS)
    return isinstance(type, TEXT)


COLUMNS: Final[dict[str, tuple[Callable[[spark.DataType], bool], str]]] = {
    "channel": (_is_text, "text or bytes"),
    "payload": (_is_text, "text or bytes"),
    "attributes": (_is_attributes, "a map of texts to texts, numbers or truths, or the JSON text of one"),
}
"""What rows to write may have: whether a type is one of a column's, and those in words."""


def check_written(schema: spark.StructType, channel: str | None) -> None:
    """ConfigError if rows with these columns are no messages. `channel` is that of all rows."""
    names = schema.fieldNames()
    if unknown := [name for name in names if name not in COLUMNS]:
        raise ConfigError(f"a message has no {unknown[0]!r}", do=f"give columns out of {', '.join(COLUMNS)}")
    if "payload" not in names:
        raise ConfigError("there is no column payload", do="name the bytes or texts to publish so")
    if (channel is None) == ("channel" not in names):
        raise ConfigError("a row has no channel, or two", do="give a column channel, or the option channel")
    for field in schema:
        fits, words = COLUMNS[field.name]
        if not fits(field.dataType):
            raise ConfigError(
                f"the column {field.name} is {field.dataType.simpleString()}", do=f"cast it: it must be {words}"
            )


def attributes_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The attributes of each row, without those that are null: a map comes from Arrow as pairs, JSON as text."""
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
            f"a row has attributes that are no JSON object of texts, numbers and truths ({error})",
            do='write them as the source gives them: {"country": "FR", "amount": 250}',
        ) from error
