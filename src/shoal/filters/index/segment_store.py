"""The store: conjunctions with their ids, as segments that are never written again.

Owns the segments, the few records that are in none yet, and the merging of segments in the background.

    take in --512 records--> segment --8 of about one size, in the background--> larger segment --...--> one

A segment is made once and then only read; what is removed from it is listed beside it, and left out when it is
merged. So memory and places follow the filters that are alive: each merge chooses clusters and cells anew.

Safe to read while it is written, from threads of one process: a match is one call into a kernel that keeps the
interpreter's lock, so it sees all of a change or nothing of it; changes take a lock of their own, so there is one at
a time; and a merge, which runs without the interpreter's lock, reads only what nobody writes. Its result comes in by
one assignment. Slices that were handed out stay what they were, for they are views of segments.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shoal.errors import FilterError, FilterTooLargeError
from shoal.filters.index import record_format as records
from shoal.filters.index import removing, taking
from shoal.filters.index import segment_builder as building
from shoal.filters.index import segment_layout as layout
from shoal.filters.index.asking import Asking
from shoal.filters.index.forking import STORES, guard
from shoal.filters.index.hash_tables import NO_ROOM, Texts
from shoal.filters.index.ids import Ids
from shoal.filters.index.parts import intern_all, translate
from shoal.filters.index.segment import Segment
from shoal.filters.index.tables import WireTable
from shoal.filters.index.uniting import Records
from shoal.filters.index.young import Young
from shoal.logs import get_log

FAN_IN: Final = 8
"""Segments of about one size that are merged into one."""
SEGMENTS_MAX: Final = 48
"""With so many segments a change waits for the background."""
_WORDS_PER_RECORD: Final = 24
_log: Final = get_log(__name__)


class Store(Asking):
    """Conjunctions by id. `Index` says how it is used; it knows filters with one conjunction only."""

    def __init__(self, names: Texts | None = None, strings: Texts | None = None) -> None:
        super().__init__()
        self.names = names or Texts()
        self.strings = strings or Texts()
        self.ids = Ids()
        self._segments: tuple[Segment, ...] = ()
        self._young = Young()
        self._merged = threading.Condition(self._lock)
        """A merge has ended."""
        self._merge: threading.Thread | None = None
        self._removed: list[int] | None = None
        self._failure: Exception | None = None
        self._settling = 0
        """Threads that wait for a merge of everything."""
        self._wholes = self._whole_made = 0
        """The numbers of the last merge of everything that was started, and of the last that was made."""
        guard(self, STORES)
        self._refresh()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """What it is made of now, oldest first."""
        return self._segments

    @property
    def unique(self) -> int:
        """Records that are held: those that several ids have are counted once in each segment."""
        return sum(int(segment.header[layout.H_UNIQUE]) for segment in self._segments) + len(self._young)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays that grow with what is held, and of the records that are in no segment."""
        held = sum(segment.block.nbytes + segment.dead.nbytes for segment in self._segments)
        return held + self.ids.nbytes + self.names.nbytes + self.strings.nbytes + self._young.nbytes

    # Changes

    def insert(self, number: int, wire: bytes) -> bool:
        """Adds a filter in its wire form; False, and nothing has changed, if it has alternatives."""
        data = np.frombuffer(wire, np.uint8)
        with self._lock:
            self.ids.make_room(1)
            while True:
                code = taking.take_in(self._view.context, data, number, self.ids.table)
                if code > 0:
                    self.ids.added()
                    return True
                if code == taking.THERE:
                    raise FilterError(f"there is a subscription {number} already")
                if code == taking.SEVERAL:
                    return False
                if code == taking.NO_YOUNG and self._young.room < taking.YOUNG_MAX:
                    self._young = self._young.grown(taking.YOUNG_MAX, len(self._young.words))
                    self._refresh()
                elif code == taking.NO_YOUNG or (code == records.NO_WORDS and self._young.is_full):
                    self._flush()
                else:
                    self._help(code, len(data))

    def insert_many(self, numbers: npt.NDArray[np.uint32], table: WireTable) -> None:
        """Adds many filters without alternatives as a segment of their own."""
        if not len(numbers):
            return
        with self._lock:
            added = self.ids.add_all(numbers)
            if added < len(numbers):
                raise FilterError(f"there is a subscription {numbers[added]} already, or it is listed twice")
            try:
                words, ends = self._read(table)
            except FilterError:
                self.ids.remove_all(numbers)
                raise
            given = Records(words, ends, numbers.astype(np.uint32), np.arange(len(numbers) + 1))
            if 2 * len(numbers) > len(self):
                self._fit()
            self._add(self._build(given))

    def remove(self, number: int) -> bool:
        """Takes a subscription out; False if it is not there."""
        with self._lock:
            while (code := removing.take_out(self._view.context, number, self.ids.table)) <= removing.NO_DEAD:
                self._segments[removing.NO_DEAD - code].make_room()
                self._refresh()
            if code == removing.NOT_THERE:
                return False
            self.ids.removed()
            if self._removed is not None:
                self._removed.append(number)
            if code < len(self._segments):
                segment = self._segments[code]
                if segment.positions > taking.YOUNG_MAX and segment.is_stale:
                    self._consider_merging()
            return True

    def remove_many(self, numbers: npt.NDArray[np.uint32]) -> int:
        """Takes subscriptions out, all of them or none; how many there are before one that is not there, or that is
        listed twice."""
        with self._lock:
            removed = self.ids.remove_all(numbers)
            if removed < len(numbers):
                return removed
            if self._removed is not None:
                self._removed += numbers.tolist()
            ordered = np.sort(numbers)
            for segment in self._segments:
                segment.lose(ordered)
            self._young.lose(ordered)
            self._refresh()
            if any(segment.positions > taking.YOUNG_MAX and segment.is_stale for segment in self._segments):
                self._consider_merging()
            return removed

    def _read(self, table: WireTable) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
        words = np.empty(_WORDS_PER_RECORD * len(table) + taking.YOUNG_WORDS_MAX, np.uint16)
        ends = np.zeros(len(table) + 1, np.int64)
        done = 0
        while True:
            done, code = taking.take_table(self._view.context, table.data, table.offsets, done, words, ends)
            if code == 0:
                return words[: ends[-1]], ends
            if code == records.NO_WORDS:
                words = np.concatenate([words, np.empty(len(words), np.uint16)])
            else:
                self._help(code, int(table.offsets[done + 1] - table.offsets[done]))

    def _help(self, code: int, size: int) -> None:
        """Makes the room that a kernel missed, or says what is wrong with the filter."""
        if code == NO_ROOM:
            self.names.reserve(max(16, size // 4), size)
            more = max(size, len(self.strings) // 2)
            self.strings.reserve(more, max(size, int(self.strings.counters[1]) // 2))
        elif code == taking.NO_SCRATCH:
            self._workspace.grow_scratch(size)
        elif code == records.TOO_MANY_NAMES:
            raise FilterTooLargeError(f"the index knows {records.NAMES_MAX} attribute names, the most that it can")
        elif code == records.NO_WORDS and len(self._young.words) < taking.YOUNG_WORDS_MAX:
            self._young = self._young.grown(self._young.room, 2 * len(self._young.words))
        elif code in (records.NO_WORDS, taking.TOO_LARGE):
            raise FilterTooLargeError("the filter is larger than the index can hold")
        else:
            raise FilterError("this is not a filter in its wire form")
        self._refresh()

    # Segments

    def _build(self, given: Records) -> Segment:
        with self._lock:
            texts = self.strings.data, self.strings.ends, self.strings.slots
            attributes = len(self.names)
        return Segment(building.build(given, texts, attributes))

    def _fit(self) -> None:
        """Gives back the room in which nothing stands; whoever calls it refreshes."""
        self.names.fit()
        self.strings.fit()

    def _flush(self) -> None:
        """Makes a segment of the records that are in none."""
        alive = self._young.alive()
        self._young = Young(self._young.room, len(self._young.words))
        if len(alive.ids):
            self._add(self._build(alive))
        else:
            self._refresh()

    def _add(self, segment: Segment) -> None:
        self._segments = (*self._segments, segment)
        self._refresh()
        self._consider_merging()

    def _refresh(self) -> None:
        self._show(self.names, self.strings, self._segments, self._young)

    # Merging

    def settle(self) -> None:
        """Makes one segment of all that is there now, and waits for it; raises what went wrong in the background. What
        comes in meanwhile is not waited for."""
        with self._lock:
            if len(self._young):
                self._flush()
            before = self._wholes
            self._settling += 1
            try:
                while True:
                    failure, self._failure = self._failure, None
                    if failure is not None:
                        raise failure
                    if self._is_settled or self._whole_made > before:
                        break
                    if self._merge is None:
                        self._start_merge(self._segments)
                    self._merged.wait()
            finally:
                self._settling -= 1
            if self._is_settled and not len(self._young):
                self._young = Young()
                self._fit()
                self._refresh()

    @property
    def _is_settled(self) -> bool:
        """Whether all that is in segments is in one, and nothing has gone from it."""
        return len(self._segments) <= 1 and not any(segment.gone for segment in self._segments)

    def _consider_merging(self) -> None:
        """Starts a merge in the background if one is due and none runs; waits for it where it must not fall behind."""
        while self._merge is not None and len(self._segments) >= SEGMENTS_MAX:
            self._merged.wait()
        self._start_due()

    def _start_due(self) -> None:
        """Starts the merge that is due, if none runs. Who settles has the next one, and takes all segments."""
        if self._merge is None and not self._settling:
            due = self._due()
            if due:
                self._start_merge(due)

    def _due(self) -> tuple[Segment, ...]:
        """The segments to merge next: a full tier with all smaller ones, or one that is stale."""
        for tier in range(16):
            own = [segment for segment in self._segments if segment.tier == tier]
            if len(own) >= FAN_IN:
                return tuple(segment for segment in self._segments if segment.tier <= tier)
        stale = [segment for segment in self._segments if segment.is_stale]
        return tuple(stale[:1])

    def _start_merge(self, segments: tuple[Segment, ...]) -> None:
        """Starts a merge; whoever calls it has the lock, so the merge cannot end before it is written down."""
        whole = 0
        if segments == self._segments:
            self._wholes += 1
            whole = self._wholes
        dead = [segment.dead[1 : 1 + segment.gone].copy() for segment in segments]
        merge = threading.Thread(target=self._merge_now, args=(segments, dead, whole), name="shoal-merge")
        merge.start()
        self._merge, self._removed = merge, []

    def _merge_now(self, segments: tuple[Segment, ...], dead: list[npt.NDArray[np.uint32]], whole: int) -> None:
        try:
            alive = records_of(segments, dead)
            merged = (self._build(alive),) if len(alive.ids) else ()
            with self._lock:
                self._replace(segments, merged)
                self._whole_made = max(self._whole_made, whole)
                self._end_merge(None)
                self._start_due()
        except Exception as error:
            _log.exception("segments could not be merged; they stay as they are", segments=len(segments))
            with self._lock:
                self._end_merge(error)

    def _replace(self, segments: tuple[Segment, ...], merged: tuple[Segment, ...]) -> None:
        """Puts what segments were merged into in their place, without what was removed since they were read."""
        removed = np.unique(np.array(self._removed or [], np.uint32))
        for segment in merged:
            segment.lose(removed)
        first = self._segments.index(segments[0])
        others = [segment for segment in self._segments if segment not in segments]
        self._segments = (*others[:first], *merged, *others[first:])
        self._refresh()

    def _end_merge(self, failure: Exception | None) -> None:
        """No merge runs any more: tells those who wait for it."""
        self._merge, self._removed = None, None
        self._failure = failure or self._failure
        self._merged.notify_all()

    def _after_fork(self) -> None:
        """In a child process there is no thread but the one that forked: a merge that ran is forgotten."""
        self._lock = threading.RLock()
        self._merged = threading.Condition(self._lock)
        self._merge, self._removed, self._settling = None, None, 0

    # Parts

    def records(self) -> Records:
        """Everything that it holds now."""
        with self._lock:
            while len(self._young):
                self._flush()
            dead = [segment.dead[1 : 1 + segment.gone].copy() for segment in self._segments]
            segments = self._segments
        return records_of(segments, dead)

    def absorb(self, given: Records, names: Texts, strings: Texts) -> None:
        """Takes the records of another store in, whose tables of texts are `names` and `strings`."""
        if not len(given.ids):
            return
        with self._lock:
            added = self.ids.add_all(given.ids)
            if added < len(given.ids):
                raise FilterError(f"there is a subscription {given.ids[added]} already")
            if self._names_with(names) > records.NAMES_MAX:
                self.ids.remove_all(given.ids)
                raise FilterTooLargeError(f"the index would know more than {records.NAMES_MAX} attribute names")
            translated = translate(given, intern_all(self.names, names), intern_all(self.strings, strings))
            self._refresh()
            self._add(self._build(translated))

    def _names_with(self, others: Texts) -> int:
        """How many names there would be with those of another store."""
        if len(self.names) + len(others) <= records.NAMES_MAX:
            return len(self.names) + len(others)
        return len({table.text(code) for table in (self.names, others) for code in range(len(table))})

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All that it holds, as arrays with names that nobody writes any more: `of_arrays` makes the same store of
        them."""
        with self._lock:
            while len(self._young):
                self._flush()
            arrays = {f"names.{name}": array.copy() for name, array in self.names.arrays().items()}
            arrays |= {f"strings.{name}": array.copy() for name, array in self.strings.arrays().items()}
            for number, segment in enumerate(self._segments):
                arrays[f"block.{number}"] = segment.block
                arrays[f"dead.{number}"] = segment.dead.copy()
            return arrays | {"ids": self.ids.table.copy()}

    @classmethod
    def of_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> Store:
        """The store that `arrays` came from."""
        tables = (
            Texts.of_arrays({key.removeprefix(part): each for key, each in arrays.items() if key.startswith(part)})
            for part in ("names.", "strings.")
        )
        store = cls(*tables)
        count = sum(key.startswith("block.") for key in arrays)
        store._segments = tuple(Segment(arrays[f"block.{n}"], arrays[f"dead.{n}"]) for n in range(count))
        store.ids = Ids.of_table(arrays["ids"], sum(segment.living for segment in store._segments))
        store._refresh()
        return store


def records_of(segments: Sequence[Segment], dead: Sequence[npt.NDArray[np.uint32]]) -> Records:
    """What is alive in some segments."""
    sizes = [taking.count_alive(segment.block.ctypes.data, gone) for segment, gone in zip(segments, dead, strict=True)]
    total, words, ids = (sum(size[i] for size in sizes) for i in range(3))
    given = Records(
        np.empty(words, np.uint16),
        np.zeros(total + 1, np.int64),
        np.empty(ids, np.uint32),
        np.zeros(total + 1, np.int64),
    )
    made = 0
    for segment, gone in zip(segments, dead, strict=True):
        made = taking.copy_alive(
            segment.block.ctypes.data, gone, given.words, given.ends, given.ids, given.id_ends, made
        )
    return given
