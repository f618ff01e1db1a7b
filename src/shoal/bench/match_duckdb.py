"""The DuckDB contender of `shoal bench match`: a table of filters, and one prepared query for all events.

The table has a column for each test; filters without it hold what lets everything through. One thread, as everybody
here has.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from shoal.bench.match_columns import NOT_THERE, NUMERIC, Column, Test, columns_of
from shoal.bench.match_contender import Ids
from shoal.filters.filter import Filter
from shoal.filters.values import Value

WORDS: Final = "a table in memory with a column for each test; one prepared query, executed for each event; one thread"
_TESTS: Final = {
    Test.LOW: "{held} <= {value}",
    Test.HIGH: "{held} >= {value}",
    Test.PREFIX: "starts_with({value}, {held})",
    Test.SUFFIX: "ends_with({value}, {held})",
    Test.CONTAINS: "contains({value}, {held})",
}


def cannot(load: str) -> str | None:
    """It takes every load, if it is here."""
    try:
        import duckdb  # noqa: F401
    except ImportError:
        return "DuckDB is not installed (pip install 'shoal[bench]')"
    return None


class DuckDB:
    """A table."""

    name = "duckdb"
    batched = False

    def __init__(self, filters: list[Filter]) -> None:
        import duckdb

        count = len(filters)
        self._columns = columns_of(filters)
        arrays = {column.name: pa.array(column.dense(count, column.open_end)) for column in self._columns}
        self._connection = duckdb.connect(config={"threads": 1})
        self._connection.register("given", pa.table({"id": np.arange(count, dtype=np.uint32), **arrays}))
        self._connection.execute("CREATE TABLE filters AS SELECT * FROM given")
        self._connection.unregister("given")
        tests = [_sql(column, f"${place}", count) for place, column in enumerate(self._columns, 1)]
        self._connection.execute(f"PREPARE matching AS SELECT id FROM filters WHERE {' AND '.join(tests)}")
        self._decode = msgspec.msgpack.Decoder(dict[str, str | int | float | bool]).decode

    @property
    def nbytes(self) -> int:
        """The table."""
        used = "SELECT sum(memory_usage_bytes) FROM duckdb_memory() WHERE tag = 'IN_MEMORY_TABLE'"
        (size,) = self._connection.execute(used).fetchall()[0]
        return int(size)

    def take(self, events: bytes) -> int:
        """Matches one event."""
        return len(self.ids(events))

    def ids(self, event: bytes) -> Ids:
        """What it finds for one event."""
        attributes = self._decode(event)
        values = ", ".join(_literal(column, column.operand(attributes)) for column in self._columns)
        found: Ids = self._connection.execute(f"EXECUTE matching({values})").fetchnumpy()["id"]
        return found


def _sql(column: Column, value: str, count: int) -> str:
    held = f'"{column.name}"'
    if column.test is Test.EQUAL:
        return f"{held} = {value}" if column.everywhere(count) else f"({held} = {value} OR {held} = {NOT_THERE})"
    return _TESTS[column.test].format(held=held, value=value)


def _literal(column: Column, value: Value) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if column.test in NUMERIC and not math.isfinite(value):
        return f"'{value}'::DOUBLE"
    kind = "DOUBLE" if column.values.dtype.kind == "f" or isinstance(value, float) else "INTEGER"
    return f"{value}::{kind}"


def make(filters: list[Filter]) -> DuckDB:
    """The contender, holding these filters."""
    return DuckDB(filters)
