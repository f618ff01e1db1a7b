"""Answers: events come in, ids go out.

Owns the kernels that Python calls to match: an event or a table of them is read into the context, matched against all
segments, and answered with ids, spans or a count. A table is matched in batches, because a batch shares the walk
through filters that are filed by cells.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import rows
from shoal.filters.index.context import (
    FAR,
    R_CELLS,
    R_FIRST_SEGMENT,
    R_FOUND,
    R_KINDS,
    R_PLAIN,
    R_PRESENT,
    R_SCRATCH,
    R_SEGMENTS,
    R_SKIPPED_RUN,
    R_SPANS,
    SEGMENT_ROOTS,
    root,
)
from shoal.filters.index.filed import match_blocks_for_all
from shoal.filters.index.matching import match_segment, match_young, run_of_all
from shoal.filters.index.memory import f64_at, i64_at, u8_at, whole
from shoal.filters.index.spans import copy_spans, total_of
from shoal.wire.rawbytes import PADDING_BYTES, kernel

NO_IDS: Final = -11
"""There were more ids than room for them."""


@kernel
def clear(context: int) -> None:
    """Makes the row clean for the next event."""
    present, own = i64_at(root(context, R_PRESENT), FAR), u8_at(root(context, R_CELLS), FAR)
    plain, kinds = f64_at(root(context, R_PLAIN), FAR), u8_at(root(context, R_KINDS), FAR)
    for i in range(root(context, R_FOUND)):
        own[present[i]] = 0
        plain[present[i]] = np.nan
        kinds[present[i]] = rows.ABSENT
    i64_at(context, FAR)[R_FOUND] = 0


@kernel
def read_event(context: int, event: int, size: int) -> int:
    """Reads the event of `size` bytes at an address into the row; 0 or a negative code."""
    if size + PADDING_BYTES > root(context, R_SCRATCH + 1):
        return rows.BAD_EVENT
    data, given = u8_at(root(context, R_SCRATCH), size), u8_at(event, size)
    for i in range(size):
        data[i] = given[i]
    found, code = rows.read_attributes(context, size)
    i64_at(context, FAR)[R_FOUND] = found
    if code < 0:
        clear(context)
    return whole(code)


@kernel
def match_spans(context: int, event: int, size: int) -> int:
    """Matches the event of `size` bytes at an address."""
    used = read_event(context, event, size)
    if used < 0:
        return used
    segments = root(context, R_SEGMENTS)
    i64_at(context, FAR)[R_SKIPPED_RUN] = -1
    for segment in range(segments):
        used = match_segment(context, segment, used)
        if used < 0:
            break
    if used >= 0:
        used = match_young(context, segments, used)
    clear(context)
    return used


@kernel
def match_batch(contexts: Any, events: int, used: Any) -> None:
    """Matches the events that have been read into as many contexts; `used` of each becomes what is used of its spans,
    or a negative code."""
    segments = root(contexts[0], R_SEGMENTS)
    used[:events] = 0
    for segment in range(segments):
        block = root(contexts[0], R_FIRST_SEGMENT + SEGMENT_ROOTS * segment)
        shared = run_of_all(block)
        for event in range(events):
            if used[event] >= 0:
                i64_at(contexts[event], FAR)[R_SKIPPED_RUN] = shared
                used[event] = match_segment(contexts[event], segment, used[event])
        if shared >= 0:
            match_blocks_for_all(contexts, events, block, shared, used, segment)
    for event in range(events):
        if used[event] >= 0:
            used[event] = match_young(contexts[event], segments, used[event])


@kernel
def match_next(contexts: Any, data: Any, offsets: Any, first: int, used: Any) -> Any:
    """Reads and matches the next batch of a table: (how many events, 0 or a negative code, which event has it). All
    contexts are clean afterwards; their spans stay."""
    events = min(len(contexts), len(offsets) - 1 - first)
    code, where = 0, first
    read = 0
    for event in range(events):
        start = offsets[first + event]
        code = read_event(contexts[event], whole(data.ctypes.data) + start, offsets[first + event + 1] - start)
        if code < 0:
            where = first + event
            break
        read += 1
    if code == 0:
        match_batch(contexts, events, used)
        for event in range(events):
            if used[event] < 0:
                code, where = used[event], first + event
    for event in range(read):
        clear(contexts[event])
    return events, code, where


@kernel
def match_ids(context: int, event: Any) -> Any:
    """The ids that match an event, in an array of their own, and 0 or a negative code."""
    used = match_spans(context, whole(event.ctypes.data), len(event))
    if used < 0:
        return np.empty(0, np.uint32), used
    ids = np.empty(total_of(context, used), np.uint32)
    copy_spans(context, used, ids, 0)
    return ids, 0


@kernel
def match_slices(context: int, event: Any) -> Any:
    """The spans that match an event, in an array of their own, and 0 or a negative code."""
    used = match_spans(context, whole(event.ctypes.data), len(event))
    if used < 0:
        return np.empty(0, np.int64), used
    return i64_at(root(context, R_SPANS), used).copy(), 0


@kernel
def match_table(contexts: Any, data: Any, offsets: Any, first: int, ids: Any, ends: Any) -> Any:
    """Matches the events of a table from `first` on, until `ids` is full: (the next event, 0 or a negative code).
    `ends[i + 1]` becomes where the ids of event `i` end, `ends[first]` says where those of the first begin."""
    used = np.zeros(len(contexts), np.int64)
    while first < len(offsets) - 1:
        events, code, where = match_next(contexts, data, offsets, first, used)
        if code < 0:
            return where if code in (rows.BAD_EVENT, rows.BAD_NUMBER) else first, code
        for event in range(events):
            total = total_of(contexts[event], used[event])
            if ends[first + event] + total > len(ids):
                return first + event, NO_IDS
            copy_spans(contexts[event], used[event], ids, ends[first + event])
            ends[first + event + 1] = ends[first + event] + total
        first += events
    return first, 0


@kernel
def count_table(contexts: Any, data: Any, offsets: Any, first: int) -> Any:
    """Finds the spans of the events of a table from `first` on: (the next event, 0 or a negative code, their ids)."""
    used = np.zeros(len(contexts), np.int64)
    total = 0
    while first < len(offsets) - 1:
        events, code, where = match_next(contexts, data, offsets, first, used)
        if code < 0:
            return where if code in (rows.BAD_EVENT, rows.BAD_NUMBER) else first, code, total
        for event in range(events):
            total += total_of(contexts[event], used[event])
        first += events
    return first, 0, total
