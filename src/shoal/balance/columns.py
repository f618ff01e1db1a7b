"""The columns that policies compute with: channels, their placements, and hosts, as NumPy arrays.

Owns the three tables and the load model: what a channel costs each of its servers in each mode. Policies never handle
channels as objects: a million channels are a few arrays, and row `i` is the same channel in all of them.

The load model, for a channel with `k` servers:

    single             the server receives all publications and sends all deliveries
    all_subscribers    each server receives 1/k of the publications and sends 1/k of the deliveries
    all_publishers     each server receives all publications, sends 1/k of the deliveries to subscribers of the
                       channel, and all deliveries to subscribers of patterns, which subscribe on every server

The parts are equal only on average, because each client uses one server, chosen by its id. Measured parts are used
instead of 1/k where there are any.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
"""The time of an event that has not happened."""


@dataclass(frozen=True, slots=True)
class Channels:
    """The activity of each channel in the window, over all its servers, as rates per second."""

    names: pa.Array
    """Binary; unique."""
    publications: Floats
    """Distinct publications, each counted once even if it went to several servers."""
    publishers: Ints
    subscribers: Ints
    messages_out: Floats
    """Deliveries to subscribers."""
    bytes_out: Floats
    """Size of the deliveries."""
    cpu_in: Floats
    """Cores that receiving all publications once would take."""
    cpu_out: Floats
    """Cores that all deliveries take."""
    pattern_part: Floats | None = None
    """The part of the deliveries that goes to subscribers of patterns, counting each publication once; None if there
    are no such subscribers. Deliveries, bytes and cores are counted in the same way."""

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
    """The placement of each channel: the servers of row `i` are `servers[offsets[i]:offsets[i + 1]]`."""

    mode: Modes
    offsets: Ints
    servers: Hosts32
    """Rows of the host table. A row has at least one server, each at most once."""
    parts: Floats | None = None
    """The measured part of its channel's deliveries for each element of `servers`; None if all parts are equal."""

    def __len__(self) -> int:
        return len(self.mode)

    @property
    def degree(self) -> Ints:
        """How many servers each channel has."""
        return np.diff(self.offsets)

    @property
    def part(self) -> Floats:
        """The part of its channel's deliveries for each element of `servers`."""
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
        """Placements from one tuple of servers per row; for few rows."""
        offsets = np.zeros(len(servers) + 1, np.int64)
        np.cumsum([len(row) for row in servers], out=offsets[1:])
        flat = np.fromiter((server for row in servers for server in row), np.int32, int(offsets[-1]))
        return cls(np.asarray(mode, np.int8), offsets, flat)


@dataclass(frozen=True, slots=True)
class Hosts:
    """The servers: capacity, measured load, and whether they may take channels."""

    ids: tuple[str, ...]
    capacity: Floats
    """Bytes per second that it may send."""
    cpu_capacity: Floats
    """Cores that it may use: 1 for a server that carries messages on one thread."""
    bytes_out: Floats
    """Measured bytes per second that it sent, including those that belong to no channel."""
    cpu: Floats
    """Measured cores that it used."""
    cost: Floats
    """Cost per hour, in one unit for all servers."""
    takes: Bools
    """Whether it may receive channels: it is in the ring, alive and not being drained."""
    heard: Bools
    """Whether the window has telemetry of it, or it joined after the window began and is empty. The load of other
    servers is unknown; they are left unchanged."""
    joined_at: Floats
    """When it joined the pool, in seconds; `NEVER` if it was there at the start."""
    pinned: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Whether it has a pinned channel, so that it cannot be drained; empty if there are none."""

    @property
    def drainable(self) -> Bools:
        """Which servers could be drained."""
        return ~self.pinned if len(self.pinned) else np.ones(len(self), np.bool_)

    def __len__(self) -> int:
        return len(self.ids)


def shares(channels: Channels, placements: Placements) -> tuple[Floats, Floats]:
    """The load that each element of `placements.servers` puts on its server: bytes per second sent, and cores."""
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
    """The part of a channel's deliveries sent by a server of an `all_publishers` placement that has `part` of the
    channel's own subscribers."""
    return part * (1.0 - pattern_part) + pattern_part


def host_loads(channels: Channels, placements: Placements, hosts: int) -> tuple[Floats, Floats]:
    """The load of the channels on each of the first `hosts` servers by this model: bytes per second sent, and cores."""
    bytes_out, cpu = shares(channels, placements)
    return (
        np.bincount(placements.servers, bytes_out, hosts).astype(np.float64, copy=False),
        np.bincount(placements.servers, cpu, hosts).astype(np.float64, copy=False),
    )
