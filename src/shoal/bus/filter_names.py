"""The names of a reader's filters, by number.

Owns how they are found: an event may match hundreds of filters of a reader. Numbers of a bus only grow. While many of
them are in use, names are in a list, where hundreds are found in a fifth of the time that a dictionary takes. A reader
with thousands of filters has them in an array, if NumPy is there: that takes two thirds of the time of a list, because
numbers stay packed and the processor waits for several names at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from types import ModuleType
from typing import Any, Final

from shoal.engine.messages import NUMBER_BYTES, unpack

SPARSE: Final = 4
"""If there are more numbers than names by this factor, names are in a dictionary."""
FEW: Final = 1024
"""So many numbers are never too many."""
ARRAY_MIN: Final = 4096
"""Fewer names are in a list: processors keep them in their cache, and importing NumPy takes a tenth of a second."""
FOUND_MIN: Final = 16
"""Fewer names are not taken out of an array together."""


class FilterNames:
    """Names by number."""

    __slots__ = ("_array", "_count", "_names")

    def __init__(self) -> None:
        self._names: Any = []
        """A list, an array or a dictionary. In a list or an array, None is where a number has no name."""
        self._array: ModuleType | None = None
        """NumPy, if the names are in an array."""
        self._count = 0

    def add(self, numbers: Sequence[int], names: Sequence[str]) -> None:
        """Adds names. The numbers are larger than all before, in ascending order."""
        if not numbers:
            return
        self._count += len(numbers)
        if not isinstance(self._names, dict):
            self._make_room(numbers[-1])
        known = self._names
        for number, name in zip(numbers, names, strict=True):
            known[number] = name

    def _make_room(self, last: int) -> None:
        """Numbers are at most `last` from now on."""
        known = self._names
        if last >= SPARSE * self._count + FEW:
            self._names = {number: name for number, name in enumerate(known) if name is not None}
            self._array = None
            return
        if self._array is None and self._count >= ARRAY_MIN:
            self._array = _numpy()
        if self._array is None:
            known += [None] * (last + 1 - len(known))
        elif isinstance(known, list) or last >= len(known):
            self._names = self._array.empty(max(last + 1, len(known) + len(known) // 2), object)
            self._names[: len(known)] = known

    def drop(self, number: int) -> None:
        """Removes a name."""
        self._count -= 1
        if isinstance(self._names, dict):
            del self._names[number]
        else:
            self._names[number] = None

    def of(self, packed: bytes) -> tuple[str, ...]:
        """The names of some packed numbers; there is at least one."""
        if self._array is not None and len(packed) >= FOUND_MIN * NUMBER_BYTES:
            return tuple(self._names.take(self._array.frombuffer(packed, "<u4")).tolist())
        numbers = unpack(packed)
        if len(numbers) == 1:
            return (self._names[numbers[0]],)
        found: tuple[str, ...] = itemgetter(*numbers)(self._names)
        return found


def _numpy() -> ModuleType | None:
    """NumPy; None where only the client is installed."""
    try:
        import numpy as np
    except ImportError:
        return None
    return np
