"""Answers: events come in, ids go out.

Owns the kernels that Python calls to match: an event or a table of them is matched against all segments, and answered
with ids, spans or a count.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index.batches import batch_of, copy_found, count_found, lessen_batch, match_batch, match_event
from shoal.filters.index.intrinsics import i64_at, whole
from shoal.filters.index.kernel_context import R_SPANS, root
from shoal.filters.index.postings import NO_SPANS, copy_spans, total_of
from shoal.wire.rawbytes import kernel

NO_IDS: Final = -11
"""There were more ids than room for them."""


@kernel
def match_ids(context: int, event: Any) -> Any:
    """The ids that match an event, in an array of their own, and 0 or a negative code."""
    used = match_event(context, whole(event.ctypes.data), len(event))
    if used < 0:
        return np.empty(0, np.uint32), used
    ids = np.empty(total_of(context, 0, used), np.uint32)
    copy_spans(context, 0, used, ids, 0)
    return ids, 0


@kernel
def match_slices(context: int, event: Any) -> Any:
    """The spans that match an event, in an array of their own, and 0 or a negative code."""
    used = match_event(context, whole(event.ctypes.data), len(event))
    if used < 0:
        return np.empty(0, np.int64), used
    return i64_at(root(context, R_SPANS), used).copy(), 0


@kernel
def match_some(context: int, data: int, offsets: Any, first: int, count: int, bounds: Any) -> int:
    """Matches some events of a table, together if there are several (see `match_batch`)."""
    if count > 1:
        return match_batch(context, data, offsets, first, count, bounds)
    bounds[0], bounds[1] = 0, match_event(context, data + offsets[first], offsets[first + 1] - offsets[first])
    return whole(min(bounds[1], 0))


@kernel
def match_table(context: int, data: Any, offsets: Any, first: int, ids: Any, ends: Any) -> Any:
    """Matches the events of a table from `first` on, until `ids` is full: (the next event, 0 or a negative code, the
    first event of which nothing is known). `ends[i + 1]` becomes where the ids of event `i` end or would end,
    `ends[first]` says where those of the first begin."""
    batch, last = batch_of(context), len(offsets) - 1
    bounds, totals, to = np.empty(batch + 1, np.int64), np.empty(batch, np.int64), np.empty(batch, np.int64)
    while first < last:
        count = min(batch, last - first)
        found = match_some(context, whole(data.ctypes.data), offsets, first, count, bounds)
        if found < 0:
            if count == 1 or found == NO_SPANS:
                return first, found, first
            batch = lessen_batch(context, count, found)
            continue
        totals[:count] = 0
        count_found(context, found, totals)
        for i in range(count):
            spanned = total_of(context, bounds[i], bounds[i + 1])
            to[i] = ends[first + i] + spanned
            ends[first + i + 1] = to[i] + totals[i]
        if ends[first + count] > len(ids):
            return first, NO_IDS, first + count
        for i in range(count):
            copy_spans(context, bounds[i], bounds[i + 1], ids, ends[first + i])
        copy_found(context, found, ids, to)
        first += count
    return first, 0, first


@kernel
def count_table(context: int, data: Any, offsets: Any, first: int) -> Any:
    """Finds the spans of the events of a table from `first` on: (the next event, 0 or a negative code, their ids)."""
    batch, last, total = batch_of(context), len(offsets) - 1, 0
    bounds, totals = np.empty(batch + 1, np.int64), np.empty(batch, np.int64)
    while first < last:
        count = min(batch, last - first)
        found = match_some(context, whole(data.ctypes.data), offsets, first, count, bounds)
        if found < 0:
            if count == 1 or found == NO_SPANS:
                return first, found, total
            batch = lessen_batch(context, count, found)
            continue
        if found > 0:
            totals[:] = 0
            count_found(context, found, totals)
            total += totals.sum()
        total += total_of(context, bounds[0], bounds[count])
        first += count
    return first, 0, total
