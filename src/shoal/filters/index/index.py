"""The index: which of a million filters match this event.

Owns what users of the package see: subscriptions by id, matches as ids, slices or a bitmap, parts for state transfer.
How it works is in `store` (segments that are never written again), `choosing` and `cells` (where a filter waits), and
`matching` (the kernels).
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.errors import FilterError, SnapshotError
from shoal.filters.filter import Filter, check_filter
from shoal.filters.index import snapshot
from shoal.filters.index.checking import id_of, ids_of, parts_of, size_of
from shoal.filters.index.forking import INDEXES, guard
from shoal.filters.index.hash_tables import Texts
from shoal.filters.index.parts import select
from shoal.filters.index.results import Ids, Matches, Slices
from shoal.filters.index.segment_store import Store
from shoal.filters.index.tables import AnyEvent, Events, WireTable, event_table, event_wire, filter_table, wire_table
from shoal.filters.index.uniting import Records

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Filter)

_WIRE_BYTES_MIN: Final = 3
"""Bytes of a filter in its wire form, at the least: three arrays inside one another."""


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
    match sees all of a change or nothing of it (`store` says how). Of many filters that are changed at once, those with
    alternatives come and go one by one."""

    def __init__(self) -> None:
        self._plain = Store()
        """Filters with alternatives: each conjunction has a number here, and belongs to a subscription."""
        self._lock = threading.RLock()
        """Whoever changes what follows holds it, and whoever reads more than one of them, except a match: the owner of
        a conjunction is written down before the conjunction can be found, so a match looks for owners last."""
        self._owners = np.empty(0, np.uint32)
        self._conjunctions: dict[int, range] = {}
        self._next = 0
        guard(self, INDEXES)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._plain) + len(self._conjunctions)

    def __contains__(self, number: object) -> bool:
        try:
            own = id_of(number)
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
        number, wire = id_of(number), _encoder.encode(check_filter(filter))
        with self._lock:
            if number in self._conjunctions:
                raise _taken(number)
            if not self._plain.insert(number, wire):
                self._insert_several(number, filter)

    def insert_many(self, numbers: Sequence[int] | npt.NDArray[Any], filters: Iterable[Filter] | WireTable) -> None:
        """Adds many subscriptions at once, or none of them."""
        ids = ids_of(numbers)
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
                self.remove_many(done)
                raise

    def remove(self, number: int) -> None:
        """Takes a subscription out. FilterError if it is not there."""
        try:
            own = id_of(number)
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
        """Takes many subscriptions out, or none of them: FilterError names one that is not there, or that is listed
        twice."""
        ids = ids_of(numbers)
        with self._lock:
            several = [number for number in ids.tolist() if number in self._conjunctions] if self._conjunctions else []
            twice = [number for number, count in Counter(several).items() if count > 1]
            if twice:
                raise _twice(twice[0])
            plain = ids[~np.isin(ids, several)].astype(np.uint32)
            removed = self._plain.remove_many(plain)
            if removed < len(plain):
                number = int(plain[removed])
                raise _twice(number) if number in plain[:removed] else _absent(number)
            for number in several:
                self.remove(number)

    def _insert_plain(self, ids: npt.NDArray[np.int64], table: WireTable) -> None:
        with self._lock:
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

    def match(self, event: AnyEvent) -> Ids:
        """The ids of all subscriptions that an event, in its wire form or not, matches: each once, in no order."""
        wire = np.frombuffer(event if type(event) is bytes else event_wire(event), np.uint8)
        ids = self._plain.match(wire)
        return np.concatenate([ids, self._match_several(wire)]) if self._conjunctions else ids

    def match_slices(self, event: AnyEvent) -> Slices:
        """The same without copying: views of the index's own arrays."""
        wire = np.frombuffer(event if type(event) is bytes else event_wire(event), np.uint8)
        spans, arrays = self._plain.spans(wire)
        return Slices(spans, arrays, self._match_several(wire))

    def match_bitmap(self, event: AnyEvent, size: int) -> npt.NDArray[np.uint8]:
        """The same as bits, the lowest of a byte first, for ids below `size`. FilterError if that is no size."""
        bits = np.zeros(size_of(size), np.bool_)
        ids = self.match(event)
        bits[ids[ids < size]] = True
        return np.packbits(bits, bitorder="little")

    def match_many(self, events: Events) -> Matches:
        """The ids that each event matches. What is no table is made one by `event_table`: who has the same events
        matched again, or has them encoded, makes it once."""
        table = event_table(events)
        ends, ids = self._plain.match_many(table)
        if not self._conjunctions:
            return Matches(ends, ids)
        several = [self._match_several(np.frombuffer(table[row], np.uint8)) for row in range(len(table))]
        parts = [part for row, more in enumerate(several) for part in (ids[ends[row] : ends[row + 1]], more)]
        extra = np.zeros(len(ends), np.int64)
        np.cumsum([len(more) for more in several], out=extra[1:])
        return Matches(ends + extra, np.concatenate(parts) if parts else ids)

    def count_many(self, events: Events) -> int:
        """How many ids the events match together; nothing is copied."""
        table = event_table(events)
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
        """Puts all that is there now into one segment, made for it, and waits until that is done. What other threads
        change meanwhile is not waited for."""
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
        """The index of a snapshot, mapped from the file, not read. SnapshotError if the file is none.

        It is checked for its form, its layout and its length, and its table of contents for each byte, but not what it
        holds, which would mean to read it all: open only files that you trust."""
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
        except (LookupError, ValueError, OverflowError, MemoryError) as error:
            raise SnapshotError(f"{path} is damaged: what it holds does not go together ({error!r})") from error
        return index

    def __reduce__(self) -> NoReturn:
        raise TypeError("an index is not pickled or copied: write it with save, and Index.open it where it is needed")

    def split(self, selector: Callable[[Ids], npt.NDArray[np.integer[Any]]]) -> list[Index]:
        """Parts for state transfer: the selector says for many ids at once to which part each goes, from 0 on. This
        index stays as it is."""
        with self._lock:
            given, several = self._plain.records(), self._several_now()
        chosen, chosen_several = parts_of(selector, given.ids), parts_of(selector, several.ids)
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
        if not isinstance(other, Index):
            raise FilterError(f"an index is needed, not something of type {type(other).__name__}")
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
                self._plain.remove_many(given.ids)
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


def _twice(number: int) -> FilterError:
    return FilterError(f"subscription {number} is listed twice")


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


def _with_prefix(arrays: dict[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
