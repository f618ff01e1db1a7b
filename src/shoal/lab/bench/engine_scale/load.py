"""The loads of esilbops-7, in files that all its processes map: filters, events, and what each event matches.

Owns the two loads and the truth about them. The first N filters of a load are the load with N filters, and each event
is given with the sizes at which it matches. What matches is found by a bare index of all filters.

    air     the paper's city: station and pollutant by equality, a threshold; an event matches 1 to 10 filters
    hard    three to five ranges over 20 attributes (`shoal bench match --workload hard`)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.filters.conjunctions import Conjunction
from shoal.filters.filter import Filter
from shoal.filters.index.index import Index
from shoal.filters.index.wire_table import WireTable, wire_table
from shoal.filters.ranges import Numbers, OneOf
from shoal.lab.air_quality import PER_CELL, POLLUTANTS, VALUE_MAX, AirQuality, attributes
from shoal.lab.bench.loads import hard

AIR: Final = "air"
HARD: Final = "hard"
NAMES: Final = (AIR, HARD)
CLIENTS: Final = 4
"""Filter `i` belongs to client `i % CLIENTS`."""
EVENTS: Final = {AIR: 8192, HARD: 2048}
"""Different events for each number of filters."""
CANDIDATES: Final = 4
"""So many times more events are drawn: those that match nothing are left out."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_filter: Final = msgspec.msgpack.Decoder(Filter).decode
_decode_event: Final = msgspec.msgpack.Decoder(dict[str, Any]).decode


class EngineWorkload:
    """A load in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.filters = self._table("filters", "filter-offsets")

    def _table(self, data: str, offsets: str) -> WireTable:
        """A table whose bytes are mapped. The kernels are compiled for plain arrays, and for offsets that can be
        written."""
        mapped = np.load(self._directory / f"{data}.npy", mmap_mode="r")
        return WireTable(np.asarray(mapped), self._column(offsets))

    def _column(self, name: str) -> npt.NDArray[Any]:
        column: npt.NDArray[Any] = np.load(self._directory / f"{name}.npy")
        return column

    def some_filters(self, numbers: Iterable[int]) -> list[Filter]:
        """Filters as objects."""
        return [_decode_filter(self.filters[number]) for number in numbers]

    def first_filters(self, count: int) -> WireTable:
        """The first filters."""
        offsets = self.filters.offsets[: count + 1]
        return WireTable(self.filters.data[: offsets[-1]], offsets)

    def events(self, size: int) -> EngineEvents:
        """The events for a number of filters."""
        table = self._table(f"events-{size}", f"event-offsets-{size}")
        clients, matches = (self._column(f"{name}-{size}").tolist() for name in ("clients", "matches"))
        return EngineEvents([table[at] for at in range(len(table))], clients, matches)


class EngineEvents:
    """Events in their wire form. They are repeated forever."""

    def __init__(self, wires: list[bytes], clients: list[int], matches: list[int]) -> None:
        self.wires = wires
        self._clients = clients
        self._matches = matches

    def places(self, first: int, count: int) -> list[int]:
        """The places of events in the columns."""
        return [number % len(self.wires) for number in range(first, first + count)]

    def decoded(self, first: int, count: int) -> list[tuple[dict[str, Any], int]]:
        """Events, each with the number of clients that want it."""
        return [(_decode_event(self.wires[place]), self._clients[place]) for place in self.places(first, count)]

    def deliveries(self, first: int, count: int) -> int:
        """How many deliveries events have."""
        return sum(self._clients[place] for place in self.places(first, count))

    def matches(self, first: int, count: int) -> int:
        """How many filters events match."""
        return sum(self._matches[place] for place in self.places(first, count))


def make_load(name: str, sizes: Sequence[int], directory: Path) -> EngineWorkload:
    """Makes a load for some numbers of filters, in ascending order."""
    directory.mkdir(parents=True, exist_ok=True)
    filters = wire_table(_air_filters(max(sizes)) if name == AIR else _hard_filters(max(sizes)))
    np.save(directory / "filters.npy", filters.data)
    np.save(directory / "filter-offsets.npy", filters.offsets)
    index = Index()
    before = 0
    for size in sizes:
        numbers = np.arange(before, size)
        index.insert_many(numbers, wire_table(filters[number] for number in numbers.tolist()))
        index.settle()
        before = size
        events = wire_table(_air_events(size, max(sizes)) if name == AIR else _hard_events())
        found = index.match_many(events)
        matches = np.diff(found.offsets)
        kept = np.flatnonzero(matches)[: EVENTS[name]]
        clients = [len(np.unique(found[int(at)] % CLIENTS)) for at in kept]
        table = wire_table(events[int(at)] for at in kept)
        columns = {"events": table.data, "event-offsets": table.offsets, "clients": clients, "matches": matches[kept]}
        for column, values in columns.items():
            np.save(directory / f"{column}-{size}.npy", np.asarray(values))
    return EngineWorkload(directory)


def _hard_filters(count: int) -> Iterable[bytes]:
    return map(_encode, hard.make(count, 0, 1)[0])


def _hard_events() -> Iterable[bytes]:
    return map(_encode, hard.make(0, CANDIDATES * EVENTS[HARD], 1)[1])


def _air_filters(count: int) -> Iterable[bytes]:
    """The filters of a city, those of a cell together: so the first ones are those of a smaller city."""
    city = AirQuality(count)
    numbers = (rank * city.cells + cell for cell in range(city.cells) for rank in range(PER_CELL))
    return (_encode(air_filter(city, number)) for number in numbers)


def air_filter(city: AirQuality, number: int) -> Filter:
    """A filter of a city. It is what its text is parsed to, a million times in less than a minute."""
    station, pollutant = divmod(city.cell_of(number), len(POLLUTANTS))
    low, high = city.limits_of(number)
    value = Numbers(_tenths(low)) if high == VALUE_MAX else Numbers(_tenths(low), _tenths(high))
    equal = (("pollutant", OneOf((POLLUTANTS[pollutant],))), ("station", OneOf((f"station-{station}",))))
    return Filter((Conjunction((*equal, ("value", value))),))


def _tenths(value: int) -> int | float:
    return value / 10 if value % 10 else value // 10


def _air_events(size: int, most: int) -> Iterable[bytes]:
    cells, city = size // PER_CELL, AirQuality(most)
    readings = (city.reading(number) for number in range(EVENTS[AIR]))
    return (_encode(attributes((cell % cells, value))) for cell, value in readings)
