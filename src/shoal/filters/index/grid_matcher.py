"""The grid matcher: searches grid runs (see `grid`) for one event or for a batch of events.

Owns the walk through buckets, groups and chunks, and the candidates that it leaves: entries that the cells did not
reject. Never touches how a grid is built.

Most of the time would be spent waiting for memory. So the search goes in three steps, each of which prefetches what the
next one reads: boxes around chunks, then boxes of entries, then further attributes.

In a batch, grid runs are not searched at once. A *probe* records that an event has to search a run, with a row of the
event's cells in that segment. The probes of one run are then searched together, while its groups are in the processor's
cache. Probe 0 is an event that is matched alone. Each probe has a *lane*: the cells of all lanes on an attribute, a
column, are beside each other, so that one comparison tells which of 64 events are inside a box.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import event_row, grid
from shoal.filters.index import segment_layout as layout
from shoal.filters.index.evaluator import entry_holds
from shoal.filters.index.event_row import select_row
from shoal.filters.index.intrinsics import (
    LANES,
    UNBOUNDED,
    count_bits,
    i64,
    i64_at,
    lanes_within,
    prefetch,
    strictly_within,
    trailing_zeros,
    u8_at,
    u32_at,
    u64_at,
    within,
)
from shoal.filters.index.kernel_context import (
    CANDIDATES_MAX,
    FOUND_MAX,
    PENDING_MAX,
    PENDING_WORDS,
    PROBE_WORDS,
    PROBES_MAX,
    R_ATTRIBUTES,
    R_CANDIDATES,
    R_CELLS,
    R_COLUMNS,
    R_EVENT,
    R_NEXT_PROBE,
    R_PENDING,
    R_PRESENT,
    R_PRESENT_COUNT,
    R_PROBES,
    cells_at,
    event_floor,
    event_kind,
    root,
)
from shoal.filters.index.postings import dead_at, emit_entries, first_dead, first_id
from shoal.filters.index.segment_layout import f64_part, header_word, part_address, u32_part
from shoal.wire.raw_bytes import kernel, part

ID_RANGE: Final = np.uint64(1 << 63)
"""Marks a word that counts ids; the next word is their address. Without it, a word is an id."""
OVERFLOW: Final = -12
"""Code: there are more probes or ids than room for them."""
ACCEPTED: Final = np.uint64(1 << 32)
"""Marks a candidate that needs no exact test."""
PROBE_SHIFT: Final = 40
"""A candidate is its entry | `ACCEPTED` | its probe << `PROBE_SHIFT`."""
LOW_32: Final = np.uint64(0xFFFFFFFF)
LANES_MIN: Final = 24
"""So many lanes are compared with a box at once. Fewer are compared with 32 boxes at once, one after the other; so are
fewer lanes than there are boxes."""
_CELL_BITS: Final = 24
_LINE: Final = 64
_BOX_LINES: Final = grid.CHUNK * grid.COLUMNS // _LINE
_FURTHER_LINES: Final = 4 * grid.CHUNK * grid.FURTHER // _LINE
_LINE_ENTRIES: Final = grid.CHUNK // _FURTHER_LINES


@part
def candidates_at(context: int) -> Any:
    """The candidates."""
    return u64_at(root(context, R_CANDIDATES), UNBOUNDED)


@part
def found_at(context: int) -> Any:
    """The ids found for the events of a batch: an id | the event << 32; or `ID_RANGE` | number of ids | the event <<
    32, and their address."""
    return u64_at(root(context, R_CANDIDATES) + 8 * CANDIDATES_MAX, UNBOUNDED)


@part
def probes_at(context: int) -> Any:
    """The probes."""
    return i64_at(root(context, R_PROBES), UNBOUNDED)


@part
def probe_of(candidate: np.uint64) -> int:
    """The probe of a candidate."""
    return i64(candidate >> np.uint64(PROBE_SHIFT))


@kernel
def queue_probe(context: int, segment: int, run: int) -> bool:
    """Records that the current event has to search a run. False if there is no room."""
    probe = root(context, R_NEXT_PROBE)
    if probe == PROBES_MAX:
        return False
    probes = probes_at(context)
    probes[PROBE_WORDS * probe], probes[PROBE_WORDS * probe + 1] = segment, run
    probes[PROBE_WORDS * probe + 2] = root(context, R_EVENT)
    own, kept = cells_at(context, 0), cells_at(context, probe)
    for attribute in range(root(context, R_ATTRIBUTES)):
        kept[attribute] = own[attribute]
    i64_at(context, UNBOUNDED)[R_NEXT_PROBE] = probe + 1
    return True


@part
def prefetch_candidates(block: int, given: Any, count: int) -> None:
    """Prefetches the records of the candidates that need a test."""
    ends, words = u32_part(block, layout.P_WORD_ENDS), part_address(block, layout.P_WORDS)
    for i in range(count):
        if given[i] & ACCEPTED == 0:
            prefetch(words + 2 * i64(ends[given[i] & LOW_32] & layout.LOW_31))


@kernel
def emit_candidates(context: int, block: int, count: int, used: int, segment: int) -> int:
    """Writes spans for the candidates that match. They are all of one event and segment."""
    given = candidates_at(context)
    prefetch_candidates(block, given, count)
    for i in range(count):
        entry = i64(given[i] & LOW_32)
        if given[i] & ACCEPTED != 0 or entry_holds(context, block, entry):
            used = emit_entries(context, block, used, segment, entry, entry + 1)
            if used < 0:
                break
    return used


@part
def add_found(found: Any, to: int, event: np.uint64, ids: int, count: int) -> int:
    """Writes some ids, which are at an address. Returns the number of words used."""
    if count == 1:
        found[to] = np.uint64(u32_at(ids, 1)[0]) | event
        return to + 1
    if count == 0:
        return to
    found[to], found[to + 1] = ID_RANGE | np.uint64(count) | event, ids
    return to + 2


@kernel
def find_ids(context: int, block: int, count: int, to: int) -> int:
    """Finds the ids of the candidates that match. They are all of one segment. Returns the number of words used for
    ids, or `OVERFLOW`."""
    given, found, probes = candidates_at(context), found_at(context), probes_at(context)
    prefetch_candidates(block, given, count)
    ids = part_address(block, layout.P_IDS)
    for i in range(count):
        probe, entry = probe_of(given[i]), i64(given[i] & LOW_32)
        event = probes[PROBE_WORDS * probe + 2]
        if given[i] & ACCEPTED == 0:
            select_row(context, event)
            if not entry_holds(context, block, entry):
                continue
        first, last = first_id(block, entry), first_id(block, entry + 1)
        dead = dead_at(context, probes[PROBE_WORDS * probe])
        next_dead, dead_count = (first_dead(dead, first), i64(dead[0])) if dead[0] != 0 else (1, 0)
        while first < last:
            stop = min(i64(dead[next_dead]), last) if next_dead <= dead_count else last
            if to + 2 > FOUND_MAX:
                return OVERFLOW
            to = add_found(found, to, np.uint64(event) << np.uint64(32), ids + 4 * first, stop - first)
            first = stop + 1
            next_dead += 1
    return to


@part
def find_cells(context: int, block: int) -> None:
    """Finds the cells of the current event's numbers in a segment."""
    attributes = header_word(block, layout.H_ATTRIBUTES)
    present, own = i64_at(root(context, R_PRESENT), UNBOUNDED), u8_at(root(context, R_CELLS), UNBOUNDED)
    starts, edges = u32_part(block, layout.P_EDGE_STARTS), f64_part(block, layout.P_EDGES)
    for i in range(root(context, R_PRESENT_COUNT)):
        attribute = present[i]
        own[attribute] = 0
        if attribute < attributes and event_kind(context, attribute) == event_row.NUMBER:
            first, last = i64(starts[attribute]), i64(starts[attribute + 1])
            own[attribute] = grid.cell_of(edges, first, last, event_floor(context, attribute))


@part
def grid_parts(block: int) -> Any:
    """The runs, buckets and groups of a segment."""
    return u32_part(block, layout.P_RUNS), u32_part(block, layout.P_BUCKETS), u32_part(block, layout.P_GROUPS)


@part
def pending_at(context: int) -> Any:
    """The pending chunks."""
    return u64_at(root(context, R_PENDING), UNBOUNDED)


@part
def inside_boxes(at: int, step: int, own: np.uint64) -> np.uint64:
    """Compares 32 boxes, whose columns are `step` bytes apart, with an event's three cells of 8 bits each. Returns a
    bit for each box that contains them."""
    found = LOW_32
    for side in range(grid.SIDES):
        lows = at + 2 * step * side
        found &= within(lows, lows + step, np.uint8(own >> np.uint64(8 * side)))
    return found


@part
def strictly_inside_boxes(at: int, own: np.uint64) -> np.uint64:
    """The same for the boxes of a chunk, without those whose sides the cells touch."""
    found = LOW_32
    for side in range(grid.SIDES):
        lows = at + 2 * grid.CHUNK * side
        found &= strictly_within(lows, lows + grid.CHUNK, np.uint8(own >> np.uint64(8 * side)))
    return found


@kernel
def add_group(context: int, block: int, group: int, chunk_boxes: int, own: np.uint64, pending: int) -> int:
    """Compares an event's cells with the boxes around a group's chunks, which are at an address, and adds the chunks
    whose boxes contain them to the pending ones. Returns the number of pending chunks. There is room. The bits of `own`
    above the cells are the probe."""
    groups = u32_part(block, layout.P_GROUPS)
    first, chunks = i64(groups[4 * group + 1]), chunks_of(block, group)
    at = part_address(block, layout.P_CHUNKS) + _LINE * i64(groups[4 * group + 3])
    queue = pending_at(context)
    if chunks <= grid.CHUNKS_FEW:
        for chunk in range(chunks):
            pending = add_chunk(queue, pending, at + grid.CHUNK_BYTES * chunk, first + grid.CHUNK * chunk, own)
        return pending
    step = padded(chunks)
    for batch in range(0, chunks, grid.CHUNK):
        left = inside_boxes(chunk_boxes + batch, step, own)
        while left != 0:
            chunk = batch + i64(trailing_zeros(left))
            left &= left - np.uint64(1)
            pending = add_chunk(queue, pending, at + grid.CHUNK_BYTES * chunk, first + grid.CHUNK * chunk, own)
    return pending


@part
def chunks_of(block: int, group: int) -> int:
    """Number of chunks of a group."""
    return (i64(u32_part(block, layout.P_GROUPS)[4 * group + 2]) + grid.CHUNK - 1) // grid.CHUNK


@part
def padded(chunks: int) -> int:
    """The distance between the columns of the boxes around chunks."""
    return (chunks + grid.CHUNK - 1) & ~(grid.CHUNK - 1)


@part
def join_cells(a_cell: Any, b_cell: Any, c_cell: Any) -> np.uint64:
    """Three cells as one number; 0 if the event lacks an attribute."""
    if a_cell == 0 or b_cell == 0 or c_cell == 0:
        return np.uint64(0)
    return np.uint64(a_cell) | (np.uint64(b_cell) << np.uint64(8)) | (np.uint64(c_cell) << np.uint64(16))


@part
def add_chunk(queue: Any, pending: int, at: int, first: int, own: np.uint64) -> int:
    """Adds a pending chunk, and prefetches its boxes."""
    for line in range(_BOX_LINES):
        prefetch(at + _LINE * line)
    queue[PENDING_WORDS * pending] = at
    queue[PENDING_WORDS * pending + 1] = np.uint64(first) | (own << np.uint64(32))
    return pending + 1


@kernel
def compare_pending(context: int, pending: int) -> int:
    """Compares the boxes of all pending chunks, and keeps the chunks in which entries are left. Returns their
    number."""
    queue = pending_at(context)
    kept = 0
    for i in range(pending):
        at, origin = queue[PENDING_WORDS * i], queue[PENDING_WORDS * i + 1]
        left = inside_boxes(i64(at), grid.CHUNK, origin >> np.uint64(32))
        queue[PENDING_WORDS * kept] = at
        queue[PENDING_WORDS * kept + 1] = origin
        queue[PENDING_WORDS * kept + 2] = left
        kept += i64(left != 0)  # no branch, which could not be predicted
    for i in range(kept):
        at, left = i64(queue[PENDING_WORDS * i]), queue[PENDING_WORDS * i + 2]
        further = at + grid.CHUNK * grid.COLUMNS
        for line in range(_FURTHER_LINES):
            wanted = (left >> np.uint64(_LINE_ENTRIES * line)) & np.uint64((1 << _LINE_ENTRIES) - 1) != 0
            prefetch(further + _LINE * line if wanted else at)
    return kept


@part
def check_further(own: Any, words: Any) -> Any:
    """What the further attributes of an entry say: (whether it is not rejected, whether it is accepted)."""
    remains, accepted = True, True
    for i in range(grid.FURTHER):
        word = words[i]
        low, high = (word >> np.uint32(16)) & np.uint32(0xFF), word >> np.uint32(24)
        cell = np.uint32(own[word & np.uint32(0xFFFF)])
        remains = remains & (((low <= cell) & (cell <= high)) | (high == 0))
        accepted = accepted & (low < cell) & (cell < high)
    return remains, accepted


@kernel
def collect_candidates(context: int, block: int, chunk: int, kept: int) -> Any:
    """Makes candidates of the entries that are left in the pending chunks, from chunk `chunk` on, while there is room.
    Returns (the next chunk, number of candidates)."""
    count = 0
    queue, found = pending_at(context), candidates_at(context)
    records, ids = part_address(block, layout.P_WORD_ENDS), part_address(block, layout.P_IDS)
    while chunk < kept and count + grid.CHUNK <= CANDIDATES_MAX:
        at, origin = i64(queue[PENDING_WORDS * chunk]), queue[PENDING_WORDS * chunk + 1]
        first, further = i64(origin & LOW_32), at + grid.CHUNK * grid.COLUMNS
        left, inside = queue[PENDING_WORDS * chunk + 2], strictly_inside_boxes(at, origin >> np.uint64(32))
        probe = origin >> np.uint64(32 + _CELL_BITS)
        own = cells_at(context, i64(probe))
        while left != 0:
            j = i64(trailing_zeros(left))
            left &= left - np.uint64(1)
            remains, accepted = check_further(own, u32_at(further + 4 * grid.FURTHER * j, grid.FURTHER))
            if not remains:
                continue
            accepted &= (inside >> np.uint64(j)) & np.uint64(1) != 0
            prefetch(ids + 4 * first_id(block, first + j) if accepted else records + 4 * (first + j))
            mark = ACCEPTED if accepted else np.uint64(0)
            found[count] = np.uint64(first + j) | mark | (probe << np.uint64(PROBE_SHIFT))
            count += 1
        chunk += 1
    return chunk, count


@kernel
def emit_pending(context: int, block: int, pending: int, used: int, segment: int) -> int:
    """Writes spans for the matching entries of the pending chunks, of one event."""
    kept, chunk = compare_pending(context, pending), 0
    while chunk < kept and used >= 0:
        chunk, count = collect_candidates(context, block, chunk, kept)
        used = emit_candidates(context, block, count, used, segment)
    return used


@kernel
def match_grid(context: int, block: int, run: int, used: int, segment: int) -> int:
    """Matches a grid run. In a batch it queues a probe instead."""
    if root(context, R_NEXT_PROBE) != 0:
        return used if queue_probe(context, segment, run) else OVERFLOW
    own = cells_at(context, 0)
    runs, buckets, groups = grid_parts(block)
    pending = 0
    for bucket in range(i64(runs[4 * run + 2]), i64(runs[4 * run + 3])):
        a_cell = own[buckets[3 * bucket]]
        if a_cell == 0:
            continue
        chunk_boxes = part_address(block, layout.P_CHUNK_BOXES) + _LINE * i64(buckets[3 * bucket + 2])
        for group in range(i64(buckets[3 * bucket + 1]), i64(buckets[3 * bucket + 4])):
            chunks = chunks_of(block, group)
            if pending + chunks > PENDING_MAX:
                used = emit_pending(context, block, pending, used, segment)
                pending = 0
                if used < 0:
                    return used
            attributes = i64(groups[4 * group])
            joined = join_cells(a_cell, own[attributes & 0xFFFF], own[attributes >> 16])
            if joined != 0:
                pending = add_group(context, block, group, chunk_boxes, joined, pending)
            chunk_boxes += grid.chunk_boxes_bytes(chunks)
    return emit_pending(context, block, pending, used, segment)


@kernel
def set_lanes(context: int, queued: Any, is_end: bool) -> None:
    """Gives each of some probes a lane, or at the end clears the lanes."""
    probes, columns = probes_at(context), u8_at(root(context, R_COLUMNS), UNBOUNDED)
    for lane, probe in enumerate(queued):
        select_row(context, probes[PROBE_WORDS * probe + 2])
        present, own = i64_at(root(context, R_PRESENT), UNBOUNDED), cells_at(context, probe)
        for i in range(root(context, R_PRESENT_COUNT)):
            columns[LANES * present[i] + lane] = 0 if is_end else own[present[i]]


@part
def lanes_with_all(a: int, b: int, c: int) -> Any:
    """The lanes whose events have three attributes. The addresses of their columns are given."""
    least, most = np.uint8(grid.FIRST_CELL), np.uint8(255)
    return lanes_within(a, least, most) & lanes_within(b, least, most) & lanes_within(c, least, most)


@part
def lanes_inside(a: int, b: int, c: int, box: int, step: int) -> Any:
    """The lanes whose cells are inside a box. The bytes of the box are `step` apart."""
    sides = u8_at(box, UNBOUNDED)
    inside_a, inside_b = lanes_within(a, sides[0], sides[step]), lanes_within(b, sides[2 * step], sides[3 * step])
    return inside_a & inside_b & lanes_within(c, sides[4 * step], sides[5 * step])


@part
def cells_of(a: int, b: int, c: int, lane: int, probe: int) -> Any:
    """The three cells of a lane, and its probe."""
    joined = join_cells(u8_at(a, LANES)[lane], u8_at(b, LANES)[lane], u8_at(c, LANES)[lane])
    return joined | (np.uint64(probe) << np.uint64(_CELL_BITS))


@kernel
def match_grid_batch(context: int, block: int, run: int, queued: Any, found: int) -> int:
    """Matches several events with a run, group by group, so that each group is read from memory once. `queued` are the
    probes. Returns the number of words used for ids, or a negative code."""
    for first in range(0, len(queued), LANES):
        lanes = queued[first : first + LANES]
        set_lanes(context, lanes, False)
        found = match_lanes(context, block, run, lanes, found)
        set_lanes(context, lanes, True)
        if found < 0:
            break
    return found


@kernel
def match_lanes(context: int, block: int, run: int, queued: Any, found: int) -> int:
    """Matches the events of all lanes with a run."""
    runs, buckets, groups = grid_parts(block)
    columns, all_chunks = root(context, R_COLUMNS), part_address(block, layout.P_CHUNKS)
    queue, pending = pending_at(context), 0
    for bucket in range(i64(runs[4 * run + 2]), i64(runs[4 * run + 3])):
        a = columns + LANES * i64(buckets[3 * bucket])
        if lanes_with_all(a, a, a) == 0:
            continue
        boxes = part_address(block, layout.P_CHUNK_BOXES) + _LINE * i64(buckets[3 * bucket + 2])
        for group in range(i64(buckets[3 * bucket + 1]), i64(buckets[3 * bucket + 4])):
            attributes, chunks = i64(groups[4 * group]), chunks_of(block, group)
            b, c = columns + LANES * (attributes & 0xFFFF), columns + LANES * (attributes >> 16)
            present = lanes_with_all(a, b, c)
            if count_bits(present) < min(chunks, LANES_MIN):
                while present != 0:
                    if pending + chunks > PENDING_MAX:
                        found, pending = find_pending_ids(context, block, pending, found), 0
                    lane = i64(trailing_zeros(present))
                    present &= present - np.uint64(1)
                    own = cells_of(a, b, c, lane, queued[lane])
                    pending = add_group(context, block, group, boxes, own, pending)
            else:
                first, at = i64(groups[4 * group + 1]), all_chunks + _LINE * i64(groups[4 * group + 3])
                for chunk in range(chunks):
                    if pending + LANES > PENDING_MAX:
                        found, pending = find_pending_ids(context, block, pending, found), 0
                    left = lanes_inside(a, b, c, boxes + chunk, padded(chunks)) if chunks > grid.CHUNKS_FEW else present
                    while left != 0:
                        lane = i64(trailing_zeros(left))
                        left &= left - np.uint64(1)
                        own = cells_of(a, b, c, lane, queued[lane])
                        pending = add_chunk(
                            queue, pending, at + grid.CHUNK_BYTES * chunk, first + grid.CHUNK * chunk, own
                        )
            if found < 0:
                return found
            boxes += grid.chunk_boxes_bytes(chunks)
    return find_pending_ids(context, block, pending, found)


@kernel
def find_pending_ids(context: int, block: int, pending: int, found: int) -> int:
    """Finds the ids of the matching entries of the pending chunks, of several events. Returns the number of words used
    for ids, or a negative code."""
    kept, chunk = compare_pending(context, pending), 0
    while chunk < kept and found >= 0:
        chunk, count = collect_candidates(context, block, chunk, kept)
        found = find_ids(context, block, count, found)
    return found
