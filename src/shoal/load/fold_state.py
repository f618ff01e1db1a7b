"""The state of the fold between two batches, and its encoding. Version 3.

Owns the record and how it is copied, written and read: Spark jobs keep it as bytes between batches. `fold` uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from shoal.errors import ProtocolError
from shoal.load.clocks import HostClock
from shoal.load.reports import HostFigures, TelemetryReport

STATE_VERSION: Final = 3

NEVER_S: Final = -(2**62)
"""A time before every second."""

RecordKey: TypeAlias = tuple[str, int, int]
"""Instance, second and sequence, which identify a record among those of its host."""

Rank: TypeAlias = tuple[bool, bool, int, str, int]
"""Of two records of one host for one second, the one with the larger rank counts (see `fold`)."""

_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


class Piece(NamedTuple):
    """The part of a record that belongs to one second."""

    rank: Rank
    share: float
    """The share of the record; 1/2 if the record covers two seconds."""
    report: TelemetryReport


class HostMemory(msgspec.Struct, frozen=True, array_like=True):
    """The state of one host."""

    clock: HostClock = HostClock()
    recent: tuple[RecordKey, ...] = ()
    """The last records that were added, oldest first."""
    reported_until: int = NEVER_S
    """The end of the last second that it reported, by the reader's clock."""
    present_until: int = NEVER_S
    """The end of the last closed window with data of the host, or that a record in time came too late for."""
    heard_at: float = 0.0
    """When its last record arrived."""


class FoldCounters(msgspec.Struct):
    """Counters of all records so far."""

    taken: int = 0
    garbage: int = 0
    """Rows without a readable record."""
    duplicates: int = 0
    late: int = 0
    """Records with all seconds in windows that were already closed."""
    early: int = 0
    """Records of a time after their arrival: the host's clock is wrong."""
    overlapping: int = 0
    """Seconds with two records of one host, of which one counts."""
    refused: int = 0
    """Records of hosts above `HOSTS_MAX`."""
    windows: int = 0
    rows: int = 0
    """Rows of units in all records that could be read."""


@dataclass(slots=True)
class FoldState:
    """The state of the fold. It is treated as immutable: the fold changes a copy."""

    closed_until: int = NEVER_S
    """Every second before this one is in a closed window, or too late for one."""
    pending: dict[int, dict[str, Piece]] = field(default_factory=dict)
    """By second, then by host: the piece that counts."""
    hosts: dict[str, HostMemory] = field(default_factory=dict)
    counters: FoldCounters = field(default_factory=FoldCounters)

    def copy(self) -> FoldState:
        """A copy that can be changed independently."""
        pending = {second: dict(pieces) for second, pieces in self.pending.items()}
        return FoldState(self.closed_until, pending, dict(self.hosts), msgspec.structs.replace(self.counters))

    def to_bytes(self) -> bytes:
        """The encoded state."""
        reports: dict[int, tuple[int, TelemetryReport]] = {}
        pieces: list[tuple[int, str, Rank, float, int]] = []
        for second, by_host in self.pending.items():
            for host, piece in by_host.items():
                index, _ = reports.setdefault(id(piece.report), (len(reports), piece.report))
                pieces.append((second, host, piece.rank, piece.share, index))
        batches: dict[str, list[pa.RecordBatch]] = {}
        for _, report in reports.values():
            for kind, batch in report.units.items():
                batches.setdefault(kind, []).append(batch)
        return msgspec.msgpack.encode(
            _Saved(
                STATE_VERSION,
                self.closed_until,
                self.hosts,
                self.counters,
                pieces,
                [(report.host, tuple(report.units)) for _, report in reports.values()],
                {kind: _stream(found) for kind, found in batches.items()},
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> FoldState:
        """The state in `data`; `ProtocolError` if it is invalid or of another version."""
        try:
            version = msgspec.msgpack.decode(data, type=_Version).version
            if version != STATE_VERSION:
                raise ProtocolError(f"a fold state of version {version!r}; this process knows version {STATE_VERSION}")
            saved = msgspec.msgpack.decode(data, type=_Saved)
            batches = {kind: _batches(stream) for kind, stream in saved.units.items()}
            reports = [
                TelemetryReport(host, {kind: next(batches[kind]) for kind in kinds}) for host, kinds in saved.reports
            ]
            state = cls(saved.closed_until, {}, saved.hosts, saved.counters)
            for second, host, rank, share, index in saved.pieces:
                state.pending.setdefault(second, {})[host] = Piece(rank, share, reports[index])
        except (msgspec.DecodeError, pa.ArrowException, OSError, ValueError, LookupError, StopIteration) as error:
            raise ProtocolError(f"not the state of a fold: {error}") from error
        return state

    def __reduce__(self) -> tuple[Callable[[bytes], FoldState], tuple[Any, ...]]:
        return FoldState.from_bytes, (self.to_bytes(),)


class _Version(msgspec.Struct, array_like=True):
    """The first field, which all versions share."""

    version: int


class _Saved(msgspec.Struct, array_like=True):
    """The encoded form of the state."""

    version: int
    closed_until: int
    hosts: dict[str, HostMemory]
    counters: FoldCounters
    pieces: list[tuple[int, str, Rank, float, int]]
    """Second, host, rank, share, and the index of the report."""
    reports: list[tuple[HostFigures, tuple[str, ...]]]
    """Each with the kinds of its units."""
    units: dict[str, bytes]
    """By kind: the units of all reports with that kind, as batches of one Arrow stream."""


def _stream(batches: list[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=_OPTIONS) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _batches(stream: bytes) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(pa.BufferReader(stream)) as reader:
        return iter(list(reader))
