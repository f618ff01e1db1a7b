"""Postings: the ids of entries, and the spans of ids that an event matched.

Owns how a segment stores which ids an entry has, and how matches are written down: as spans (segment, first position,
one past the last) without dead positions. Spans are copied into arrays of ids afterwards, or handed out as slices.
Never touches the removal of ids: `segment` maintains the dead positions.

Most filters have one subscriber, so the start of an entry's ids is stored once for 64 entries. Where each of the 64 has
one id, the others follow from it, and the starts of a million entries stay in the processor's cache. Where some have
several ids, the start of each entry is stored in a list.

Functions that write spans return the number of words used in the array of spans, or `SPANS_FULL`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shoal.filters.index import segment_layout as layout
from shoal.filters.index.intrinsics import UNBOUNDED, copy_bytes, i64, i64_at, u32_at
from shoal.filters.index.kernel_context import R_FIRST_SEGMENT, R_SPAN_WORDS, R_SPANS, SEGMENT_ROOTS, root
from shoal.filters.index.segment_layout import part_address, u32_part
from shoal.wire.raw_bytes import background_kernel, kernel, part

ENTRIES_PER_START: Final = 64
"""Entries that share one start."""
UNEVEN: Final = np.uint32(1 << 31)
"""Marks a start that is the number of a list instead, because some entries have several ids."""
SPANS_FULL: Final = -10
"""Code: the array of spans is full."""
SPAN_WORDS: Final = 3
"""Words of a span."""


@background_kernel
def find_uneven(ends: Any, uneven: Any) -> None:
    """Marks the groups of 64 entries in which an entry does not have exactly one id."""
    for entry in range(len(ends) - 1):
        if ends[entry + 1] - ends[entry] != 1:
            uneven[entry // ENTRIES_PER_START] = True


def pack_id_starts(ends: npt.NDArray[np.uint32]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """The parts `id_starts` and `id_lists` of a segment in which the ids of an entry start at `ends[entry]`."""
    starts = ends[::ENTRIES_PER_START].copy()
    uneven = np.zeros(len(starts), np.bool_)
    find_uneven(ends, uneven)
    rows = np.flatnonzero(uneven)
    starts[rows] = np.arange(len(rows), dtype=np.uint32) | UNEVEN
    lists = ends[np.minimum(rows[:, None] * ENTRIES_PER_START + np.arange(ENTRIES_PER_START), len(ends) - 1)]
    return starts, lists.reshape(-1)


@part
def first_id(block: int, entry: int) -> int:
    """The position of an entry's first id, where those of the entry before it end."""
    start = u32_part(block, layout.P_ID_STARTS)[entry >> 6]
    if start < UNEVEN:
        return i64(start) + (entry & (ENTRIES_PER_START - 1))
    lists = u32_part(block, layout.P_ID_LISTS)
    return i64(lists[ENTRIES_PER_START * i64(start & layout.LOW_31) + (entry & (ENTRIES_PER_START - 1))])


@part
def add_span(context: int, used: int, segment: int, first: int, last: int) -> int:
    """Writes one span."""
    if used + SPAN_WORDS > root(context, R_SPAN_WORDS):
        return SPANS_FULL
    spans = i64_at(root(context, R_SPANS), UNBOUNDED)
    spans[used], spans[used + 1], spans[used + 2] = segment, first, last
    return used + SPAN_WORDS


@part
def dead_at(context: int, segment: int) -> Any:
    """The dead positions of a segment: their number, then the positions in ascending order."""
    return u32_at(root(context, R_FIRST_SEGMENT + SEGMENT_ROOTS * segment + 1), UNBOUNDED)


@kernel
def first_dead(dead: Any, position: int) -> int:
    """The index of the first dead position that is not before a position."""
    low, high = 1, 1 + i64(dead[0])
    while low < high:
        middle = (low + high) >> 1
        if i64(dead[middle]) < position:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def emit(context: int, used: int, segment: int, first: int, last: int) -> int:
    """Writes the live positions of [first, last) as spans."""
    dead = dead_at(context, segment)
    count = i64(dead[0])
    if count == 0:
        return add_span(context, used, segment, first, last)
    low = first_dead(dead, first)
    while first < last and used >= 0:
        stop = min(i64(dead[low]), last) if low <= count else last
        if first < stop:
            used = add_span(context, used, segment, first, stop)
        first = stop + 1
        low += 1
    return used


@part
def emit_entries(context: int, block: int, used: int, segment: int, first: int, last: int) -> int:
    """Writes the ids of the entries [first, last) as spans."""
    if first >= last:
        return used
    return emit(context, used, segment, first_id(block, first), first_id(block, last))


@kernel
def copy_spans(context: int, first: int, last: int, ids: Any, to: int) -> None:
    """Copies the ids of some spans."""
    spans = i64_at(root(context, R_SPANS), UNBOUNDED)
    for at in range(first, last, SPAN_WORDS):
        block = root(context, R_FIRST_SEGMENT + SEGMENT_ROOTS * spans[at])
        count = spans[at + 2] - spans[at + 1]
        own = part_address(block, layout.P_IDS) + 4 * spans[at + 1]
        if count == 1:
            ids[to] = u32_at(own, 1)[0]
        else:
            copy_bytes(ids.ctypes.data + 4 * to, own, 4 * count)
        to += count


@part
def count_span_ids(context: int, first: int, last: int) -> int:
    """Number of ids in some spans."""
    spans = i64_at(root(context, R_SPANS), UNBOUNDED)
    total = 0
    for at in range(first, last, SPAN_WORDS):
        total += spans[at + 2] - spans[at + 1]
    return total
