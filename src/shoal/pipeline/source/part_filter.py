"""Leaves out of a batch what conditions exclude: servers, streams, and spans of time.

Owns how conditions limit what is read. What they mean for rows belongs to `conditions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from shoal.history.entry_decoder import TIME_US_MAX
from shoal.pipeline.source.conditions import EQUAL, GREATER, GREATER_EQUAL, IN, LESS, LESS_EQUAL, Condition
from shoal.pipeline.source.offsets import SEQUENCE_MAX, EntryId, Slice
from shoal.pipeline.source.parts import Part

SERVER: Final = "server"
"""The column with the id of the server, of all kinds."""


def narrowed(parts: Iterable[Part], conditions: Sequence[Condition]) -> list[Part]:
    """Parts without the servers, streams and times that conditions exclude. They still have the rest to check."""
    found = []
    for part in parts:
        if all(each.holds(part.server.id) for each in conditions if each.column == SERVER):
            slices = [slice for each in part.slices if (slice := _narrowed_slice(part, each, conditions)) is not None]
            if slices:
                found.append(replace(part, slices=tuple(slices), conditions=tuple(conditions)))
    return found


def _narrowed_slice(part: Part, slice: Slice, conditions: Sequence[Condition]) -> Slice | None:
    for each in conditions:
        if each.column == part.kind.stream_column and not each.holds(slice.stream):
            return None
        if each.column == part.kind.time_column:
            slice = _within(slice, each)
    return slice if slice.after < slice.last else None


def _within(slice: Slice, time: Condition) -> Slice:
    """A slice without the entries whose time, in the id, a condition excludes. Their number is unknown then."""
    if time.test == IN:
        return slice
    ms = time.value.cast(pa.int64()).as_py() // 1000
    after, last = slice.after, slice.last
    if time.test in (GREATER, GREATER_EQUAL, EQUAL) and ms > 0:
        after = max(after, EntryId(ms - 1, SEQUENCE_MAX))
    if time.test in (LESS, LESS_EQUAL, EQUAL) and ms < TIME_US_MAX // 1000:
        last = min(last, EntryId(max(ms, 0), SEQUENCE_MAX))
    return slice if (after, last) == (slice.after, slice.last) else Slice(slice.stream, after, last)
