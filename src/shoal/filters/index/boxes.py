"""Boxes: the groups of `cells`, as bytes.

Owns the order of the entries of a group, in which those of a chunk are near each other, and the bytes of chunks and of
the boxes around them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index.cells import COLUMNS, FURTHER, LOW_16
from shoal.filters.index.memory import whole
from shoal.filters.index.vectors import WIDTH
from shoal.wire.rawbytes import background_kernel, kernel, part

CHUNK: Final = WIDTH
CHUNK_BYTES: Final = CHUNK * (COLUMNS + 4 * FURTHER)


@kernel
def sort_by_center(order: Any, first: int, last: int, columns: Any, side: int) -> None:
    """Sorts a part of the order by the middle of the boxes on one side."""
    centers = np.empty(last - first, np.int64)
    for i in range(first, last):
        entry = order[i]
        centers[i - first] = whole(columns[entry, 2 * side]) + whole(columns[entry, 2 * side + 1])
    order[first:last] = order[first:last][np.argsort(centers, kind="mergesort")]


@part
def slice_of(chunks: int, sides: int) -> int:
    """How many chunks a slice has if as many slices are made on each of the sides."""
    slices = 1
    while slices**sides < chunks:
        slices += 1
    return -(-chunks // slices)


@background_kernel
def tile(groups: Any, count: int, order: Any, subs: Any, columns: Any) -> None:
    """Sorts the entries of each group so that those of a chunk are near each other: into slices by the first side, each
    of these into slices by the second, and those by the third."""
    for group in range(count):
        first, size = whole(groups[group, 1]), whole(groups[group, 2])
        sides = sides_of(subs[order[first]])
        sort_by_center(order, first, first + size, columns, 0)
        if sides == 1:
            continue
        step = CHUNK * slice_of(-(-size // CHUNK), sides)
        for begin in range(first, first + size, step):
            end = min(begin + step, first + size)
            sort_by_center(order, begin, end, columns, 1)
            if sides == 2:
                continue
            inner = CHUNK * slice_of(-(-(end - begin) // CHUNK), 2)
            for at in range(begin, end, inner):
                sort_by_center(order, at, min(at + inner, end), columns, 2)


@part
def sides_of(sub: np.uint64) -> int:
    """How many different attributes a group's key has."""
    a, b, c = (sub >> np.uint64(32)) & LOW_16, (sub >> np.uint64(16)) & LOW_16, sub & LOW_16
    return 1 if a == b else 2 if b == c else 3


@background_kernel
def pack_groups(groups: Any, count: int, order: Any, columns: Any, further: Any) -> Any:
    """The chunks of all groups and the boxes around them, as `layout` says, and where the latter start for each group;
    writes down where the chunks of each start."""
    starts = np.zeros(count + 1, np.int64)
    size = 0
    for group in range(count):
        chunks = -(-whole(groups[group, 2]) // CHUNK)
        groups[group, 3] = size // 64
        size += CHUNK_BYTES * chunks
        starts[group + 1] = starts[group] + boxes_bytes(chunks)
    filed, around = np.zeros(size, np.uint8), np.zeros(starts[count], np.uint8)
    for group in range(count):
        pack_group(groups[group], order, columns, further, filed, around[starts[group] :])
    return filed, around, starts


@kernel
def pack_group(group: Any, order: Any, columns: Any, further: Any, filed: Any, around: Any) -> None:
    """Writes the chunks of one group, and the boxes around them if there are several."""
    words = filed.view(np.uint32)
    first, entries, at = whole(group[1]), whole(group[2]), 64 * whole(group[3])
    chunks = -(-entries // CHUNK)
    room = (chunks + CHUNK - 1) & ~(CHUNK - 1)
    for chunk in range(chunks):
        for column in range(0, COLUMNS, 2):
            low, high = 255, 0  # nothing is in the cells from 255 to 0
            for i in range(CHUNK):
                to = at + CHUNK_BYTES * chunk + CHUNK * column + i
                filed[to], filed[to + CHUNK] = 255, 0
                if CHUNK * chunk + i < entries:
                    entry = order[first + CHUNK * chunk + i]
                    filed[to], filed[to + CHUNK] = columns[entry, column], columns[entry, column + 1]
                    low, high = min(low, whole(filed[to])), max(high, whole(filed[to + CHUNK]))
            if chunks > 1:
                around[room * column + chunk], around[room * (column + 1) + chunk] = low, high
        for i in range(min(CHUNK, entries - CHUNK * chunk)):
            entry = order[first + CHUNK * chunk + i]
            for j in range(FURTHER):
                words[(at + CHUNK_BYTES * chunk + CHUNK * COLUMNS) // 4 + FURTHER * i + j] = further[entry, j]
    if chunks > 1:
        around[chunks:room] = 255


@part
def boxes_bytes(chunks: int) -> int:
    """Room for the boxes around the chunks of a group: of one chunk there is none."""
    return COLUMNS * ((chunks + CHUNK - 1) & ~(CHUNK - 1)) if chunks > 1 else 0
