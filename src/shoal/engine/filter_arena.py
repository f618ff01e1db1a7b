"""The wire forms of a table's filters, by id, in one piece of memory.

Owns the bytes. A `bytes` object in a list needs 41 bytes besides its content; here it is 12. Filters that have gone
leave holes; when these are a quarter of all bytes, the others are moved together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shoal.wire.raw_bytes import kernel

HOLES_MAX: Final = 0.25
"""The share of all bytes that holes may take."""
HOLES_FREE: Final = 1 << 16
"""Bytes of holes that are never too many."""


class FilterArena:
    """Filters in their wire form. The owner gives the ids, which are small numbers."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._start = np.zeros(0, np.int64)
        self._length = np.zeros(0, np.uint32)
        """By id; 0 if there is no filter."""
        self._holes = 0

    @property
    def nbytes(self) -> int:
        """Bytes of everything held."""
        return len(self._data) + self._start.nbytes + self._length.nbytes

    def make_room(self, size: int) -> None:
        """Ids are below `size` from now on."""
        self._start, self._length = widened(self._start, size), widened(self._length, size)

    def narrow(self, size: int) -> None:
        """Frees the memory of ids from `size` on, and that of holes."""
        self._start, self._length = self._start[:size].copy(), self._length[:size].copy()
        self._pack()

    def put(self, ids: npt.NDArray[np.int64], wires: Sequence[bytes]) -> None:
        """Adds filters; their ids are free."""
        lengths = np.fromiter(map(len, wires), np.int64, len(wires))
        self._start[ids] = len(self._data) + np.cumsum(lengths) - lengths
        self._length[ids] = lengths
        self._data += b"".join(wires)

    def drop(self, ids: npt.NDArray[np.int64]) -> None:
        """Removes filters."""
        self._holes += int(self._length[ids].sum(dtype=np.int64))
        self._length[ids] = 0
        if self._holes > HOLES_FREE + HOLES_MAX * len(self._data):
            self._pack()

    def _pack(self) -> None:
        packed = np.empty(len(self._data) - self._holes, np.uint8)
        _pack(np.frombuffer(self._data, np.uint8), self._start, self._length, packed)
        self._data = bytearray(packed)
        self._holes = 0

    def used(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """The ids of filters, from `first` to before `last`."""
        return first + np.flatnonzero(self._length[first:last])

    def wires(self, ids: npt.NDArray[np.int64]) -> list[bytes]:
        """Some filters in their wire form."""
        with memoryview(self._data) as data:
            starts, ends = self._start[ids], self._start[ids] + self._length[ids]
            return [bytes(data[first:last]) for first, last in zip(starts.tolist(), ends.tolist(), strict=True)]


def widened(column: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """The column with room for ids below `size`. What is not used yet takes no memory: it was never written to."""
    if size <= len(column):
        return column
    wide = np.zeros(max(size, 2 * len(column)), column.dtype)
    wide[: len(column)] = column
    return wide


@kernel
def _pack(data: Any, start: Any, length: Any, packed: Any) -> None:
    """Moves the filters together, and says where they are now."""
    at = 0
    for id in range(len(start)):
        size = length[id]
        if size:
            first = start[id]
            for place in range(size):
                packed[at + place] = data[first + place]
            start[id] = at
            at += size
