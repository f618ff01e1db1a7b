"""Answers: events come in, ids go out.

Owns the kernels that Python calls to match: an event or a table of them is read into the context, matched against all
segments, and answered with ids, spans or a count.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import rows
from shoal.filters.index.context import (
    FAR,
    R_CELLS,
    R_FOUND,
    R_KINDS,
    R_PLAIN,
    R_PRESENT,
    R_SCRATCH,
    R_SEGMENTS,
    R_SPANS,
    root,
)
from shoal.filters.index.matching import match_segment, match_young
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
    for segment in range(segments):
        used = match_segment(context, segment, used)
        if used < 0:
            break
    if used >= 0:
        used = match_young(context, segments, used)
    clear(context)
    return used


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
def match_table(context: int, data: Any, offsets: Any, first: int, ids: Any, ends: Any) -> Any:
    """Matches the events of a table from `first` on, until `ids` is full: (the next event, 0 or a negative code).
    `ends[i + 1]` becomes where the ids of event `i` end, `ends[first]` says where those of the first begin."""
    for event in range(first, len(offsets) - 1):
        used = match_spans(context, whole(data.ctypes.data) + offsets[event], offsets[event + 1] - offsets[event])
        if used < 0:
            return event, used
        total = total_of(context, used)
        if ends[event] + total > len(ids):
            return event, NO_IDS
        copy_spans(context, used, ids, ends[event])
        ends[event + 1] = ends[event] + total
    return len(offsets) - 1, 0


@kernel
def count_table(context: int, data: Any, offsets: Any, first: int) -> Any:
    """Finds the spans of the events of a table from `first` on: (the next event, 0 or a negative code, their ids)."""
    total = 0
    for event in range(first, len(offsets) - 1):
        used = match_spans(context, whole(data.ctypes.data) + offsets[event], offsets[event + 1] - offsets[event])
        if used < 0:
            return event, used, total
        total += total_of(context, used)
    return len(offsets) - 1, 0, total
