"""Asking: which ids match, by what a store shows of itself.

Owns the view that kernels are handed, and the calls of those that match: they are made without a lock, and again with
more room if there was too little.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shoal.errors import EventError
from shoal.filters.index import answers
from shoal.filters.index import event_row as rows
from shoal.filters.index import kernel_context as context
from shoal.filters.index import segment_layout as layout
from shoal.filters.index.hash_tables import Texts
from shoal.filters.index.postings import NO_SPANS
from shoal.filters.index.segment import Segment
from shoal.filters.index.tables import WireTable
from shoal.filters.index.workspace import Workspace
from shoal.filters.index.young import Young
from shoal.wire.rawbytes import announce_compilations

_ROOM: Final = 1.1
"""Room for the ids of a table of events, of what is expected by those before."""
_ROOM_FIRST: Final = 1 << 22
"""Ids for which there is room at first, at most: tables may be long, and differ."""
_ROOM_STEP: Final = 4
"""By how much the room grows at once, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """What kernels are handed: where the addresses of everything stand; and what they point to. Whoever calls a kernel
    without the lock keeps the view until it has returned."""

    context: int
    segments: Sequence[Segment]
    young: Young
    keep: list[Any]


class Asking(abc.ABC):
    """What can be asked of a store. The store takes the lock for its changes, and shows itself after each."""

    def __init__(self) -> None:
        announce_compilations()
        self._lock = threading.RLock()
        self._workspace = Workspace()
        self._ids_each = 0.0
        self._view: _View

    @abc.abstractmethod
    def _refresh(self) -> None:
        """Shows anew what there is."""

    def _show(self, names: Texts, strings: Texts, segments: Sequence[Segment], young: Young) -> None:
        """Writes down where everything is: kernels see the change when they are called next."""
        places = (
            (context.R_YOUNG_WORDS, young.words),
            (context.R_YOUNG_ENDS, young.ends),
            (context.R_YOUNG_COUNT, young.count),
        )
        largest = max((int(segment.header[layout.H_GROUP_MOST]) for segment in segments), default=0)
        held = [*((segment.block, segment.dead) for segment in segments), (young.block, young.dead)]
        roots, keep = self._workspace.roots((names, strings), places, largest, held)
        roots[context.R_YOUNG_WORD_COUNT], roots[context.R_YOUNG_ROOM] = len(young.words), young.room
        self._view = _View(roots.ctypes.data, segments, young, [roots, *keep])

    def match(self, event: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
        """The ids that match an event in its wire form."""
        while True:
            view = self._view
            ids, code = answers.match_ids(view.context, event)
            if code == 0:
                return ids  # type: ignore[no-any-return]
            self._make_room(code, len(event))

    def spans(self, event: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], list[npt.NDArray[np.uint32]]]:
        """The spans that match an event, and the arrays that they are of."""
        while True:
            view = self._view
            spans, code = answers.match_slices(view.context, event)
            if code == 0:
                return spans, [*(segment.ids() for segment in view.segments), view.young.ids()]
            self._make_room(code, len(event))

    def match_many(self, events: WireTable) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
        """The ids that match each event of a table: where those of each end, and all of them."""
        ends = np.zeros(len(events) + 1, np.int64)
        ids = np.empty(1024 + int(min(_ROOM * self._ids_each * len(events), _ROOM_FIRST)), np.uint32)
        done = 0
        while True:
            view = self._view
            done, code, known = answers.match_table(view.context, events.data, events.offsets, done, ids, ends)
            if code == 0:
                self._ids_each = float(ends[-1]) / max(len(events), 1)
                return ends, ids[: ends[-1]]
            if code == answers.NO_IDS:
                expected = _ROOM * ends[known] * len(events) / known
                room = np.empty(int(max(ends[known], min(expected, _ROOM_STEP * len(ids)))), np.uint32)
                room[: ends[done]] = ids[: ends[done]]
                ids = room
            else:
                self._make_room(code, int(events.offsets[done + 1] - events.offsets[done]))

    def count_many(self, events: WireTable) -> int:
        """How many ids match the events of a table together, found as spans."""
        done, total = 0, 0
        while True:
            view = self._view
            done, code, more = answers.count_table(view.context, events.data, events.offsets, done)
            total += int(more)
            if code == 0:
                return total
            self._make_room(code, int(events.offsets[done + 1] - events.offsets[done]))

    def _make_room(self, code: int, size: int) -> None:
        """Makes the room that a kernel missed, or says what is wrong with the event."""
        if code == rows.BAD_NUMBER:
            raise EventError("an event holds NaN or an infinity, which are refused")
        if code != NO_SPANS and size <= self._workspace.event_bytes_max:
            raise EventError("this is not an event: a msgpack map of names to strings, numbers and booleans")
        with self._lock:
            if code == NO_SPANS:
                self._workspace.grow_spans()
            else:
                self._workspace.grow_scratch(size)
            self._refresh()
