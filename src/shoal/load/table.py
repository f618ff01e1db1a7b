"""Tables of units as NumPy columns, as agents write and readers decode them.

Owns the two column types. pyarrow is not needed: `shoal.load.reports` converts columns to Arrow for the fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from shoal.load.kinds import Type, UnitKind

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Ragged:
    """A column with values of different lengths: row `i` is `values[offsets[i]:offsets[i + 1]]`."""

    offsets: npt.NDArray[np.int32]
    values: Numbers

    @classmethod
    def of_lengths(cls, lengths: Numbers, values: Numbers) -> Ragged:
        """Rows with these lengths, one after the other."""
        offsets = np.zeros(len(lengths) + 1, np.int32)
        lengths.cumsum(out=offsets[1:])
        return cls(offsets, values)

    @classmethod
    def of_names(cls, names: Iterable[bytes]) -> Ragged:
        """A row for each name."""
        given = list(names)
        lengths = np.fromiter(map(len, given), np.int32, len(given))
        return cls.of_lengths(lengths, np.frombuffer(b"".join(given), np.uint8))

    @classmethod
    def of_lists(cls, lists: Iterable[Iterable[int]]) -> Ragged:
        """A row of ids for each list."""
        given = [list(ids) for ids in lists]
        lengths = np.fromiter(map(len, given), np.int32, len(given))
        return cls.of_lengths(lengths, np.array([id for ids in given for id in ids], np.uint64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """The length of each row."""
        return self.offsets[1:] - self.offsets[:-1]

    def row(self, row: int) -> Numbers:
        """The values of one row."""
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def take(self, rows: Ints) -> Ragged:
        """Some rows, in the given order."""
        lengths = self.lengths[rows]
        taken = Ragged.of_lengths(lengths, self.values)
        within = np.arange(taken.offsets[-1]) - taken.offsets[:-1].repeat(lengths)
        return Ragged(taken.offsets, self.values[self.offsets[:-1][rows].repeat(lengths) + within])

    def joined(self, other: Ragged) -> Ragged:
        """These rows, then those of another column."""
        offsets = np.concatenate([self.offsets, self.offsets[-1] + other.offsets[1:]])
        return Ragged(offsets.astype(np.int32, copy=False), np.concatenate([self.values, other.values]))


@dataclass(frozen=True, slots=True)
class UnitTable:
    """The figures of units of one kind in one second. A decoded table may have only some of the kind's columns."""

    kind: UnitKind
    units: Ragged
    """Names, each once."""
    columns: Mapping[str, Numbers | Ragged]
    complete: npt.NDArray[np.bool_]

    @classmethod
    def of_rows(cls, kind: UnitKind, rows: Mapping[bytes, Mapping[str, Any]]) -> UnitTable:
        """A table from rows by unit. Missing values are 0 or an empty list, and rows are complete by default."""
        columns: dict[str, Numbers | Ragged] = {}
        for column in kind.columns:
            if column.type is Type.IDS:
                columns[column.name] = Ragged.of_lists(row.get(column.name, ()) for row in rows.values())
            else:
                type = np.int64 if column.type is Type.INT else np.float64
                columns[column.name] = np.array([row.get(column.name, 0) for row in rows.values()], type)
        complete = np.array([row.get("complete", True) for row in rows.values()], np.bool_)
        return cls(kind, Ragged.of_names(rows), columns, complete)

    def __len__(self) -> int:
        return len(self.complete)

    def __getitem__(self, column: str) -> Numbers:
        """A column of numbers."""
        found = self.columns[column]
        assert not isinstance(found, Ragged)
        return found

    def unit(self, row: int) -> bytes:
        """The name of one unit."""
        return self.units.row(row).tobytes()

    def take(self, rows: Ints) -> UnitTable:
        """Some rows, in the given order."""
        columns = {
            name: column.take(rows) if isinstance(column, Ragged) else column[rows]
            for name, column in self.columns.items()
        }
        return UnitTable(self.kind, self.units.take(rows), columns, self.complete[rows])

    def rows(self) -> dict[bytes, dict[str, Any]]:
        """The rows by unit, as plain numbers and lists."""
        found: dict[bytes, dict[str, Any]] = {self.unit(row): {} for row in range(len(self))}
        for name, column in self.columns.items():
            for row, values in enumerate(found.values()):
                values[name] = column.row(row).tolist() if isinstance(column, Ragged) else column[row].item()
        for complete, values in zip(self.complete.tolist(), found.values(), strict=True):
            values["complete"] = complete
        return found


@lru_cache(maxsize=64)
def empty_table(kind: UnitKind) -> UnitTable:
    """A table without rows."""
    return UnitTable.of_rows(kind, {})
