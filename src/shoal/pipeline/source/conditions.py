"""Conditions on rows that Spark passes to a batch, so that fewer entries are read and fewer rows leave the worker.

Owns what a condition means. Spark evaluates every condition again on the rows that it gets, so a condition only has to
keep all rows that Spark would keep. This module runs in Spark's workers and does not import Spark.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

EQUAL: Final = "="
IN: Final = "in"
PREFIX: Final = "prefix"
LESS: Final = "<"
LESS_EQUAL: Final = "<="
GREATER: Final = ">"
GREATER_EQUAL: Final = ">="

_ORDER: Final[dict[str, Callable[..., Any]]] = {
    LESS: pc.less,
    LESS_EQUAL: pc.less_equal,
    GREATER: pc.greater,
    GREATER_EQUAL: pc.greater_equal,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a column with a value: an Arrow scalar, or an Arrow array for `IN`."""

    column: str
    test: str
    value: Any

    def on(self, column: pa.Array) -> pa.Array:
        """Which values of a column satisfy it; null counts as no."""
        if self.test == EQUAL:
            return pc.equal(column, self.value)
        if self.test == IN:
            return pc.is_in(column, self.value)
        if self.test == PREFIX:
            return pc.starts_with(column, self.value.as_py())
        return _ORDER[self.test](column, self.value)

    def holds(self, text: str) -> bool:
        """Whether it holds for a value of a text column."""
        return bool(self.on(pa.array([text], pa.string()))[0].as_py())


def condition(schema: pa.Schema, column: str, test: str, value: Any) -> Condition | None:
    """A condition; None if a column of this type cannot be compared here as Spark does it (floats: NaN)."""
    if column not in schema.names:
        return None
    type = schema.field(column).type
    is_text, is_time = pa.types.is_string(type), pa.types.is_timestamp(type)
    if test == PREFIX and not is_text:
        return None
    if test in _ORDER and not (is_time or pa.types.is_integer(type)):
        return None
    if not (is_text or is_time or pa.types.is_integer(type) or pa.types.is_boolean(type) or pa.types.is_binary(type)):
        return None
    values = value if test == IN else [value]
    if any(each is None or (isinstance(each, dt.datetime) and each.tzinfo is None) for each in values):
        return None
    try:
        array = pa.array(values, type)
    except (pa.ArrowException, TypeError, OverflowError):
        return None
    return Condition(column, test, array if test == IN else array[0])


def matching_rows(batch: pa.RecordBatch, conditions: Iterable[Condition]) -> pa.RecordBatch:
    """The rows that satisfy all conditions."""
    for each in conditions:
        batch = batch.filter(each.on(batch.column(each.column)))
    return batch
