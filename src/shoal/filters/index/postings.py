"""Spans: what an event matched, before anybody copies ids.

Owns the writing of spans (segment, first position, one past the last) into the context's array, without the positions
whose subscribers have gone, and the copying of their ids. Functions say how many words of the array are used then, or
`NO_SPANS`.
"""

from __future__ import annotations

from typing import Any, Final

from shoal.filters.index import segment_layout as layout
from shoal.filters.index.intrinsics import copy_bytes, i64_at, u32_at, whole
from shoal.filters.index.kernel_context import (
    FAR,
    R_FIRST_SEGMENT,
    R_SPAN_WORDS,
    R_SPANS,
    SEGMENT_ROOTS,
    address_of,
    root,
)
from shoal.filters.index.members import first_id
from shoal.wire.rawbytes import kernel, part

NO_SPANS: Final = -10
"""There were more spans than room for them."""

SPAN: Final = 3


@part
def span(context: int, used: int, segment: int, first: int, last: int) -> int:
    """Adds one span."""
    if used + SPAN > root(context, R_SPAN_WORDS):
        return NO_SPANS
    spans = i64_at(root(context, R_SPANS), FAR)
    spans[used], spans[used + 1], spans[used + 2] = segment, first, last
    return used + SPAN


@part
def dead_at(context: int, segment: int) -> Any:
    """The positions of a segment whose subscribers have gone: their number, then they, sorted."""
    return u32_at(root(context, R_FIRST_SEGMENT + SEGMENT_ROOTS * segment + 1), FAR)


@kernel
def first_dead(dead: Any, position: int) -> int:
    """Where the first one is that is not before a position."""
    low, high = 1, 1 + whole(dead[0])
    while low < high:
        middle = (low + high) >> 1
        if whole(dead[middle]) < position:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def emit(context: int, used: int, segment: int, first: int, last: int) -> int:
    """Adds the positions of [first, last) whose subscribers have not gone."""
    dead = dead_at(context, segment)
    count = whole(dead[0])
    if count == 0:
        return span(context, used, segment, first, last)
    low = first_dead(dead, first)
    while first < last and used >= 0:
        stop = min(whole(dead[low]), last) if low <= count else last
        if first < stop:
            used = span(context, used, segment, first, stop)
        first = stop + 1
        low += 1
    return used


@part
def emit_entries(context: int, block: int, used: int, segment: int, first: int, last: int) -> int:
    """Adds the subscribers of some entries."""
    if first >= last:
        return used
    return emit(context, used, segment, first_id(block, first), first_id(block, last))


@kernel
def copy_spans(context: int, first: int, last: int, ids: Any, to: int) -> None:
    """Copies the ids of some spans."""
    spans = i64_at(root(context, R_SPANS), FAR)
    for at in range(first, last, SPAN):
        block = root(context, R_FIRST_SEGMENT + SEGMENT_ROOTS * spans[at])
        count = spans[at + 2] - spans[at + 1]
        own = address_of(block, layout.P_IDS) + 4 * spans[at + 1]
        if count == 1:
            ids[to] = u32_at(own, 1)[0]
        else:
            copy_bytes(ids.ctypes.data + 4 * to, own, 4 * count)
        to += count


@part
def total_of(context: int, first: int, last: int) -> int:
    """How many ids some spans have."""
    spans = i64_at(root(context, R_SPANS), FAR)
    total = 0
    for at in range(first, last, SPAN):
        total += spans[at + 2] - spans[at + 1]
    return total
