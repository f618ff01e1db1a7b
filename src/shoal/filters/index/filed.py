"""Filed: the matching of runs that are filed by cells (see `cells`).

Owns the walk through blocks and groups, for one event and for a batch of them. A batch shares what it reads: each
group is compared with all events that visit it while it is in the cache.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import cells, layout, rows
from shoal.filters.index.context import (
    FAR,
    R_CELLS,
    R_FOUND,
    R_MASK,
    R_PRESENT,
    R_WAITING,
    address_of,
    cell_at,
    count_of,
    f64_part,
    floor_of,
    kind_of,
    root,
    u16_part,
    u32_part,
)
from shoal.filters.index.holding import holds
from shoal.filters.index.memory import i64_at, trailing_zeros, u8_at, u32_at, u64_at, whole
from shoal.filters.index.spans import emit_entries
from shoal.wire.rawbytes import kernel, part

WAITING_MAX: Final = 8192
"""Entries that wait for their exact test, before a further group is looked at."""


@part
def entry_holds(context: int, block: int, entry: int) -> bool:
    """Whether the record of an entry holds for the event."""
    ends = u32_part(block, layout.P_WORD_ENDS)
    at, end = whole(ends[entry] & layout.LOW_31), whole(ends[entry + 1] & layout.LOW_31)
    return holds(context, address_of(block, layout.P_WORDS), at, end)


@part
def find_cells(context: int, block: int) -> None:
    """Finds the cells of the event's numbers in a segment."""
    attributes = count_of(block, layout.H_ATTRIBUTES)
    present, own = i64_at(root(context, R_PRESENT), FAR), u8_at(root(context, R_CELLS), FAR)
    starts, edges = u32_part(block, layout.P_EDGE_STARTS), f64_part(block, layout.P_EDGES)
    for i in range(root(context, R_FOUND)):
        attribute = present[i]
        own[attribute] = 0
        if attribute < attributes and kind_of(context, attribute) == rows.NUMBER:
            first, last = whole(starts[attribute]), whole(starts[attribute + 1])
            own[attribute] = cells.cell_of(edges, first, last, floor_of(context, attribute))


@part
def filed_parts(block: int) -> Any:
    """The runs, blocks and groups of a segment."""
    return u32_part(block, layout.P_RUNS), u32_part(block, layout.P_BLOCKS), u32_part(block, layout.P_GROUPS)


@kernel
def test_cells(columns: int, count: int, b_cell: Any, a_cell: Any, mask: Any) -> None:
    """Compares the bytes of `count` entries, a multiple of 32, on `b` and `a`; the mask has a 1 for each that is not
    refused. Written so that it compiles to vector instructions."""
    b_low, b_high = u8_at(columns, count), u8_at(columns + count, count)
    a_low, a_high = u8_at(columns + 2 * count, count), u8_at(columns + 3 * count, count)
    for i in range(count):
        mask[i] = (b_low[i] <= b_cell) & (b_cell <= b_high[i]) & (a_low[i] <= a_cell) & (a_cell <= a_high[i])


@part
def bits_of(truths: np.uint64) -> np.uint64:
    """Eight bytes that are 0 or 1, as eight bits."""
    return (truths * np.uint64(0x0102040810204080)) >> np.uint64(56)


@kernel
def take_survivors(context: int, block: int, group: int, a_cell: Any, waiting: int) -> int:
    """Adds the entries of a group that bytes do not refuse to those that wait; how many wait then. `a_cell` is the
    event's on the block's attribute. There is room."""
    groups, own = u32_part(block, layout.P_GROUPS), u8_at(root(context, R_CELLS), FAR)
    b_cell = own[groups[4 * group]]
    if b_cell == 0:
        return waiting
    first, count = whole(groups[4 * group + 1]), whole(groups[4 * group + 2])
    padded = (count + 31) & ~31
    columns = address_of(block, layout.P_FILED) + 32 * whole(groups[4 * group + 3])
    thirds = u32_at(columns + 4 * padded, count)
    mask = root(context, R_MASK)
    wait = u32_at(root(context, R_WAITING), FAR)
    test_cells(columns, padded, b_cell, a_cell, u8_at(mask, padded))
    words = u64_at(mask, padded >> 3)
    for chunk in range(padded >> 5):
        left = (
            bits_of(words[4 * chunk])
            | bits_of(words[4 * chunk + 1]) << np.uint64(8)
            | bits_of(words[4 * chunk + 2]) << np.uint64(16)
            | bits_of(words[4 * chunk + 3]) << np.uint64(24)
        )
        while left != 0:
            i = 32 * chunk + whole(trailing_zeros(left))
            left &= left - np.uint64(1)
            third = thirds[i]
            c_cell = np.uint32(own[third & np.uint32(0xFFFF)])
            wait[waiting] = first + i
            waiting += whole(
                ((third >> np.uint32(16)) & np.uint32(0xFF) <= c_cell) & (c_cell <= third >> np.uint32(24))
            )
    return waiting


@kernel
def test_waiting(context: int, block: int, waiting: int, used: int, segment: int) -> int:
    """Tests the entries that wait exactly. All records are touched first, so that the misses of the cache overlap."""
    ends, words = u32_part(block, layout.P_WORD_ENDS), u16_part(block, layout.P_WORDS)
    wait = u32_at(root(context, R_WAITING), FAR)
    touched = np.uint16(0)
    for i in range(waiting):
        touched ^= words[ends[wait[i]] & layout.LOW_31]
    u8_at(root(context, R_MASK), 1)[0] = touched & np.uint16(1)  # so that the loads are not left out
    for i in range(waiting):
        entry = whole(wait[i])
        if entry_holds(context, block, entry):
            used = emit_entries(context, block, used, segment, entry, entry + 1)
            if used < 0:
                break
    return used


@part
def is_visited_by(a_cell: Any, ends: int) -> bool:
    """Whether an event with a cell visits a block, by the block's coarse cells."""
    coarse = whole(a_cell) >> cells.COARSE_SHIFT
    return bool(a_cell != 0) and coarse >= (ends >> 4) and coarse <= (ends & 15)


@kernel
def match_blocks(context: int, block: int, run: int, used: int, segment: int) -> int:
    """Matches a run that is filed by cells."""
    runs, blocks, groups = filed_parts(block)
    waiting = 0
    for number in range(whole(runs[4 * run + 2]), whole(runs[4 * run + 3])):
        a_cell = cell_at(context, blocks[3 * number])
        if not is_visited_by(a_cell, whole(blocks[3 * number + 1])):
            continue
        for group in range(whole(blocks[3 * number + 2]), whole(blocks[3 * number + 5])):
            if waiting + whole(groups[4 * group + 2]) > WAITING_MAX:
                used = test_waiting(context, block, waiting, used, segment)
                waiting = 0
                if used < 0:
                    return used
            waiting = take_survivors(context, block, group, a_cell, waiting)
    return test_waiting(context, block, waiting, used, segment)


@kernel
def match_blocks_for_all(contexts: Any, events: int, block: int, run: int, used: Any, segment: int) -> None:
    """Matches a run that is filed by cells against many events: `contexts` has one in each row, and `used` is what is
    used of the spans of each, which a code takes the place of."""
    runs, blocks, _ = filed_parts(block)
    visitors = np.empty(events, np.int64)
    for number in range(whole(runs[4 * run + 2]), whole(runs[4 * run + 3])):
        count = 0
        for event in range(events):
            a_cell = cell_at(contexts[event], blocks[3 * number])
            if is_visited_by(a_cell, whole(blocks[3 * number + 1])) and used[event] >= 0:
                visitors[count] = event
                count += 1
        if count == 0:
            continue
        for group in range(whole(blocks[3 * number + 2]), whole(blocks[3 * number + 5])):
            for i in range(count):
                event = visitors[i]
                a_cell = cell_at(contexts[event], blocks[3 * number])
                waiting = take_survivors(contexts[event], block, group, a_cell, 0)
                if waiting > 0 and used[event] >= 0:
                    used[event] = test_waiting(contexts[event], block, waiting, used[event], segment)
