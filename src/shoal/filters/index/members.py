"""Members: which subscribers an entry has.

Owns how a segment says where the ids of an entry start. Most filters have one subscriber, so entries are looked at 64
at a time: of those with one id each it is enough to know where the first one's stands, and this for a million entries
stays in the processor's cache. Where some have several, the start of each is written down.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shoal.filters.index import segment_layout as layout
from shoal.filters.index.intrinsics import whole
from shoal.filters.index.kernel_context import u32_part
from shoal.wire.rawbytes import background_kernel, part

STRETCH: Final = 64
"""Entries that are looked at together."""
UNEVEN: Final = np.uint32(1 << 31)
"""Marks a stretch in which some entries have several ids."""


@background_kernel
def find_uneven(ends: Any, uneven: Any) -> None:
    """Marks the stretches in which an entry has not exactly one id."""
    for entry in range(len(ends) - 1):
        if ends[entry + 1] - ends[entry] != 1:
            uneven[entry // STRETCH] = True


def pack_members(ends: npt.NDArray[np.uint32]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """The parts `id_starts` and `id_lists` of a segment in which the ids of an entry are from `ends[entry]` on."""
    starts = ends[::STRETCH].copy()
    uneven = np.zeros(len(starts), np.bool_)
    find_uneven(ends, uneven)
    rows = np.flatnonzero(uneven)
    starts[rows] = np.arange(len(rows), dtype=np.uint32) | UNEVEN
    lists = ends[np.minimum(rows[:, None] * STRETCH + np.arange(STRETCH), len(ends) - 1)]
    return starts, lists.reshape(-1)


@part
def first_id(block: int, entry: int) -> int:
    """Where the ids of an entry start in `ids`; those of the one before it end there."""
    start = u32_part(block, layout.P_ID_STARTS)[entry >> 6]
    if start < UNEVEN:
        return whole(start) + (entry & (STRETCH - 1))
    lists = u32_part(block, layout.P_ID_LISTS)
    return whole(lists[STRETCH * whole(start & layout.LOW_31) + (entry & (STRETCH - 1))])
