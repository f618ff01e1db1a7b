"""Boxes: the groups of `cells`, as bytes.

Owns the order of the entries of a group, in which those of a chunk are near each other, and the bytes of chunks and of
the boxes around them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index.grid import COLUMNS, FURTHER, LOW_16
from shoal.filters.index.intrinsics import whole
from shoal.filters.index.vectors import WIDTH
from shoal.wire.rawbytes import background_kernel, kernel, part

CHUNK: Final = WIDTH
CHUNKS_FEW: Final = 2
"""So few chunks of a group have no boxes around them: to compare those would be as much work as to compare theirs."""
CHUNK_BYTES: Final = CHUNK * (COLUMNS + 4 * FURTHER)


@kernel
def split_value(order: Any, first: int, last: int, columns: Any, column: int, half: int, counts: Any) -> Any:
    """(value, count): `half` entries of a part of the order come first by one column: those whose number is below the
    value, and so many that equal it."""
    counts[:] = 0
    for i in range(first, last):
        counts[columns[order[i], column]] += 1
    value, below = 0, 0
    while below + counts[value] < half:
        below += counts[value]
        value += 1
    return value, half - below


@kernel
def split_cost(order: Any, first: int, last: int, columns: Any, column: int, half: int, counts: Any, sides: int) -> Any:
    """(cost, value, count): how many entries an event is compared with if a part of the order is split by one column:
    those of each half as often as its cells are in the box around them."""
    value, equal = split_value(order, first, last, columns, column, half, counts)
    lows, highs = np.full((2, 3), 255), np.zeros((2, 3), np.int64)
    taken = 0
    for i in range(first, last):
        entry = order[i]
        own = whole(columns[entry, column])
        after = 1
        if own < value:
            after = 0
        elif own == value and taken < equal:
            taken += 1
            after = 0
        for side in range(sides):
            lows[after, side] = min(lows[after, side], whole(columns[entry, 2 * side]))
            highs[after, side] = max(highs[after, side], whole(columns[entry, 2 * side + 1]))
    cost = 0.0
    for after in range(2):
        volume = 1.0
        for side in range(sides):
            volume *= highs[after, side] - lows[after, side] + 1
        cost += volume * (half if after == 0 else last - first - half)
    return cost, value, equal


@kernel
def split(order: Any, first: int, last: int, columns: Any, sides: int, counts: Any, moved: Any) -> int:
    """Splits a part of the order in two, of whole chunks but for the last, so that an event is in as few boxes as
    possible; where the second begins."""
    chunks = -(-(last - first) // CHUNK)
    half = CHUNK * (chunks // 2)
    best, best_column, best_value, best_equal = np.inf, 0, 0, 0
    for column in range(2 * sides):
        cost, value, equal = split_cost(order, first, last, columns, column, half, counts, sides)
        if cost < best:
            best, best_column, best_value, best_equal = cost, column, value, equal
    to, later, taken = first, 0, 0
    for i in range(first, last):
        entry = order[i]
        own = whole(columns[entry, best_column])
        if own < best_value or (own == best_value and taken < best_equal):
            taken += whole(own == best_value)
            order[to] = entry
            to += 1
        else:
            moved[later] = entry
            later += 1
    order[to:last] = moved[:later]
    return to


@background_kernel
def tile(groups: Any, count: int, order: Any, subs: Any, columns: Any) -> None:
    """Sorts the entries of each group so that those of a chunk are near each other."""
    most = 0
    for group in range(count):
        most = max(most, whole(groups[group, 2]))
    moved, counts, parts = np.empty(most, order.dtype), np.empty(256, np.int64), np.empty((64, 2), np.int64)
    for group in range(count):
        first, size = whole(groups[group, 1]), whole(groups[group, 2])
        sides = sides_of(subs[order[first]])
        parts[0, 0], parts[0, 1] = first, first + size
        waiting = 1
        while waiting > 0:
            waiting -= 1
            begin, end = parts[waiting]
            if end - begin <= CHUNK:
                continue
            middle = split(order, begin, end, columns, sides, counts, moved)
            parts[waiting, 0], parts[waiting, 1] = begin, middle
            parts[waiting + 1, 0], parts[waiting + 1, 1] = middle, end
            waiting += 2


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
    """Writes the chunks of one group, and the boxes around them if they are not few."""
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
            if chunks > CHUNKS_FEW:
                around[room * column + chunk], around[room * (column + 1) + chunk] = low, high
        for i in range(min(CHUNK, entries - CHUNK * chunk)):
            entry = order[first + CHUNK * chunk + i]
            for j in range(FURTHER):
                words[(at + CHUNK_BYTES * chunk + CHUNK * COLUMNS) // 4 + FURTHER * i + j] = further[entry, j]
    if chunks > CHUNKS_FEW:
        around[chunks:room] = 255


@part
def boxes_bytes(chunks: int) -> int:
    """Room for the boxes around the chunks of a group; around few chunks there are none."""
    return COLUMNS * ((chunks + CHUNK - 1) & ~(CHUNK - 1)) if chunks > CHUNKS_FEW else 0
