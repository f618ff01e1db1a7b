"""Texts: strings held once, each with a number.

Owns a table of distinct UTF-8 strings in four arrays (bytes, ends, hash slots, counters), so that kernels can look a
string of an event up without Python, and a snapshot is a copy of arrays. Numbers are given in order of arrival and
never change. The table grows between kernels, never inside one: a kernel that finds no room says so and is called
again.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shoal.filters.index.intrinsics import i64_at, u8_at, u32_at, whole
from shoal.filters.index.kernel_context import FAR
from shoal.wire.rawbytes import PADDING_BYTES, Bytes, hash_words, kernel, part, same_words

NO_TEXT: Final = -1
NO_ROOM: Final = -2

COUNT: Final = 0
USED: Final = 1

# The addresses of a table, and the lengths behind the first three.
T_DATA: Final = 0
T_ENDS: Final = 2
T_SLOTS: Final = 4
T_COUNTERS: Final = 6
T_WORDS: Final = 7

_SEED: Final = np.uint64(0x51_0A_10_0D)
_FIRST_TEXTS: Final = 16
_FIRST_BYTES: Final = 256


@part
def slot_of(table: int, wanted: int, start: int, length: int) -> Any:
    """Where a string has its slot, or would have it. `table` is where the addresses of a table stand (see `context`),
    `wanted` that of the padded bytes."""
    roots = i64_at(table, T_WORDS)
    slots, ends = u32_at(roots[T_SLOTS], roots[T_SLOTS + 1]), u32_at(roots[T_ENDS], FAR)
    data, own = u8_at(roots[T_DATA], FAR), u8_at(wanted, FAR)
    mask = np.uint64(roots[T_SLOTS + 1] - 1)
    slot = hash_words(own, start, length, _SEED) & mask
    while slots[slot] != 0:
        code = whole(slots[slot]) - 1
        at = whole(ends[code])
        if whole(ends[code + 1]) - at == length and same_words(data, at, own, start, length):
            break
        slot = (slot + np.uint64(1)) & mask
    return slot


@kernel
def find_text(table: int, wanted: int, start: int, length: int) -> int:
    """The number of a string, or `NO_TEXT`."""
    slot = slot_of(table, wanted, start, length)
    return whole(u32_at(i64_at(table, T_WORDS)[T_SLOTS], FAR)[slot]) - 1


@kernel
def intern_text(table: int, wanted: int, start: int, length: int) -> int:
    """The number of a string, which is taken in if it is new; `NO_ROOM` if it would not fit."""
    roots = i64_at(table, T_WORDS)
    slot, slots = slot_of(table, wanted, start, length), u32_at(roots[T_SLOTS], FAR)
    if slots[slot] != 0:
        return whole(slots[slot]) - 1
    counters = i64_at(roots[T_COUNTERS], 2)
    count, used = counters[COUNT], counters[USED]
    no_room = count + 2 > roots[T_ENDS + 1] or used + length + PADDING_BYTES > roots[T_DATA + 1]
    if no_room or 5 * (count + 1) > 4 * roots[T_SLOTS + 1]:
        return NO_ROOM
    data, own = u8_at(roots[T_DATA], FAR), u8_at(wanted, FAR)
    for i in range(length):
        data[used + i] = own[start + i]
    u32_at(roots[T_ENDS], FAR)[count + 1] = used + length
    slots[slot] = count + 1
    counters[COUNT] = count + 1
    counters[USED] = used + length
    return whole(count)


@kernel
def _rehash(data: Bytes, ends: Any, slots: Any, count: int) -> None:
    mask = np.uint64(len(slots) - 1)
    for code in range(count):
        at = whole(ends[code])
        slot = hash_words(data, at, whole(ends[code + 1]) - at, _SEED) & mask
        while slots[slot] != 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = code + 1


class Texts:
    """A table of distinct strings. Kernels take its arrays; everybody else asks by `text`."""

    def __init__(self) -> None:
        self.data = np.zeros(_FIRST_BYTES + PADDING_BYTES, np.uint8)
        self.ends = np.zeros(_FIRST_TEXTS + 1, np.uint32)
        self.slots = np.zeros(2 * _FIRST_TEXTS, np.uint32)
        self.counters = np.zeros(2, np.int64)

    def __len__(self) -> int:
        return int(self.counters[COUNT])

    def addresses(self) -> npt.NDArray[np.int64]:
        """Where the arrays stand and how long they are, as kernels are told."""
        found = np.zeros(T_WORDS, np.int64)
        arrays: list[npt.NDArray[Any]] = [self.data, self.ends, self.slots]
        for number, array in enumerate(arrays):
            found[2 * number], found[2 * number + 1] = array.ctypes.data, len(array)
        found[T_COUNTERS] = self.counters.ctypes.data
        return found

    @property
    def nbytes(self) -> int:
        """Bytes that the table holds."""
        return self.data.nbytes + self.ends.nbytes + self.slots.nbytes

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The table as arrays: `of_arrays` makes the same table of them."""
        return {"data": self.data, "ends": self.ends, "slots": self.slots, "counters": self.counters}

    @classmethod
    def of_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> Texts:
        """The table that `arrays` came from."""
        table = cls()
        table.data, table.ends, table.slots = arrays["data"], arrays["ends"], arrays["slots"]
        table.counters = arrays["counters"]
        return table

    def text(self, code: int) -> str:
        """The string with a number."""
        return bytes(self.data[self.ends[code] : self.ends[code + 1]]).decode()

    def reserve(self, texts: int, length: int) -> None:
        """Makes room for so many more strings of so many bytes together. Whoever reads the arrays of before goes on
        with them: what is added to larger ones does not show there."""
        count, used = len(self), int(self.counters[USED])
        if used + length + PADDING_BYTES > len(self.data):
            data = np.zeros(max(used + length, used + used // 2) + PADDING_BYTES, np.uint8)
            data[:used] = self.data[:used]
            self.data = data
            self.slots = self.slots.copy()
        if count + texts + 1 > len(self.ends):
            ends = np.zeros(max(count + texts, count + count // 2) + 1, np.uint32)
            ends[: count + 1] = self.ends[: count + 1]
            self.ends = ends
            self.slots = self.slots.copy()
        if 5 * (count + texts) > 4 * len(self.slots):
            self.slots = np.zeros(_slots_for(count + texts), np.uint32)
            _rehash(self.data, self.ends, self.slots, count)

    def fit(self) -> None:
        """Gives back the room in which nothing stands."""
        count, used = len(self), int(self.counters[USED])
        self.data = self.data[: used + PADDING_BYTES].copy()
        self.ends = self.ends[: count + 1].copy()
        slots = _slots_for(count)
        if slots < len(self.slots):
            self.slots = np.zeros(slots, np.uint32)
            _rehash(self.data, self.ends, self.slots, count)


def _slots_for(texts: int) -> int:
    """Slots for so many strings: a power of two, of which at most four in five are taken."""
    return 1 << max(1, -(-5 * texts // 4) - 1).bit_length()
