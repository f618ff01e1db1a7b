"""The matcher: events against all segments and the record buffer.

Owns the way from an event's values to clusters, from a cluster to its runs, the order of work for a batch, and the
kernels that Python calls: ids, spans or a count for one event or a table of events. Grid runs are searched by
`grid_matcher`.

Functions take the context and the segment's block by address. Those that write spans return the number of words used,
or a negative code.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import event_row, record_format
from shoal.filters.index import segment_layout as layout
from shoal.filters.index.evaluator import entry_holds, has_listed_value, holds, holds_item, prefetch_records, record_of
from shoal.filters.index.event_row import (
    CODE,
    LENGTH,
    START,
    WIDE,
    clear_cells,
    clear_row,
    clear_rows,
    read_event,
    read_row,
)
from shoal.filters.index.grid_matcher import (
    ID_RANGE,
    LOW_32,
    OVERFLOW,
    find_cells,
    found_at,
    match_grid,
    match_grid_batch,
    probes_at,
)
from shoal.filters.index.intrinsics import (
    UNBOUNDED,
    AddressedFunction,
    call_3,
    call_5,
    copy_bytes,
    i64,
    i64_at,
    u8_at,
    u32_at,
)
from shoal.filters.index.kernel_context import (
    PROBE_WORDS,
    R_BATCH,
    R_BUFFER_COUNT,
    R_BUFFER_ENDS,
    R_BUFFER_WORDS,
    R_EVENT,
    R_FIRST_SEGMENT,
    R_MATCH_CLUSTER,
    R_MATCH_SEGMENT,
    R_NEXT_PROBE,
    R_SCRATCH,
    R_SEGMENTS,
    R_SPANS,
    R_VISITED,
    SEGMENT_ROOTS,
    VISITED_MAX,
    block_of,
    event_aux,
    event_ceil,
    event_floor,
    event_kind,
    root,
)
from shoal.filters.index.postings import SPANS_FULL, copy_spans, count_span_ids, emit, emit_entries
from shoal.filters.index.segment_layout import f64_part, header_word, part_address, u8_part, u16_part, u32_part
from shoal.filters.index.signatures import (
    FNV_START,
    boolean_hash,
    fnv,
    is_equality,
    number_hash,
    presence_value,
    string_hash,
    window_hash,
)
from shoal.wire.raw_bytes import hash_pair, kernel, part

BATCH_MIN: Final = 8
"""A batch of fewer events is not worth it: they are matched one by one."""
IDS_FULL: Final = -11
"""Code: there are more ids than room for them."""


@part
def first_above(keys: Any, first: int, last: int, value: float, or_equal: bool) -> int:
    """The index of the first of some sorted keys that is above a value, or equal to it."""
    while first < last:
        middle = (first + last) >> 1
        if keys[middle] > value or (or_equal and keys[middle] == value):
            last = middle
        else:
            first = middle + 1
    return first


@kernel
def part_holds(context: int, block: int, entry: int, wanted: int) -> bool:
    """Whether the event has the value of a signature part in an entry. Called after the hashes were equal."""
    kind, attribute = wanted >> 16, wanted & 0xFFFF
    words = u16_part(block, layout.P_WORDS)
    at, end, place = record_of(block, entry)
    while at < end:
        operator = i64(words[at]) & 0xFF
        if i64(words[at + 1]) == attribute:
            if kind == layout.S_KIND:
                return bool(i64(presence_value(words, at)) == event_kind(context, attribute))
            if kind == layout.S_EQUAL and operator >= record_format.IN_NUMBERS:
                return has_listed_value(context, part_address(block, layout.P_WORDS), at, place)
            if (
                (kind == layout.S_EQUAL and is_equality(operator))
                or (kind == layout.S_PREFIX and operator == record_format.PREFIX)
                or (kind == layout.S_SUFFIX and operator == record_format.SUFFIX)
            ):
                return holds_item(context, part_address(block, layout.P_WORDS), at)
        at += record_format.item_words(words, at)
    return True


@kernel
def match_not_equal(
    context: int, block: int, entry: int, stop: int, key: int, value: float, used: int, segment: int
) -> int:
    """Matches the entries up to `stop` that exclude another value than the event's. The key of the first one is at
    `key`."""
    keys, end = f64_part(block, layout.P_KEYS), key + stop - entry
    first = first_above(keys, key, end, value, True)
    last = first_above(keys, first, end, value, False)
    used = emit_entries(context, block, used, segment, entry, entry + first - key)
    return used if used < 0 else emit_entries(context, block, used, segment, entry + last - key, stop)


@kernel
def match_sorted(context: int, block: int, run: int, stop: int, used: int, segment: int) -> int:
    """Matches a sorted run, up to the entry `stop`."""
    runs, keys = u32_part(block, layout.P_RUNS), f64_part(block, layout.P_KEYS)
    kind, attribute = i64(runs[4 * run]) & 0xFF, i64(runs[4 * run]) >> 8
    if event_kind(context, attribute) != (event_row.STRING if kind == layout.RUN_NOT_STRING else event_row.NUMBER):
        return used
    entry = i64(runs[4 * run + 1])
    key = i64(runs[4 * run + 2])
    end = key + stop - entry
    if kind == layout.RUN_NOT_STRING:
        return match_not_equal(
            context, block, entry, stop, key, float(event_aux(context, attribute, CODE)), used, segment
        )
    floor = event_floor(context, attribute)
    if kind == layout.RUN_LOW:
        above = first_above(keys, key, end, floor, False)
        return emit_entries(context, block, used, segment, entry, entry + above - key)
    if kind == layout.RUN_HIGH:
        above = first_above(keys, key, end, event_ceil(context, attribute), True)
        return emit_entries(context, block, used, segment, entry + above - key, stop)
    if event_aux(context, attribute, WIDE) != 0:
        return emit_entries(context, block, used, segment, entry, stop)
    return match_not_equal(context, block, entry, stop, key, floor, used, segment)


@kernel
def match_scan(context: int, block: int, first: int, last: int, used: int, segment: int) -> int:
    """Tests entries one by one."""
    for entry in range(first, last):
        prefetch_records(block, entry, last)
        if entry_holds(context, block, entry):
            used = emit_entries(context, block, used, segment, entry, entry + 1)
            if used < 0:
                return used
    return used


@part
def first_run(block: int, first: int) -> int:
    """The first run of the cluster that begins with an entry."""
    runs = u32_part(block, layout.P_RUNS)
    run, high = 0, header_word(block, layout.H_RUNS)
    while run < high:
        middle = (run + high) >> 1
        if i64(runs[4 * middle + 1]) < first:
            run = middle + 1
        else:
            high = middle
    return run


@AddressedFunction
def match_cluster(context: int, block: int, cluster: int, used: int, segment: int) -> int:
    """Matches all runs of a cluster."""
    clusters, runs = u32_part(block, layout.P_CLUSTERS), u32_part(block, layout.P_RUNS)
    first, last = i64(clusters[cluster] & layout.LOW_31), i64(clusters[cluster + 1] & layout.LOW_31)
    if i64(clusters[cluster]) == first:
        return match_scan(context, block, first, last, used, segment)
    run = first_run(block, first)
    while i64(runs[4 * run + 1]) < last and used >= 0:
        kind = i64(runs[4 * run]) & 0xFF
        entry, stop = i64(runs[4 * run + 1]), min(last, i64(runs[4 * run + 5]))
        if kind == layout.RUN_ALL:
            used = emit_entries(context, block, used, segment, entry, stop)
        elif kind == layout.RUN_SCAN:
            used = match_scan(context, block, entry, stop, used, segment)
        elif kind == layout.RUN_GRID:
            used = match_grid(context, block, run, used, segment)
        else:
            used = match_sorted(context, block, run, stop, used, segment)
        run += 1
    return used


@part
def cluster_matches(context: int, block: int, signature: int, cluster: int) -> bool:
    """Whether the event has the values of a cluster. A window of a contained string cannot be checked here; its entries
    are tested anyway."""
    signatures = u32_part(block, layout.P_SIGNATURES)
    entry = i64(u32_part(block, layout.P_CLUSTERS)[cluster] & layout.LOW_31)
    for i in range(i64(signatures[signature])):
        if not part_holds(context, block, entry, i64(signatures[signature + layout.S_HEADER + i])):
            return False
    return True


@part
def was_visited(context: int, cluster: int) -> bool:
    """Whether a cluster was visited before for this event and signature. Marks it as visited."""
    visited = i64_at(root(context, R_VISITED), VISITED_MAX)
    for i in range(1, visited[0] + 1):
        if visited[i] == cluster:
            return True
    if visited[0] + 1 < VISITED_MAX:
        visited[0] += 1
        visited[visited[0]] = cluster
    return False


@kernel
def match_hash(context: int, block: int, signature: int, value: Any, used: int, segment: int) -> int:
    """Matches the cluster with a hash. Slots hold one byte of the hash, so the values of the cluster are compared."""
    signatures, slots = u32_part(block, layout.P_SIGNATURES), u32_part(block, layout.P_SLOTS)
    tags = u8_part(block, layout.P_TAGS)
    count = header_word(block, layout.H_SLOTS)
    slot = layout.first_slot(value, count)
    tag = layout.tag_of(value)
    first, last = i64(signatures[signature + 2]), i64(signatures[signature + 3])
    while slots[slot] != 0 and used >= 0:
        if tags[slot] == tag:
            cluster = i64(slots[slot]) - 1
            if (
                first <= cluster < last
                and cluster_matches(context, block, signature, cluster)
                and not was_visited(context, cluster)
            ):
                used = call_5(root(context, R_MATCH_CLUSTER), context, block, cluster, used, segment)
        slot = slot + 1 if slot + 1 < count else 0
    return used


@kernel
def event_value(context: int, kind: int, attribute: int) -> Any:
    """The event's value for a signature part with at most one value: (whether there is one, its hash)."""
    own = event_kind(context, attribute)
    if kind == layout.S_ABSENT:
        return own == event_row.ABSENT, np.uint64(0)
    if own == event_row.ABSENT:
        return False, np.uint64(0)
    if kind == layout.S_EXISTS:
        return True, np.uint64(0)
    if kind == layout.S_KIND:
        return True, np.uint64(own)
    code = event_aux(context, attribute, CODE)
    if own == event_row.STRING:
        return code >= 0, string_hash(code)
    if own == event_row.BOOLEAN:
        return True, boolean_hash(code)
    wide = event_aux(context, attribute, WIDE)
    if wide != 0:
        return True, number_hash(np.uint64(code), wide)
    return True, number_hash(np.float64(event_floor(context, attribute)).view(np.uint64), 0)


@kernel
def match_string_signature(
    context: int, block: int, signature: int, base: Any, kind: int, attribute: int, used: int, segment: int
) -> int:
    """Matches a signature whose last part is a prefix, a suffix or a window of the event's string."""
    start, length = event_aux(context, attribute, START), event_aux(context, attribute, LENGTH)
    data, signatures = u8_at(root(context, R_SCRATCH), UNBOUNDED), u32_part(block, layout.P_SIGNATURES)
    if kind > layout.S_WINDOW:
        size = kind - layout.S_WINDOW
        for at in range(start, start + length - size + 1):
            value = hash_pair(base, window_hash(data, at, size))
            used = match_hash(context, block, signature, value, used, segment)
            if used < 0:
                return used
        return used
    value = FNV_START
    done = 0
    lengths = signature + layout.S_HEADER + i64(signatures[signature])
    for i in range(i64(signatures[signature + 1])):
        wanted = i64(signatures[lengths + i])
        if wanted > length:
            break
        while done < wanted:
            at = start + done if kind == layout.S_PREFIX else start + length - 1 - done
            value = fnv(value, data[at])
            done += 1
        used = match_hash(context, block, signature, hash_pair(base, value), used, segment)
        if used < 0:
            return used
    return used


@AddressedFunction
def match_segment(context: int, segment: int, used: int) -> int:
    """Matches the current event against a segment."""
    block = root(context, R_FIRST_SEGMENT + SEGMENT_ROOTS * segment)
    if header_word(block, layout.H_BUCKETS) > 0:
        find_cells(context, block)
    signatures = u32_part(block, layout.P_SIGNATURES)
    visited = i64_at(root(context, R_VISITED), VISITED_MAX)
    signature = 0
    seed = np.uint64(header_word(block, layout.H_SEED))
    for number in range(header_word(block, layout.H_SIGNATURES)):
        count = i64(signatures[signature])
        value = hash_pair(seed, np.uint64(number))
        kind, attribute = 0, 0
        alive = True
        for i in range(count):
            kind = i64(signatures[signature + layout.S_HEADER + i]) >> 16
            attribute = i64(signatures[signature + layout.S_HEADER + i]) & 0xFFFF
            if kind > layout.S_FIXED_LAST:
                alive = event_kind(context, attribute) == event_row.STRING
            else:
                alive, own = event_value(context, kind, attribute)
                value = hash_pair(value, own)
            if not alive:
                break
        if alive:
            visited[0] = 0
            if kind > layout.S_FIXED_LAST:
                used = match_string_signature(context, block, signature, value, kind, attribute, used, segment)
            else:
                used = match_hash(context, block, signature, value, used, segment)
            if used < 0:
                return used
        signature += layout.S_HEADER + count + i64(signatures[signature + 1])
    return used


@kernel
def match_buffer(context: int, segment: int, used: int) -> int:
    """Matches the current event against the record buffer."""
    ends = i64_at(root(context, R_BUFFER_ENDS), UNBOUNDED)
    words = root(context, R_BUFFER_WORDS)
    for position in range(i64(u32_at(root(context, R_BUFFER_COUNT), 1)[0])):
        if holds(context, words, ends[position], ends[position + 1]):
            used = emit(context, used, segment, position, position + 1)
            if used < 0:
                break
    return used


@kernel
def batch_size(context: int) -> int:
    """Number of events to match together: one if no segment has a grid."""
    for segment in range(root(context, R_SEGMENTS)):
        if header_word(block_of(context, segment), layout.H_BUCKETS) > 0:
            return i64(root(context, R_BATCH))
    return 1


@kernel
def reduce_batch(context: int, count: int, code: int) -> int:
    """The batch size to try after `count` events could not be matched together. After an overflow it stays reduced,
    because other events will have as many ids."""
    batch = count // 2 if count // 2 >= BATCH_MIN else 1
    if code == OVERFLOW:
        i64_at(context, UNBOUNDED)[R_BATCH] = batch
    return batch


@part
def match_row(context: int, used: int) -> int:
    """Matches the current event."""
    segments = root(context, R_SEGMENTS)
    for segment in range(segments):
        used = call_3(root(context, R_MATCH_SEGMENT), context, segment, used)
        if used < 0:
            return used
    return match_buffer(context, segments, used)


@kernel
def match_event(context: int, event: int, size: int) -> int:
    """Matches the event of `size` bytes at an address."""
    used = read_event(context, event, size)
    if used >= 0:
        used = match_row(context, used)
        clear_row(context)
    return used


@kernel
def match_batch(context: int, data: int, offsets: Any, first: int, count: int, bounds: Any) -> int:
    """Matches some events of a table, whose bytes are at an address. Returns the number of words used for ids, or a
    negative code. The spans of event `first + i` are from `bounds[i]` to `bounds[i + 1]`; the ids from grid runs are
    those in `found_at` that are marked with its number."""
    roots = i64_at(context, UNBOUNDED)
    roots[R_NEXT_PROBE] = 1
    used, done = 0, 0
    bounds[0] = used
    while done < count and used >= 0:
        at, roots[R_EVENT] = first + done, done
        code = read_row(context, done, data + offsets[at], offsets[at + 1] - offsets[at])
        used = match_row(context, used) if code >= 0 else code
        clear_cells(context)
        done += 1
        bounds[done] = used
    probes, roots[R_NEXT_PROBE] = root(context, R_NEXT_PROBE), 0
    found = match_probes(context, probes) if used >= 0 else used
    clear_rows(context, done)
    return found


@kernel
def match_probes(context: int, count: int) -> int:
    """Matches all probes, run by run. Returns the number of words used for ids, or a negative code."""
    probes, found = probes_at(context), 0
    done = np.zeros(count, np.bool_)
    queued = np.empty(count, np.int64)
    for probe in range(1, count):
        if done[probe]:
            continue
        segment, run, together = probes[PROBE_WORDS * probe], i64(probes[PROBE_WORDS * probe + 1]), 0
        for other in range(probe, count):
            if probes[PROBE_WORDS * other] == segment and probes[PROBE_WORDS * other + 1] == run:
                done[other] = True
                queued[together] = other
                together += 1
        found = match_grid_batch(context, block_of(context, segment), run, queued[:together], found)
        if found < 0:
            break
    return found


@kernel
def count_found(context: int, used: int, counts: Any) -> None:
    """Adds the number of ids found in `used` words to the counts of their events."""
    found, at = found_at(context), 0
    while at < used:
        word = found[at]
        is_stretch = word >= ID_RANGE
        counts[found_event(word)] += i64(word & LOW_32) if is_stretch else 1
        at += 2 if is_stretch else 1


@kernel
def copy_found(context: int, used: int, ids: Any, to: Any) -> None:
    """Copies the ids that were found. `to` says where the ids of each event go, and afterwards where they end."""
    found, at = found_at(context), 0
    while at < used:
        word, count = found[at], 1
        event = found_event(word)
        if word < ID_RANGE:
            ids[to[event]] = np.uint32(word & LOW_32)
            at += 1
        else:
            count = i64(word & LOW_32)
            copy_bytes(ids.ctypes.data + 4 * to[event], i64(found[at + 1]), 4 * count)
            at += 2
        to[event] += count


@part
def found_event(word: np.uint64) -> int:
    """The event that a word of found ids belongs to."""
    return i64((word & ~ID_RANGE) >> np.uint64(32))


@kernel
def match_ids(context: int, event: Any) -> Any:
    """The ids that match an event, in a new array, and 0 or a negative code."""
    used = match_event(context, i64(event.ctypes.data), len(event))
    if used < 0:
        return np.empty(0, np.uint32), used
    ids = np.empty(count_span_ids(context, 0, used), np.uint32)
    copy_spans(context, 0, used, ids, 0)
    return ids, 0


@kernel
def match_slices(context: int, event: Any) -> Any:
    """The spans that match an event, in a new array, and 0 or a negative code."""
    used = match_event(context, i64(event.ctypes.data), len(event))
    if used < 0:
        return np.empty(0, np.int64), used
    return i64_at(root(context, R_SPANS), used).copy(), 0


@kernel
def match_events(context: int, data: int, offsets: Any, first: int, count: int, bounds: Any) -> int:
    """Matches some events of a table, together if there are several (see `match_batch`)."""
    if count > 1:
        return match_batch(context, data, offsets, first, count, bounds)
    bounds[0], bounds[1] = 0, match_event(context, data + offsets[first], offsets[first + 1] - offsets[first])
    return i64(min(bounds[1], 0))


@kernel
def match_table(context: int, data: Any, offsets: Any, first: int, ids: Any, ends: Any) -> Any:
    """Matches the events of a table from `first` on, until `ids` is full. Returns (the next event, 0 or a negative
    code, the first event without a known count). The ids of event `i` end at `ends[i + 1]`, also if there was no room
    for them; `ends[first]` says where those of the first begin."""
    batch, last = batch_size(context), len(offsets) - 1
    bounds, totals, to = np.empty(batch + 1, np.int64), np.empty(batch, np.int64), np.empty(batch, np.int64)
    while first < last:
        count = min(batch, last - first)
        found = match_events(context, i64(data.ctypes.data), offsets, first, count, bounds)
        if found < 0:
            if count == 1 or found == SPANS_FULL:
                return first, found, first
            batch = reduce_batch(context, count, found)
            continue
        totals[:count] = 0
        count_found(context, found, totals)
        for i in range(count):
            spanned = count_span_ids(context, bounds[i], bounds[i + 1])
            to[i] = ends[first + i] + spanned
            ends[first + i + 1] = to[i] + totals[i]
        if ends[first + count] > len(ids):
            return first, IDS_FULL, first + count
        for i in range(count):
            copy_spans(context, bounds[i], bounds[i + 1], ids, ends[first + i])
        copy_found(context, found, ids, to)
        first += count
    return first, 0, first


@kernel
def count_table(context: int, data: Any, offsets: Any, first: int) -> Any:
    """Counts the ids that match the events of a table from `first` on. Returns (the next event, 0 or a negative code,
    number of ids)."""
    batch, last, total = batch_size(context), len(offsets) - 1, 0
    bounds, totals = np.empty(batch + 1, np.int64), np.empty(batch, np.int64)
    while first < last:
        count = min(batch, last - first)
        found = match_events(context, i64(data.ctypes.data), offsets, first, count, bounds)
        if found < 0:
            if count == 1 or found == SPANS_FULL:
                return first, found, total
            batch = reduce_batch(context, count, found)
            continue
        if found > 0:
            totals[:] = 0
            count_found(context, found, totals)
            total += totals.sum()
        total += count_span_ids(context, bounds[0], bounds[count])
        first += count
    return first, 0, total
