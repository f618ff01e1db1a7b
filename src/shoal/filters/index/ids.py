"""Ids: which subscriptions there are.

Owns a set of 32-bit numbers in one array: 5 to 7 bytes each, where a Python set takes 60.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shoal.filters.index.intrinsics import whole
from shoal.wire.rawbytes import kernel, part

ID_MAX: Final = 2**32 - 2
_FIRST_SLOTS: Final = 64
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


@part
def _home(number: Any, slots: int) -> int:
    mixed = (np.uint64(number) * _MIX) >> np.uint64(32)
    return whole((mixed * np.uint64(slots)) >> np.uint64(32))


@part
def find_slot(table: Any, number: int) -> int:
    """Where a number is in a table (as one more than it), or where it would be."""
    slot = _home(number, len(table))
    while table[slot] != 0 and table[slot] != np.uint32(number + 1):
        slot = slot + 1 if slot + 1 < len(table) else 0
    return slot


@kernel
def _add_all(table: Any, numbers: Any) -> int:
    """Adds numbers until one is there already; how many were added."""
    for done in range(len(numbers)):
        slot = find_slot(table, whole(numbers[done]))
        if table[slot] != 0:
            return done
        table[slot] = np.uint32(whole(numbers[done]) + 1)
    return len(numbers)


@kernel
def close_gap(table: Any, gap: int) -> None:
    """Takes the number at a slot out, and moves those behind it that would not be found any more."""
    size = len(table)
    slot = gap
    while True:
        slot = slot + 1 if slot + 1 < size else 0
        if table[slot] == 0:
            break
        home = _home(whole(table[slot]) - 1, size)
        if (slot - home) % size >= (slot - gap) % size:
            table[gap] = table[slot]
            gap = slot
    table[gap] = 0


@kernel
def _remove_all(table: Any, numbers: Any) -> int:
    """Takes numbers out until one is not there; how many were taken out."""
    for done in range(len(numbers)):
        slot = find_slot(table, whole(numbers[done]))
        if table[slot] == 0:
            return done
        close_gap(table, slot)
    return len(numbers)


@kernel
def _has(table: Any, number: int) -> bool:
    return bool(table[find_slot(table, number)] != 0)


class Ids:
    """A set of numbers from 0 to `ID_MAX`."""

    def __init__(self) -> None:
        self._table = np.zeros(_FIRST_SLOTS, np.uint32)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        return bool(_has(self._table, number))

    @property
    def nbytes(self) -> int:
        """Bytes that the set holds."""
        return self._table.nbytes

    @property
    def table(self) -> npt.NDArray[np.uint32]:
        """The array: `of_table` makes the same set of it."""
        return self._table

    @classmethod
    def of_table(cls, table: npt.NDArray[np.uint32], count: int) -> Ids:
        """The set that `table` came from, which has `count` numbers."""
        ids = cls()
        ids._table, ids._count = table, count
        return ids

    def added(self) -> None:
        """Somebody has added a number to the table."""
        self._count += 1

    def removed(self) -> None:
        """Somebody has taken a number out of the table."""
        self._count -= 1

    def add_all(self, numbers: npt.NDArray[np.uint32]) -> int:
        """Adds all numbers, or none; how many could be added before one was there already."""
        self.make_room(len(numbers))
        added = int(_add_all(self._table, numbers))
        self._count += added
        if added < len(numbers):
            self.remove_all(numbers[:added])
        return added

    def remove_all(self, numbers: npt.NDArray[np.uint32]) -> int:
        """Takes all numbers out, or none; how many could be taken out before one was not there."""
        removed = int(_remove_all(self._table, numbers))
        if removed < len(numbers):
            _add_all(self._table, numbers[:removed])
        else:
            self._count -= removed
        return removed

    def make_room(self, more: int) -> None:
        """Makes room for more numbers; the table may be another one then."""
        needed = self._count + more
        if 6 * needed > 5 * len(self._table):
            grown = len(self._table) * 3 // 2 if more == 1 else 0
            table = np.zeros(max(needed * 5 // 4, grown, _FIRST_SLOTS), np.uint32)
            held = self._table[self._table != 0]
            _add_all(table, held - np.uint32(1))
            self._table = table
