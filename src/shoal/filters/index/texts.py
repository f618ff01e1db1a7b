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

from shoal.filters.index.memory import whole
from shoal.wire.rawbytes import PADDING_BYTES, Bytes, hash_words, kernel, same_words

NO_TEXT: Final = -1
NO_ROOM: Final = -2

COUNT: Final = 0
USED: Final = 1

_SEED: Final = np.uint64(0x51_0A_10_0D)
_FIRST_TEXTS: Final = 64
_FIRST_BYTES: Final = 1024


@kernel
def find_text(data: Bytes, ends: Any, slots: Any, wanted: Bytes, start: int, length: int) -> int:
    """The number of a string, or `NO_TEXT`. `wanted` is padded."""
    mask = np.uint64(len(slots) - 1)
    slot = hash_words(wanted, start, length, _SEED) & mask
    while slots[slot] != 0:
        code = whole(slots[slot]) - 1
        at = whole(ends[code])
        if whole(ends[code + 1]) - at == length and same_words(data, at, wanted, start, length):
            return code
        slot = (slot + np.uint64(1)) & mask
    return NO_TEXT


@kernel
def intern_text(
    data: Bytes, ends: Any, slots: Any, counters: npt.NDArray[np.int64], wanted: Bytes, start: int, length: int
) -> int:
    """The number of a string, which is taken in if it is new; `NO_ROOM` if it would not fit."""
    mask = np.uint64(len(slots) - 1)
    slot = hash_words(wanted, start, length, _SEED) & mask
    while slots[slot] != 0:
        code = whole(slots[slot]) - 1
        at = whole(ends[code])
        if whole(ends[code + 1]) - at == length and same_words(data, at, wanted, start, length):
            return code
        slot = (slot + np.uint64(1)) & mask
    count, used = counters[COUNT], counters[USED]
    if count + 2 > len(ends) or used + length + PADDING_BYTES > len(data) or 5 * (count + 1) > 4 * len(slots):
        return NO_ROOM
    for i in range(length):
        data[used + i] = wanted[start + i]
    ends[count + 1] = used + length
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
        """Makes room for so many more strings of so many bytes together."""
        count, used = len(self), int(self.counters[USED])
        if used + length + PADDING_BYTES > len(self.data):
            data = np.zeros(max(used + length, used + used // 2) + PADDING_BYTES, np.uint8)
            data[:used] = self.data[:used]
            self.data = data
        if count + texts + 1 > len(self.ends):
            ends = np.zeros(max(count + texts, count + count // 2) + 1, np.uint32)
            ends[: count + 1] = self.ends[: count + 1]
            self.ends = ends
        if 5 * (count + texts) > 4 * len(self.slots):
            self.slots = np.zeros(1 << (5 * (count + texts) // 4).bit_length(), np.uint32)
            _rehash(self.data, self.ends, self.slots, count)
