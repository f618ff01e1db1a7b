"""Kinds of units and hosts: the columns of their telemetry, how the fold combines them, and what units cost.

Owns the declarations. A kind is a value: the package of channels declares `channel` and `server`, and other packages
declare theirs in the same way. Everything else in `shoal.load` uses these declarations.

    kind of unit     columns of its table in a record; `RATE` and `PEAK` columns are in load windows too
                     costs: which resource of the host its units use up, and in what proportion
    kind of host     columns of the host's row in a record; those with a `figure` are in load windows too
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from shoal.errors import ConfigError

CHANNEL: Final = "channel"
SERVER: Final = "server"
"""The kinds in load windows of version 2, which do not name them."""

UNIT_COLUMNS: Final = ("unit", "complete")
"""Columns of every table of units: the name, and whether everything about the unit was counted in spite of limits."""

WINDOW_COLUMNS: Final = ("kind", "unit", "host", "host_kind", "site", "seconds", "complete")
"""Columns of every load window. Figures of kinds cannot have these names."""


class Type(enum.StrEnum):
    """The type of a column."""

    INT = "int"
    """Whole numbers from 0 to 2^63 - 1."""
    FLOAT = "float"
    """Finite numbers; in tables of units not below 0."""
    IDS = "ids"
    """A list of 64-bit ids in each row. Not allowed in the rows of hosts and in load windows."""


class Folding(enum.StrEnum):
    """How the values of several seconds are combined in a load window."""

    RATE = "rate"
    """Units only: the sum divided by the observed time. The row of a host has the sum over its units."""
    PEAK = "peak"
    """The largest value of a second."""
    MEAN = "mean"
    """Hosts only: the mean over the measured time; null if there is none."""
    LAST = "last"
    """Hosts only: the value of the last record, for configured values; null if it is 0."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table of units. Without `folding` it is not in load windows."""

    name: str
    type: Type = Type.INT
    folding: Folding | None = None


@dataclass(frozen=True, slots=True)
class HostColumn:
    """A column of the row of a host. With `figure` it is in load windows, under that name."""

    name: str
    type: Type = Type.FLOAT
    nullable: bool = False
    figure: str = ""
    folding: Folding = Folding.MEAN


@dataclass(frozen=True, slots=True)
class Cost:
    """One resource of a host that units use in proportion to their work, the weighted sum of some of their rates.

    `resource` is the figure of the host with the amount used. Kinds that share hosts use the same unit of work.
    """

    resource: str
    work: tuple[tuple[str, float], ...]
    """Names of rates of the unit, and their weights."""

    def weight(self, rate: str) -> float:
        """The weight of a rate; 0 if it is not part of the work."""
        return dict(self.work).get(rate, 0.0)


INTERVAL_S: Final = HostColumn("interval_s", nullable=True)
"""The time that the record covers; null in the first second of an agent or a host, which has no previous sample."""
UNCOUNTED: Final = HostColumn("uncounted", Type.INT)
"""Number of items that were not counted under any unit because of a limit."""


@dataclass(frozen=True)
class UnitKind:
    """A kind of unit. Every table also has the columns `UNIT_COLUMNS`."""

    name: str
    columns: tuple[Column, ...]
    costs: tuple[Cost, ...] = ()

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        rates = {column.name for column in self.columns if column.folding is Folding.RATE}
        _check_names(self.name, names)
        for column in self.columns:
            if column.folding not in (None, Folding.RATE, Folding.PEAK):
                raise ConfigError(f"kind {self.name}: a column of units cannot be a {column.folding} ({column.name})")
            if column.type is Type.IDS and column.folding is not None:
                raise ConfigError(f"kind {self.name}: a list of ids cannot be folded ({column.name})")
        for cost in self.costs:
            if not rates.issuperset(rate for rate, _ in cost.work):
                raise ConfigError(f"kind {self.name}: the cost of {cost.resource} names a column that is not a rate")

    @cached_property
    def folded(self) -> tuple[Column, ...]:
        """The columns that load windows have."""
        return tuple(column for column in self.columns if column.folding is not None)

    @cached_property
    def layout(self) -> int:
        """A checksum of the columns: records with another one have other columns."""
        return _checksum(f"{column.name}:{column.type}" for column in self.columns)

    def cost(self, resource: str) -> Cost:
        """The cost of its units in a resource of their host; without work if the kind declares none."""
        return next((cost for cost in self.costs if cost.resource == resource), Cost(resource, ()))


@dataclass(frozen=True)
class HostKind:
    """A kind of host. Every row has `INTERVAL_S` and `UNCOUNTED` before these columns."""

    name: str
    columns: tuple[HostColumn, ...]

    def __post_init__(self) -> None:
        _check_names(self.name, [column.name for column in self.row])
        for column in self.row:
            if column.type is Type.IDS or (column.nullable and column.type is not Type.FLOAT):
                raise ConfigError(f"kind {self.name}: the type of {column.name} is not allowed in the row of a host")
            if column.figure and column.folding is Folding.RATE:
                raise ConfigError(f"kind {self.name}: a column of hosts cannot be a {column.folding} ({column.name})")

    @cached_property
    def row(self) -> tuple[HostColumn, ...]:
        """All columns of the host's row."""
        return (INTERVAL_S, UNCOUNTED, *self.columns)

    @cached_property
    def figures(self) -> tuple[HostColumn, ...]:
        """The columns that load windows have."""
        return tuple(column for column in self.columns if column.figure)

    @cached_property
    def form(self) -> struct.Struct:
        """The encoding of a row: numbers of 8 bytes, little-endian. Null is NaN."""
        return struct.Struct("<" + "".join("q" if column.type is Type.INT else "d" for column in self.row))

    @cached_property
    def layout(self) -> int:
        """A checksum of the columns: records with another one have other columns."""
        return _checksum(f"{column.name}:{column.type}:{column.nullable}" for column in self.row)


@dataclass(frozen=True)
class Kinds:
    """All kinds that a reader of telemetry knows. Figures with the same name have the same meaning in all of them."""

    units: tuple[UnitKind, ...]
    hosts: tuple[HostKind, ...]

    def __post_init__(self) -> None:
        for kinds in (self.units, self.hosts):
            _check_names("kinds", [kind.name for kind in kinds])
        figures: dict[str, tuple[bool, Type]] = {}
        for name, meaning in self._figures():
            if name in WINDOW_COLUMNS or figures.setdefault(name, meaning) != meaning:
                raise ConfigError(f"two kinds declare the figure {name} differently, or the name is reserved")

    def _figures(self) -> list[tuple[str, tuple[bool, Type]]]:
        of_units = [
            (column.name, (True, Type.FLOAT if column.folding is Folding.RATE else column.type))
            for kind in self.units
            for column in kind.folded
        ]
        return of_units + [
            (column.figure, (False, column.type if column.folding is Folding.PEAK else Type.FLOAT))
            for kind in self.hosts
            for column in kind.figures
        ]

    @cached_property
    def figures(self) -> dict[str, Type]:
        """All figures of load windows: rates of units, their peaks, figures of hosts."""
        rates = {column.name for kind in self.units for column in kind.folded if column.folding is Folding.RATE}
        found = {name: type for name, (_, type) in self._figures()}
        return {name: found[name] for name in sorted(found, key=lambda name: name not in rates)}

    @cached_property
    def unit_kinds(self) -> dict[str, UnitKind]:
        """Kinds of units by name."""
        return {kind.name: kind for kind in self.units}

    @cached_property
    def host_kinds(self) -> dict[str, HostKind]:
        """Kinds of hosts by name."""
        return {kind.name: kind for kind in self.hosts}


def _check_names(what: str, names: list[str]) -> None:
    if len({*names, *UNIT_COLUMNS}) < len(names) + len(UNIT_COLUMNS):
        raise ConfigError(f"kind {what}: a name occurs twice or is reserved")


def _checksum(words: Iterable[str]) -> int:
    return zlib.crc32(",".join(words).encode())
