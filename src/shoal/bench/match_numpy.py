"""The NumPy contender of `shoal bench match`: dense columns, scanned whole for each event.

Every test of an attribute is an array with a value for each filter. For an event, the arrays of the attributes that it
has are compared and the tests that hold are counted; a filter matches if all of its tests do. Filters without a test
hold a value that fails it, so it is not counted, and attributes that the event lacks cost nothing.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from shoal.bench.match_columns import NOT_THERE, Column, Test, columns_of
from shoal.bench.match_contender import Ids
from shoal.filters.filter import Filter

WORDS: Final = (
    "dense arrays, one for each test of an attribute, compared whole for each event; tests that hold are counted, and "
    "filters whose tests all hold match"
)
_COMPARE: Final[dict[Test, Any]] = {Test.LOW: np.less_equal, Test.HIGH: np.greater_equal, Test.EQUAL: np.equal}


def cannot(load: str) -> str | None:
    """It has no patterns that are fit for a column."""
    return "NumPy has no fast comparison of one string with a column of patterns" if load == "strings" else None


class Numpy:
    """Columns and counts."""

    name = "numpy"
    batched = False

    def __init__(self, filters: list[Filter]) -> None:
        count = len(filters)
        columns = columns_of(filters)
        self._columns = [(column, column.dense(count, _failing(column))) for column in columns]
        self._needed = np.zeros(count, np.uint8)
        for column in columns:
            self._needed[column.rows] += 1
        self._held = np.empty(count, np.uint8)
        self._outcome = np.empty(count, np.bool_)
        self._decode = msgspec.msgpack.Decoder(dict[str, str | int | float | bool]).decode

    @property
    def nbytes(self) -> int:
        """The columns, and how many tests each filter has."""
        return int(sum(dense.nbytes for _, dense in self._columns) + self._needed.nbytes)

    def take(self, events: bytes) -> int:
        """Matches one event."""
        return len(self.ids(events))

    def ids(self, event: bytes) -> Ids:
        """What it finds for one event."""
        attributes = self._decode(event)
        held, outcome = self._held, self._outcome
        held.fill(0)
        for column, dense in self._columns:
            value = attributes.get(column.attribute)
            if value is not None:
                _COMPARE[column.test](dense, column.code(value) if column.test is Test.EQUAL else value, out=outcome)
                held += outcome.view(np.uint8)
        np.equal(held, self._needed, out=outcome)
        return np.flatnonzero(outcome).astype(np.uint32)


def _failing(column: Column) -> Any:
    """What no event passes."""
    return NOT_THERE if column.test is Test.EQUAL else column.ends[column.test is Test.LOW]


def make(filters: list[Filter]) -> Numpy:
    """The contender, holding these filters."""
    return Numpy(filters)
