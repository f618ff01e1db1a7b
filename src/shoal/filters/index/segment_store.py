"""The segment store: conjunctions by id, held in immutable segments and matched by kernels.

Owns the segments, the record buffer, the view of both that kernels read, and background merging. `Index` owns filters
with alternatives; the store knows single conjunctions only.

    insert --> buffer --512 records--> segment --8 of similar size, in the background--> larger segment --> ... --> one

A segment is built once and then only read. Removed ids are listed beside it and dropped at the next merge. Each merge
chooses signatures and cells anew, so memory use and layout follow the live filters.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from shoal.errors import EventError, FilterError, FilterTooLargeError, IndexFullError
from shoal.filters.index import event_row, matcher, record_format, segment_builder
from shoal.filters.index import segment_layout as layout
from shoal.filters.index.background import THREADS, Background
from shoal.filters.index.hash_tables import STRING_BYTES, TABLE_FULL, IdSet, StringTable
from shoal.filters.index.kernel_context import (
    R_BUFFER_COUNT,
    R_BUFFER_ENDS,
    R_BUFFER_ROOM,
    R_BUFFER_WORD_COUNT,
    R_BUFFER_WORDS,
    Workspace,
)
from shoal.filters.index.postings import SPANS_FULL
from shoal.filters.index.record_encoder import (
    HAS_ALTERNATIVES,
    RECORD_TOO_LARGE,
    RECORD_WORDS_MAX,
    SCRATCH_FULL,
    encode_table,
)
from shoal.filters.index.record_format import RecordSet, intern_strings, translate_records
from shoal.filters.index.segment import (
    BUFFER_FULL,
    BUFFER_MAX,
    DEAD_FULL,
    ID_MISSING,
    ID_TAKEN,
    RecordBuffer,
    Segment,
    insert_record,
    live_records,
    remove_id,
)
from shoal.filters.index.view_rows import VIEWS_FULL, link_views
from shoal.filters.index.wire_table import WireTable
from shoal.filters.views import base_of
from shoal.logs import get_log
from shoal.wire.raw_bytes import announce_compilations

FAN_IN: Final = 8
"""Segments of similar size that are merged into one."""
SEGMENTS_MAX: Final = 48
"""With this many segments, a change merges the `FAN_IN` smallest itself, unless they are in the background merge: it
waits for nothing."""
_WORDS_PER_RECORD: Final = 24
"""Expected words per record when a table of filters is encoded."""
_RESULT_SLACK: Final = 1.1
"""Size of the result array relative to what earlier events lead to expect."""
_RESULT_IDS_FIRST: Final = 1 << 22
"""Upper limit for the first size of a result array, because events differ."""
_RESULT_GROWTH: Final = 4
"""Upper limit for the growth of a result array in one step."""
_log: Final = get_log(__name__)


# Locks around a fork: a child process is a copy of its parent at one moment, with only the forking thread. The forking
# thread therefore holds every lock during the fork, so that no index is copied half changed, and the child makes new
# locks, because the threads that waited for the old ones do not exist there.

INDEX_LOCKS: Final = 0
STORE_LOCKS: Final = 1
"""The order in which locks are taken: an index holds its own lock while it calls its stores."""


class ForkGuarded(Protocol):
    """An object whose lock is held during a fork."""

    _lock: threading.RLock

    def _after_fork(self) -> None:
        """Replaces the lock, in the child."""


_fork_guarded: Final[WeakValueDictionary[tuple[int, int], ForkGuarded]] = WeakValueDictionary()
_fork_held: Final = threading.local()


def guard_fork(owner: ForkGuarded, order: int) -> None:
    """Holds the lock of an object during forks, for as long as the object lives."""
    _fork_guarded[order, id(owner)] = owner


def _guarded_owners() -> list[ForkGuarded]:
    """All guarded objects in lock order. `valuerefs` is one atomic call, so other threads cannot interfere with it."""
    found = _fork_guarded.valuerefs()
    return [owner for each in sorted(found, key=lambda each: each.key) if (owner := each()) is not None]


def _before_fork() -> None:
    _fork_held.locks = [each._lock for each in _guarded_owners()]
    for lock in _fork_held.locks:
        lock.acquire()


def _after_in_parent() -> None:
    for lock in _fork_held.locks:
        lock.release()
    del _fork_held.locks


def _after_in_child() -> None:
    del _fork_held.locks
    for each in _guarded_owners():
        each._after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


@dataclass(frozen=True, slots=True, eq=False)
class _StoreView:
    """What a kernel call reads: the address of the context, and the arrays behind the addresses in it. A caller without
    the lock keeps its view until the kernel has returned."""

    context: int
    segments: Sequence[Segment]
    buffer: RecordBuffer
    keep: list[Any]


class ArrayEventError(EventError):
    """An event has an array: the index matches its variants instead. Never leaves the index."""


class SegmentStore:
    """Conjunctions by id. `Index` documents how they are used.

    Concurrency: the store can be read while it is changed, from any thread of one process.

    - A match is one kernel call that keeps the interpreter lock. It reads one view, so it sees all of a change or none
      of it.
    - Changes take `_lock`, so there is one at a time. Each ends with `_refresh`, which replaces the view.
    - A merge runs in the `background`, in a thread of its own, without the interpreter lock, and reads only arrays that
      are never written again. Its result comes in by one assignment, under the lock. No change waits for it.
    - Slices that were handed out stay valid, because they are views of immutable segments.
    """

    def __init__(
        self,
        names: StringTable | None = None,
        strings: StringTable | None = None,
        background: Background = THREADS,
    ) -> None:
        announce_compilations()
        self.names = names or StringTable()
        self.strings = strings or StringTable()
        self.ids = IdSet()
        self._background = background
        self._lock = threading.RLock()
        self._segments: tuple[Segment, ...] = ()
        self._buffer = RecordBuffer()
        self._workspace = Workspace(matcher.match_cluster.address, matcher.match_segment.address)
        self._view: _StoreView
        self._ids_per_event = 0.0
        self._merged = threading.Condition(self._lock)
        """Notified when a merge has ended."""
        self._is_merging = False
        self._merging: tuple[Segment, ...] = ()
        """What the merge that runs replaces."""
        self._removed: list[int] | None = None
        """Ids that were removed while a merge runs; None if none runs."""
        self._failure: Exception | None = None
        self._settling = 0
        """Threads that wait for a merge of all segments."""
        self._full_merges_started = self._full_merges_done = 0
        """Numbers of the last merge of all segments that was started, and of the last that succeeded."""
        guard_fork(self, STORE_LOCKS)
        self._refresh()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The current segments, oldest first."""
        return self._segments

    @property
    def unique(self) -> int:
        """Records held. Within a segment, a record that several ids share counts once."""
        return sum(int(segment.header[layout.H_UNIQUE]) for segment in self._segments) + len(self._buffer)

    @property
    def nbytes(self) -> int:
        """Bytes of segments, buffer, ids and string tables."""
        held = sum(segment.block.nbytes + segment.dead.nbytes for segment in self._segments)
        return held + self.ids.nbytes + self.names.nbytes + self.strings.nbytes + self._buffer.nbytes

    # Matching

    def match(self, event: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
        """The ids that match an event in its wire form."""
        while True:
            view = self._view
            ids, code = matcher.match_ids(view.context, event)
            if code == 0:
                return ids  # type: ignore[no-any-return]
            self._make_room_for_event(code, len(event))

    def spans(self, event: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], list[npt.NDArray[np.uint32]]]:
        """The spans that match an event, and the arrays of ids that they refer to."""
        while True:
            view = self._view
            spans, code = matcher.match_slices(view.context, event)
            if code == 0:
                return spans, [*(segment.ids() for segment in view.segments), view.buffer.ids()]
            self._make_room_for_event(code, len(event))

    def match_many(self, events: WireTable) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
        """The ids that match each event of a table: the offsets of each event's ids, and all ids."""
        ends = np.zeros(len(events) + 1, np.int64)
        expected = _RESULT_SLACK * self._ids_per_event * len(events)
        ids = np.empty(1024 + int(min(expected, _RESULT_IDS_FIRST)), np.uint32)
        done = 0
        while True:
            view = self._view
            done, code, known = matcher.match_table(view.context, events.data, events.offsets, done, ids, ends)
            if code == 0:
                self._ids_per_event = float(ends[-1]) / max(len(events), 1)
                return ends, ids[: ends[-1]]
            if code == matcher.IDS_FULL:
                expected = _RESULT_SLACK * ends[known] * len(events) / known
                room = np.empty(int(max(ends[known], min(expected, _RESULT_GROWTH * len(ids)))), np.uint32)
                room[: ends[done]] = ids[: ends[done]]
                ids = room
            else:
                self._make_room_for_event(code, int(events.offsets[done + 1] - events.offsets[done]))

    def count_many(self, events: WireTable) -> int:
        """Number of ids that the events of a table match, summed over the events. No ids are copied."""
        done, total = 0, 0
        while True:
            view = self._view
            done, code, more = matcher.count_table(view.context, events.data, events.offsets, done)
            total += int(more)
            if code == 0:
                return total
            self._make_room_for_event(code, int(events.offsets[done + 1] - events.offsets[done]))

    def known_names(self) -> frozenset[str]:
        """The attributes of all filters that the store has ever held."""
        with self._lock:
            data, ends = self.names.data.tobytes(), self.names.ends[: len(self.names) + 1].tolist()
        return frozenset(base_of(data[start:end].decode()) for start, end in pairwise(ends))

    def _make_room_for_event(self, code: int, size: int) -> None:
        """Grows the array that a kernel found too small. EventError if the event is at fault."""
        if code == event_row.HAS_ARRAY:
            raise ArrayEventError("an event has an array")
        if code == event_row.BAD_NUMBER:
            raise EventError("an event contains NaN or infinity", do="leave the attribute out, or send a finite number")
        if code not in (SPANS_FULL, VIEWS_FULL) and size <= self._workspace.event_bytes_max:
            raise EventError(
                "this is not an event in its wire form",
                do="pass a mapping, or a MessagePack map of names to strings, numbers and booleans",
            )
        with self._lock:
            if code == SPANS_FULL:
                self._workspace.grow_spans()
            else:
                self._workspace.grow_scratch(max(size, self._workspace.event_bytes_max))
            self._refresh()

    # Changes

    def insert(self, number: int, wire: bytes) -> bool:
        """Adds a filter in its wire form. False, with nothing changed, if the filter has alternatives."""
        data = np.frombuffer(wire, np.uint8)
        with self._lock:
            self.ids.make_room(1)
            while True:
                code = insert_record(self._view.context, data, number, self.ids.table)
                if code > 0:
                    self.ids.added()
                    return True
                if code == ID_TAKEN:
                    raise id_in_use(number)
                if code == HAS_ALTERNATIVES:
                    return False
                if code == BUFFER_FULL and self._buffer.room < BUFFER_MAX:
                    self._buffer = self._buffer.grown(BUFFER_MAX, len(self._buffer.words))
                    self._refresh()
                elif code == BUFFER_FULL or (code == record_format.WORDS_FULL and self._buffer.is_full):
                    self._flush()
                else:
                    self._make_room_for_filter(code, len(data))

    def insert_many(self, numbers: npt.NDArray[np.uint32], table: WireTable) -> None:
        """Adds many filters without alternatives as a segment of their own."""
        if not len(numbers):
            return
        with self._lock:
            added = self.ids.add_all(numbers)
            if added < len(numbers):
                raise FilterError(f"subscription {numbers[added]} exists already, or is listed twice")
            try:
                words, ends = self._encode(table)
            except FilterError:
                self.ids.remove_all(numbers)
                raise
            given = RecordSet(words, ends, numbers.astype(np.uint32), np.arange(len(numbers) + 1))
            if 2 * len(numbers) > len(self):
                self._trim_tables()
            self._add(self._build(given))

    def remove(self, number: int) -> bool:
        """Removes a subscription. False if there is none with this id."""
        with self._lock:
            while (code := remove_id(self._view.context, number, self.ids.table)) <= DEAD_FULL:
                self._segments[DEAD_FULL - code].grow_dead()
                self._refresh()
            if code == ID_MISSING:
                return False
            self.ids.removed()
            if self._removed is not None:
                self._removed.append(number)
            if code < len(self._segments):
                segment = self._segments[code]
                if segment.positions > BUFFER_MAX and segment.is_stale:
                    self._consider_merging()
            return True

    def remove_many(self, numbers: npt.NDArray[np.uint32]) -> int:
        """Removes all of some subscriptions, or none. Returns the number of ids before the first one that is missing or
        listed twice; all of them if they were removed."""
        with self._lock:
            removed = self.ids.remove_all(numbers)
            if removed < len(numbers):
                return removed
            if self._removed is not None:
                self._removed += numbers.tolist()
            ordered = np.sort(numbers)
            for segment in self._segments:
                segment.mark_dead(ordered)
            self._buffer.mark_dead(ordered)
            self._refresh()
            if any(segment.positions > BUFFER_MAX and segment.is_stale for segment in self._segments):
                self._consider_merging()
            return removed

    def _encode(self, table: WireTable) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
        """The records of a table of filters: their words, and the ends of each."""
        words = np.empty(_WORDS_PER_RECORD * len(table) + RECORD_WORDS_MAX, np.uint16)
        ends = np.zeros(len(table) + 1, np.int64)
        done = 0
        while True:
            done, code = encode_table(self._view.context, table.data, table.offsets, done, words, ends)
            if code == 0:
                return words[: ends[-1]], ends
            if code == record_format.WORDS_FULL:
                words = np.concatenate([words, np.empty(len(words), np.uint16)])
            else:
                self._make_room_for_filter(code, int(table.offsets[done + 1] - table.offsets[done]))

    def _make_room_for_filter(self, code: int, size: int) -> None:
        """Grows the array that a kernel found too small. FilterError if the filter is at fault."""
        if code == TABLE_FULL:
            self.names.reserve(max(16, size // 4), size)
            more = max(size, len(self.strings) // 2)
            self.strings.reserve(more, max(size, int(self.strings.counters[STRING_BYTES]) // 2))
        elif code == SCRATCH_FULL:
            self._workspace.grow_scratch(size)
        elif code == record_format.TOO_MANY_NAMES:
            raise IndexFullError(
                f"the index holds {record_format.NAMES_MAX} attribute names, which is its limit",
                do="insert the live filters into a new index; names of removed filters are kept",
            )
        elif code == record_format.WORDS_FULL and len(self._buffer.words) < RECORD_WORDS_MAX:
            self._buffer = self._buffer.grown(self._buffer.room, 2 * len(self._buffer.words))
        elif code in (record_format.WORDS_FULL, RECORD_TOO_LARGE):
            raise FilterTooLargeError(
                "the filter is larger than the index can hold", do="split it into several subscriptions"
            )
        else:
            raise FilterError("this is not a filter in its wire form", do="encode filters with filter_table")
        self._refresh()

    # Segments

    def _build(self, given: RecordSet) -> Segment:
        with self._lock:
            strings = self.strings.data, self.strings.ends, self.strings.slots
            attributes = len(self.names)
        return Segment(segment_builder.build(given, strings, attributes))

    def _trim_tables(self) -> None:
        """Releases unused room of the string tables. The caller refreshes the view."""
        self.names.trim()
        self.strings.trim()

    def _flush(self) -> None:
        """Builds a segment from the buffer."""
        live = self._buffer.live()
        self._buffer = RecordBuffer(self._buffer.room, len(self._buffer.words))
        if len(live.ids):
            self._add(self._build(live))
        else:
            self._refresh()

    def _add(self, segment: Segment) -> None:
        self._segments = (*self._segments, segment)
        self._refresh()
        self._consider_merging()

    def _refresh(self) -> None:
        """Replaces the view: the next kernel call sees the current segments, buffer and tables."""
        buffer = self._buffer
        buffer_roots = (
            (R_BUFFER_WORDS, buffer.words),
            (R_BUFFER_ENDS, buffer.ends),
            (R_BUFFER_COUNT, buffer.count),
        )
        largest = max((int(segment.header[layout.H_GROUP_MAX]) for segment in self._segments), default=0)
        held = [*((segment.block, segment.dead) for segment in self._segments), (buffer.block, buffer.dead)]
        roots, keep = self._workspace.roots((self.names, self.strings), buffer_roots, largest, held)
        roots[R_BUFFER_WORD_COUNT], roots[R_BUFFER_ROOM] = len(buffer.words), buffer.room
        link_views(roots.ctypes.data, len(self.names))
        self._view = _StoreView(roots.ctypes.data, self._segments, buffer, [roots, *keep])

    # Merging

    def settle(self) -> None:
        """Merges everything that is there now into one segment and waits for it. Raises what went wrong in the
        background. Changes by other threads are not waited for."""
        with self._lock:
            if len(self._buffer):
                self._flush()
            before = self._full_merges_started
            self._settling += 1
            try:
                while True:
                    failure, self._failure = self._failure, None
                    if failure is not None:
                        raise failure
                    if self._is_settled or self._full_merges_done > before:
                        break
                    if not self._is_merging:
                        self._start_merge(self._segments)
                    self._background.wait(self._merged)
            finally:
                self._settling -= 1
            if self._is_settled and not len(self._buffer):
                self._buffer = RecordBuffer()
                self._trim_tables()
                self._refresh()

    def begin_settling(self) -> bool:
        """Starts to merge all segments, and waits for nothing. False if another merge runs."""
        with self._lock:
            if self._is_merging or self._settling:
                return False
            if not self._is_settled:
                self._start_merge(self._segments)
            return True

    @property
    def _is_settled(self) -> bool:
        """Whether there is at most one segment, and no dead id in it."""
        return len(self._segments) <= 1 and not any(segment.dead_count for segment in self._segments)

    def _consider_merging(self) -> None:
        """Starts a background merge if one is due and none runs. If one runs and there are too many segments, merges
        the smallest of the others here."""
        self._start_due()
        if len(self._segments) >= SEGMENTS_MAX:
            others = [segment for segment in self._segments if segment not in self._merging]
            smallest = sorted(others, key=lambda segment: segment.positions)[:FAN_IN]
            if len(smallest) == FAN_IN:
                self._replace(smallest, self._merged_of(smallest, [each.dead_positions() for each in smallest]))

    def _start_due(self) -> None:
        """Starts the merge that is due, if none runs and no thread settles: `settle` starts the next merge itself."""
        if not self._is_merging and not self._settling:
            due = self._due()
            if due:
                self._start_merge(due)

    def _due(self) -> tuple[Segment, ...]:
        """The segments to merge next: a full tier with all smaller segments, or one stale segment."""
        for tier in range(16):
            own = [segment for segment in self._segments if segment.tier == tier]
            if len(own) >= FAN_IN:
                return tuple(segment for segment in self._segments if segment.tier <= tier)
        stale = [segment for segment in self._segments if segment.is_stale]
        return tuple(stale[:1])

    def _start_merge(self, segments: tuple[Segment, ...]) -> None:
        """Starts a merge. The caller holds the lock."""
        full_merge = 0
        if segments == self._segments:
            self._full_merges_started += 1
            full_merge = self._full_merges_started
        dead = [segment.dead_positions() for segment in segments]
        self._is_merging, self._merging, self._removed = True, segments, []
        self._background.start(lambda: self._merge_now(segments, dead, full_merge))

    def _merge_now(self, segments: tuple[Segment, ...], dead: list[npt.NDArray[np.uint32]], full_merge: int) -> None:
        try:
            merged = self._merged_of(segments, dead)
            with self._lock:
                removed = np.unique(np.array(self._removed or [], np.uint32))
                for segment in merged:
                    segment.mark_dead(removed)
                self._replace(segments, merged)
                self._full_merges_done = max(self._full_merges_done, full_merge)
                self._end_merge(None)
                self._start_due()
        except Exception as error:
            _log.exception("merging segments failed; the segments stay as they are", segments=len(segments))
            with self._lock:
                self._end_merge(error)

    def _merged_of(self, segments: Sequence[Segment], dead: list[npt.NDArray[np.uint32]]) -> tuple[Segment, ...]:
        """One segment with what is live in some; none if nothing is."""
        live = live_records(segments, dead)
        return (self._build(live),) if len(live.ids) else ()

    def _replace(self, segments: Sequence[Segment], merged: tuple[Segment, ...]) -> None:
        """Replaces segments by their merge."""
        first = self._segments.index(segments[0])
        others = [segment for segment in self._segments if segment not in segments]
        self._segments = (*others[:first], *merged, *others[first:])
        self._refresh()

    def _end_merge(self, failure: Exception | None) -> None:
        """Records that no merge runs, and wakes the threads that wait for it."""
        self._is_merging, self._merging, self._removed = False, (), None
        self._failure = failure or self._failure
        self._merged.notify_all()

    def _after_fork(self) -> None:
        """In a child process only the forking thread exists: a merge that ran in the parent is forgotten."""
        self._lock = threading.RLock()
        self._merged = threading.Condition(self._lock)
        self._is_merging, self._merging, self._removed, self._settling = False, (), None, 0

    # State transfer

    def live_records(self) -> RecordSet:
        """All records that are held now."""
        with self._lock:
            while len(self._buffer):
                self._flush()
            dead = [segment.dead_positions() for segment in self._segments]
            segments = self._segments
        return live_records(segments, dead)

    def add_records(self, given: RecordSet, names: StringTable, strings: StringTable) -> None:
        """Adds records of another store, whose string tables are `names` and `strings`."""
        if not len(given.ids):
            return
        with self._lock:
            added = self.ids.add_all(given.ids)
            if added < len(given.ids):
                raise id_in_use(int(given.ids[added]))
            if self._count_names_with(names) > record_format.NAMES_MAX:
                self.ids.remove_all(given.ids)
                raise FilterTooLargeError(
                    f"together the two indexes have more than {record_format.NAMES_MAX} attribute names",
                    do="keep them apart, or insert the live filters into a new index",
                )
            codes = intern_strings(self.names, names), intern_strings(self.strings, strings)
            translated = translate_records(given, *codes)
            self._refresh()
            self._add(self._build(translated))

    def _count_names_with(self, others: StringTable) -> int:
        """Number of names, or an upper bound below the limit, once those of another store are added."""
        if len(self.names) + len(others) <= record_format.NAMES_MAX:
            return len(self.names) + len(others)
        return len({table.text(code) for table in (self.names, others) for code in range(len(table))})

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The contents as named arrays that are not written again: `of_arrays` makes the same store from them."""
        with self._lock:
            while len(self._buffer):
                self._flush()
            arrays = {f"names.{name}": array.copy() for name, array in self.names.arrays().items()}
            arrays |= {f"strings.{name}": array.copy() for name, array in self.strings.arrays().items()}
            for number, segment in enumerate(self._segments):
                arrays[f"block.{number}"] = segment.block
                arrays[f"dead.{number}"] = segment.dead.copy()
            return arrays | {"ids": self.ids.table.copy()}

    @classmethod
    def of_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> SegmentStore:
        """The store that `arrays` came from."""
        names, strings = (StringTable.of_arrays(arrays_with_prefix(arrays, each)) for each in ("names.", "strings."))
        ends = names.ends[: len(names) + 1].astype(np.int64)
        if not len(names) < min(len(ends), len(names.slots)) or (np.diff(ends, append=len(names.data)) < 0).any():
            raise ValueError("the names of attributes")  # the kernels read all of them at once
        store = cls(names, strings)
        count = sum(key.startswith("block.") for key in arrays)
        store._segments = tuple(Segment(arrays[f"block.{n}"], arrays[f"dead.{n}"]) for n in range(count))
        store.ids = IdSet.of_table(arrays["ids"], sum(segment.live_count for segment in store._segments))
        store._refresh()
        return store


def id_in_use(number: int) -> FilterError:
    """The error for an id that is inserted a second time."""
    return FilterError(f"subscription {number} exists already", do="remove it first, or use another id")


def arrays_with_prefix(arrays: dict[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays whose names start with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
