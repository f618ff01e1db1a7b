"""Hash tables in arrays: the set of ids and the table of strings of a store.

Owns both. They are NumPy arrays, so that kernels use them without Python objects and a snapshot copies them as they
are. An `IdSet` takes 5 to 7 bytes per id, where a Python set takes 60. A `StringTable` holds each string once and
numbers the strings in the order of arrival; a string keeps its number. Tables grow between kernel calls, never inside
one: a kernel that finds no room returns a code and is called again.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shoal.filters.index.intrinsics import UNBOUNDED, i64, i64_at, u8_at, u32_at
from shoal.wire.raw_bytes import PADDING_BYTES, Bytes, hash_words, kernel, part, same_words

ID_MAX: Final = 2**32 - 2
"""The largest id of a subscription."""
_FIRST_SLOTS: Final = 64
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)

TABLE_FULL: Final = -2
"""Code: the table has no room for another string."""

STRING_COUNT: Final = 0
"""Counter: strings in the table ..."""
STRING_BYTES: Final = 1
"""... and their bytes."""

# The addresses of a table; the first three are followed by the length of the array.
T_DATA: Final = 0
T_ENDS: Final = 2
T_SLOTS: Final = 4
T_COUNTERS: Final = 6
T_WORDS: Final = 7

_SEED: Final = np.uint64(0x51_0A_10_0D)
_FIRST_STRINGS: Final = 16
_FIRST_BYTES: Final = 256


@part
def _id_home(number: Any, slots: int) -> int:
    mixed = (np.uint64(number) * _MIX) >> np.uint64(32)
    return i64((mixed * np.uint64(slots)) >> np.uint64(32))


@part
def find_id_slot(table: Any, number: int) -> int:
    """The slot of an id in a table, where it is stored plus one, or the free slot where it belongs."""
    slot = _id_home(number, len(table))
    while table[slot] != 0 and table[slot] != np.uint32(number + 1):
        slot = slot + 1 if slot + 1 < len(table) else 0
    return slot


@kernel
def _add_ids(table: Any, numbers: Any) -> int:
    """Adds ids until one is there already. Returns the number of ids added."""
    for done in range(len(numbers)):
        slot = find_id_slot(table, i64(numbers[done]))
        if table[slot] != 0:
            return done
        table[slot] = np.uint32(i64(numbers[done]) + 1)
    return len(numbers)


@kernel
def close_gap(table: Any, gap: int) -> None:
    """Empties a slot, and moves the ids behind it that could no longer be found."""
    size = len(table)
    slot = gap
    while True:
        slot = slot + 1 if slot + 1 < size else 0
        if table[slot] == 0:
            break
        home = _id_home(i64(table[slot]) - 1, size)
        if (slot - home) % size >= (slot - gap) % size:
            table[gap] = table[slot]
            gap = slot
    table[gap] = 0


@kernel
def _remove_ids(table: Any, numbers: Any) -> int:
    """Removes ids until one is missing. Returns the number of ids removed."""
    for done in range(len(numbers)):
        slot = find_id_slot(table, i64(numbers[done]))
        if table[slot] == 0:
            return done
        close_gap(table, slot)
    return len(numbers)


@kernel
def _has_id(table: Any, number: int) -> bool:
    return bool(table[find_id_slot(table, number)] != 0)


class IdSet:
    """A set of ids from 0 to `ID_MAX`."""

    def __init__(self) -> None:
        self._table = np.zeros(_FIRST_SLOTS, np.uint32)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        return bool(_has_id(self._table, number))

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self._table.nbytes

    @property
    def table(self) -> npt.NDArray[np.uint32]:
        """The array: `of_table` makes the same set from it."""
        return self._table

    @classmethod
    def of_table(cls, table: npt.NDArray[np.uint32], count: int) -> IdSet:
        """The set of `count` ids that `table` came from."""
        ids = cls()
        ids._table, ids._count = table, count
        return ids

    def added(self) -> None:
        """Counts an id that a kernel has added to the table."""
        self._count += 1

    def removed(self) -> None:
        """Counts an id that a kernel has removed from the table."""
        self._count -= 1

    def add_all(self, numbers: npt.NDArray[np.uint32]) -> int:
        """Adds all ids, or none. Returns the number of ids before the first one that is there already."""
        self.make_room(len(numbers))
        added = int(_add_ids(self._table, numbers))
        self._count += added
        if added < len(numbers):
            self.remove_all(numbers[:added])
        return added

    def remove_all(self, numbers: npt.NDArray[np.uint32]) -> int:
        """Removes all ids, or none. Returns the number of ids before the first one that is missing."""
        removed = int(_remove_ids(self._table, numbers))
        if removed < len(numbers):
            _add_ids(self._table, numbers[:removed])
        else:
            self._count -= removed
        return removed

    def make_room(self, more: int) -> None:
        """Makes room for more ids. This may replace the table."""
        needed = self._count + more
        if 6 * needed > 5 * len(self._table):
            grown = len(self._table) * 3 // 2 if more == 1 else 0
            table = np.zeros(max(needed * 5 // 4, grown, _FIRST_SLOTS), np.uint32)
            held = self._table[self._table != 0]
            _add_ids(table, held - np.uint32(1))
            self._table = table


@part
def string_slot(table: int, wanted: int, start: int, length: int) -> Any:
    """The slot of a string, or the free slot where it belongs. `table` is the address of a table's addresses (see
    `kernel_context`), `wanted` that of padded bytes."""
    roots = i64_at(table, T_WORDS)
    slots, ends = u32_at(roots[T_SLOTS], roots[T_SLOTS + 1]), u32_at(roots[T_ENDS], UNBOUNDED)
    data, own = u8_at(roots[T_DATA], UNBOUNDED), u8_at(wanted, UNBOUNDED)
    mask = np.uint64(roots[T_SLOTS + 1] - 1)
    slot = hash_words(own, start, length, _SEED) & mask
    while slots[slot] != 0:
        code = i64(slots[slot]) - 1
        at = i64(ends[code])
        if i64(ends[code + 1]) - at == length and same_words(data, at, own, start, length):
            break
        slot = (slot + np.uint64(1)) & mask
    return slot


@kernel
def find_string(table: int, wanted: int, start: int, length: int) -> int:
    """The code of a string, or -1."""
    slot = string_slot(table, wanted, start, length)
    return i64(u32_at(i64_at(table, T_WORDS)[T_SLOTS], UNBOUNDED)[slot]) - 1


@kernel
def intern_string(table: int, wanted: int, start: int, length: int) -> int:
    """The code of a string, which is added if it is new; `TABLE_FULL` if there is no room."""
    roots = i64_at(table, T_WORDS)
    slot, slots = string_slot(table, wanted, start, length), u32_at(roots[T_SLOTS], UNBOUNDED)
    if slots[slot] != 0:
        return i64(slots[slot]) - 1
    counters = i64_at(roots[T_COUNTERS], 2)
    count, used = counters[STRING_COUNT], counters[STRING_BYTES]
    no_room = count + 2 > roots[T_ENDS + 1] or used + length + PADDING_BYTES > roots[T_DATA + 1]
    if no_room or 5 * (count + 1) > 4 * roots[T_SLOTS + 1]:
        return TABLE_FULL
    data, own = u8_at(roots[T_DATA], UNBOUNDED), u8_at(wanted, UNBOUNDED)
    for i in range(length):
        data[used + i] = own[start + i]
    u32_at(roots[T_ENDS], UNBOUNDED)[count + 1] = used + length
    slots[slot] = count + 1
    counters[STRING_COUNT] = count + 1
    counters[STRING_BYTES] = used + length
    return i64(count)


@kernel
def _rehash(data: Bytes, ends: Any, slots: Any, count: int) -> None:
    mask = np.uint64(len(slots) - 1)
    for code in range(count):
        at = i64(ends[code])
        slot = hash_words(data, at, i64(ends[code + 1]) - at, _SEED) & mask
        while slots[slot] != 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = code + 1


class StringTable:
    """Distinct UTF-8 strings, numbered in the order of arrival: bytes, ends, hash slots and counters. Kernels use the
    arrays; Python code uses `text`."""

    def __init__(self) -> None:
        self.data = np.zeros(_FIRST_BYTES + PADDING_BYTES, np.uint8)
        self.ends = np.zeros(_FIRST_STRINGS + 1, np.uint32)
        self.slots = np.zeros(2 * _FIRST_STRINGS, np.uint32)
        self.counters = np.zeros(2, np.int64)

    def __len__(self) -> int:
        return int(self.counters[STRING_COUNT])

    def addresses(self) -> npt.NDArray[np.int64]:
        """Addresses and lengths of the arrays, as kernels take them."""
        found = np.zeros(T_WORDS, np.int64)
        arrays: list[npt.NDArray[Any]] = [self.data, self.ends, self.slots]
        for number, array in enumerate(arrays):
            found[2 * number], found[2 * number + 1] = array.ctypes.data, len(array)
        found[T_COUNTERS] = self.counters.ctypes.data
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.data.nbytes + self.ends.nbytes + self.slots.nbytes

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The table as arrays: `of_arrays` makes the same table from them."""
        return {"data": self.data, "ends": self.ends, "slots": self.slots, "counters": self.counters}

    @classmethod
    def of_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> StringTable:
        """The table that `arrays` came from."""
        table = cls()
        table.data, table.ends, table.slots = arrays["data"], arrays["ends"], arrays["slots"]
        table.counters = arrays["counters"]
        return table

    def text(self, code: int) -> str:
        """The string with a code."""
        return bytes(self.data[self.ends[code] : self.ends[code + 1]]).decode()

    def reserve(self, strings: int, length: int) -> None:
        """Makes room for more strings with `length` bytes together. Arrays that grow are replaced, so that readers of
        the old ones see no change."""
        count, used = len(self), int(self.counters[STRING_BYTES])
        if used + length + PADDING_BYTES > len(self.data):
            data = np.zeros(max(used + length, used + used // 2) + PADDING_BYTES, np.uint8)
            data[:used] = self.data[:used]
            self.data = data
            self.slots = self.slots.copy()
        if count + strings + 1 > len(self.ends):
            ends = np.zeros(max(count + strings, count + count // 2) + 1, np.uint32)
            ends[: count + 1] = self.ends[: count + 1]
            self.ends = ends
            self.slots = self.slots.copy()
        if 5 * (count + strings) > 4 * len(self.slots):
            self.slots = np.zeros(_slots_for(count + strings), np.uint32)
            _rehash(self.data, self.ends, self.slots, count)

    def trim(self) -> None:
        """Releases unused room."""
        count, used = len(self), int(self.counters[STRING_BYTES])
        self.data = self.data[: used + PADDING_BYTES].copy()
        self.ends = self.ends[: count + 1].copy()
        slots = _slots_for(count)
        if slots < len(self.slots):
            self.slots = np.zeros(slots, np.uint32)
            _rehash(self.data, self.ends, self.slots, count)


def _slots_for(strings: int) -> int:
    """Slots for a number of strings: a power of two, at most four fifths of them taken."""
    return 1 << max(1, -(-5 * strings // 4) - 1).bit_length()
