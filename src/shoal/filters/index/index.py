"""The index: which of a million filters match this event.

Owns what users of the package see: subscriptions by id, matches as ids, slices or a bitmap, parts for state transfer.
How it works is in `store` (segments that are never written again), `choosing` and `cells` (where a filter waits), and
`matching` (the kernels).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.errors import EventError, FilterError, SnapshotError
from shoal.filters.filter import Filter
from shoal.filters.index import snapshot
from shoal.filters.index.ids import ID_MAX
from shoal.filters.index.parts import select
from shoal.filters.index.store import Store
from shoal.filters.index.tables import WireTable, filter_table, wire_table
from shoal.filters.index.uniting import Records
from shoal.filters.values import Event

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Filter)

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


class Index:
    """Subscriptions by id (0 to 2**32 - 2), each with a filter. Safe to read from any thread while another one changes
    it: a match sees all of a change or nothing of it (`store` says how)."""

    def __init__(self) -> None:
        self._plain = Store()
        self._several = Store()
        """Filters with alternatives: each conjunction has a number here, and belongs to a subscription."""
        self._owners = np.empty(0, np.uint32)
        self._conjunctions: dict[int, range] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._plain) + len(self._conjunctions)

    def __contains__(self, number: int) -> bool:
        return number in self._plain.ids or number in self._conjunctions

    @property
    def unique(self) -> int:
        """Conjunctions that are held; identical ones of one segment are held once."""
        return self._plain.unique + self._several.unique

    @property
    def nbytes(self) -> int:
        """Bytes of all that it holds."""
        several = self._several.nbytes + self._owners.nbytes + 200 * len(self._conjunctions)
        return self._plain.nbytes + (several if self._conjunctions else 0)

    # Changes

    def insert(self, number: int, filter: Filter) -> None:
        """Adds a subscription. FilterError if the id is taken."""
        if not 0 <= number <= ID_MAX:
            raise FilterError(f"the id of a subscription is an integer from 0 to {ID_MAX}, not {number}")
        if number in self._conjunctions:
            raise FilterError(f"there is a subscription {number} already")
        if not self._plain.insert(number, _encoder.encode(filter)):
            self._insert_several(number, filter)

    def insert_many(self, numbers: Sequence[int] | Ids, filters: Sequence[Filter] | WireTable) -> None:
        """Adds many subscriptions at once, or none of them."""
        ids = np.asarray(numbers, np.int64)
        table = filters if isinstance(filters, WireTable) else filter_table(filters)
        if len(ids) != len(table):
            raise FilterError(f"there are {len(ids)} ids for {len(table)} filters")
        if len(ids) and not (ids.min() >= 0 and ids.max() <= ID_MAX):
            raise FilterError(f"the ids of subscriptions are integers from 0 to {ID_MAX}")
        if self._conjunctions and (taken := [number for number in ids.tolist() if number in self._conjunctions]):
            raise FilterError(f"there is a subscription {taken[0]} already")
        seconds = table.offsets[:-1] + 1
        several = np.flatnonzero(table.data[np.minimum(seconds, len(table.data) - 1)] != 0x91)
        if not len(several):
            self._plain.insert_many(ids.astype(np.uint32), table)
            return
        alternatives = [_decoder.decode(table[int(row)]) for row in several]
        if len(np.unique(ids)) < len(ids) or any(int(number) in self for number in ids[several]):
            raise FilterError("an id is listed twice, or taken already")
        plain = np.setdiff1d(np.arange(len(ids)), several)
        self._plain.insert_many(ids[plain].astype(np.uint32), wire_table(table[int(row)] for row in plain))
        for number, each in zip(ids[several].tolist(), alternatives, strict=True):
            self._insert_several(number, each)

    def remove(self, number: int) -> None:
        """Takes a subscription out. FilterError if it is not there."""
        conjunctions = self._conjunctions.pop(number, None)
        if conjunctions is not None:
            for conjunction in conjunctions:
                self._several.remove(conjunction)
        elif not 0 <= number <= ID_MAX or not self._plain.remove(number):
            raise FilterError(f"there is no subscription {number}")

    def remove_many(self, numbers: Sequence[int] | Ids) -> None:
        """Takes many subscriptions out."""
        for number in np.asarray(numbers, np.int64).tolist():
            self.remove(number)

    def _insert_several(self, number: int, filter: Filter) -> None:
        conjunctions = range(self._next, self._next + len(filter.conjunctions))
        if conjunctions.stop > len(self._owners):
            self._owners = np.concatenate([self._owners, np.zeros(max(64, conjunctions.stop), np.uint32)])
        self._owners[conjunctions.start : conjunctions.stop] = number
        for conjunction, part in zip(conjunctions, filter.conjunctions, strict=True):
            self._several.insert(conjunction, _encoder.encode(Filter((part,))))
        self._next = conjunctions.stop
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

    def match_many(self, events: WireTable) -> Matches:
        """The ids that each event of a table matches."""
        ends, ids = self._plain.match_many(events)
        if not self._conjunctions:
            return Matches(ends, ids)
        several = [self._match_several(np.frombuffer(events[row], np.uint8)) for row in range(len(events))]
        parts = [part for row, more in enumerate(several) for part in (ids[ends[row] : ends[row + 1]], more)]
        extra = np.concatenate([[0], np.cumsum([len(more) for more in several])])
        return Matches(ends + extra, np.concatenate(parts) if parts else ids)

    def count_many(self, events: WireTable) -> int:
        """How many ids the events of a table match together; nothing is copied."""
        several = (
            sum(
                len(self._match_several(np.frombuffer(event, np.uint8)))
                for event in map(events.__getitem__, range(len(events)))
            )
            if self._conjunctions
            else 0
        )
        return self._plain.count_many(events) + several

    def _match_several(self, wire: npt.NDArray[np.uint8]) -> Ids:
        if not self._conjunctions:
            return np.empty(0, np.uint32)
        return np.unique(self._owners[self._several.match(wire)])

    # The whole

    def settle(self) -> None:
        """Waits until nothing is left to do in the background: all is in one segment, made for what is there now."""
        self._plain.settle()
        if self._conjunctions:
            self._several.settle()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a snapshot, which `open` maps in any process."""
        arrays = {f"plain.{name}": array for name, array in self._plain.arrays().items()}
        if self._conjunctions:
            arrays |= {f"several.{name}": array for name, array in self._several.arrays().items()}
            ranges = [(number, each.start, each.stop) for number, each in self._conjunctions.items()]
            arrays |= {"owners": self._owners, "ranges": np.array(ranges, np.int64).reshape(-1)}
        snapshot.write(Path(path), arrays)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Index:
        """The index of a snapshot, mapped from the file, not read. SnapshotError if it is none."""
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
        given = self._plain.records()
        several = np.array(sorted(self._conjunctions), np.uint32)
        chosen, chosen_several = (np.asarray(selector(ids), np.int64) for ids in (given.ids, several))
        count = 1 + int(max(chosen.max(initial=-1), chosen_several.max(initial=-1)))
        if min(chosen.min(initial=0), chosen_several.min(initial=0)) < 0:
            raise FilterError("the selector gave a negative part")
        return [
            self._part(select(given, chosen == number), several[chosen_several == number]) for number in range(count)
        ]

    def _part(self, given: Records, several: Ids) -> Index:
        part = Index()
        part._plain.absorb(given, self._plain.names, self._plain.strings)
        part._absorb_several(self, several)
        return part

    def merge(self, other: Index) -> None:
        """Takes all subscriptions of another index in, whose ids are not here."""
        taken = [number for number in (*self._conjunctions, *other._conjunctions) if number in self and number in other]
        if taken:
            raise FilterError(f"there is a subscription {taken[0]} already")
        self._plain.absorb(other._plain.records(), other._plain.names, other._plain.strings)
        self._absorb_several(other, np.array(sorted(other._conjunctions), np.uint32))

    def _absorb_several(self, other: Index, numbers: Ids) -> None:
        """Takes filters with alternatives over from another index."""
        if not len(numbers):
            return
        given = other._several.records()
        wanted = np.isin(other._owners[given.ids], numbers)
        chosen = select(given, wanted)
        self._several.absorb(
            chosen._replace(ids=chosen.ids + np.uint32(self._next)), other._several.names, other._several.strings
        )
        for number in numbers.tolist():
            each = other._conjunctions[number]
            self._conjunctions[number] = range(each.start + self._next, each.stop + self._next)
        owners = np.zeros(self._next + other._next, np.uint32)
        owners[: self._next] = self._owners[: self._next]
        owners[self._next :] = other._owners[: other._next]
        self._owners, self._next = owners, len(owners)


def _with_prefix(arrays: dict[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _wire(event: Event | bytes) -> npt.NDArray[np.uint8]:
    if not isinstance(event, bytes):
        try:
            event = _encoder.encode(event)
        except (TypeError, OverflowError, ValueError) as error:
            raise EventError(f"this is not an event: {error}") from error
    return np.frombuffer(event, np.uint8)
