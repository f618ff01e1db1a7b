"""Batches: events that are matched together.

Owns the order of work for a batch. Runs that are filed by cells are large, and an event reads a little of everything
there; so what events of a batch want of such a run is looked up together, while it is in the processor's cache.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import candidates
from shoal.filters.index import segment_layout as layout
from shoal.filters.index.calls import call_3
from shoal.filters.index.candidates import ITEM_WORDS
from shoal.filters.index.grid_matcher import LOW_32, match_together
from shoal.filters.index.intrinsics import copy_bytes, i64_at, whole
from shoal.filters.index.kernel_context import (
    FAR,
    R_BATCH,
    R_EVENT,
    R_MATCH_SEGMENT,
    R_NEXT_ITEM,
    R_SEGMENTS,
    block_of,
    count_of,
    root,
)
from shoal.filters.index.matcher import match_young
from shoal.filters.index.reading import clear, clear_cells, clear_rows, read_event, read_row
from shoal.wire.rawbytes import kernel, part

BATCH_MIN: Final = 8
"""Events that are worth to be matched together, rather than one by one."""


@kernel
def batch_of(context: int) -> int:
    """How many events are worth to be matched together: one if no segment has runs that are filed by cells."""
    for segment in range(root(context, R_SEGMENTS)):
        if count_of(block_of(context, segment), layout.H_BLOCKS) > 0:
            return whole(root(context, R_BATCH))
    return 1


@kernel
def lessen_batch(context: int, count: int, code: int) -> int:
    """So many events could not be matched together: how many to try from now on, one if so few are not worth it. If
    they had too many ids, others will have, too."""
    batch = count // 2 if count // 2 >= BATCH_MIN else 1
    if code == candidates.OVERFLOW:
        i64_at(context, FAR)[R_BATCH] = batch
    return batch


@part
def match_row(context: int, used: int) -> int:
    """Matches the event in the row; how many words of spans are used then, or a negative code."""
    segments = root(context, R_SEGMENTS)
    for segment in range(segments):
        used = call_3(root(context, R_MATCH_SEGMENT), context, segment, used)
        if used < 0:
            return used
    return match_young(context, segments, used)


@kernel
def match_event(context: int, event: int, size: int) -> int:
    """Matches the event of `size` bytes at an address; how many words of spans are used then, or a negative code."""
    used = read_event(context, event, size)
    if used >= 0:
        used = match_row(context, used)
        clear(context)
    return used


@kernel
def match_batch(context: int, data: int, offsets: Any, first: int, count: int, bounds: Any) -> int:
    """Matches some events of a table, whose bytes are at an address: how many words of what was found there are, or a
    negative code. The
    spans of the event `first + i` are those from `bounds[i]` to `bounds[i + 1]`, and the ids are those that are marked
    as its own in `found_at`."""
    roots = i64_at(context, FAR)
    roots[R_NEXT_ITEM] = 1
    used, done = 0, 0
    bounds[0] = used
    while done < count and used >= 0:
        at, roots[R_EVENT] = first + done, done
        code = read_row(context, done, data + offsets[at], offsets[at + 1] - offsets[at])
        used = match_row(context, used) if code >= 0 else code
        clear_cells(context)
        done += 1
        bounds[done] = used
    items, roots[R_NEXT_ITEM] = root(context, R_NEXT_ITEM), 0
    found = match_items(context, items) if used >= 0 else used
    clear_rows(context, done)
    return found


@kernel
def match_items(context: int, count: int) -> int:
    """Matches all items, run by run: how many words of what was found there are, or a negative code."""
    items, found = candidates.items_at(context), 0
    done = np.zeros(count, np.bool_)
    queued = np.empty(count, np.int64)
    for item in range(1, count):
        if done[item]:
            continue
        segment, run, together = items[ITEM_WORDS * item], whole(items[ITEM_WORDS * item + 1]), 0
        for other in range(item, count):
            if items[ITEM_WORDS * other] == segment and items[ITEM_WORDS * other + 1] == run:
                done[other] = True
                queued[together] = other
                together += 1
        found = match_together(context, block_of(context, segment), run, queued[:together], found)
        if found < 0:
            break
    return found


@kernel
def count_found(context: int, used: int, counts: Any) -> None:
    """Adds to a count for each event how many ids were found for it, in so many words."""
    found, at = candidates.found_at(context), 0
    while at < used:
        word = found[at]
        is_stretch = word >= candidates.STRETCH
        counts[event_of(word)] += whole(word & LOW_32) if is_stretch else 1
        at += 2 if is_stretch else 1


@kernel
def copy_found(context: int, used: int, ids: Any, to: Any) -> None:
    """Copies the ids that were found; `to` says where those of each event go, and then where they end."""
    found, at = candidates.found_at(context), 0
    while at < used:
        word, count = found[at], 1
        event = event_of(word)
        if word < candidates.STRETCH:
            ids[to[event]] = np.uint32(word & LOW_32)
            at += 1
        else:
            count = whole(word & LOW_32)
            copy_bytes(ids.ctypes.data + 4 * to[event], whole(found[at + 1]), 4 * count)
            at += 2
        to[event] += count


@part
def event_of(word: np.uint64) -> int:
    """The event for which something was found."""
    return whole((word & ~candidates.STRETCH) >> np.uint64(32))
