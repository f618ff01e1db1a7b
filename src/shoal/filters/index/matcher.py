"""Matching: one event against one segment.

Owns the way from the values of an event to the clusters that wait for them, and from a cluster to its runs. Functions
are handed the context and the segment's block by address (see `context`), write spans, and say how many words of
those are used then, or a negative code.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import arranging, choosing, standing
from shoal.filters.index import event_row as rows
from shoal.filters.index import record_format as records
from shoal.filters.index import segment_layout as layout
from shoal.filters.index import signatures as weighing
from shoal.filters.index.calls import Addressed, call_5
from shoal.filters.index.candidates import ask_ahead, entry_holds, record_of
from shoal.filters.index.evaluator import holds, holds_item, is_listed
from shoal.filters.index.event_row import CODE, EXOTIC, LENGTH, START
from shoal.filters.index.grid_matcher import find_cells, match_blocks
from shoal.filters.index.intrinsics import i64_at, u8_at, u32_at, whole
from shoal.filters.index.kernel_context import (
    FAR,
    R_FIRST_SEGMENT,
    R_MATCH_CLUSTER,
    R_SCRATCH,
    R_VISITED,
    R_YOUNG_COUNT,
    R_YOUNG_ENDS,
    R_YOUNG_WORDS,
    SEGMENT_ROOTS,
    address_of,
    aux_of,
    ceil_of,
    count_of,
    f64_part,
    floor_of,
    kind_of,
    root,
    u8_part,
    u16_part,
    u32_part,
)
from shoal.filters.index.postings import emit, emit_entries
from shoal.wire.rawbytes import hash_pair, kernel, part

S_HEADER: Final = 4
"""Words of a signature before its parts: how many parts, how many lengths, first cluster, one past the last."""
VISITED_MAX: Final = 1 << 15


@part
def first_above(keys: Any, first: int, last: int, value: float, or_equal: bool) -> int:
    """The first of some sorted keys that is above a value, or equal to it."""
    while first < last:
        middle = (first + last) >> 1
        if keys[middle] > value or (or_equal and keys[middle] == value):
            last = middle
        else:
            first = middle + 1
    return first


@kernel
def part_holds(context: int, block: int, entry: int, wanted: int) -> bool:
    """Whether an event has the value that the part of a signature has in an entry: after a hash has said so."""
    kind, attribute = wanted >> 16, wanted & 0xFFFF
    words = u16_part(block, layout.P_WORDS)
    at, end, place = record_of(block, entry)
    while at < end:
        operator = whole(words[at]) & 0xFF
        if whole(words[at + 1]) == attribute:
            if kind == weighing.S_KIND:
                return bool(whole(choosing.presence_value(words, at)) == kind_of(context, attribute))
            if kind == weighing.S_EQUAL and operator >= records.IN_NUMBERS:
                return is_listed(context, address_of(block, layout.P_WORDS), at, place)
            if (
                (kind == weighing.S_EQUAL and standing.is_equality(operator))
                or (kind == weighing.S_PREFIX and operator == records.PREFIX)
                or (kind == weighing.S_SUFFIX and operator == records.SUFFIX)
            ):
                return holds_item(context, address_of(block, layout.P_WORDS), at)
        at += records.item_words(words, at)
    return True


@kernel
def match_others(
    context: int, block: int, entry: int, stop: int, key: int, value: float, used: int, segment: int
) -> int:
    """Matches the entries up to `stop` that exclude another value; the first one's is the key at `key`."""
    keys, end = f64_part(block, layout.P_KEYS), key + stop - entry
    first = first_above(keys, key, end, value, True)
    last = first_above(keys, first, end, value, False)
    used = emit_entries(context, block, used, segment, entry, entry + first - key)
    return used if used < 0 else emit_entries(context, block, used, segment, entry + last - key, stop)


@kernel
def match_sorted(context: int, block: int, run: int, stop: int, used: int, segment: int) -> int:
    """Matches a run that is sorted, up to the entry `stop`."""
    runs, keys = u32_part(block, layout.P_RUNS), f64_part(block, layout.P_KEYS)
    kind, attribute = whole(runs[4 * run]) & 0xFF, whole(runs[4 * run]) >> 8
    if kind_of(context, attribute) != (rows.STRING if kind == choosing.NOT_TEXT else rows.NUMBER):
        return used
    entry = whole(runs[4 * run + 1])
    key = whole(runs[4 * run + 2])
    end = key + stop - entry
    if kind == choosing.NOT_TEXT:
        return match_others(context, block, entry, stop, key, float(aux_of(context, attribute, CODE)), used, segment)
    floor = floor_of(context, attribute)
    if kind == choosing.LOW:
        above = first_above(keys, key, end, floor, False)
        return emit_entries(context, block, used, segment, entry, entry + above - key)
    if kind == choosing.HIGH:
        above = first_above(keys, key, end, ceil_of(context, attribute), True)
        return emit_entries(context, block, used, segment, entry + above - key, stop)
    if aux_of(context, attribute, EXOTIC) != 0:
        return emit_entries(context, block, used, segment, entry, stop)
    return match_others(context, block, entry, stop, key, floor, used, segment)


@kernel
def match_scan(context: int, block: int, first: int, last: int, used: int, segment: int) -> int:
    """Tests entries one by one."""
    for entry in range(first, last):
        ask_ahead(block, entry, last)
        if entry_holds(context, block, entry):
            used = emit_entries(context, block, used, segment, entry, entry + 1)
            if used < 0:
                return used
    return used


@part
def first_run(block: int, first: int) -> int:
    """The first run of the cluster that begins with an entry."""
    runs = u32_part(block, layout.P_RUNS)
    run, high = 0, count_of(block, layout.H_RUNS)
    while run < high:
        middle = (run + high) >> 1
        if whole(runs[4 * middle + 1]) < first:
            run = middle + 1
        else:
            high = middle
    return run


@Addressed
def match_cluster(context: int, block: int, cluster: int, used: int, segment: int) -> int:
    """Matches all runs of a cluster."""
    clusters, runs = u32_part(block, layout.P_CLUSTERS), u32_part(block, layout.P_RUNS)
    first, last = whole(clusters[cluster] & layout.LOW_31), whole(clusters[cluster + 1] & layout.LOW_31)
    if whole(clusters[cluster]) == first:
        return match_scan(context, block, first, last, used, segment)
    run = first_run(block, first)
    while whole(runs[4 * run + 1]) < last and used >= 0:
        kind = whole(runs[4 * run]) & 0xFF
        entry, stop = whole(runs[4 * run + 1]), min(last, whole(runs[4 * run + 5]))
        if kind == choosing.ALL:
            used = emit_entries(context, block, used, segment, entry, stop)
        elif kind == choosing.SCAN:
            used = match_scan(context, block, entry, stop, used, segment)
        elif kind == arranging.GRID:
            used = match_blocks(context, block, run, used, segment)
        else:
            used = match_sorted(context, block, run, stop, used, segment)
        run += 1
    return used


@part
def is_its_cluster(context: int, block: int, signature: int, cluster: int) -> bool:
    """Whether the event has the values of a cluster. For a window of a contained string nobody can say; its entries
    are tested anyway."""
    signatures = u32_part(block, layout.P_SIGNATURES)
    entry = whole(u32_part(block, layout.P_CLUSTERS)[cluster] & layout.LOW_31)
    for i in range(whole(signatures[signature])):
        if not part_holds(context, block, entry, whole(signatures[signature + S_HEADER + i])):
            return False
    return True


@part
def is_visited(context: int, cluster: int) -> bool:
    """Whether a cluster was visited for this event and signature; it is from now on."""
    visited = i64_at(root(context, R_VISITED), VISITED_MAX)
    for i in range(1, visited[0] + 1):
        if visited[i] == cluster:
            return True
    if visited[0] + 1 < VISITED_MAX:
        visited[0] += 1
        visited[visited[0]] = cluster
    return False


@kernel
def match_value(context: int, block: int, signature: int, value: Any, used: int, segment: int) -> int:
    """Matches the cluster that has a hash. Slots have a byte of it only, so the cluster is looked at."""
    signatures, slots = u32_part(block, layout.P_SIGNATURES), u32_part(block, layout.P_SLOTS)
    tags = u8_part(block, layout.P_TAGS)
    count = count_of(block, layout.H_SLOTS)
    slot = arranging.first_slot(value, count)
    tag = arranging.tag_of(value)
    first, last = whole(signatures[signature + 2]), whole(signatures[signature + 3])
    while slots[slot] != 0 and used >= 0:
        if tags[slot] == tag:
            cluster = whole(slots[slot]) - 1
            if (
                first <= cluster < last
                and is_its_cluster(context, block, signature, cluster)
                and not is_visited(context, cluster)
            ):
                used = call_5(root(context, R_MATCH_CLUSTER), context, block, cluster, used, segment)
        slot = slot + 1 if slot + 1 < count else 0
    return used


@kernel
def fixed_value(context: int, kind: int, attribute: int) -> Any:
    """What an event has for a part of a signature with one value: (whether it has one, the value)."""
    own = kind_of(context, attribute)
    if kind == weighing.S_ABSENT:
        return own == rows.ABSENT, np.uint64(0)
    if own == rows.ABSENT:
        return False, np.uint64(0)
    if kind == weighing.S_EXISTS:
        return True, np.uint64(0)
    if kind == weighing.S_KIND:
        return True, np.uint64(own)
    code = aux_of(context, attribute, CODE)
    if own == rows.STRING:
        return code >= 0, standing.string_value(code)
    if own == rows.BOOLEAN:
        return True, standing.boolean_value(code)
    exotic = aux_of(context, attribute, EXOTIC)
    if exotic != 0:
        return True, standing.number_value(np.uint64(code), exotic)
    return True, standing.number_value(np.float64(floor_of(context, attribute)).view(np.uint64), 0)


@kernel
def match_texts(
    context: int, block: int, signature: int, base: Any, kind: int, attribute: int, used: int, segment: int
) -> int:
    """Matches a signature whose last part is a prefix, a suffix or a window of the event's string."""
    start, length = aux_of(context, attribute, START), aux_of(context, attribute, LENGTH)
    data, signatures = u8_at(root(context, R_SCRATCH), FAR), u32_part(block, layout.P_SIGNATURES)
    if kind > weighing.S_PART:
        size = kind - weighing.S_PART
        for at in range(start, start + length - size + 1):
            value = hash_pair(base, standing.part_value(data, at, size))
            used = match_value(context, block, signature, value, used, segment)
            if used < 0:
                return used
        return used
    value = standing.FNV_START
    done = 0
    lengths = signature + S_HEADER + whole(signatures[signature])
    for i in range(whole(signatures[signature + 1])):
        wanted = whole(signatures[lengths + i])
        if wanted > length:
            break
        while done < wanted:
            at = start + done if kind == weighing.S_PREFIX else start + length - 1 - done
            value = standing.fnv(value, data[at])
            done += 1
        used = match_value(context, block, signature, hash_pair(base, value), used, segment)
        if used < 0:
            return used
    return used


@Addressed
def match_segment(context: int, segment: int, used: int) -> int:
    """Matches an event against a segment."""
    block = root(context, R_FIRST_SEGMENT + SEGMENT_ROOTS * segment)
    if count_of(block, layout.H_BLOCKS) > 0:
        find_cells(context, block)
    signatures = u32_part(block, layout.P_SIGNATURES)
    visited = i64_at(root(context, R_VISITED), VISITED_MAX)
    signature = 0
    seed = np.uint64(count_of(block, layout.H_SEED))
    for number in range(count_of(block, layout.H_SIGNATURES)):
        count = whole(signatures[signature])
        value = hash_pair(seed, np.uint64(number))
        kind, attribute = 0, 0
        alive = True
        for i in range(count):
            kind = whole(signatures[signature + S_HEADER + i]) >> 16
            attribute = whole(signatures[signature + S_HEADER + i]) & 0xFFFF
            if kind > weighing.FIXED_LAST:
                alive = kind_of(context, attribute) == rows.STRING
            else:
                alive, own = fixed_value(context, kind, attribute)
                value = hash_pair(value, own)
            if not alive:
                break
        if alive:
            visited[0] = 0
            if kind > weighing.FIXED_LAST:
                used = match_texts(context, block, signature, value, kind, attribute, used, segment)
            else:
                used = match_value(context, block, signature, value, used, segment)
            if used < 0:
                return used
        signature += S_HEADER + count + whole(signatures[signature + 1])
    return used


@kernel
def match_young(context: int, segment: int, used: int) -> int:
    """Matches an event against the records that are in no segment yet."""
    ends = i64_at(root(context, R_YOUNG_ENDS), FAR)
    words = root(context, R_YOUNG_WORDS)
    for position in range(whole(u32_at(root(context, R_YOUNG_COUNT), 1)[0])):
        if holds(context, words, ends[position], ends[position + 1]):
            used = emit(context, used, segment, position, position + 1)
            if used < 0:
                break
    return used
