"""The load of a city that measures its air: stations, pollutants, and residents with thresholds.

Owns filters and events by number, and which filter wants which event. That is decided here by plain comparisons, so
checkers can use it to judge the index. Each event matches 1 to `per_cell` of the first `filters` filters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec

POLLUTANTS: Final = ("NO2", "O3", "PM10", "PM2.5", "SO2")
PER_CELL: Final = 10
VALUE_MAX: Final = 1000
"""Values are tenths from 0.1 to 100.0; here in tenths."""

Reading: TypeAlias = tuple[int, int]
"""What a station measures: the cell, which is a station and a pollutant, and the value in tenths."""


class AirQuality(msgspec.Struct, frozen=True):
    """A city in which residents have `filters` filters. Filters beyond that number exist too, for residents who come
    and go."""

    filters: int
    seed: int = 1
    per_cell: int = PER_CELL
    """Filters for one pollutant at one station."""

    @property
    def cells(self) -> int:
        """Pairs of station and pollutant."""
        return max(self.filters // self.per_cell, 1)

    def cell_of(self, number: int) -> int:
        """The cell that a filter is about."""
        return number % self.cells

    def limits_of(self, number: int) -> tuple[int, int]:
        """The lowest and highest value that a filter wants, in tenths. The first filter of each cell wants all."""
        rank = number // self.cells
        if rank == 0:
            return 0, VALUE_MAX
        low = _scramble(number * 2 + self.seed) % VALUE_MAX
        return low, VALUE_MAX if rank % 2 else min(low + VALUE_MAX // 2, VALUE_MAX)

    def filter_text(self, number: int) -> str:
        """A filter in the filter language."""
        low, high = self.limits_of(number)
        above = f"{place(self.cell_of(number))} and value >= {low / 10}"
        return above if high == VALUE_MAX else f"{above} and value <= {high / 10}"

    def reading(self, number: int) -> Reading:
        """The event of this number."""
        drawn = _scramble(number * 2 + 1 + self.seed)
        return drawn % self.cells, 1 + (drawn >> 20) % VALUE_MAX

    def wants(self, number: int, reading: Reading) -> bool:
        """Whether a filter wants an event."""
        low, high = self.limits_of(number)
        return self.cell_of(number) == reading[0] and low <= reading[1] <= high

    def wanted_by(self, reading: Reading) -> Iterator[int]:
        """The filters that want an event, of the first `filters`."""
        return (number for number in range(reading[0], self.filters, self.cells) if self.wants(number, reading))


def attributes(reading: Reading) -> dict[str, str | float]:
    """The event of a reading."""
    station, pollutant = divmod(reading[0], len(POLLUTANTS))
    return {"station": f"station-{station}", "pollutant": POLLUTANTS[pollutant], "value": reading[1] / 10}


def place(cell: int) -> str:
    """The condition on station and pollutant."""
    station, pollutant = divmod(cell, len(POLLUTANTS))
    return f"station = 'station-{station}' and pollutant = '{POLLUTANTS[pollutant]}'"


def _scramble(number: int) -> int:
    """A number of 32 bits that looks random (the finalizer of MurmurHash3)."""
    number &= 0xFFFFFFFF
    number = ((number ^ (number >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    number = ((number ^ (number >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return number ^ (number >> 16)
