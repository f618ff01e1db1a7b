"""Arrays of records whose fields are attributes, as compiled loops see them: for loops that run as Python.

Owns the view, not the records: what a loop writes is in the array, and compiled loops go on from there.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt


class Rows:
    """The records of an array."""

    __slots__ = ("array", "columns", "kind", "shape")

    def __init__(self, array: npt.NDArray[np.void]) -> None:
        self.array = array
        self.shape = array.shape
        self.columns = tuple(array[name] for name in array.dtype.names or ())
        self.kind = _kind(array.dtype)

    def __getitem__(self, index: Any) -> Any:
        return self.kind(self, index)

    def __setitem__(self, index: Any, row: Row) -> None:
        self.array[index] = row.rows.array[row.index]


class Row:
    """One record. Its fields are attributes of a subclass."""

    __slots__ = ("index", "rows")

    def __init__(self, rows: Rows, index: Any) -> None:
        self.rows = rows
        self.index = index


@cache
def _kind(dtype: np.dtype[Any]) -> type[Row]:
    """The class of the records of a type."""
    fields = {name: _field(column) for column, name in enumerate(dtype.names or ())}
    return type("Record", (Row,), {"__slots__": (), **fields})


def _field(column: int) -> property:
    def read(row: Row) -> Any:
        return row.rows.columns[column][row.index]

    def write(row: Row, value: Any) -> None:
        row.rows.columns[column][row.index] = value

    return property(read, write)
