"""Summing up: the pieces of records that fall into one interval become one load window.

Owns the arithmetic. Python deals with records; channels are columns. First come the rows of hosts, then those of units
in the order of hosts and, for each host, of the first record that names them: the same pieces always give the same
window.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.balance.columns import Floats, Ints
from shoal.balance.fold_state import Piece
from shoal.balance.reports import Figures
from shoal.balance.window import COUNTS, RATES, WINDOW_SCHEMA, LoadWindow


def sum_up(start_s: int, end_s: int, pending: Mapping[int, Mapping[str, Piece]]) -> LoadWindow:
    """The window of an interval, from who speaks for each of its seconds. Somebody must speak for one of them."""
    by_host: dict[str, list[Piece]] = {}
    for second in range(start_s, end_s):
        for host, piece in pending.get(second, {}).items():
            by_host.setdefault(host, []).append(piece)
    hosts = sorted(by_host)
    pieces = [by_host[host] for host in hosts]
    names, places, owners = _units(pieces)
    observed_s = np.array([sum(piece.report.figures.covered_s * piece.share for piece in of) for of in pieces])
    units = _sums(list(chain.from_iterable(pieces)), places, len(names))
    for rate in RATES:
        units[rate] = units[rate] / observed_s[owners]
    host_rows = _host_rows(pieces, end_s - start_s)
    host_rows |= {rate: np.bincount(owners, units[rate], len(hosts)) for rate in RATES}
    host_names = pa.array(hosts, pa.string())
    units |= {
        "host": host_names.take(pa.array(owners)),
        "unit": names,
        "seconds": np.array([len(of) for of in pieces], np.int32)[owners],
    }
    tables = [_table(host_rows | {"host": host_names}, len(hosts)), _table(units, len(names))]
    return LoadWindow(start_s, end_s, pa.concat_tables(tables))


def _table(columns: Mapping[str, Any], rows: int) -> pa.Table:
    """A table of the columns that are there, the others null."""
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in WINDOW_SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=WINDOW_SCHEMA)


def _units(pieces: list[list[Piece]]) -> tuple[pa.Array, Ints, Ints]:
    """The units of all hosts; the unit of every row of every piece; the host of every unit.

    Host by host: a table of a thousand names stays in the processor's cache, one of a million does not.
    """
    names: list[pa.Array] = []
    places: list[Ints] = []
    total = 0
    for of_host in pieces:
        encoded = pa.concat_arrays([piece.report.channels["channel"] for piece in of_host]).dictionary_encode()
        places.append(encoded.indices.to_numpy().astype(np.int64) + total)
        names.append(encoded.dictionary)
        total += len(encoded.dictionary)
    owners = np.repeat(np.arange(len(pieces)), [len(of_host) for of_host in names])
    return pa.concat_arrays(names), np.concatenate(places), owners


def _sums(pieces: list[Piece], places: Ints, units: int) -> dict[str, npt.NDArray[Any]]:
    """Amounts of each unit, the largest of its counts, and whether all its rows are complete."""
    shares: Floats = np.repeat(
        np.array([piece.share for piece in pieces]), [len(piece.report.channels) for piece in pieces]
    )
    columns: dict[str, npt.NDArray[Any]] = {}
    for name in RATES:
        columns[name] = np.bincount(places, _column(pieces, name) * shares, units)
    for name in COUNTS:
        largest = np.zeros(units, np.int64)
        np.maximum.at(largest, places, _column(pieces, name))
        columns[name] = largest
    columns["complete"] = np.ones(units, np.bool_)
    columns["complete"][places[~_column(pieces, "complete")]] = False
    return columns


def _column(pieces: list[Piece], name: str) -> npt.NDArray[Any]:
    return np.concatenate([piece.report.channels[name].to_numpy(zero_copy_only=False) for piece in pieces])


def _host_rows(pieces: list[list[Piece]], seconds: int) -> dict[str, Any]:
    """The columns that only hosts have. What is configured is what the last record says."""
    figures = [[piece.report.figures for piece in of_host] for of_host in pieces]
    return {
        "seconds": [len(of_host) for of_host in pieces],
        "capacity_bytes_per_s": [of_host[-1].capacity_bytes_per_s or None for of_host in figures],
        "bandwidth_bytes_per_s": [_mean(of_host, "bandwidth_bytes_per_s") for of_host in pieces],
        "cpu_share": [_mean(of_host, "cpu_share") for of_host in pieces],
        "connections": [max(record.connections for record in of_host) for of_host in figures],
        "complete": [len(of_host) == seconds and all(map(_is_complete, of_host)) for of_host in figures],
    }


def _is_complete(figures: Figures) -> bool:
    return figures.measured and figures.complete


def _mean(pieces: list[Piece], name: str) -> float | None:
    """The mean of a measured rate over the time that was measured; None if none was."""
    amount = time_s = 0.0
    for piece in pieces:
        if piece.report.figures.measured:
            part_s = piece.report.figures.covered_s * piece.share
            amount += getattr(piece.report.figures, name) * part_s
            time_s += part_s
    return amount / time_s if time_s else None
