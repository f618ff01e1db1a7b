"""The names of a reader's filters, by number.

Owns how they are found: an event may match hundreds of filters of a reader. Numbers of a bus only grow. While many of
them are in use, names are in a list, where hundreds are found in a fifth of the time that a dictionary takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

SPARSE: Final = 4
"""With so many times more numbers than names, names are in a dictionary."""
FEW: Final = 1024
"""So many numbers are never too many."""


class FilterNames:
    """Names by number."""

    __slots__ = ("_count", "_names")

    def __init__(self) -> None:
        self._names: list[Any] | dict[int, Any] = []
        """In a list, None is where a number has no name."""
        self._count = 0

    def add(self, numbers: Sequence[int], names: Sequence[str]) -> None:
        """Adds names. The numbers are larger than all before, in ascending order."""
        if not numbers:
            return
        self._count += len(numbers)
        known = self._names
        if isinstance(known, list):
            if numbers[-1] < SPARSE * self._count + FEW:
                known += [None] * (numbers[-1] + 1 - len(known))
            else:
                known = self._names = {number: name for number, name in enumerate(known) if name is not None}
        for number, name in zip(numbers, names, strict=True):
            known[number] = name

    def drop(self, number: int) -> None:
        """Removes a name."""
        self._count -= 1
        if isinstance(self._names, dict):
            del self._names[number]
        else:
            self._names[number] = None

    def of(self, numbers: Sequence[int]) -> tuple[str, ...]:
        """The names of some numbers; there is at least one."""
        if len(numbers) == 1:
            return (self._names[numbers[0]],)
        found: tuple[str, ...] = itemgetter(*numbers)(self._names)
        return found
