"""The kernel context: everything that a kernel reads, behind one address.

Owns the layout of `roots`, the array of addresses that a store passes to its kernels; how kernels read it; the sizes of
the work arrays; and the class that allocates them and fills in `roots`. Never touches what the arrays contain.

Compiled functions pass on the address of `roots` instead of arrays: each array argument costs two atomic reference
counts, and a match would pass dozens of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shoal.filters.index.hash_tables import T_WORDS, StringTable
from shoal.filters.index.intrinsics import LANES, UNBOUNDED, VECTOR_BYTES, f64_at, i64, i64_at, u8_at
from shoal.filters.views import folds
from shoal.wire.raw_bytes import PADDING_BYTES, part

# Of each string table: data, its length, ends, their length, slots, their length, counters.
R_NAMES: Final = 0
R_STRINGS: Final = 7

# The row of the current event: see `event_row`.
R_ATTRIBUTES: Final = 14
"""Number of attributes in a row."""
R_KINDS: Final = 15
R_NUMBERS: Final = 16
R_AUX: Final = 17
R_PRESENT: Final = 18
R_CELLS: Final = 19
R_SCRATCH: Final = 20
R_VISITED: Final = 23
R_SPANS: Final = 24
R_SPAN_WORDS: Final = 25
R_BUFFER_WORDS: Final = 26
R_BUFFER_WORD_COUNT: Final = 27
R_BUFFER_ENDS: Final = 28
R_BUFFER_COUNT: Final = 29
R_PRESENT_COUNT: Final = 30
"""Number of known attributes that the current event has. Written by the kernel that reads the event."""
R_SEGMENTS: Final = 31
R_PENDING: Final = 32
"""Chunks of the grid whose boxes are still to be compared (see `grid_matcher`)."""
R_FLOATS: Final = 33
"""The event's numbers by attribute; NaN where the value is not a number, or no float64 equals it."""
R_CANDIDATES: Final = 34
"""Candidate entries, then the ids that were found for the events of a batch (see `grid_matcher`)."""
R_PROBES: Final = 35
"""Grid runs that events of a batch have to search (see `grid_matcher`)."""
R_ROWS: Final = 36
"""Where the rows of the events of a batch are."""
R_BATCH: Final = 37
"""Number of events that have a row."""
R_NEXT_PROBE: Final = 38
"""Number of the next probe; 0 while grid runs are matched at once."""
R_EVENT: Final = 39
"""The number of the current event in its batch."""
R_MATCH_CLUSTER: Final = 40
"""The address of the function that matches a cluster."""
R_MATCH_SEGMENT: Final = 41
"""The address of the function that matches a segment."""
R_BUFFER_ROOM: Final = 42
R_VIEWS: Final = 43
"""The rows of views, by the row of their attribute (see `view_rows`)."""
R_FOLDS: Final = 44
"""The characters that fold to another one, sorted, and then the others; after it their number."""
R_COLUMNS: Final = 46
"""The cells of the lanes of a run, by attribute (see `grid_matcher`)."""
R_FIRST_SEGMENT: Final = 47
"""From here on, for each segment: the address of its block, that of its dead positions, and the size of the latter in
words. The record buffer comes last."""
SEGMENT_ROOTS: Final = 3

VIEW_KINDS: Final = 2
"""Views that an attribute can have."""
BATCH_MAX: Final = 64
"""Events that are matched together."""
BATCH_ATTRIBUTES_MAX: Final = 1 << 10
"""With more attributes than this there is only one row."""
ROW_ROOTS: Final = (R_KINDS, R_NUMBERS, R_AUX, R_PRESENT, R_FLOATS, R_SCRATCH)
"""The arrays of a row. `R_ROWS` holds, for each of them, the address of the first row and the distance to the next one
in bytes; then, for each row, the number of attributes that are present."""
VISITED_MAX: Final = 1 << 15
"""Clusters that are remembered as visited, for one event and signature."""
PENDING_MAX: Final = 4096
"""Chunks that may be pending before their boxes are compared."""
PENDING_WORDS: Final = 3
"""Words of a pending chunk: its address; its first entry | the event's cells << 32 | the probe << 56; later a bit for
each entry that is left."""
PROBES_MAX: Final = 256
"""Rows of cells: one for each probe, and the first for the current event."""
PROBE_WORDS: Final = 3
"""Words of a probe: segment, run, number of the event in its batch."""
CANDIDATES_MAX: Final = 1024
"""Candidates that are tested together."""
FOUND_MAX: Final = 1 << 17
"""Words of the ids that may be found for the events of a batch."""

_SCRATCH_BYTES: Final = 1 << 14
_SPANS: Final = 3 * 4096


@part
def root(context: int, index: int) -> Any:
    """One word of `roots`."""
    return i64_at(context, UNBOUNDED)[index]


@part
def event_kind(context: int, attribute: int) -> Any:
    """The kind of an attribute of the current event (see `event_row`)."""
    return i64(u8_at(root(context, R_KINDS), UNBOUNDED)[attribute])


@part
def event_floor(context: int, attribute: int) -> Any:
    """A number of the current event, or the nearest float64 below it."""
    return f64_at(root(context, R_NUMBERS), UNBOUNDED)[2 * attribute]


@part
def event_ceil(context: int, attribute: int) -> Any:
    """A number of the current event, or the nearest float64 above it."""
    return f64_at(root(context, R_NUMBERS), UNBOUNDED)[2 * attribute + 1]


@part
def event_aux(context: int, attribute: int, field: int) -> Any:
    """Another field of an attribute of the current event (see `event_row`)."""
    return i64_at(root(context, R_AUX), UNBOUNDED)[4 * attribute + field]


@part
def cells_at(context: int, row: int) -> Any:
    """A row of cells, by attribute."""
    return u8_at(root(context, R_CELLS) + row * root(context, R_ATTRIBUTES), UNBOUNDED)


@part
def block_of(context: int, segment: int) -> Any:
    """The address of a segment's block."""
    return root(context, R_FIRST_SEGMENT + SEGMENT_ROOTS * segment)


class Workspace:
    """The work arrays of a store's kernels. They are replaced when they grow; roots that were made before keep the old
    ones.

    `match_cluster` and `match_segment` are the addresses of these functions.
    """

    def __init__(self, match_cluster: int, match_segment: int) -> None:
        self._match_cluster, self._match_segment = match_cluster, match_segment
        self._attributes = 0
        self._scratch_bytes = _SCRATCH_BYTES
        self._span_words = _SPANS
        self._pending = np.zeros(0, np.uint64)
        self._candidates = np.zeros(CANDIDATES_MAX + FOUND_MAX, np.uint64)
        self._probes = np.zeros(PROBE_WORDS * PROBES_MAX, np.int64)
        self._visited = np.zeros(VISITED_MAX, np.int64)
        self._row: dict[int, npt.NDArray[Any]] = {}

    @property
    def event_bytes_max(self) -> int:
        """Size in bytes of the largest event or filter that fits."""
        return self._scratch_bytes - PADDING_BYTES

    def grow_scratch(self, size: int) -> None:
        """Makes room for an event or a filter of `size` bytes."""
        self._scratch_bytes = 2 * size + PADDING_BYTES
        self._row.clear()

    def grow_spans(self) -> None:
        """Doubles the room for spans."""
        self._span_words *= 2
        self._row.clear()

    def roots(
        self,
        tables: Sequence[StringTable],
        buffer: Sequence[tuple[int, npt.NDArray[Any]]],
        largest: int,
        segments: Sequence[tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint32]]],
    ) -> tuple[npt.NDArray[np.int64], list[Any]]:
        """The roots, and the arrays to keep alive with them. `buffer` are the arrays of the record buffer, each with
        its place in the roots; `largest` is the number of entries of the largest group; `segments` are blocks and dead
        positions, those of the buffer last."""
        self._make_row(len(tables[0].ends) + 1)
        pending = PENDING_WORDS * (PENDING_MAX + largest // VECTOR_BYTES + 1)
        if pending > len(self._pending):
            self._pending = np.zeros(pending, np.uint64)
        roots = np.zeros(R_FIRST_SEGMENT + SEGMENT_ROOTS * len(segments), np.int64)
        keep: list[Any] = []
        for first, table in zip((R_NAMES, R_STRINGS), tables, strict=True):
            roots[first : first + T_WORDS] = table.addresses()
            keep += table.arrays().values()
        for place, array in (
            *self._row.items(),
            *buffer,
            (R_VISITED, self._visited),
            (R_PENDING, self._pending),
            (R_CANDIDATES, self._candidates),
            (R_PROBES, self._probes),
        ):
            roots[place] = array.ctypes.data
            keep.append(array)
        folding = _fold_table()
        roots[R_FOLDS], roots[R_FOLDS + 1] = folding.ctypes.data, len(folding) // 2
        roots[R_ATTRIBUTES] = self._attributes
        roots[R_BATCH] = self._batch
        roots[R_MATCH_CLUSTER] = self._match_cluster
        roots[R_MATCH_SEGMENT] = self._match_segment
        roots[R_SCRATCH + 1] = self._scratch_bytes
        roots[R_SPAN_WORDS] = self._span_words
        roots[R_SEGMENTS] = len(segments) - 1
        for number, held in enumerate(segments):
            place = R_FIRST_SEGMENT + SEGMENT_ROOTS * number
            roots[place : place + SEGMENT_ROOTS] = held[0].ctypes.data, held[1].ctypes.data, len(held[1])
            keep += held
        return roots, keep

    @property
    def _batch(self) -> int:
        """Number of events that have a row."""
        return BATCH_MAX if self._attributes <= BATCH_ATTRIBUTES_MAX else 1

    def _make_row(self, attributes: int) -> None:
        if self._row and attributes == self._attributes:
            return
        self._attributes = attributes
        batch = self._batch
        self._row = {
            R_KINDS: np.zeros((batch, attributes), np.uint8),
            R_NUMBERS: np.zeros((batch, 2 * attributes)),
            R_AUX: np.zeros((batch, 4 * attributes), np.int64),
            R_PRESENT: np.zeros((batch, attributes), np.int64),
            R_FLOATS: np.full((batch, attributes), np.nan),
            R_SCRATCH: np.zeros((batch, self._scratch_bytes), np.uint8),
        }
        places = [each for place in ROW_ROOTS for each in _first_and_step(self._row[place])]
        self._row[R_ROWS] = np.array([*places, *[0] * batch], np.int64)
        self._row[R_CELLS] = np.zeros((PROBES_MAX if batch > 1 else 1, attributes), np.uint8)
        self._row[R_COLUMNS] = np.zeros((attributes if batch > 1 else 1, LANES), np.uint8)
        self._row[R_VIEWS] = np.concatenate([np.zeros(1, np.int64), np.full(VIEW_KINDS * attributes, -1)])
        self._row[R_SPANS] = np.zeros(self._span_words, np.int64)


@cache
def _fold_table() -> npt.NDArray[np.int64]:
    """The characters that fold to another one, sorted, and then the others."""
    known = folds()
    return np.array([*sorted(known), *(known[code] for code in sorted(known))], np.int64)


def _first_and_step(rows: npt.NDArray[Any]) -> tuple[int, int]:
    """The address of the first row of an array, and the distance between rows in bytes."""
    return rows.ctypes.data, rows.strides[0]
