"""A load window: the figures of every unit and every host in one interval, as one Arrow table. Version 3.

Owns the schema, the meaning of the common columns, and the encoding of a window. The figures between `seconds` and
`complete` are those that the kinds declare, null in rows of other kinds. `fold` makes windows.

Rates are amounts per second over the time that the host observed, so a missing second makes a rate less accurate but
not smaller. A host without reports in the interval has no rows.

A stored window of version 2 is read as one of channels (kind `channel`) on servers (host kind `server`) without a site.
In a window of fewer kinds the others count as idle. A window with an unknown column is refused: a newer Shoal wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.errors import ProtocolError
from shoal.load.kinds import CHANNEL, SERVER, Kinds, Type

WINDOW_VERSION: Final = b"3"
KEPT_VERSIONS: Final = (b"2", WINDOW_VERSION)
"""Versions of windows in files. Windows that are sent have the newest version."""
VERSION_KEY: Final = b"shoal.window.version"
START_KEY: Final = b"shoal.window.start_s"
END_KEY: Final = b"shoal.window.end_s"

NAME: Final = pa.dictionary(pa.int16(), pa.string())
"""Names with few distinct values: two bytes per row."""

_HEAD: Final = (
    pa.field("kind", NAME),  # of the unit; null in the row of the host itself
    pa.field("unit", pa.binary()),  # null in the row of the host
    pa.field("host", pa.string(), nullable=False),
    pa.field("host_kind", NAME, nullable=False),
    pa.field("site", NAME),  # of the host; null if it is not configured
    pa.field("seconds", pa.int32(), nullable=False),  # number of seconds of the interval that the host reported
)
_TAIL: Final = (
    # Unit: everything about it was counted in spite of limits. Host: every second was reported and measured, and all
    # units were counted.
    pa.field("complete", pa.bool_(), nullable=False),
)
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


@lru_cache(maxsize=16)
def window_schema(kinds: Kinds) -> pa.Schema:
    """The schema of windows with these kinds."""
    figures = [pa.field(name, pa.int64() if type is Type.INT else pa.float64()) for name, type in kinds.figures.items()]
    return pa.schema([*_HEAD, *figures, *_TAIL])


def repeated(name: str | None, rows: int, names: Sequence[str] = ()) -> pa.DictionaryArray:
    """A column with the same name, or null, in all rows. `names` is the dictionary; empty: only the name."""
    known = [*names] or ([] if name is None else [name])
    indices = pa.nulls(rows, pa.int16()) if name is None else pa.array(np.full(rows, known.index(name), np.int16))
    return pa.DictionaryArray.from_arrays(indices, pa.array(known, pa.string()))


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """The load in the interval from `start_s` to `end_s` (exclusive), in wall-clock seconds."""

    start_s: int
    end_s: int
    table: pa.Table

    @property
    def hosts(self) -> pa.Table:
        """The rows of the hosts themselves, of all kinds, sorted by host."""
        return self._rows(_codes(self.table["kind"])[0] < 0)

    @property
    def units(self) -> pa.Table:
        """The rows of units of all kinds, kind by kind and host by host."""
        return self._rows(_codes(self.table["kind"])[0] >= 0)

    def hosts_of(self, kind: str) -> pa.Table:
        """The rows of the hosts of one kind, sorted by host."""
        codes, names = _codes(self.table["host_kind"])
        return self._rows((codes == names.get(kind, len(names))) & (_codes(self.table["kind"])[0] < 0))

    def units_of(self, kind: str) -> pa.Table:
        """The rows of units of one kind, host by host."""
        codes, names = _codes(self.table["kind"])
        return self._rows(codes == names.get(kind, len(names)))

    def _rows(self, wanted: npt.NDArray[np.bool_]) -> pa.Table:
        """The wanted rows; without a copy if they are contiguous."""
        count = int(np.count_nonzero(wanted))
        first = int(wanted.argmax()) if count else 0
        if wanted[first : first + count].all():
            return self.table.slice(first, count)
        return self.table.filter(pa.array(wanted))

    def to_bytes(self) -> bytes:
        """The window as an Arrow IPC stream, with the interval in the metadata of its schema."""
        sink = pa.BufferOutputStream()
        metadata = {VERSION_KEY: WINDOW_VERSION, START_KEY: b"%d" % self.start_s, END_KEY: b"%d" % self.end_s}
        table = self.table.replace_schema_metadata(metadata)
        with pa.ipc.new_stream(sink, table.schema, options=_OPTIONS) as writer:
            writer.write_table(table)
        data: bytes = sink.getvalue().to_pybytes()
        return data

    @classmethod
    def from_bytes(cls, data: bytes, kinds: Kinds, versions: Sequence[bytes] = (WINDOW_VERSION,)) -> LoadWindow:
        """The window in `data`; `ProtocolError` if it is invalid or not of these versions."""
        try:
            with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
                metadata = reader.schema.metadata or {}
                _check_version(metadata.get(VERSION_KEY), versions)
                table = reader.read_all()
            table.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise ProtocolError(f"not a load window: {error}") from error
        if metadata[VERSION_KEY] != WINDOW_VERSION:
            table = _of_channels(table)
        try:
            start_s, end_s = int(metadata[START_KEY]), int(metadata[END_KEY])
        except (KeyError, ValueError) as error:
            raise ProtocolError("a load window has no interval") from error
        return cls(start_s, end_s, _fitted(table, window_schema(kinds)))


def _check_version(version: bytes | None, known: Sequence[bytes]) -> None:
    if version in known:
        return
    newer = version is not None and version.isdigit() and int(version) > int(WINDOW_VERSION)
    raise ProtocolError(
        f"a load window of version {None if version is None else version.decode(errors='replace')}; "
        f"this process knows {b', '.join(known).decode()}",
        do="upgrade this process" if newer else "upgrade the job that wrote it, or remove it",
    )


def _of_channels(table: pa.Table) -> pa.Table:
    """Adds the missing columns to a table of version 2."""
    _check_names(table)
    unit = table["unit"].combine_chunks() if "unit" in table.column_names else pa.nulls(table.num_rows, pa.binary())
    codes = pa.array(np.zeros(table.num_rows, np.int16), mask=unit.is_null().to_numpy(zero_copy_only=False))
    added = {
        "kind": pa.DictionaryArray.from_arrays(codes, pa.array([CHANNEL])),
        "host_kind": repeated(SERVER, table.num_rows),
        "site": repeated(None, table.num_rows),
    }
    for name, column in added.items():
        table = table.append_column(name, column)
    return table


def _check_names(table: pa.Table) -> None:
    if len(table.schema) != len({*table.schema.names}):
        raise ProtocolError("a load window has a column twice")


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the columns of a schema. Missing figures are null; everything else must match the schema."""
    _check_names(table)
    found = {field.name: field for field in table.schema}
    columns: list[Any] = []
    for field in schema:
        there = found.pop(field.name, None)
        if there is None and field.nullable and field not in _HEAD:
            columns.append(pa.nulls(table.num_rows, field.type))
        elif there is None or there.type != field.type or (not field.nullable and table[field.name].null_count):
            raise ProtocolError(f"a load window has no column {field.name} of the expected type")
        else:
            columns.append(table[field.name])
    if found:
        raise ProtocolError(f"a load window has unknown columns: {', '.join(found)}", do="upgrade this process")
    return pa.Table.from_arrays(columns, schema=schema)


def _codes(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int16], dict[str, int]]:
    """The index of each row's name in the dictionary, -1 for null, and the index by name."""
    column = column.unify_dictionaries()
    if not column.num_chunks:
        return np.zeros(0, np.int16), {}
    codes = [chunk.indices.fill_null(-1).to_numpy() for chunk in column.chunks]
    names = column.chunk(0).dictionary.to_pylist()
    return codes[0] if len(codes) == 1 else np.concatenate(codes), {name: place for place, name in enumerate(names)}
