"""The index: which of a million filters match this event.

Owns what users of the package see: subscriptions by id, matches as ids, slices or a bitmap, parts for state transfer.
How it works is in `store` (segments that are never written again), `choosing` and `cells` (where a filter waits), and
`matching` (the kernels).
"""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.errors import EventError, FilterError, SnapshotError
from shoal.filters.filter import Filter, check_filter
from shoal.filters.index import snapshot
from shoal.filters.index.ids import ID_MAX
from shoal.filters.index.parts import select
from shoal.filters.index.store import Store
from shoal.filters.index.tables import WireTable, event_table, event_wire, filter_table, wire_table
from shoal.filters.index.texts import Texts
from shoal.filters.index.uniting import Records
from shoal.filters.values import Event

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Filter)

_WIRE_BYTES_MIN: Final = 3
"""Bytes of a filter in its wire form, at the least: three arrays inside one another."""

Ids = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """What a batch of events matched: the ids of event `i` are `ids[offsets[i]:offsets[i + 1]]`."""

    offsets: npt.NDArray[np.int64]
    ids: Ids

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, event: int) -> Ids:
        return self.ids[self.offsets[event] : self.offsets[event + 1]]


class Slices:
    """What an event matched, as views of the index's own arrays. They stay what they are whatever happens to the index
    later; nobody may write to them, and numpy refuses it."""

    __slots__ = ("_arrays", "_others", "_spans", "count")

    def __init__(self, spans: npt.NDArray[np.int64], arrays: Sequence[Ids], others: Ids) -> None:
        self._spans = spans.reshape(-1, 3)
        self._arrays = arrays
        self._others = others
        self.count = int((self._spans[:, 2] - self._spans[:, 1]).sum()) + len(others)
        """How many ids they have together."""

    def __iter__(self) -> Iterator[Ids]:
        for array, first, last in self._spans:
            view = self._arrays[array][first:last]
            view.flags.writeable = False
            yield view
        if len(self._others):
            yield self._others


class _Several(NamedTuple):
    """The filters with alternatives that an index had at one moment: what split and merge copy from."""

    records: Records
    names: Texts
    strings: Texts
    owners: Ids
    """The subscription of each conjunction, for all numbers that were given."""
    conjunctions: dict[int, range]

    @property
    def ids(self) -> Ids:
        """The ids of the subscriptions, in order."""
        return np.array(sorted(self.conjunctions), np.uint32)


class Index:
    """Subscriptions by id (0 to 2**32 - 2), each with a filter. Safe to read from any thread while others change it: a
    match sees all of a change or nothing of it (`store` says how)."""

    def __init__(self) -> None:
        self._plain = Store()
        """Filters with alternatives: each conjunction has a number here, and belongs to a subscription."""
        self._lock = threading.RLock()
        """Whoever changes what follows holds it, and whoever reads more than one of them, except a match: the owner of
        a conjunction is written down before the conjunction can be found, so a match looks for owners last."""
        self._owners = np.empty(0, np.uint32)
        self._conjunctions: dict[int, range] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._plain) + len(self._conjunctions)

    def __contains__(self, number: object) -> bool:
        try:
            own = _id_of(number)
        except FilterError:
            return False
        return own in self._plain.ids or own in self._conjunctions

    @cached_property
    def _several(self) -> Store:
        """Where filters with alternatives are, by conjunction: made when there is the first."""
        return Store()

    @property
    def unique(self) -> int:
        """Conjunctions that are held; identical ones of one segment are held once."""
        return self._plain.unique + (self._several.unique if self._conjunctions else 0)

    @property
    def nbytes(self) -> int:
        """Bytes of all that it holds."""
        if not self._conjunctions:
            return self._plain.nbytes
        several = self._several.nbytes + self._owners.nbytes + 200 * len(self._conjunctions)
        return self._plain.nbytes + several

    # Changes

    def insert(self, number: int, filter: Filter) -> None:
        """Adds a subscription. FilterError if the id is taken or is none, or the filter is none."""
        number = _id_of(number)
        check_filter(filter)
        if number in self._conjunctions:
            raise _taken(number)
        if not self._plain.insert(number, _encoder.encode(filter)):
            self._insert_several(number, filter)

    def insert_many(self, numbers: Sequence[int] | npt.NDArray[Any], filters: Iterable[Filter] | WireTable) -> None:
        """Adds many subscriptions at once, or none of them."""
        ids = _ids_of(numbers)
        table = filters if isinstance(filters, WireTable) else filter_table(filters)
        if len(ids) != len(table):
            raise FilterError(f"there are {len(ids)} ids for {len(table)} filters")
        several = _rows_with_alternatives(table)
        if not len(several):
            self._insert_plain(ids, table)
            return
        alternatives = [_decoded(table[int(row)]) for row in several]
        plain = np.setdiff1d(np.arange(len(ids)), several)
        with self._lock:
            if len(np.unique(ids)) < len(ids) or any(int(number) in self for number in ids[several]):
                raise FilterError("an id is listed twice, or there is a subscription with it already")
            self._insert_plain(ids[plain], wire_table(table[int(row)] for row in plain))
            done = ids[plain].tolist()
            try:
                for number, each in zip(ids[several].tolist(), alternatives, strict=True):
                    self._insert_several(number, each)
                    done.append(number)
            except FilterError:
                for number in done:
                    self.remove(number)
                raise

    def remove(self, number: int) -> None:
        """Takes a subscription out. FilterError if it is not there."""
        try:
            own = _id_of(number)
        except FilterError as error:
            raise _absent(number) from error
        if own not in self._conjunctions:
            if not self._plain.remove(own):
                raise _absent(own)
            return
        with self._lock:
            conjunctions = self._conjunctions.pop(own, None)
            if conjunctions is None:
                raise _absent(own)
            for conjunction in conjunctions:
                self._several.remove(conjunction)

    def remove_many(self, numbers: Sequence[int] | npt.NDArray[Any]) -> None:
        """Takes many subscriptions out, or none of them: FilterError names the first that is not there, or that is
        listed twice. (If another thread takes one of them out at that time, those before it are gone.)"""
        ids = _ids_of(numbers).tolist()
        with self._lock:
            seen: set[int] = set()
            for number in ids:
                if number in seen:
                    raise FilterError(f"subscription {number} is listed twice")
                if number not in self:
                    raise _absent(number)
                seen.add(number)
            for number in ids:
                self.remove(number)

    def _insert_plain(self, ids: npt.NDArray[np.int64], table: WireTable) -> None:
        if self._conjunctions:
            for number in ids.tolist():
                if number in self._conjunctions:
                    raise _taken(number)
        self._plain.insert_many(ids.astype(np.uint32), table)

    def _insert_several(self, number: int, filter: Filter) -> None:
        """Adds a filter with alternatives, all of them or none. Numbers of conjunctions are not used again, so that a
        match which found one finds its owner."""
        if not filter.conjunctions:
            raise FilterError("a filter has at least one conjunction, this has none")
        with self._lock:
            if number in self:
                raise _taken(number)
            conjunctions = range(self._next, self._next + len(filter.conjunctions))
            if conjunctions.stop > len(self._owners):
                self._owners = np.concatenate([self._owners, np.zeros(max(64, conjunctions.stop), np.uint32)])
            self._owners[conjunctions.start : conjunctions.stop] = number
            self._next = conjunctions.stop
            for conjunction, part in zip(conjunctions, filter.conjunctions, strict=True):
                try:
                    self._several.insert(conjunction, _encoder.encode(Filter((part,))))
                except FilterError:
                    for done in range(conjunctions.start, conjunction):
                        self._several.remove(done)
                    raise
            self._conjunctions[number] = conjunctions

    # Matching

    def match(self, event: Event | bytes) -> Ids:
        """The ids of all subscriptions that an event, in its wire form or not, matches: each once, in no order."""
        wire = _wire(event)
        ids = self._plain.match(wire)
        return np.concatenate([ids, self._match_several(wire)]) if self._conjunctions else ids

    def match_slices(self, event: Event | bytes) -> Slices:
        """The same without copying: views of the index's own arrays."""
        wire = _wire(event)
        spans, arrays = self._plain.spans(wire)
        return Slices(spans, arrays, self._match_several(wire))

    def match_bitmap(self, event: Event | bytes, size: int) -> npt.NDArray[np.uint8]:
        """The same as bits, the lowest of a byte first, for ids below `size`."""
        bits = np.zeros(size, np.bool_)
        ids = self.match(event)
        bits[ids[ids < size]] = True
        return np.packbits(bits, bitorder="little")

    def match_many(self, events: WireTable | Iterable[Event | bytes]) -> Matches:
        """The ids that each event matches. What is no table is made one by `event_table`: who has the same events
        matched again, or has them encoded, makes it once."""
        table = _table_of(events)
        ends, ids = self._plain.match_many(table)
        if not self._conjunctions:
            return Matches(ends, ids)
        several = [self._match_several(np.frombuffer(table[row], np.uint8)) for row in range(len(table))]
        parts = [part for row, more in enumerate(several) for part in (ids[ends[row] : ends[row + 1]], more)]
        extra = np.zeros(len(ends), np.int64)
        np.cumsum([len(more) for more in several], out=extra[1:])
        return Matches(ends + extra, np.concatenate(parts) if parts else ids)

    def count_many(self, events: WireTable | Iterable[Event | bytes]) -> int:
        """How many ids the events match together; nothing is copied."""
        table = _table_of(events)
        rows = range(len(table)) if self._conjunctions else range(0)
        several = sum(len(self._match_several(np.frombuffer(table[row], np.uint8))) for row in rows)
        return self._plain.count_many(table) + several

    def _match_several(self, wire: npt.NDArray[np.uint8]) -> Ids:
        if not self._conjunctions:
            return np.empty(0, np.uint32)
        found = self._several.match(wire)
        return np.unique(self._owners[found])  # read after the match: it has the owners of all that was found

    # The whole

    def settle(self) -> None:
        """Waits until nothing is left to do in the background: all is in one segment, made for what is there now."""
        self._plain.settle()
        if self._conjunctions:
            self._several.settle()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a snapshot, which `open` maps in any process."""
        with self._lock:
            arrays = {f"plain.{name}": array for name, array in self._plain.arrays().items()}
            if self._conjunctions:
                arrays |= {f"several.{name}": array for name, array in self._several.arrays().items()}
                ranges = [(number, each.start, each.stop) for number, each in self._conjunctions.items()]
                arrays |= {"owners": self._owners, "ranges": np.array(ranges, np.int64).reshape(-1)}
        snapshot.write(Path(path), arrays)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Index:
        """The index of a snapshot, mapped from the file, not read. SnapshotError if it is none.

        The file is checked for its form, its layout and its length, not for each byte, which would mean to read it
        all: open only files that you trust."""
        arrays = snapshot.read(Path(path))
        index = cls()
        try:
            index._plain = Store.of_arrays(_with_prefix(arrays, "plain."))
            if "ranges" in arrays:
                index._several = Store.of_arrays(_with_prefix(arrays, "several."))
                index._owners = arrays["owners"]
                ranges = arrays["ranges"].reshape(-1, 3).tolist()
                index._conjunctions = {number: range(first, last) for number, first, last in ranges}
                index._next = max(last for _, _, last in ranges)
        except KeyError as error:
            raise SnapshotError(f"{path} is damaged: it lacks {error}") from error
        return index

    def split(self, selector: Callable[[Ids], npt.NDArray[np.integer[Any]]]) -> list[Index]:
        """Parts for state transfer: the selector says for many ids at once to which part each goes, from 0 on. This
        index stays as it is."""
        with self._lock:
            given, several = self._plain.records(), self._several_now()
        chosen, chosen_several = _chosen(selector, given.ids), _chosen(selector, several.ids)
        count = 1 + int(max(chosen.max(initial=-1), chosen_several.max(initial=-1)))
        return [
            self._part(select(given, chosen == number), several, several.ids[chosen_several == number])
            for number in range(count)
        ]

    def _part(self, given: Records, several: _Several, ids: Ids) -> Index:
        part = Index()
        part._plain.absorb(given, self._plain.names, self._plain.strings)
        part._absorb_several(several, ids)
        return part

    def merge(self, other: Index) -> None:
        """Takes all subscriptions of another index in, whose ids are not here, or none of them."""
        with other._lock:
            given, several = other._plain.records(), other._several_now()
        with self._lock:
            for number in (*self._conjunctions, *several.conjunctions):
                if number in self and number in other:
                    raise _taken(number)
            self._plain.absorb(given, other._plain.names, other._plain.strings)
            try:
                self._absorb_several(several, several.ids)
            except FilterError:
                for number in given.ids.tolist():
                    self._plain.remove(number)
                raise

    def _several_now(self) -> _Several:
        with self._lock:
            store = self._several
            owners = self._owners[: self._next].copy()
            return _Several(store.records(), store.names, store.strings, owners, dict(self._conjunctions))

    def _absorb_several(self, given: _Several, ids: Ids) -> None:
        """Takes some filters with alternatives over from another index."""
        if not len(ids):
            return
        chosen = select(given.records, np.isin(given.owners[given.records.ids], ids))
        with self._lock:
            first = self._next
            self._owners = np.concatenate([self._owners[:first], given.owners])
            self._next = len(self._owners)
            self._several.absorb(chosen._replace(ids=chosen.ids + np.uint32(first)), given.names, given.strings)
            for number in ids.tolist():
                each = given.conjunctions[number]
                self._conjunctions[number] = range(first + each.start, first + each.stop)


def _taken(number: int) -> FilterError:
    return FilterError(f"there is a subscription {number} already")


def _absent(number: object) -> FilterError:
    return FilterError(f"there is no subscription {number!r}")


def _id_of(number: object) -> int:
    """The id that an integer of any kind is. FilterError for everything else; a boolean is a mistake, too."""
    own = number
    if type(own) is not int:
        try:
            own = -1 if isinstance(number, bool) else operator.index(number)  # type: ignore[arg-type]
        except TypeError:
            own = -1
    if 0 <= own <= ID_MAX:
        return own
    raise FilterError(f"the id of a subscription is an integer from 0 to {ID_MAX}, not {number!r}")


def _ids_of(numbers: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Ids as an array of integers. FilterError if one is none."""
    try:
        ids = np.asarray(numbers)
    except ValueError:
        ids = np.empty((0, 0))
    if ids.ndim != 1:
        raise FilterError("the ids of subscriptions are a sequence of integers, or an array of one dimension")
    if ids.dtype.kind not in "iu":  # too large, of several widths, or no integers
        return np.array([_id_of(number) for number in numbers], np.int64)
    if len(ids) and not (ids.min() >= 0 and ids.max() <= ID_MAX):
        raise FilterError(f"the ids of subscriptions are integers from 0 to {ID_MAX}")
    return ids.astype(np.int64)


def _rows_with_alternatives(table: WireTable) -> npt.NDArray[np.intp]:
    """Which filters of a table do not have exactly one conjunction, or are no filters: those who decode them see."""
    short = np.flatnonzero(np.diff(table.offsets) < _WIRE_BYTES_MIN)
    if len(short):
        raise FilterError(f"number {short[0]} of the table is not a filter in its wire form")
    return np.flatnonzero(table.data[table.offsets[:-1] + 1] != 0x91)


def _decoded(wire: bytes) -> Filter:
    try:
        decoded = _decoder.decode(wire)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FilterError(f"this is not a filter in its wire form ({error})") from error
    if not decoded.conjunctions:
        raise FilterError("a filter has at least one conjunction, this has none")
    return decoded


def _chosen(selector: Callable[[Ids], npt.NDArray[np.integer[Any]]], ids: Ids) -> npt.NDArray[np.int64]:
    """The parts to which a selector sends ids. FilterError if its answer is not one part for each."""
    try:
        chosen = np.asarray(selector(ids))
    except ValueError as error:
        raise FilterError(f"the selector must give an array with one integer for each id: {error}") from error
    if chosen.shape != ids.shape:
        raise FilterError(
            f"the selector must give one integer for each id: for {len(ids)} ids it gave an array "
            f"of the shape {chosen.shape}"
        )
    if len(chosen) and chosen.dtype.kind not in "biu":
        raise FilterError(f"the selector must give integers, the numbers of parts; it gave {chosen.dtype}")
    parts = chosen.astype(np.int64)
    if parts.min(initial=0) < 0:
        raise FilterError("the selector gave a negative part")
    return parts


def _table_of(events: WireTable | Iterable[Event | bytes]) -> WireTable:
    """Many events as a table. EventError for what is none, and for one event, which is a mistake here."""
    if isinstance(events, WireTable):
        return events
    if isinstance(events, str | bytes | Mapping):
        raise EventError("many events are a sequence or a table of them, and this is one", do="use match for one event")
    return event_table(events)


def _with_prefix(arrays: dict[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _wire(event: Event | bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(event_wire(event), np.uint8)
