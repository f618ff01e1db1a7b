"""The sum of a window: combines the pieces of records in one interval into a load window.

Owns the arithmetic. Records are handled in Python, units as columns. The rows of hosts come first, then those of units:
kind by kind, in the order of hosts and, for each host, of the first record that names them. So the same pieces always
give the same window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.load.fold_state import Piece
from shoal.load.kinds import Folding, HostColumn, Kinds, UnitKind
from shoal.load.table import Floats, Ints, Numbers
from shoal.load.window import LoadWindow, repeated, window_schema


def sum_up(start_s: int, end_s: int, pending: Mapping[int, Mapping[str, Piece]], kinds: Kinds) -> LoadWindow:
    """The window of an interval, from the pieces of its seconds; at least one is required."""
    by_host: dict[str, list[Piece]] = {}
    for second in range(start_s, end_s):
        for host, piece in pending.get(second, {}).items():
            by_host.setdefault(host, []).append(piece)
    hosts = sorted(by_host)
    pieces = [by_host[host] for host in hosts]
    schema = window_schema(kinds)
    about = _about(hosts, pieces)
    host_rows = _host_rows(pieces, end_s - start_s, kinds)
    sums: dict[str, tuple[Floats, npt.NDArray[np.bool_]]] = {}
    tables: list[pa.Table] = []
    for kind in kinds.units:
        reporting = np.array([any(kind.name in piece.report.units for piece in of_host) for of_host in pieces])
        if not reporting.any():
            continue
        units, owners = _unit_rows(kind, pieces)
        for column in kind.folded:
            if column.folding is Folding.RATE:
                total, known = sums.get(column.name, (np.zeros(len(hosts)), np.zeros(len(hosts), np.bool_)))
                sums[column.name] = total + np.bincount(owners, units[column.name], len(hosts)), known | reporting
        units["kind"] = repeated(kind.name, len(owners), [*kinds.unit_kinds])
        units |= {name: column.take(pa.array(owners)) for name, column in about.items()}
        tables.append(_table(schema, units, len(owners)))
    host_rows |= {name: pa.array(total, mask=~known) for name, (total, known) in sums.items()}
    host_rows |= about | {"kind": repeated(None, len(hosts), [*kinds.unit_kinds])}
    return LoadWindow(start_s, end_s, pa.concat_tables([_table(schema, host_rows, len(hosts)), *tables]))


def _table(schema: pa.Schema, columns: Mapping[str, Any], rows: int) -> pa.Table:
    """A table of the given columns; the others are null."""
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


# -- units ---------------------------------------------------------------------------------------------------


def _unit_rows(kind: UnitKind, pieces: Sequence[Sequence[Piece]]) -> tuple[dict[str, Any], Ints]:
    """The columns of all units of a kind, and the host of each."""
    found = [[piece for piece in of_host if kind.name in piece.report.units] for of_host in pieces]
    names, places, owners = _places(kind.name, found)
    observed_s = np.array([sum(piece.report.host.covered_s * piece.share for piece in of_host) for of_host in pieces])
    flat = [(piece.share, piece.report.units[kind.name]) for of_host in found for piece in of_host]
    shares: Floats = np.repeat([share for share, _ in flat], [batch.num_rows for _, batch in flat])
    batches = [batch for _, batch in flat]
    columns: dict[str, Any] = {"unit": names}
    for column in kind.folded:
        values = _joined(batches, column.name)
        if column.folding is Folding.RATE:
            columns[column.name] = np.bincount(places, values * shares, len(names)) / observed_s[owners]
        else:
            columns[column.name] = np.zeros(len(names), values.dtype)
            np.maximum.at(columns[column.name], places, values)
    columns["complete"] = np.ones(len(names), np.bool_)
    columns["complete"][places[~_joined(batches, "complete")]] = False
    return columns, owners


def _places(kind: str, pieces: Sequence[Sequence[Piece]]) -> tuple[pa.Array, Ints, Ints]:
    """The units of all hosts; the unit of every row of every piece; the host of every unit.

    Host by host: a table of a thousand names stays in the processor's cache, one of a million does not.
    """
    names: list[pa.Array] = []
    places: list[Ints] = []
    total = 0
    for of_host in pieces:
        units = [piece.report.units[kind]["unit"] for piece in of_host] or [pa.array([], pa.binary())]
        encoded = pa.concat_arrays(units).dictionary_encode()
        places.append(encoded.indices.to_numpy().astype(np.int64) + total)
        names.append(encoded.dictionary)
        total += len(encoded.dictionary)
    owners = np.repeat(np.arange(len(pieces)), [len(of_host) for of_host in names])
    return pa.concat_arrays(names), np.concatenate(places), owners


def _joined(batches: Sequence[pa.RecordBatch], name: str) -> Numbers:
    return np.concatenate([batch[name].to_numpy(zero_copy_only=False) for batch in batches])


# -- hosts ---------------------------------------------------------------------------------------------------


def _about(hosts: list[str], pieces: Sequence[Sequence[Piece]]) -> dict[str, pa.Array]:
    """The columns that a host and its units share; kind and site are those of the last record."""
    last = [of_host[-1].report.host for of_host in pieces]
    return {
        "host": pa.array(hosts, pa.string()),
        "host_kind": _dictionary([report.kind for report in last]),
        "site": _dictionary([report.site or None for report in last]),
        "seconds": pa.array([len(of_host) for of_host in pieces], pa.int32()),
    }


def _dictionary(names: Sequence[str | None]) -> pa.DictionaryArray:
    """Names with a sorted dictionary: the same names always give the same bytes."""
    known = sorted({name for name in names if name is not None})
    place = {name: number for number, name in enumerate(known)}
    indices = pa.array([None if name is None else place[name] for name in names], pa.int16())
    return pa.DictionaryArray.from_arrays(indices, pa.array(known, pa.string()))


def _host_rows(pieces: Sequence[Sequence[Piece]], seconds: int, kinds: Kinds) -> dict[str, Any]:
    """The figures of hosts, null for hosts of kinds without them, and whether hosts are complete."""
    rows: dict[str, Any] = {column.figure: [None] * len(pieces) for kind in kinds.hosts for column in kind.figures}
    for place, of_host in enumerate(pieces):
        for column in kinds.host_kinds[of_host[-1].report.host.kind].figures:
            rows[column.figure][place] = _figure(column, of_host)
    rows["complete"] = [len(of_host) == seconds and all(map(_is_complete, of_host)) for of_host in pieces]
    return rows


def _is_complete(piece: Piece) -> bool:
    return piece.report.host.measured and piece.report.host.complete


def _figure(column: HostColumn, pieces: Sequence[Piece]) -> float | int | None:
    """A figure of one host in a window."""
    if column.folding is Folding.MEAN:
        return _mean(pieces, column.figure)
    values = [value for piece in pieces if (value := piece.report.host.figures.get(column.figure)) is not None]
    if column.folding is Folding.PEAK:
        return max(values, default=None)
    return values[-1] or None if values else None


def _mean(pieces: Sequence[Piece], figure: str) -> float | None:
    """The mean of a rate over the measured time; None if there is none."""
    amount = time_s = 0.0
    for piece in pieces:
        value = piece.report.host.figures.get(figure)
        if value is not None:
            part_s = piece.report.host.covered_s * piece.share
            amount += value * part_s
            time_s += part_s
    return amount / time_s if time_s else None
