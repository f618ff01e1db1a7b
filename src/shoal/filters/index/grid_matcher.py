"""Filed: the matching of runs that are filed by cells (see `cells`).

Owns the walk through blocks and groups, for one event or for several. Most of its time would be spent waiting for
memory, so it goes in three steps, each of which asks for what the next one reads: boxes around chunks, then boxes, then
further attributes. What is left then are candidates.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import boxes, candidates
from shoal.filters.index import event_row as rows
from shoal.filters.index import grid as cells
from shoal.filters.index import segment_layout as layout
from shoal.filters.index.candidates import ACCEPTED, ITEM_SHIFT
from shoal.filters.index.intrinsics import i64_at, trailing_zeros, u8_at, u32_at, u64_at, whole
from shoal.filters.index.kernel_context import (
    FAR,
    R_CELLS,
    R_FOUND,
    R_NEXT_ITEM,
    R_PRESENT,
    R_WAITING,
    address_of,
    cells_at,
    count_of,
    f64_part,
    floor_of,
    kind_of,
    root,
    u32_part,
)
from shoal.filters.index.members import first_id
from shoal.filters.index.vectors import prefetch, strictly_within, within
from shoal.wire.rawbytes import kernel, part

WAITING_MAX: Final = 4096
"""Chunks that wait to be looked at, before a further group is compared."""
WAITING_WORDS: Final = 3
"""Words of a chunk that waits: where it is; its first entry, cells << 32 and whose they are << 56; later which entries
are left."""
LOW_32: Final = np.uint64(0xFFFFFFFF)
_CELL_BITS: Final = 24
_LINE: Final = 64
_BOX_LINES: Final = boxes.CHUNK * cells.COLUMNS // _LINE
_FURTHER_LINES: Final = 4 * boxes.CHUNK * cells.FURTHER // _LINE
_LINE_ENTRIES: Final = boxes.CHUNK // _FURTHER_LINES


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


@part
def waiting_at(context: int) -> Any:
    """The chunks that wait."""
    return u64_at(root(context, R_WAITING), FAR)


@part
def touches(at: int, step: int, own: np.uint64) -> np.uint64:
    """Compares 32 boxes, whose columns are `step` bytes apart, with an event's three cells, of 8 bits each: those that
    it is in."""
    found = LOW_32
    for side in range(cells.SIDES):
        lows = at + 2 * step * side
        found &= within(lows, lows + step, np.uint8(own >> np.uint64(8 * side)))
    return found


@part
def contains(at: int, own: np.uint64) -> np.uint64:
    """The same of the boxes of a chunk: those whose sides it does not even touch."""
    found = LOW_32
    for side in range(cells.SIDES):
        lows = at + 2 * boxes.CHUNK * side
        found &= strictly_within(lows, lows + boxes.CHUNK, np.uint8(own >> np.uint64(8 * side)))
    return found


@kernel
def take_group(context: int, block: int, group: int, around: int, own: np.uint64, waiting: int) -> int:
    """Compares the boxes around a group's chunks, which are at an address, with an event's cells, and adds those that
    it is in to the chunks that wait; how many wait then. There is room. Above the cells stands whose they are."""
    groups = u32_part(block, layout.P_GROUPS)
    first, chunks = whole(groups[4 * group + 1]), chunks_of(block, group)
    at = address_of(block, layout.P_FILED) + _LINE * whole(groups[4 * group + 3])
    wait = waiting_at(context)
    if chunks <= boxes.CHUNKS_FEW:
        for chunk in range(chunks):
            waiting = add_chunk(wait, waiting, at + boxes.CHUNK_BYTES * chunk, first + boxes.CHUNK * chunk, own)
        return waiting
    step = (chunks + boxes.CHUNK - 1) & ~(boxes.CHUNK - 1)
    for batch in range(0, chunks, boxes.CHUNK):
        left = touches(around + batch, step, own)
        while left != 0:
            chunk = batch + whole(trailing_zeros(left))
            left &= left - np.uint64(1)
            waiting = add_chunk(wait, waiting, at + boxes.CHUNK_BYTES * chunk, first + boxes.CHUNK * chunk, own)
    return waiting


@part
def chunks_of(block: int, group: int) -> int:
    """How many chunks a group has."""
    return (whole(u32_part(block, layout.P_GROUPS)[4 * group + 2]) + boxes.CHUNK - 1) // boxes.CHUNK


@part
def joined(a_cell: Any, b_cell: Any, c_cell: Any) -> np.uint64:
    """Three cells as one number; 0 if the event lacks an attribute."""
    if a_cell == 0 or b_cell == 0 or c_cell == 0:
        return np.uint64(0)
    return np.uint64(a_cell) | (np.uint64(b_cell) << np.uint64(8)) | (np.uint64(c_cell) << np.uint64(16))


@part
def add_chunk(wait: Any, waiting: int, at: int, first: int, own: np.uint64) -> int:
    """Adds a chunk to those that wait, and asks for its boxes."""
    for line in range(_BOX_LINES):
        prefetch(at + _LINE * line)
    wait[WAITING_WORDS * waiting] = at
    wait[WAITING_WORDS * waiting + 1] = np.uint64(first) | (own << np.uint64(32))
    return waiting + 1


@kernel
def compare_waiting(context: int, waiting: int) -> int:
    """Compares the boxes of all chunks that wait; those in which some entries are left wait on. How many they are."""
    wait = waiting_at(context)
    kept = 0
    for i in range(waiting):
        at, whose = wait[WAITING_WORDS * i], wait[WAITING_WORDS * i + 1]
        left = touches(whole(at), boxes.CHUNK, whose >> np.uint64(32))
        wait[WAITING_WORDS * kept] = at
        wait[WAITING_WORDS * kept + 1] = whose
        wait[WAITING_WORDS * kept + 2] = left
        kept += whole(left != 0)  # without a jump that nobody could foresee
    for i in range(kept):
        at, left = whole(wait[WAITING_WORDS * i]), wait[WAITING_WORDS * i + 2]
        further = at + boxes.CHUNK * cells.COLUMNS
        for line in range(_FURTHER_LINES):
            wanted = (left >> np.uint64(_LINE_ENTRIES * line)) & np.uint64((1 << _LINE_ENTRIES) - 1) != 0
            prefetch(further + _LINE * line if wanted else at)
    return kept


@part
def decide(own: Any, words: Any) -> Any:
    """What the further attributes of an entry say: (whether it is not refused, whether it is accepted)."""
    remains, accepted = True, True
    for i in range(cells.FURTHER):
        word = words[i]
        low, high = (word >> np.uint32(16)) & np.uint32(0xFF), word >> np.uint32(24)
        cell = np.uint32(own[word & np.uint32(0xFFFF)])
        remains = remains & (((low <= cell) & (cell <= high)) | (high == 0))
        accepted = accepted & (low < cell) & (cell < high)
    return remains, accepted


@kernel
def collect(context: int, block: int, chunk: int, kept: int) -> Any:
    """Looks at the entries of the chunks that wait, from one on, and makes those that remain candidates, while there is
    room: (the next chunk, how many candidates there are)."""
    count = 0
    wait, found = waiting_at(context), candidates.candidates_at(context)
    records, ids = address_of(block, layout.P_WORD_ENDS), address_of(block, layout.P_IDS)
    while chunk < kept and count + boxes.CHUNK <= candidates.AT_ONCE:
        at, whose = whole(wait[WAITING_WORDS * chunk]), wait[WAITING_WORDS * chunk + 1]
        first, further = whole(whose & LOW_32), at + boxes.CHUNK * cells.COLUMNS
        left, inside = wait[WAITING_WORDS * chunk + 2], contains(at, whose >> np.uint64(32))
        item = whose >> np.uint64(32 + _CELL_BITS)
        own = cells_at(context, whole(item))
        while left != 0:
            j = whole(trailing_zeros(left))
            left &= left - np.uint64(1)
            remains, accepted = decide(own, u32_at(further + 4 * cells.FURTHER * j, cells.FURTHER))
            if not remains:
                continue
            accepted &= (inside >> np.uint64(j)) & np.uint64(1) != 0
            prefetch(ids + 4 * first_id(block, first + j) if accepted else records + 4 * (first + j))
            mark = ACCEPTED if accepted else np.uint64(0)
            found[count] = np.uint64(first + j) | mark | (item << np.uint64(ITEM_SHIFT))
            count += 1
        chunk += 1
    return chunk, count


@kernel
def add_waiting(context: int, block: int, waiting: int, used: int, segment: int) -> int:
    """Adds the entries of the chunks that wait and match, of one event."""
    kept, chunk = compare_waiting(context, waiting), 0
    while chunk < kept and used >= 0:
        chunk, count = collect(context, block, chunk, kept)
        used = candidates.add_entries(context, block, count, used, segment)
    return used


@kernel
def match_blocks(context: int, block: int, run: int, used: int, segment: int) -> int:
    """Matches a run that is filed by cells; in a batch it has to wait for the other events."""
    if root(context, R_NEXT_ITEM) != 0:
        return used if candidates.queue(context, segment, run) else candidates.OVERFLOW
    own = cells_at(context, 0)
    runs, blocks, groups = filed_parts(block)
    waiting = 0
    for number in range(whole(runs[4 * run + 2]), whole(runs[4 * run + 3])):
        a_cell = own[blocks[3 * number]]
        if a_cell == 0:
            continue
        around = address_of(block, layout.P_AROUND) + _LINE * whole(blocks[3 * number + 2])
        for group in range(whole(blocks[3 * number + 1]), whole(blocks[3 * number + 4])):
            chunks = chunks_of(block, group)
            if waiting + chunks > WAITING_MAX:
                used = add_waiting(context, block, waiting, used, segment)
                waiting = 0
                if used < 0:
                    return used
            attributes = whole(groups[4 * group])
            three = joined(a_cell, own[attributes & 0xFFFF], own[attributes >> 16])
            if three != 0:
                waiting = take_group(context, block, group, around, three, waiting)
            around += boxes.boxes_bytes(chunks)
    return add_waiting(context, block, waiting, used, segment)


@part
def items_with(context: int, attribute: int, queued: Any, wanted: Any) -> int:
    """Writes down the items of those events that have an attribute; how many they are."""
    count = 0
    for item in queued:
        wanted[count] = item
        count += whole(cells_at(context, item)[attribute] != 0)
    return count


@kernel
def match_together(context: int, block: int, run: int, queued: Any, found: int) -> int:
    """Matches several events with a run, group by group, so that each group comes from memory once; how many ids were
    found then, or a negative code. `queued` are their items."""
    runs, blocks, groups = filed_parts(block)
    waiting, wanted = 0, np.empty(len(queued), np.int64)
    for number in range(whole(runs[4 * run + 2]), whole(runs[4 * run + 3])):
        a = whole(blocks[3 * number])
        those = items_with(context, a, queued, wanted)
        if those == 0:
            continue
        around = address_of(block, layout.P_AROUND) + _LINE * whole(blocks[3 * number + 2])
        for group in range(whole(blocks[3 * number + 1]), whole(blocks[3 * number + 4])):
            attributes, chunks = whole(groups[4 * group]), chunks_of(block, group)
            b, c = attributes & 0xFFFF, attributes >> 16
            for item in wanted[:those]:
                if waiting + chunks > WAITING_MAX:
                    found = find_waiting(context, block, waiting, found)
                    waiting = 0
                    if found < 0:
                        return found
                own = cells_at(context, item)
                three = joined(own[a], own[b], own[c])
                if three != 0:
                    three |= np.uint64(item) << np.uint64(_CELL_BITS)
                    waiting = take_group(context, block, group, around, three, waiting)
            around += boxes.boxes_bytes(chunks)
    return find_waiting(context, block, waiting, found)


@kernel
def find_waiting(context: int, block: int, waiting: int, found: int) -> int:
    """Finds the ids of the entries of the chunks that wait, of several events; how many there are then, or a negative
    code."""
    kept, chunk = compare_waiting(context, waiting), 0
    while chunk < kept and found >= 0:
        chunk, count = collect(context, block, chunk, kept)
        found = candidates.find_ids(context, block, count, found)
    return found
