"""The workspace: where events are read into, and the addresses that kernels are handed.

Owns the rows of events with the arrays that belong to them, and the making of `roots` (see `context`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shoal.filters.index import candidates, reading
from shoal.filters.index import grid_matcher as filed
from shoal.filters.index import kernel_context as context
from shoal.filters.index import matcher as matching
from shoal.filters.index.hash_tables import T_WORDS, Texts
from shoal.filters.index.vectors import WIDTH
from shoal.wire.rawbytes import PADDING_BYTES

_SCRATCH_BYTES: Final = 1 << 14
_SPANS: Final = 3 * 4096


class Workspace:
    """Room for one event, or a batch. It grows; what was handed out as roots keeps what it points to."""

    def __init__(self) -> None:
        self._attributes = 0
        self._scratch_bytes = _SCRATCH_BYTES
        self._span_words = _SPANS
        self._waiting = np.zeros(0, np.uint64)
        self._candidates = np.zeros(candidates.AT_ONCE + candidates.FOUND_MAX, np.uint64)
        self._items = np.zeros(candidates.ITEM_WORDS * candidates.ITEMS_MAX, np.int64)
        self._visited = np.zeros(matching.VISITED_MAX, np.int64)
        self._row: dict[int, npt.NDArray[Any]] = {}

    @property
    def event_bytes_max(self) -> int:
        """The largest event or filter that there is room for, in bytes."""
        return self._scratch_bytes - PADDING_BYTES

    def grow_scratch(self, size: int) -> None:
        """Makes room for an event or a filter of so many bytes."""
        self._scratch_bytes = 2 * size + PADDING_BYTES
        self._row.clear()

    def grow_spans(self) -> None:
        """Makes room for twice as many spans."""
        self._span_words *= 2
        self._row.clear()

    def roots(
        self,
        tables: Sequence[Texts],
        young: Sequence[tuple[int, npt.NDArray[Any]]],
        largest: int,
        segments: Sequence[tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint32]]],
    ) -> tuple[npt.NDArray[np.int64], list[Any]]:
        """The addresses of everything, and what must be kept alive. `young` says where in the roots the arrays of the
        records in no segment go, `largest` is how many entries the largest group of any segment has, and `segments` are
        blocks and dead positions, those of the young records last."""
        self._make_row(len(tables[0].ends) + 1)
        waiting = filed.WAITING_WORDS * (filed.WAITING_MAX + largest // WIDTH + 1)
        if waiting > len(self._waiting):
            self._waiting = np.zeros(waiting, np.uint64)
        roots = np.zeros(context.R_FIRST_SEGMENT + context.SEGMENT_ROOTS * len(segments), np.int64)
        keep: list[Any] = []
        for first, table in zip((context.R_NAMES, context.R_STRINGS), tables, strict=True):
            roots[first : first + T_WORDS] = table.addresses()
            keep += table.arrays().values()
        for place, array in (
            *self._row.items(),
            *young,
            (context.R_VISITED, self._visited),
            (context.R_WAITING, self._waiting),
            (context.R_CANDIDATES, self._candidates),
            (context.R_ITEMS, self._items),
        ):
            roots[place] = array.ctypes.data
            keep.append(array)
        roots[context.R_ATTRIBUTES] = self._attributes
        roots[context.R_BATCH] = self._batch
        roots[context.R_MATCH_CLUSTER] = matching.match_cluster.address
        roots[context.R_MATCH_SEGMENT] = matching.match_segment.address
        roots[context.R_SCRATCH + 1] = self._scratch_bytes
        roots[context.R_SPAN_WORDS] = self._span_words
        roots[context.R_SEGMENTS] = len(segments) - 1
        for number, held in enumerate(segments):
            place = context.R_FIRST_SEGMENT + context.SEGMENT_ROOTS * number
            roots[place : place + context.SEGMENT_ROOTS] = held[0].ctypes.data, held[1].ctypes.data, len(held[1])
            keep += held
        return roots, keep

    @property
    def _batch(self) -> int:
        """How many events there are rows for."""
        return reading.BATCH if self._attributes <= reading.ATTRIBUTES_MAX else 1

    def _make_row(self, attributes: int) -> None:
        if self._row and attributes == self._attributes:
            return
        self._attributes = attributes
        batch = self._batch
        self._row = {
            context.R_KINDS: np.zeros((batch, attributes), np.uint8),
            context.R_NUMBERS: np.zeros((batch, 2 * attributes)),
            context.R_AUX: np.zeros((batch, 4 * attributes), np.int64),
            context.R_PRESENT: np.zeros((batch, attributes), np.int64),
            context.R_PLAIN: np.full((batch, attributes), np.nan),
            context.R_SCRATCH: np.zeros((batch, self._scratch_bytes), np.uint8),
        }
        places = [each for place in reading.ROW_ROOTS for each in _first_and_step(self._row[place])]
        self._row[context.R_ROWS] = np.array([*places, *[0] * batch], np.int64)
        self._row[context.R_CELLS] = np.zeros((candidates.ITEMS_MAX if batch > 1 else 1, attributes), np.uint8)
        self._row[context.R_SPANS] = np.zeros(self._span_words, np.int64)


def _first_and_step(rows: npt.NDArray[Any]) -> tuple[int, int]:
    """Where the first of some rows is, and how far they are apart, in bytes."""
    return rows.ctypes.data, rows.strides[0]
