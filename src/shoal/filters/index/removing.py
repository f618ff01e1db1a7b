"""Removing: a subscription leaves.

Owns the kernels that find the positions of an id, and how positions come to the dead ones of a segment.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shoal.filters.index import segment_layout as layout
from shoal.filters.index.ids import close_gap, find_slot
from shoal.filters.index.intrinsics import u32_at, whole
from shoal.filters.index.kernel_context import (
    R_FIRST_SEGMENT,
    R_SEGMENTS,
    R_YOUNG_COUNT,
    SEGMENT_ROOTS,
    block_of,
    count_of,
    root,
    u32_part,
)
from shoal.filters.index.postings import dead_at, first_dead
from shoal.wire.rawbytes import background_kernel, kernel

DEAD_MIN: Final = 16
"""Words of an array of dead positions, at the least."""
NOT_THERE: Final = -1
NO_DEAD: Final = -2
"""From here down, by the number of the segment: there is no room for its dead positions."""


@kernel
def positions_of(ids: Any, order: Any, count: int, number: int) -> Any:
    """Where the positions of an id stand among the `count` of an order: (first, one past the last)."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if ids[order[middle]] < number:
            low = middle + 1
        else:
            high = middle
    last = low
    while last < count and ids[order[last]] == number:
        last += 1
    return low, last


@background_kernel
def positions_of_all(ids: Any, order: Any, numbers: Any) -> Any:
    """The positions of some ids, one id after the other."""
    found = np.empty(0, np.uint32)
    made = 0
    for turn in range(2):  # the first one counts
        made = 0
        for number in numbers:
            first, last = positions_of(ids, order, len(order), number)
            for i in range(first, last):
                if turn == 1:
                    found[made] = order[i]
                made += 1
        if turn == 0:
            found = np.empty(made, np.uint32)
    return found


def united(dead: npt.NDArray[np.uint32], positions: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The dead positions with some more, which are sorted; some of them may be dead already."""
    known = dead[1 : 1 + int(dead[0])]
    at = np.searchsorted(known, positions)
    new = (at == len(known)) | (np.append(known, np.uint32(0))[at] != positions)
    return np.insert(known, at[new], positions[new])


def dead_of(positions: npt.NDArray[np.uint32], words: int) -> npt.NDArray[np.uint32]:
    """An array of so many words for the dead positions: their number, then they, sorted."""
    dead = np.zeros(words, np.uint32)
    dead[0] = len(positions)
    dead[1 : 1 + len(positions)] = positions
    return dead


@kernel
def is_dead(dead: Any, position: int) -> bool:
    """Whether a position is among the dead ones."""
    at = first_dead(dead, position)
    return bool(at <= whole(dead[0]) and whole(dead[at]) == position)


@kernel
def bury(dead: Any, position: int) -> None:
    """Adds a position to the dead ones, which are sorted behind their number. It is not there, and there is room."""
    count, at = whole(dead[0]), first_dead(dead, position)
    for i in range(count + 1, at, -1):
        dead[i] = dead[i - 1]
    dead[at] = position
    dead[0] = count + 1


@kernel
def bury_in(context: int, segment: int, number: int) -> int:
    """Buries all positions of an id in a segment: its number, or a negative code, then nothing has changed."""
    block, dead = block_of(context, segment), dead_at(context, segment)
    ids, order = u32_part(block, layout.P_IDS), u32_part(block, layout.P_ORDER)
    young = segment == root(context, R_SEGMENTS)
    count = whole(u32_at(root(context, R_YOUNG_COUNT), 1)[0]) if young else count_of(block, layout.H_IDS)
    ordered = count >= layout.ORDERED_MIN and not young
    first, last = positions_of(ids, order, count, number) if ordered else (0, count)
    alive = 0
    for i in range(first, last):
        position = whole(order[i]) if ordered else i
        alive += ids[position] == number and not is_dead(dead, position)
    if alive == 0:
        return NOT_THERE
    if whole(dead[0]) + alive >= root(context, R_FIRST_SEGMENT + SEGMENT_ROOTS * segment + 2):
        return NO_DEAD - segment
    for i in range(first, last):
        position = whole(order[i]) if ordered else i
        if ids[position] == number and not is_dead(dead, position):
            bury(dead, position)
    return segment


@kernel
def take_out(context: int, number: int, ids: Any) -> int:
    """Takes an id out of a table of ids, and buries its positions. The number of the segment where it was (one more
    than there are for the young records), or a negative code, then nothing has changed."""
    slot = find_slot(ids, number)
    if ids[slot] == 0:
        return NOT_THERE
    for segment in range(root(context, R_SEGMENTS) + 1):
        code = bury_in(context, segment, number)
        if code != NOT_THERE:
            if code >= 0:
                close_gap(ids, slot)
            return code
    return NOT_THERE
