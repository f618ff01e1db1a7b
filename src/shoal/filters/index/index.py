"""The index: which of a million filters match an event.

Owns the public API: subscriptions by id, matches as ids, slices or a bitmap, snapshots, and parts for state transfer.
Also owns filters with alternatives, which are held as their conjunctions. Never touches segments: `segment_store` holds
the conjunctions, `signatures` and `grid` decide how they are found, and `matcher` finds them.
"""

from __future__ import annotations

import operator
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, SupportsIndex, TypeAlias, overload

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.errors import FilterError, SnapshotError
from shoal.filters.arrays import variants_of
from shoal.filters.events import decode_any_event
from shoal.filters.filter import Filter, check_filter
from shoal.filters.index import snapshot
from shoal.filters.index.background import THREADS, Background
from shoal.filters.index.hash_tables import ID_MAX, StringTable
from shoal.filters.index.record_format import RecordSet, select_records
from shoal.filters.index.segment_store import (
    INDEX_LOCKS,
    ArrayEventError,
    SegmentStore,
    arrays_with_prefix,
    guard_fork,
    id_in_use,
)
from shoal.filters.index.wire_table import (
    AnyEvent,
    Events,
    WireTable,
    event_table,
    event_wire,
    filter_table,
    wire_table,
)

IdArray: TypeAlias = npt.NDArray[np.uint32]

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Filter)

_WIRE_BYTES_MIN: Final = 3
"""Bytes of the smallest filter in its wire form: three nested arrays."""
_RANGE_BYTES: Final = 200
"""Bytes of a filter with alternatives in `_ranges`."""


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """What the events of a batch matched: the ids of event `i` are `ids[offsets[i]:offsets[i + 1]]`."""

    offsets: npt.NDArray[np.int64]
    ids: IdArray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[IdArray]:
        return map(self.__getitem__, range(len(self)))

    @overload
    def __getitem__(self, event: SupportsIndex) -> IdArray: ...

    @overload
    def __getitem__(self, event: slice) -> Matches: ...

    def __getitem__(self, event: SupportsIndex | slice) -> IdArray | Matches:
        if isinstance(event, slice):
            return self._slice(event)
        own = operator.index(event)
        if own < 0:
            own += len(self)
        if not 0 <= own < len(self):
            raise IndexError(f"event {event} is out of range: there are matches of {len(self)} events")
        return self.ids[self.offsets[own] : self.offsets[own + 1]]

    def _slice(self, events: slice) -> Matches:
        """What consecutive events matched."""
        first, last, step = events.indices(len(self))
        if step != 1:
            raise TypeError("matches can only be sliced by consecutive events: use a step of 1")
        offsets = self.offsets[first : max(first, last) + 1]
        return Matches(offsets - offsets[0], self.ids[offsets[0] : offsets[-1]])


class Slices:
    """What an event matched, as read-only views of the index's own arrays. They stay valid whatever happens to the
    index later."""

    __slots__ = ("_arrays", "_others", "_spans", "count")

    def __init__(self, spans: npt.NDArray[np.int64], arrays: Sequence[IdArray], others: IdArray) -> None:
        self._spans = spans.reshape(-1, 3)
        self._arrays = arrays
        self._others = others
        self.count = int((self._spans[:, 2] - self._spans[:, 1]).sum()) + len(others)
        """Number of ids in all slices."""

    def __len__(self) -> int:
        return len(self._spans) + (len(self._others) > 0)

    def __iter__(self) -> Iterator[IdArray]:
        for array, first, last in self._spans:
            view = self._arrays[array][first:last]
            view.flags.writeable = False
            yield view
        if len(self._others):
            yield self._others


class _Disjunctions(NamedTuple):
    """The filters with alternatives that an index had at one moment: what split and merge copy from."""

    records: RecordSet
    names: StringTable
    strings: StringTable
    owners: IdArray
    """The subscription of each disjunct, for all numbers given so far."""
    ranges: dict[int, range]

    @property
    def ids(self) -> IdArray:
        """The ids of the subscriptions, in ascending order."""
        return np.array(sorted(self.ranges), np.uint32)


class Index:
    """Subscriptions by id (0 to 2**32 - 2), each with a filter.

    Concurrency: an index can be read from any thread while other threads change it. A match sees all of a change or
    none of it (see `SegmentStore`). When many filters are changed at once, those with alternatives are added or
    removed one by one.

    A filter with alternatives is held as its *disjuncts*, which are conjunctions. Each gets a number of its own in a
    second store, and belongs to a subscription.
    """

    def __init__(self, background: Background = THREADS) -> None:
        """`background` merges segments."""
        self._background = background
        self._single = SegmentStore(background=background)
        """Filters with one conjunction."""
        self._lock = threading.RLock()
        """Held to change the fields below, and to read more than one of them. A match does not take it: the owner of a
        disjunct is written before the disjunct can be found, and a match reads the owners last."""
        self._owners = np.empty(0, np.uint32)
        """The subscription of each disjunct."""
        self._ranges: dict[int, range] = {}
        """The disjuncts of each subscription whose filter has alternatives."""
        self._next_disjunct = 0
        guard_fork(self, INDEX_LOCKS)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._single) + len(self._ranges)

    def __contains__(self, number: object) -> bool:
        try:
            own = id_of(number)
        except FilterError:
            return False
        return own in self._single.ids or own in self._ranges

    @cached_property
    def _disjuncts(self) -> SegmentStore:
        """The conjunctions of filters with alternatives. Created for the first such filter."""
        return SegmentStore(background=self._background)

    @property
    def unique(self) -> int:
        """Conjunctions held. Identical ones in one segment count once."""
        return self._single.unique + (self._disjuncts.unique if self._ranges else 0)

    @property
    def nbytes(self) -> int:
        """Bytes of everything held."""
        if not self._ranges:
            return self._single.nbytes
        disjuncts = self._disjuncts.nbytes + self._owners.nbytes + _RANGE_BYTES * len(self._ranges)
        return self._single.nbytes + disjuncts

    # Changes

    def insert(self, number: int, filter: Filter) -> None:
        """Adds a subscription. FilterError if the id is in use or invalid, or `filter` is not a filter."""
        number, wire = id_of(number), _encoder.encode(check_filter(filter))
        with self._lock:
            if number in self._ranges:
                raise id_in_use(number)
            if not self._single.insert(number, wire):
                self._insert_disjunction(number, filter)

    def insert_wire(self, number: int, wire: bytes) -> None:
        """Adds a subscription whose filter is in its wire form. FilterError as for `insert`."""
        if len(wire) < _WIRE_BYTES_MIN:
            raise FilterError("this is not a filter in its wire form")
        number = id_of(number)
        with self._lock:
            if number in self._ranges:
                raise id_in_use(number)
            if not self._single.insert(number, wire):
                self._insert_disjunction(number, _decoded(wire))

    def insert_many(self, numbers: Sequence[int] | npt.NDArray[Any], filters: Iterable[Filter] | WireTable) -> None:
        """Adds many subscriptions, all of them or none."""
        ids = ids_of(numbers)
        table = filters if isinstance(filters, WireTable) else filter_table(filters)
        if len(ids) != len(table):
            raise FilterError(f"there are {len(ids)} ids for {len(table)} filters")
        with_alternatives = _rows_with_alternatives(table)
        if not len(with_alternatives):
            self._insert_single(ids, table)
            return
        disjunctions = [_decoded(table[int(row)]) for row in with_alternatives]
        single = np.setdiff1d(np.arange(len(ids)), with_alternatives)
        with self._lock:
            if len(np.unique(ids)) < len(ids) or any(int(number) in self for number in ids[with_alternatives]):
                raise FilterError("an id is listed twice, or a subscription with it exists already")
            self._insert_single(ids[single], wire_table(table[int(row)] for row in single))
            done = ids[single].tolist()
            try:
                for number, each in zip(ids[with_alternatives].tolist(), disjunctions, strict=True):
                    self._insert_disjunction(number, each)
                    done.append(number)
            except FilterError:
                self.remove_many(done)
                raise

    def remove(self, number: int) -> None:
        """Removes a subscription. FilterError if there is none with this id."""
        try:
            own = id_of(number)
        except FilterError as error:
            raise _missing(number) from error
        if own not in self._ranges:
            if not self._single.remove(own):
                raise _missing(own)
            return
        with self._lock:
            disjuncts = self._ranges.pop(own, None)
            if disjuncts is None:
                raise _missing(own)
            for disjunct in disjuncts:
                self._disjuncts.remove(disjunct)

    def remove_many(self, numbers: Sequence[int] | npt.NDArray[Any]) -> None:
        """Removes many subscriptions, all of them or none. FilterError names one that is missing or listed twice."""
        ids = ids_of(numbers)
        with self._lock:
            disjunctions = [number for number in ids.tolist() if number in self._ranges] if self._ranges else []
            repeated = [number for number, count in Counter(disjunctions).items() if count > 1]
            if repeated:
                raise _repeated(repeated[0])
            single = ids[~np.isin(ids, disjunctions)].astype(np.uint32)
            removed = self._single.remove_many(single)
            if removed < len(single):
                number = int(single[removed])
                raise _repeated(number) if number in single[:removed] else _missing(number)
            for number in disjunctions:
                self.remove(number)

    def _insert_single(self, ids: npt.NDArray[np.int64], table: WireTable) -> None:
        with self._lock:
            if self._ranges:
                for number in ids.tolist():
                    if number in self._ranges:
                        raise id_in_use(number)
            self._single.insert_many(ids.astype(np.uint32), table)

    def _insert_disjunction(self, number: int, filter: Filter) -> None:
        """Adds all disjuncts of a filter with alternatives, or none. Numbers of disjuncts are not reused, so that a
        match that has found one also finds its owner."""
        _check_conjunctions(filter)
        with self._lock:
            if number in self:
                raise id_in_use(number)
            disjuncts = range(self._next_disjunct, self._next_disjunct + len(filter.conjunctions))
            if disjuncts.stop > len(self._owners):
                self._owners = np.concatenate([self._owners, np.zeros(max(64, disjuncts.stop), np.uint32)])
            self._owners[disjuncts.start : disjuncts.stop] = number
            self._next_disjunct = disjuncts.stop
            for disjunct, conjunction in zip(disjuncts, filter.conjunctions, strict=True):
                try:
                    self._disjuncts.insert(disjunct, _encoder.encode(Filter((conjunction,))))
                except FilterError:
                    for done in range(disjuncts.start, disjunct):
                        self._disjuncts.remove(done)
                    raise
            self._ranges[number] = disjuncts

    # Matching

    def match(self, event: AnyEvent) -> IdArray:
        """The ids of all subscriptions that match an event, each once, in no particular order. The event is a mapping,
        or bytes in the wire form."""
        wire = np.frombuffer(event if type(event) is bytes else event_wire(event), np.uint8)
        try:
            ids = self._single.match(wire)
        except ArrayEventError:
            return self._match_variants(wire_table([wire.tobytes()])).ids
        return np.concatenate([ids, self._match_disjunctions(wire)]) if self._ranges else ids

    def match_slices(self, event: AnyEvent) -> Slices:
        """The same as `match` without copying: views of the index's own arrays."""
        wire = np.frombuffer(event if type(event) is bytes else event_wire(event), np.uint8)
        try:
            spans, arrays = self._single.spans(wire)
        except ArrayEventError:
            return Slices(np.empty(0, np.int64), (), self._match_variants(wire_table([wire.tobytes()])).ids)
        return Slices(spans, arrays, self._match_disjunctions(wire))

    def match_bitmap(self, event: AnyEvent, size: int) -> npt.NDArray[np.uint8]:
        """The same as `match` as bits, the lowest bit of a byte first, for ids below `size`. FilterError if that is not
        a valid size."""
        bits = np.zeros(size_of(size), np.bool_)
        ids = self.match(event)
        bits[ids[ids < size]] = True
        return np.packbits(bits, bitorder="little")

    def match_many(self, events: Events) -> Matches:
        """The ids that match each event. Events that are not a table are encoded by `event_table`; encode them once if
        they are matched more than once."""
        table = event_table(events)
        try:
            ends, ids = self._single.match_many(table)
        except ArrayEventError:
            return self._match_variants(table)
        if not self._ranges:
            return Matches(ends, ids)
        others = [self._match_disjunctions(np.frombuffer(table[row], np.uint8)) for row in range(len(table))]
        parts = [part for row, more in enumerate(others) for part in (ids[ends[row] : ends[row + 1]], more)]
        extra = np.zeros(len(ends), np.int64)
        np.cumsum([len(more) for more in others], out=extra[1:])
        return Matches(ends + extra, np.concatenate(parts) if parts else ids)

    def count_many(self, events: Events) -> int:
        """Number of ids that the events match, summed over the events. No ids are copied."""
        table = event_table(events)
        try:
            single = self._single.count_many(table)
        except ArrayEventError:
            return len(self._match_variants(table).ids)
        rows = range(len(table)) if self._ranges else range(0)
        others = sum(len(self._match_disjunctions(np.frombuffer(table[row], np.uint8))) for row in rows)
        return single + others

    def _match_variants(self, table: WireTable) -> Matches:
        """The ids that match events of which some have arrays: those of all variants of an event, each once."""
        names = self._single.known_names() | (self._disjuncts.known_names() if self._ranges else frozenset())
        variants = [variants_of(decode_any_event(table[row]), names) for row in range(len(table))]
        encoded = [[_encoder.encode(each) for each in some] for some in variants]
        found = self.match_many(wire_table(each for some in encoded for each in some))
        bounds = np.cumsum([0, *map(len, encoded)])
        ids = [
            np.unique(found.ids[found.offsets[first] : found.offsets[last]])
            for first, last in pairwise(bounds.tolist())
        ]
        offsets = np.cumsum([0, *map(len, ids)])
        return Matches(offsets, np.concatenate(ids) if ids else np.empty(0, np.uint32))

    def _match_disjunctions(self, wire: npt.NDArray[np.uint8]) -> IdArray:
        if not self._ranges:
            return np.empty(0, np.uint32)
        found = self._disjuncts.match(wire)
        return np.unique(self._owners[found])  # read after the match: it has the owners of everything found

    # Snapshots and state transfer

    def settle(self) -> None:
        """Merges everything that is there now into one segment and waits for it. Changes that other threads make
        meanwhile are not waited for."""
        self._single.settle()
        if self._ranges:
            self._disjuncts.settle()

    @property
    def parts(self) -> int:
        """Segments in which a match looks, one after the other. After many changes there are several."""
        return len(self._single.segments) + (len(self._disjuncts.segments) if self._ranges else 0)

    def begin_settling(self) -> bool:
        """Starts to merge everything that is there now into one segment, in the background. False if another merge
        runs: then ask again."""
        return self._single.begin_settling() and (not self._ranges or self._disjuncts.begin_settling())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a snapshot, which `open` can map in any process."""
        with self._lock:
            arrays = {f"plain.{name}": array for name, array in self._single.arrays().items()}
            if self._ranges:
                arrays |= {f"several.{name}": array for name, array in self._disjuncts.arrays().items()}
                ranges = [(number, each.start, each.stop) for number, each in self._ranges.items()]
                arrays |= {"owners": self._owners, "ranges": np.array(ranges, np.int64).reshape(-1)}
        snapshot.write(Path(path), arrays)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Index:
        """The index in a snapshot, mapped from the file, not read. SnapshotError if the file is not a snapshot.

        The form, the version and the length of the file are checked, and every byte of its table of contents. The
        arrays are not, because that would mean reading all of them: open only files that you trust."""
        arrays = snapshot.read(Path(path))
        index = cls()
        try:
            index._single = SegmentStore.of_arrays(arrays_with_prefix(arrays, "plain."))
            if "ranges" in arrays:
                index._disjuncts = SegmentStore.of_arrays(arrays_with_prefix(arrays, "several."))
                index._owners = arrays["owners"]
                ranges = arrays["ranges"].reshape(-1, 3).tolist()
                index._ranges = {number: range(first, last) for number, first, last in ranges}
                index._next_disjunct = max(last for _, _, last in ranges)
        except (LookupError, ValueError, OverflowError, MemoryError) as error:
            raise SnapshotError(f"{path} is damaged: its arrays do not fit together ({error!r})") from error
        return index

    def __reduce__(self) -> NoReturn:
        raise TypeError("an index cannot be pickled or copied: write it with save, and Index.open it elsewhere")

    def split(self, selector: Callable[[IdArray], npt.NDArray[np.integer[Any]]]) -> list[Index]:
        """Parts for state transfer. The selector takes many ids at once and returns the number of the part, from 0 on,
        for each. This index stays as it is."""
        with self._lock:
            given, disjunctions = self._single.live_records(), self._disjunctions_now()
        chosen, chosen_disjunctions = parts_of(selector, given.ids), parts_of(selector, disjunctions.ids)
        count = 1 + int(max(chosen.max(initial=-1), chosen_disjunctions.max(initial=-1)))
        return [
            self._part(
                select_records(given, chosen == number), disjunctions, disjunctions.ids[chosen_disjunctions == number]
            )
            for number in range(count)
        ]

    def _part(self, given: RecordSet, disjunctions: _Disjunctions, ids: IdArray) -> Index:
        part = Index(self._background)
        part._single.add_records(given, self._single.names, self._single.strings)
        part._add_disjunctions(disjunctions, ids)
        return part

    def merge(self, other: Index) -> None:
        """Adds all subscriptions of another index, or none. Their ids must not be in use here."""
        if not isinstance(other, Index):
            raise FilterError(f"an index is needed, not something of type {type(other).__name__}")
        with other._lock:
            given, disjunctions = other._single.live_records(), other._disjunctions_now()
        with self._lock:
            for number in (*self._ranges, *disjunctions.ranges):
                if number in self and number in other:
                    raise id_in_use(number)
            self._single.add_records(given, other._single.names, other._single.strings)
            try:
                self._add_disjunctions(disjunctions, disjunctions.ids)
            except FilterError:
                self._single.remove_many(given.ids)
                raise

    def _disjunctions_now(self) -> _Disjunctions:
        with self._lock:
            store = self._disjuncts
            owners = self._owners[: self._next_disjunct].copy()
            return _Disjunctions(store.live_records(), store.names, store.strings, owners, dict(self._ranges))

    def _add_disjunctions(self, given: _Disjunctions, ids: IdArray) -> None:
        """Adds some filters with alternatives of another index."""
        if not len(ids):
            return
        chosen = select_records(given.records, np.isin(given.owners[given.records.ids], ids))
        with self._lock:
            first = self._next_disjunct
            self._owners = np.concatenate([self._owners[:first], given.owners])
            self._next_disjunct = len(self._owners)
            shifted = chosen._replace(ids=chosen.ids + np.uint32(first))
            self._disjuncts.add_records(shifted, given.names, given.strings)
            for number in ids.tolist():
                each = given.ranges[number]
                self._ranges[number] = range(first + each.start, first + each.stop)


def id_of(number: object) -> int:
    """An integer of any type as an id. FilterError for everything else, booleans included."""
    own = number
    if type(own) is not int:
        try:
            own = -1 if isinstance(number, bool) else operator.index(number)  # type: ignore[arg-type]
        except TypeError:
            own = -1
    if 0 <= own <= ID_MAX:
        return own
    raise FilterError(f"the id of a subscription is an integer from 0 to {ID_MAX}, not {number!r}")


def size_of(size: object) -> int:
    """The size of a bitmap. FilterError if it is not a valid size."""
    try:
        return id_of(size)
    except FilterError as error:
        raise FilterError(f"the size of a bitmap is an integer from 0 to {ID_MAX}, not {size!r}") from error


def ids_of(numbers: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Ids as an array. FilterError if one of them is not a valid id."""
    try:
        ids = np.asarray(numbers)
    except ValueError:
        ids = np.empty((0, 0))
    if ids.ndim != 1:
        raise FilterError("the ids of subscriptions are a sequence of integers, or an array of one dimension")
    booleans = isinstance(numbers, list | tuple) and any(type(number) is bool for number in numbers)
    if ids.dtype.kind not in "iu" or booleans:  # too large, of several widths, or not integers
        return np.array([id_of(number) for number in numbers], np.int64)
    if len(ids) and not (ids.min() >= 0 and ids.max() <= ID_MAX):
        raise FilterError(f"the ids of subscriptions are integers from 0 to {ID_MAX}")
    return ids.astype(np.int64)


def parts_of(selector: Callable[[IdArray], npt.NDArray[np.integer[Any]]], ids: IdArray) -> npt.NDArray[np.int64]:
    """The part that a selector chooses for each id. FilterError if it does not return one part for each."""
    try:
        chosen = np.asarray(selector(ids))
    except ValueError as error:
        raise FilterError(f"the selector must return an array with one integer for each id: {error}") from error
    if chosen.shape != ids.shape:
        raise FilterError(
            f"the selector must return one integer for each id: for {len(ids)} ids it returned an array "
            f"of shape {chosen.shape}"
        )
    if len(chosen) and chosen.dtype.kind not in "biu":
        raise FilterError(f"the selector must return integers, the numbers of parts; it returned {chosen.dtype}")
    parts = chosen.astype(np.int64)
    if parts.min(initial=0) < 0:
        raise FilterError("the selector returned a negative part: parts are numbered from 0")
    return parts


def _missing(number: object) -> FilterError:
    return FilterError(f"there is no subscription {number!r}")


def _repeated(number: int) -> FilterError:
    return FilterError(f"subscription {number} is listed twice")


def _rows_with_alternatives(table: WireTable) -> npt.NDArray[np.intp]:
    """The filters of a table that do not start like one with a single conjunction. Decoding them shows whether they are
    filters at all."""
    short = np.flatnonzero(np.diff(table.offsets) < _WIRE_BYTES_MIN)
    if len(short):
        raise FilterError(f"number {short[0]} of the table is not a filter in its wire form")
    return np.flatnonzero(table.data[table.offsets[:-1] + 1] != 0x91)


def _decoded(wire: bytes) -> Filter:
    try:
        decoded = _decoder.decode(wire)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FilterError(f"this is not a filter in its wire form ({error})") from error
    return _check_conjunctions(decoded)


def _check_conjunctions(filter: Filter) -> Filter:
    if not filter.conjunctions:
        raise FilterError("a filter has at least one conjunction, this one has none")
    return filter
