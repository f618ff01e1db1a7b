"""Results: what events matched, as a caller is handed it.

Owns the two forms that are more than an array of ids: many events together, and views of the index's own arrays.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import SupportsIndex, overload

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """What a batch of events matched: the ids of event `i` are `ids[offsets[i]:offsets[i + 1]]`."""

    offsets: npt.NDArray[np.int64]
    ids: Ids

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[Ids]:
        return map(self.__getitem__, range(len(self)))

    @overload
    def __getitem__(self, event: SupportsIndex) -> Ids: ...

    @overload
    def __getitem__(self, event: slice) -> Matches: ...

    def __getitem__(self, event: SupportsIndex | slice) -> Ids | Matches:
        if isinstance(event, slice):
            return self._some(event)
        own = operator.index(event)
        if own < 0:
            own += len(self)
        if not 0 <= own < len(self):
            raise IndexError(f"there are the matches of {len(self)} events, and none of number {event}")
        return self.ids[self.offsets[own] : self.offsets[own + 1]]

    def _some(self, events: slice) -> Matches:
        """What a stretch of the events matched."""
        first, last, step = events.indices(len(self))
        if step != 1:
            raise TypeError("a slice of matches is a stretch of events, one after the other")
        offsets = self.offsets[first : max(first, last) + 1]
        return Matches(offsets - offsets[0], self.ids[offsets[0] : offsets[-1]])


class Slices:
    """What an event matched, as views of the index's own arrays. They stay what they are whatever happens to the index
    later; nobody may write to them, and numpy refuses it."""

    __slots__ = ("_arrays", "_others", "_spans", "count")

    def __init__(self, spans: npt.NDArray[np.int64], arrays: Sequence[Ids], others: Ids) -> None:
        self._spans = spans.reshape(-1, 3)
        self._arrays = arrays
        self._others = others
        self.count = int((self._spans[:, 2] - self._spans[:, 1]).sum()) + len(others)
        """How many ids they have together."""

    def __len__(self) -> int:
        return len(self._spans) + (len(self._others) > 0)

    def __iter__(self) -> Iterator[Ids]:
        for array, first, last in self._spans:
            view = self._arrays[array][first:last]
            view.flags.writeable = False
            yield view
        if len(self._others):
            yield self._others
