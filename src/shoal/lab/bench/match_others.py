"""The other contenders of `shoal bench match`: naive Python, NumPy, Polars and DuckDB.

Owns how each of them is used. All run on one thread and take one event at a time. Polars and DuckDB are optional, and
are imported when they are used. Columns of filters are made in `filter_columns`.
"""

from __future__ import annotations

import math
import os
import re
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

import msgspec
import numpy as np
import pyarrow as pa

from shoal.filters.filter import Filter
from shoal.filters.wildcards import parts_of
from shoal.lab.bench.filter_columns import NOT_THERE, NUMERIC, PATTERNS, FilterColumn, Test, columns_of
from shoal.lab.bench.matcher import Ids, nbytes_of

NAIVE: Final = "naive"
WEIGHED_MAX: Final = 10_000
"""Filters whose memory is measured to estimate that of all."""


class OtherMatcher(ABC):
    """A contender that takes one event at a time."""

    name: str
    batched = False
    words: ClassVar[str]
    """A description of its method."""

    def __init__(self, filters: list[Filter]) -> None:
        self._decode = msgspec.msgpack.Decoder(dict[str, str | int | float | bool | list[str]]).decode

    @staticmethod
    def cannot(load: str) -> str | None:
        """Why it cannot run a load; None if it can."""
        return None

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Memory that its filters use."""

    def take(self, events: bytes) -> int:
        """Matches one event."""
        return len(self.ids(events))

    @abstractmethod
    def ids(self, event: bytes) -> Ids:
        """The ids for one event."""


class NaiveMatcher(OtherMatcher):
    """A list of filters, each evaluated in Python."""

    name = NAIVE
    words = "Filter.matches of every filter, in Python"

    def __init__(self, filters: list[Filter]) -> None:
        super().__init__(filters)
        self._filters = list(filters)

    @property
    def nbytes(self) -> int:
        """The list and everything in it, estimated from a sample."""
        sample = self._filters[:WEIGHED_MAX]
        return round(nbytes_of(sample) * len(self._filters) / len(sample))

    def ids(self, event: bytes) -> Ids:
        """The ids for one event."""
        attributes = self._decode(event)
        found = [place for place, each in enumerate(self._filters) if each.matches(attributes)]
        return np.array(found, dtype=np.uint32)


class NumpyMatcher(OtherMatcher):
    """Dense columns, scanned whole for each event.

    Every test of an attribute is an array with a value for each filter. The arrays of the attributes of an event are
    compared, and the tests that hold are counted: a filter matches if all of its tests hold. Filters without a test
    have a value that fails it, so that it is not counted. Attributes that the event lacks cost nothing.
    """

    name = "numpy"
    words = (
        "dense arrays, one for each test of an attribute, compared whole for each event; tests that hold are counted, "
        "and filters whose tests all hold match"
    )
    _compare: Final[dict[Test, Any]] = {Test.LOW: np.less_equal, Test.HIGH: np.greater_equal, Test.EQUAL: np.equal}

    def __init__(self, filters: list[Filter]) -> None:
        super().__init__(filters)
        count = len(filters)
        columns = columns_of(filters)
        self._columns = [(column, column.dense(count, column.failing)) for column in columns]
        self._needed = np.zeros(count, np.uint8)
        for column in columns:
            self._needed[column.rows] += 1
        self._held = np.empty(count, np.uint8)
        self._outcome = np.empty(count, np.bool_)

    @staticmethod
    def cannot(load: str) -> str | None:
        """Patterns do not fit columns."""
        return (
            "NumPy has no fast comparison of one string with a column of patterns"
            if load in ("strings", "mixed")
            else None
        )

    @property
    def nbytes(self) -> int:
        """The columns, and the number of tests of each filter."""
        return int(sum(dense.nbytes for _, dense in self._columns) + self._needed.nbytes)

    def ids(self, event: bytes) -> Ids:
        """The ids for one event."""
        attributes = self._decode(event)
        held, outcome = self._held, self._outcome
        held.fill(0)
        for column, dense in self._columns:
            value = attributes.get(column.attribute)
            if value is not None:
                operand = column.code(value) if column.test is Test.EQUAL else value
                self._compare[column.test](dense, operand, out=outcome)
                held += outcome.view(np.uint8)
        np.equal(held, self._needed, out=outcome)
        return np.flatnonzero(outcome).astype(np.uint32)


class PolarsMatcher(OtherMatcher):
    """A data frame of filters, and an expression for each event. Filters without a test have a value that passes it."""

    name = "polars"
    words = "a data frame with a column for each test; for each event one expression over all of them; one thread"

    def __init__(self, filters: list[Filter]) -> None:
        import polars

        super().__init__(filters)
        count = len(filters)
        self._polars = polars
        self._columns = [(column, column.everywhere(count)) for column in columns_of(filters)]
        self._frame = polars.DataFrame(
            {
                "id": np.arange(count, dtype=np.uint32),
                **{column.name: polars.Series(self._dense(column, count)) for column, _ in self._columns},
            }
        )

    @staticmethod
    def cannot(load: str) -> str | None:
        """Polars may not be installed. It must know its number of threads before it is imported."""
        os.environ.setdefault("POLARS_MAX_THREADS", "1")
        try:
            import polars  # noqa: F401
        except ImportError:
            return "Polars is not installed (pip install 'shoal[bench]')"
        return None

    @property
    def nbytes(self) -> int:
        """The columns."""
        return int(self._frame.estimated_size())

    def ids(self, event: bytes) -> Ids:
        """The ids for one event."""
        attributes = self._decode(event)
        tests, patterns = (
            [
                self._expression(column, everywhere, attributes)
                for column, everywhere in self._columns
                if (column.test is Test.LIKE) is is_last
            ]
            for is_last in (False, True)
        )
        all_of = self._polars.all_horizontal
        if patterns:  # regular expressions take long: only for rows that pass the other tests
            return self._frame.filter(all_of(*tests)).filter(all_of(*patterns))["id"].to_numpy()
        return self._frame.select(self._polars.col("id").filter(all_of(*tests)))["id"].to_numpy()

    def _expression(self, column: FilterColumn, everywhere: bool, attributes: dict[str, Any]) -> Any:
        held = self._polars.col(column.name)
        if column.test is Test.ANY:
            return held.is_in(column.operands(attributes))
        value = column.operand(attributes)
        match column.test:
            case Test.LOW:
                return held <= value
            case Test.HIGH:
                return held >= value
            case Test.EQUAL:
                return held == value if everywhere else (held == value) | (held == NOT_THERE)
            case Test.PREFIX:
                return self._polars.lit(value).str.starts_with(held)
            case Test.SUFFIX:
                return self._polars.lit(value).str.ends_with(held)
            case Test.LIKE:
                return self._polars.lit(value).str.contains(held, literal=False)
            case Test.UNLIKE:
                return held != value
        return self._polars.lit(value).str.contains(held, literal=True)

    @staticmethod
    def _dense(column: FilterColumn, count: int) -> Any:
        dense = column.dense(count, column.passing)
        if column.test is Test.LIKE:
            return [f"^{'.*'.join(map(re.escape, parts_of(pattern)))}$" for pattern in dense]
        return dense.tolist() if column.test in PATTERNS else dense


class DuckdbMatcher(OtherMatcher):
    """A table of filters, and one prepared query for all events. Filters without a test have a value that passes it."""

    name = "duckdb"
    words = "a table in memory with a column for each test; one prepared query, executed for each event; one thread"
    _tests: Final = {
        Test.LOW: "{held} <= {value}",
        Test.HIGH: "{held} >= {value}",
        Test.PREFIX: "starts_with({value}, {held})",
        Test.SUFFIX: "ends_with({value}, {held})",
        Test.CONTAINS: "contains({value}, {held})",
        Test.LIKE: "{value} GLOB {held}",
        Test.ANY: "list_contains({value}, {held})",
        Test.UNLIKE: "{held} <> {value}",
    }

    def __init__(self, filters: list[Filter]) -> None:
        import duckdb

        super().__init__(filters)
        count = len(filters)
        self._columns = columns_of(filters)
        arrays = {column.name: pa.array(column.dense(count, column.passing)) for column in self._columns}
        self._connection = duckdb.connect(config={"threads": 1})
        self._connection.register("given", pa.table({"id": np.arange(count, dtype=np.uint32), **arrays}))
        self._connection.execute("CREATE TABLE filters AS SELECT * FROM given")
        self._connection.unregister("given")
        tests = [self._sql(column, f"${place}", count) for place, column in enumerate(self._columns, 1)]
        self._connection.execute(f"PREPARE matching AS SELECT id FROM filters WHERE {' AND '.join(tests)}")

    @staticmethod
    def cannot(load: str) -> str | None:
        """DuckDB may not be installed."""
        try:
            import duckdb  # noqa: F401
        except ImportError:
            return "DuckDB is not installed (pip install 'shoal[bench]')"
        return None

    @property
    def nbytes(self) -> int:
        """The table."""
        used = "SELECT sum(memory_usage_bytes) FROM duckdb_memory() WHERE tag = 'IN_MEMORY_TABLE'"
        (size,) = self._connection.execute(used).fetchall()[0]
        return int(size)

    def ids(self, event: bytes) -> Ids:
        """The ids for one event."""
        attributes = self._decode(event)
        values = ", ".join(self._literal(column, attributes) for column in self._columns)
        found: Ids = self._connection.execute(f"EXECUTE matching({values})").fetchnumpy()["id"]
        return found

    def _sql(self, column: FilterColumn, value: str, count: int) -> str:
        held = f'"{column.name}"'
        if column.test is Test.EQUAL:
            return f"{held} = {value}" if column.everywhere(count) else f"({held} = {value} OR {held} = {NOT_THERE})"
        return self._tests[column.test].format(held=held, value=value)

    @staticmethod
    def _literal(column: FilterColumn, attributes: dict[str, Any]) -> str:
        if column.test is Test.ANY:
            return f"{column.operands(attributes)}::INTEGER[]"
        value = column.operand(attributes)
        if isinstance(value, str):
            return "'" + value.replace("'", "''") + "'"
        if column.test in NUMERIC and not math.isfinite(value):
            return f"'{value}'::DOUBLE"
        kind = "DOUBLE" if column.values.dtype.kind == "f" or isinstance(value, float) else "INTEGER"
        return f"{value}::{kind}"


OTHERS: Final[dict[str, type[OtherMatcher]]] = {
    NAIVE: NaiveMatcher,
    "numpy": NumpyMatcher,
    "polars": PolarsMatcher,
    "duckdb": DuckdbMatcher,
}
"""By name, in the order of the rows."""
