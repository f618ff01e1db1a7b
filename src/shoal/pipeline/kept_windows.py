"""Load windows kept as a Delta table, for reports, what-if and forecasts: in a directory or in an object store.

Owns the table. It has the columns of a load window (`shoal.load.window`), one row for each host and for each unit on a
host, and three more:

    start_at, end_at   timestamp  the interval of the window (`end_at` is exclusive), UTC
    day                date       the day of `start_at`, UTC; the partition

`unit` is text, as `channel` in an archive. The table's description is JSON: `day_s`, the length of a day, which is
shorter in generated load, and `source`, where the windows are from.

Windows are committed about once a minute, since each commit is a file for all readers to open: a job that is killed
loses the windows since then, a job that is stopped loses none. A day with many files is compacted. Each commit names
the end of its last window (application transaction `WINDOWS_ID`), so of two jobs that keep windows in one table the
second is rejected.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from shoal.errors import PipelineError
from shoal.history.archive_location import ArchiveLocation, reason, require_deltalake
from shoal.history.archive_table import OLD_MANIFEST
from shoal.history.table import TIME, name_array, text_array
from shoal.load.window import NAME, LoadWindow, window_schema
from shoal.load_kinds import KINDS
from shoal.pipeline.archive.table_writer import TABLE_PROPERTIES, compact_day, writing

if TYPE_CHECKING:
    from deltalake import DeltaTable

TABLE_NAME: Final = "shoal load windows"
WINDOWS_ID: Final = "shoal.windows"
"""The application transaction with the end of the last window, in seconds."""
WHAT: Final = "the table of load windows"
DAY_S: Final = 86_400
COMMIT_S: Final = 60
"""Seconds of load in one commit."""
COMMIT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Size in memory from which windows are committed earlier."""
COMPACT_FILES_MIN: Final = 120
"""Number of files of a day from which they are compacted."""
SPAN_S: Final = 3600
"""Seconds of load that are read at once."""

KEPT_SCHEMA: Final = pa.schema(
    [
        pa.field("start_at", TIME),
        pa.field("end_at", TIME),
        *(
            pa.field(field.name, pa.string() if field.type == NAME or field.name == "unit" else field.type)
            for field in window_schema(KINDS)
        ),
    ]
)
"""The columns of the table, without the partition."""
_ORDER: Final = ("start_at", "kind", "host", "unit")


class WindowsInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of all windows of a table."""

    day_s: int = DAY_S
    source: str = "recorded"
    """Where the windows are from, for people."""


class WindowFile(NamedTuple):
    """A file of the table, and the first and last start of its windows, in microseconds since 1970."""

    path: str
    from_us: int
    to_us: int


class KeptWindows:
    """The table at one version. Later commits do not change it."""

    def __init__(self, location: ArchiveLocation, delta: DeltaTable) -> None:
        metadata = delta.metadata()
        if metadata.name != TABLE_NAME:
            raise PipelineError(f"{location} is a Delta table, but not one of load windows", do="name another place")
        self.location = location
        self.delta = delta
        self.info = msgspec.json.decode(metadata.description or "{}", type=WindowsInfo)
        self.end_s = delta.transaction_version(WINDOWS_ID)
        """The end of the last window; None if there is none."""

    def files(self) -> list[WindowFile]:
        """The files of the table."""
        rows = pa.table(self.delta.get_add_actions(flatten=True)).to_pylist()
        return [WindowFile(unquote(row["path"]), *(_us(row, name) for name in ("min", "max"))) for row in rows]

    def spans(self, from_us: int | None = None, to_us: int | None = None) -> list[WindowSpan]:
        """What is read at once: each span of `SPAN_S` with windows that start from `from_us` up to `to_us`
        (exclusive)."""
        length = SPAN_S * 1_000_000
        by_span: dict[int, list[str]] = {}
        for file in self.files():
            for number in range(file.from_us // length, file.to_us // length + 1):
                by_span.setdefault(number, []).append(file.path)
        spans = []
        for number, paths in sorted(by_span.items()):
            begin = max(number * length, from_us or 0)
            end = (number + 1) * length if to_us is None else min((number + 1) * length, to_us)
            if begin < end:
                spans.append(WindowSpan(self.location, tuple(paths), begin, end))
        return spans

    def windows(self) -> Iterator[LoadWindow]:
        """All windows, in order."""
        schema = window_schema(KINDS)
        for span in self.spans():
            table = span.read()
            starts = _seconds(table["start_at"])
            bounds = [*np.flatnonzero(np.diff(starts, prepend=-1)).tolist(), len(starts)]
            columns = [_of_window(table[field.name], field) for field in schema]
            whole, ends = pa.Table.from_arrays(columns, schema=schema), _seconds(table["end_at"])
            for begin, end in pairwise(bounds):
                yield LoadWindow(int(starts[begin]), int(ends[begin]), whole.slice(begin, end - begin))


class WindowSpan(NamedTuple):
    """Windows of one span of time. A Spark task can read it."""

    location: ArchiveLocation
    paths: Sequence[str]
    from_us: int
    to_us: int

    def read(self) -> pa.Table:
        """The rows of the span, window by window, with the columns of `KEPT_SCHEMA`. PipelineError if a file is missing
        or damaged."""
        files = self.location.filesystem()
        dataset = ds.FileSystemDataset.from_paths(list(self.paths), KEPT_SCHEMA, ds.ParquetFileFormat(), files)
        first, last = (pa.scalar(time_us, pa.int64()).cast(TIME) for time_us in (self.from_us, self.to_us))
        try:
            table = dataset.to_table(
                filter=(ds.field("start_at") >= first) & (ds.field("start_at") < last), use_threads=False
            )
        except (pa.ArrowException, OSError) as error:
            raise PipelineError(
                f"a file of the load windows in {self.location} cannot be read: {error}",
                do="start again if the table was compacted meanwhile, or restore a copy of the file",
            ) from error
        return table.sort_by([(name, "ascending") for name in _ORDER])


def find_windows(place: str | Path) -> KeptWindows | None:
    """The kept windows at a path or URL; None if there are none. PipelineError if they cannot be read."""
    location = ArchiveLocation.of(place)
    _check_place(location)
    return _found(location)


def _found(location: ArchiveLocation) -> KeptWindows | None:
    require_deltalake()
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return KeptWindows(location, DeltaTable(location.url))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError, msgspec.DecodeError) as error:
        raise PipelineError(
            f"{WHAT} {location} cannot be read: {reason(error)}",
            do="check the place, and the credentials and the endpoint of an object store",
        ) from error


def open_windows(place: str | Path) -> KeptWindows:
    """The kept windows at a path or URL. PipelineError if there are none, or if they cannot be read."""
    found = find_windows(place)
    if found is None:
        raise PipelineError(
            f"there are no load windows in {ArchiveLocation.of(place)}",
            do="keep some with `shoal pipeline load --keep PATH`",
        )
    return found


def _check_place(location: ArchiveLocation) -> None:
    """PipelineError if there can be no table of load windows."""
    if location.folder is None:
        return
    if location.folder.is_file():
        raise PipelineError(f"{location} is a file, not a folder", do="name another folder")
    if (location.folder / OLD_MANIFEST).is_file():
        raise PipelineError(
            f"{location} was written by an older version of Shoal",
            do=f"run `shoal pipeline archive --migrate --archive {location}` once",
        )


class WindowKeeper:
    """Adds windows to a table, which it creates if needed. Windows that are not later than all kept ones are ignored: a
    restarted job repeats some. `with` commits the last ones."""

    def __init__(
        self, place: str | Path, *, day_s: int = DAY_S, source: str = "recorded", migrating: bool = False
    ) -> None:
        self._location = ArchiveLocation.of(place)
        if not migrating:
            _check_place(self._location)
        self._table = _found(self._location) or self._created(WindowsInfo(day_s=day_s, source=source), migrating)
        if self._table.info.day_s != day_s:
            raise PipelineError(
                f"{self._location} has days of {self._table.info.day_s} s, not of {day_s} s", do="name another place"
            )
        self._until_s = self._table.end_s
        self._pending: list[pa.Table] = []
        self._bytes = self._from_s = 0

    def _created(self, info: WindowsInfo, migrating: bool) -> KeptWindows:
        from deltalake import DeltaTable, Schema
        from pyarrow.fs import FileSelector

        with writing(self._location, WHAT):
            if not migrating and self._location.filesystem().get_file_info(FileSelector("", allow_not_found=True)):
                raise PipelineError(f"{self._location} has other files", do="name an empty directory")
            delta = DeltaTable.create(
                self._location.url,
                Schema.from_arrow(KEPT_SCHEMA.append(_DAY)),
                name=TABLE_NAME,
                description=msgspec.json.encode(info).decode(),
                partition_by=[_DAY.name],
                configuration=TABLE_PROPERTIES,
            )
        return KeptWindows(self._location, delta)

    def __enter__(self) -> WindowKeeper:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.commit()

    def add(self, window: LoadWindow) -> None:
        """Keeps one more window."""
        if self._until_s is not None and window.start_s < self._until_s:
            return
        if not self._pending:
            self._from_s = window.start_s
        self._pending.append(kept_rows(window))
        self._until_s = window.end_s
        self._bytes += self._pending[-1].nbytes
        if self._until_s - self._from_s >= COMMIT_S or self._bytes >= COMMIT_BYTES_MAX:
            self.commit()

    def take(self, batch: int, windows: list[LoadWindow]) -> None:
        """Keeps the windows that a batch of a job closed."""
        for window in windows:
            self.add(window)

    def commit(self) -> None:
        """Commits the windows that were not committed yet."""
        if not self._pending:
            return
        from deltalake import write_deltalake
        from deltalake.transaction import CommitProperties, Transaction

        assert self._until_s is not None
        table = pa.concat_tables(self._pending)
        table = table.append_column(_DAY, table["start_at"].cast(_DAY.type))
        named = CommitProperties(app_transactions=[Transaction(WINDOWS_ID, self._until_s)])
        with writing(self._location, WHAT):
            write_deltalake(self._table.delta, table, mode="append", schema_mode="merge", commit_properties=named)
            self._pending, self._bytes = [], 0
            compact_day(self._table.delta, table[_DAY.name][-1].as_py(), COMPACT_FILES_MIN)


_DAY: Final = pa.field("day", pa.date32())


def kept_rows(window: LoadWindow) -> pa.Table:
    """A window as rows of `KEPT_SCHEMA`."""
    rows = window.table.num_rows
    times = [
        pa.repeat(pa.scalar(at_s * 1_000_000, pa.int64()), rows).cast(TIME) for at_s in (window.start_s, window.end_s)
    ]
    columns = [
        text_array(window.table["unit"]) if field.name == "unit" else window.table[field.name].cast(field.type)
        for field in list(KEPT_SCHEMA)[2:]
    ]
    return pa.Table.from_arrays([*times, *columns], schema=KEPT_SCHEMA)


def _of_window(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """A column as a load window has it."""
    if field.name == "unit":
        return name_array(column)
    if field.type == NAME:
        return column.combine_chunks().dictionary_encode().cast(NAME)
    return column


def _seconds(column: pa.ChunkedArray) -> Any:
    return pc.divide(column.cast(pa.int64()), 1_000_000).to_numpy()


def _us(row: dict[str, Any], which: str) -> int:
    """The first or last start of a file's windows. A file of another program may have no statistics."""
    time = row.get(f"{which}.start_at")
    if time is None:
        begin = dt.datetime.combine(row["partition.day"], dt.time(), dt.UTC)
        time = begin if which == "min" else begin + dt.timedelta(days=1)
    return (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
