"""The young: records that are in no segment yet.

Owns their arrays. Kernels write them (see `taking`) and test them one by one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal.filters.index import removing, taking
from shoal.filters.index import segment_layout as layout
from shoal.filters.index.uniting import Records


class Young:
    """The records that are in no segment yet."""

    def __init__(self, room: int = taking.YOUNG_FEW, words: int = taking.YOUNG_WORDS) -> None:
        self.room = room
        self.words = np.zeros(words, np.uint16)
        self.ends = np.zeros(room + 1, np.int64)
        self.count = np.zeros(1, np.uint32)
        self.dead = np.zeros(room + 1, np.uint32)
        self.block = np.zeros(8 * layout.HEADER_WORDS + 4 * room, np.uint8)
        self.block[: 8 * layout.HEADER_WORDS].view(np.int64)[layout.H_PARTS + layout.P_IDS] = 8 * layout.HEADER_WORDS

    def __len__(self) -> int:
        return int(self.count[0])

    @property
    def is_full(self) -> bool:
        """Whether there is no room for the words of one more because of those that are there."""
        return len(self.words) == taking.YOUNG_WORDS_MAX and len(self) > 0

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.words.nbytes + self.ends.nbytes + self.dead.nbytes + self.block.nbytes

    def ids(self) -> npt.NDArray[np.uint32]:
        """The subscribers, by position."""
        return self.block[8 * layout.HEADER_WORDS :].view(np.uint32)[: len(self)]

    def alive(self) -> Records:
        """The records of those that have not gone."""
        count = len(self)
        lengths, alive = np.diff(self.ends[: count + 1]), np.ones(count, np.bool_)
        alive[self.dead[1 : 1 + int(self.dead[0])]] = False
        ends = np.zeros(int(alive.sum()) + 1, np.int64)
        np.cumsum(lengths[alive], out=ends[1:])
        words = self.words[: self.ends[count]][np.repeat(alive, lengths)]
        return Records(words, ends, self.ids()[alive], np.arange(len(ends)))

    def lose(self, numbers: npt.NDArray[np.uint32]) -> None:
        """Takes note that some subscribers have gone; whoever calls it refreshes."""
        positions = np.flatnonzero(np.isin(self.ids(), numbers)).astype(np.uint32)
        self.dead = removing.dead_of(removing.united(self.dead, positions), len(self.dead))

    def grown(self, room: int, words: int) -> Young:
        """The same with room for more records and words."""
        grown = Young(room, words)
        for mine, its in (
            (self.words, grown.words),
            (self.ends, grown.ends),
            (self.count, grown.count),
            (self.dead, grown.dead),
            (self.block, grown.block),
        ):
            its[: len(mine)] = mine
        return grown
