"""A segment: a block of bytes that is never written again, and what has gone from it.

Owns what can be asked of a segment without matching. What stands in the block is said in `layout`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from shoal.filters.index import removing, taking
from shoal.filters.index import segment_layout as layout

STALE_SHARE: Final = 4
"""A segment is made anew when one in so many of its subscribers has gone."""


def _nobody() -> npt.NDArray[np.uint32]:
    return np.zeros(removing.DEAD_MIN, np.uint32)


@dataclass(slots=True, eq=False)
class Segment:
    """A block of bytes, and the positions whose subscribers have gone: their number, then they, sorted."""

    block: npt.NDArray[np.uint8]
    dead: npt.NDArray[np.uint32] = field(default_factory=_nobody)
    positions: int = field(init=False)
    """Subscribers, also those that have gone."""

    def __post_init__(self) -> None:
        self.positions = int(self.header[layout.H_IDS])

    @property
    def header(self) -> npt.NDArray[np.int64]:
        """Counts and places: see `layout`."""
        return self.block[: 8 * layout.HEADER_WORDS].view(np.int64)

    @property
    def gone(self) -> int:
        """Positions whose subscribers have gone."""
        return int(self.dead[0])

    @property
    def living(self) -> int:
        """Different subscribers that have not gone."""
        ids = self.ids() if not self.gone else np.delete(self.ids(), self.dead[1 : 1 + self.gone])
        repeats = int(self.header[layout.H_ENTRIES]) != int(self.header[layout.H_UNIQUE])
        return len(np.unique(ids)) if repeats else len(ids)

    @property
    def tier(self) -> int:
        """Segments of one tier are of about one size."""
        return max(0, (max(1, self.positions // taking.YOUNG_MAX).bit_length() - 1) // 3)

    def ids(self) -> npt.NDArray[np.uint32]:
        """The subscribers, by position."""
        return layout.part(self.block, layout.P_IDS, self.positions)

    @property
    def is_stale(self) -> bool:
        """Whether so many have gone that it should be made anew."""
        return STALE_SHARE * self.gone > self.positions

    def make_room(self) -> None:
        """Makes room for twice as many dead positions; whoever calls it refreshes."""
        self.dead = np.concatenate([self.dead, np.zeros(len(self.dead), np.uint32)])

    def lose(self, numbers: npt.NDArray[np.uint32]) -> None:
        """Takes note that some subscribers have gone, different ones and sorted; whoever calls it refreshes."""
        ids = self.ids()
        if self.positions < layout.ORDERED_MIN:
            positions = np.flatnonzero(np.isin(ids, numbers)).astype(np.uint32)
        else:
            positions = np.sort(removing.positions_of_all(ids, self._order(), numbers))
        if len(positions):
            gone = removing.united(self.dead, positions)
            self.dead = removing.dead_of(gone, 2 * len(gone) + removing.DEAD_MIN)

    def _order(self) -> npt.NDArray[np.uint32]:
        """The positions, sorted by subscriber."""
        return layout.part(self.block, layout.P_ORDER, self.positions)
