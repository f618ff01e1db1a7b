"""The columns that policies compute with: channels, where they are placed, and hosts, as NumPy arrays.

Owns the three tables and the one load model: what a channel costs each of its servers under each mode. A policy
never deals with a channel as an object: a million of them are a few arrays, and row `i` is the same channel in all.

The load model, for a channel with `k` servers:

    single             the server receives all publications and sends all deliveries
    all_subscribers    each server receives 1/k of the publications and sends 1/k of the deliveries
    all_publishers     each server receives all publications, sends 1/k of the deliveries to subscribers of the
                       channel, and all deliveries to subscribers of patterns: these stand at every server

The parts are even only on average: clients keep to one server each, by their ids. Where parts were measured, they count
instead of 1/k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.plan.placement import Mode

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Hosts32: TypeAlias = npt.NDArray[np.int32]
Modes: TypeAlias = npt.NDArray[np.int8]
Bools: TypeAlias = npt.NDArray[np.bool_]

Numbers = TypeVar("Numbers", float, Floats)

MODES: Final = (Mode.SINGLE, Mode.ALL_SUBSCRIBERS, Mode.ALL_PUBLISHERS)
"""The modes by their number in a `Modes` column."""
SINGLE: Final = 0
ALL_SUBSCRIBERS: Final = 1
ALL_PUBLISHERS: Final = 2

NEVER: Final = -np.inf
"""The time of something that never happened."""


@dataclass(frozen=True, slots=True)
class Channels:
    """What each channel did in the window, as rates a second, whatever servers it did it on."""

    names: pa.Array
    """Binary; unique."""
    publications: Floats
    """Distinct publications, each counted once however many servers it went to."""
    publishers: Ints
    subscribers: Ints
    messages_out: Floats
    """Deliveries to subscribers."""
    bytes_out: Floats
    """What the deliveries weigh."""
    cpu_in: Floats
    """Cores that receiving all publications once would take."""
    cpu_out: Floats
    """Cores that all deliveries take."""
    pattern_part: Floats | None = None
    """The part of the deliveries that goes to subscribers of patterns, each publication delivered to them once, by one
    server; None: there are no such subscribers. Deliveries, their bytes and cores are counted in the same way."""

    @property
    def to_patterns(self) -> Floats:
        """`pattern_part`, or zeros."""
        return np.zeros(len(self)) if self.pattern_part is None else self.pattern_part

    def __len__(self) -> int:
        return len(self.publications)

    def name(self, row: int) -> bytes:
        """The name of one channel."""
        name: bytes = self.names[row].as_py()
        return name


@dataclass(frozen=True, slots=True)
class Placements:
    """Where each channel is, row by row: the servers of row `i` are `servers[offsets[i]:offsets[i + 1]]`."""

    mode: Modes
    offsets: Ints
    servers: Hosts32
    """Rows of the host table. A row has at least one server, each at most once."""
    parts: Floats | None = None
    """The part of its channel's deliveries that each element of `servers` has, as measured; None: all are even."""

    def __len__(self) -> int:
        return len(self.mode)

    @property
    def degree(self) -> Ints:
        """How many servers each channel has."""
        return np.diff(self.offsets)

    @property
    def part(self) -> Floats:
        """The part of its channel's deliveries that each element of `servers` has."""
        return 1.0 / np.repeat(self.degree, self.degree) if self.parts is None else self.parts

    @property
    def rows(self) -> Ints:
        """The channel's row for each element of `servers`."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.degree)

    def of(self, row: int) -> tuple[int, ...]:
        """The servers of one channel."""
        return tuple(self.servers[self.offsets[row] : self.offsets[row + 1]].tolist())

    @classmethod
    def single(cls, servers: npt.ArrayLike) -> Placements:
        """Every channel on one server."""
        column = np.asarray(servers, np.int32)
        return cls(np.zeros(len(column), np.int8), np.arange(len(column) + 1, dtype=np.int64), column)

    @classmethod
    def build(cls, mode: npt.ArrayLike, servers: list[tuple[int, ...]]) -> Placements:
        """From one tuple of servers a row; for few rows."""
        offsets = np.zeros(len(servers) + 1, np.int64)
        np.cumsum([len(row) for row in servers], out=offsets[1:])
        flat = np.fromiter((server for row in servers for server in row), np.int32, int(offsets[-1]))
        return cls(np.asarray(mode, np.int8), offsets, flat)


@dataclass(frozen=True, slots=True)
class Hosts:
    """The servers: what each can carry, what it carried, and whether it may take channels."""

    ids: tuple[str, ...]
    capacity: Floats
    """Bytes a second that it may send."""
    cpu_capacity: Floats
    """Cores that it may use: 1 for a server that carries messages on one thread."""
    bytes_out: Floats
    """Bytes a second that it sent, as measured, whatever for."""
    cpu: Floats
    """Cores that it used, as measured."""
    cost: Floats
    """Cost of an hour, in any unit, the same for all."""
    takes: Bools
    """Whether it may receive channels: it is in the ring, is known to live and is not being drained."""
    heard: Bools
    """Whether the window tells of it, or it came too late for that and is empty. Of one that did not report nobody
    knows what it carries: it is left as it is."""
    joined_at: Floats
    """Since when it is in the pool, in seconds; `NEVER` for always."""

    def __len__(self) -> int:
        return len(self.ids)


def shares(channels: Channels, placements: Placements) -> tuple[Floats, Floats]:
    """What each element of `placements.servers` costs its server: bytes a second out, and cores."""
    rows, parts = placements.rows, placements.part
    everywhere = placements.mode[rows] == ALL_PUBLISHERS
    receives = np.where(everywhere, 1.0, parts)
    sends = parts
    if channels.pattern_part is not None:
        sends = np.where(everywhere, sent_part(parts, channels.pattern_part[rows]), parts)
    bytes_out = channels.bytes_out[rows] * sends
    cpu = channels.cpu_in[rows] * receives + channels.cpu_out[rows] * sends
    return bytes_out, cpu


def sent_part(part: Numbers, pattern_part: Numbers) -> Numbers:
    """What a server of an all_publishers placement sends of a channel of whose own subscribers it has a part."""
    return part * (1.0 - pattern_part) + pattern_part


def host_loads(channels: Channels, placements: Placements, hosts: int) -> tuple[Floats, Floats]:
    """What the channels cost each of the first `hosts` servers by this model: bytes a second out, and cores."""
    bytes_out, cpu = shares(channels, placements)
    return (
        np.bincount(placements.servers, bytes_out, hosts).astype(np.float64, copy=False),
        np.bincount(placements.servers, cpu, hosts).astype(np.float64, copy=False),
    )
