"""Archives of events that jobs read, in process or on Spark, as batches of columns.

Owns the reading of both kinds of archive:

- Parquet: any Parquet file, or a folder of them. Folders named `name=value` are columns. Files whose names begin with
  `_` or `.` are ignored. On request each row comes with its place: `file`, relative to the archive, and `row`.
- recorded: the archive of recorded channels, also in an object store, and also a part of its time. Each message comes
  once; gaps and stream ends are left out. A worker reads one day of one channel at once, in memory, because all copies
  of a message are there.

On Spark, a task gets exactly the batches that `read` gives in process. Workers read the files themselves, with Arrow,
so they must see them under the same path or URL as the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from urllib.parse import unquote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shoal.errors import PipelineError
from shoal.history.archive import read_files
from shoal.history.archive_location import ArchiveLocation
from shoal.history.archive_table import ArchiveTable, channel_groups, check_migrated, open_table
from shoal.history.table import SCHEMA, channel_matches, dedupe
from shoal.pipeline.bulk_match import PLACE
from shoal.pipeline.spark.tasks import Task, map_numbers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ_ROWS: Final = 65_536
"""Rows in a batch."""
TASKS_PER_CORE: Final = 6
"""Number of Spark tasks for each core; with several, the slowest one does not leave other cores idle for long."""
TASK_BYTES_MIN: Final = 1 << 20
TASK_BYTES_MAX: Final = 128 << 20
"""Size of the row groups that one task reads, as stored in the file."""

MESSAGE_SCHEMA: Final = pa.schema(
    [field for field in SCHEMA if field.name not in ("number", "is_gap", "gap_from", "gap_to", "reason", "is_end")]
)
"""Columns of a recorded message."""
_SAME: Final = ("channel", "server", "entry", "publisher", "epoch", "sequence", "is_gap", "reason", "is_end")
"""The columns that `dedupe` needs."""
_NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
"""Hive's folder name for null."""
_DAMAGED: Final = "restore a copy of the file"
_MAGIC: Final = b"PAR1"
_ADVICE: Final = "name a Parquet file, or a folder of them"


class EventArchive(Protocol):
    """An archive that jobs can read."""

    @property
    def schema(self) -> pa.Schema:
        """All columns."""

    def read(self, columns: Sequence[str], *, place: bool = False) -> Iterator[pa.RecordBatch]:
        """The batches, read in this thread."""

    def on_spark(
        self, spark: SparkSession, columns: Sequence[str], task: Task, schema: pa.Schema, *, place: bool = False
    ) -> DataFrame:
        """The results of a task over the batches; `schema` is that of the results."""


class TimeSpan(NamedTuple):
    """A span of `published_at`, in microseconds since 1970; None is open."""

    from_us: int | None = None
    to_us: int | None = None


ALWAYS: Final = TimeSpan()


def open_archive(path: str | Path, span: TimeSpan = ALWAYS) -> EventArchive:
    """The archive at a path or URL. PipelineError if there is none, or if a span is wanted of one that has no times."""
    location = ArchiveLocation.of(path)
    folder = location.folder
    if folder is not None and not folder.exists():
        raise PipelineError(f"there is no archive at {path}", do=_ADVICE)
    check_migrated(location)
    if folder is None or (folder / "_delta_log").is_dir():
        return RecordedArchive(open_table(location), span)
    if span != ALWAYS:
        raise PipelineError(
            f"{path} is not an archive of recorded channels", do="leave out --since and --until, or name another one"
        )
    return ParquetArchive(folder)


class RowGroups(msgspec.Struct, frozen=True):
    """Some row groups of one Parquet file, which one task reads."""

    path: str
    file: str
    """The path relative to the archive."""
    groups: tuple[int, ...]
    first: int
    """Number of the first row in the file."""


class ParquetArchive:
    """A Parquet file, or a folder of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._footers: dict[Path, pq.FileMetaData] = {}
        schemas: list[pa.Schema] = []
        try:
            for file in sorted(_data_files(path)):
                footer, schema = _footer(path, file)
                self._footers[file] = footer
                schemas.append(schema)
            schema = pa.unify_schemas(schemas, promote_options="permissive") if schemas else pa.schema([])
        except pa.ArrowException as error:
            raise PipelineError(f"cannot read the archive {path}: {error}", do=_ADVICE) from error
        if not schemas:
            raise PipelineError(f"there is no Parquet in {path}", do=_ADVICE)
        folders = {name for file in self._footers for name in _folder_values(self._relative(file))}
        more = [pa.field(name, pa.string()) for name in sorted(folders - set(schema.names))]
        self._schema = pa.schema([*schema, *more])

    @property
    def schema(self) -> pa.Schema:
        """The columns of all files and folders. Folder columns are strings, since `17` may be a channel's name."""
        return self._schema

    def read(self, columns: Sequence[str], *, place: bool = False) -> Iterator[pa.RecordBatch]:
        """The batches, file by file."""
        return _rows(self._split(TASK_BYTES_MAX), columns, self._schema, place)

    def on_spark(
        self, spark: SparkSession, columns: Sequence[str], task: Task, schema: pa.Schema, *, place: bool = False
    ) -> DataFrame:
        """Each Spark task reads its own row groups, with Arrow, so that rows do not go through Java."""
        size = sum(file.stat().st_size for file in self._footers)
        tasks = TASKS_PER_CORE * spark.sparkContext.defaultParallelism
        parts = list(self._split(min(max(size // tasks, TASK_BYTES_MIN), TASK_BYTES_MAX)))
        wanted, known = list(columns), self._schema

        def run(number: int) -> Iterator[pa.RecordBatch]:
            return task(_rows([parts[number]], wanted, known, place))

        return map_numbers(spark, len(parts), run, schema)

    def _split(self, bytes_max: int) -> Iterator[RowGroups]:
        """Splits the files into parts of about `bytes_max`, each at least one row group."""
        for file, footer in self._footers.items():
            path, name = str(file.resolve()), self._relative(file)
            groups: list[int] = []
            first = row = size = 0
            for group in range(footer.num_row_groups):
                groups.append(group)
                row += footer.row_group(group).num_rows
                size += sum(
                    footer.row_group(group).column(column).total_compressed_size for column in range(footer.num_columns)
                )
                if size >= bytes_max or group + 1 == footer.num_row_groups:
                    yield RowGroups(path, name, tuple(groups), first)
                    groups, first, size = [], row, 0

    def _relative(self, file: Path) -> str:
        return str(file.relative_to(self._path if self._path.is_dir() else self._path.parent))


class RecordedArchive:
    """The archive of recorded channels as it is now, or a span of it. With a pattern, files that cannot have a channel
    that it matches are left out."""

    def __init__(self, table: ArchiveTable, span: TimeSpan, pattern: str | None = None) -> None:
        if not table.files:
            raise PipelineError(f"the archive {table.location} is empty", do="run `shoal pipeline archive` first")
        files = [file for file in table.files if file.may_hold(None, *span)]
        if pattern is not None and files:
            files = [
                file for file in files if file.channel != file.channel_max or channel_matches(pattern, file.channel)
            ]
            if not files:
                raise PipelineError(
                    f"the archive {table.location} has no channel that matches {pattern!r} in that time",
                    do="give another pattern or time",
                )
        if not files:
            raise PipelineError(
                f"the archive {table.location} has no messages of that time",
                do="give another time, or run `shoal pipeline archive` first",
            )
        self._location = table.location
        self._span = span
        self._days = [[file.path for file in group] for group in channel_groups(files)]

    @property
    def schema(self) -> pa.Schema:
        """The columns of a message."""
        return MESSAGE_SCHEMA

    def read(self, columns: Sequence[str], *, place: bool = False) -> Iterator[pa.RecordBatch]:
        """The batches, one day of one channel after the other. Messages have keys, so `place` is not used."""
        return _messages(self._location, self._days, self._span, columns)

    def on_spark(
        self, spark: SparkSession, columns: Sequence[str], task: Task, schema: pa.Schema, *, place: bool = False
    ) -> DataFrame:
        """Each Spark task reads all files of one day of one channel."""
        location, days, span, wanted = self._location, self._days, self._span, list(columns)

        def run(number: int) -> Iterator[pa.RecordBatch]:
            return task(_messages(location, [days[number]], span, wanted))

        return map_numbers(spark, len(days), run, schema)


def _messages(
    location: ArchiveLocation, days: Iterable[Sequence[str]], span: TimeSpan, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The messages of a span in some days of channels, each once."""
    wanted = [name for name in SCHEMA.names if name in {*columns, *_SAME}]
    filesystem = location.filesystem()
    for paths in days:
        try:
            rows = dedupe(read_files(filesystem, paths, wanted, from_us=span.from_us, to_us=span.to_us))
        except FileNotFoundError as error:
            raise PipelineError(
                f"a file of the archive is gone ({error}): it was replaced or removed, and the job ran for longer than "
                "the archive keeps such files",
                do="start the job again",
            ) from error
        rows = rows.filter(pc.invert(pc.or_(rows["is_gap"], rows["is_end"]))).select(list(columns))
        yield from rows.combine_chunks().to_batches(READ_ROWS)


def _rows(
    parts: Iterable[RowGroups], columns: Sequence[str], schema: pa.Schema, place: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of some row groups, with these columns of the archive, and their place if wanted."""
    fields = [schema.field(name) for name in columns]
    for part in parts:
        folders, row = _folder_values(part.file), part.first
        try:
            with pq.ParquetFile(part.path) as file:
                held = [name for name in columns if name in file.schema_arrow.names]
                groups = file.iter_batches(READ_ROWS, list(part.groups), held or file.schema_arrow.names[:1], False)
                for batch in groups:
                    arrays = [_column(batch, field, folders) for field in fields]
                    made = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
                    yield _placed(made, part.file, row) if place else made
                    row += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise PipelineError(f"{part.path} cannot be read: {error}", do=_DAMAGED) from error


def _footer(archive: Path, file: Path) -> tuple[pq.FileMetaData, pa.Schema]:
    """A file's metadata and schema. PipelineError names the file if it cannot be read."""
    try:
        with pq.ParquetFile(file) as opened:
            return opened.metadata, opened.schema_arrow.remove_metadata()
    except (pa.ArrowException, OSError) as error:
        do = _DAMAGED if archive.is_dir() and file.suffix == ".parquet" else _ADVICE
        raise PipelineError(f"cannot read the archive file {file}: {error}", do=do) from error


def _column(batch: pa.RecordBatch, field: pa.Field, folders: Mapping[str, str | None]) -> pa.Array:
    """A column of the archive for a batch of one file: from the batch, or from the folder's name."""
    if field.name in batch.schema.names:
        column = batch.column(batch.schema.get_field_index(field.name))
        return column if column.type == field.type else column.cast(field.type)
    return pa.array([folders.get(field.name)], field.type).take(pa.array(np.zeros(batch.num_rows, np.int64)))


def _folder_values(file: str) -> dict[str, str | None]:
    """The columns in the names of a file's folders."""
    pairs = (part.partition("=") for part in Path(file).parts[:-1] if "=" in part)
    return {name: None if value == _NULL_FOLDER else unquote(value) for name, _, value in pairs}


def _data_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in path.rglob("*"):
        if file.is_file() and not any(part.startswith(("_", ".")) for part in file.relative_to(path).parts):
            yield file


def is_output(path: Path) -> bool:
    """Whether a path is the output of a job: a Parquet file, or a folder with only Parquet files and Spark's own files
    beside them. Nothing else is ever replaced."""
    if path.is_file():
        return _is_parquet(path)
    files = (file for file in path.rglob("*") if not file.is_dir() or file.is_symlink())
    return all(file.name == "_SUCCESS" or file.suffix == ".crc" or _is_parquet(file) for file in files)


def _is_parquet(file: Path) -> bool:
    """Whether a file begins like a Parquet file; an unfinished one may be empty."""
    try:
        with file.open("rb") as stream:
            return stream.read(len(_MAGIC)) in (_MAGIC, b"")
    except OSError:
        return False


def _placed(batch: pa.RecordBatch, file: str, row: int) -> pa.RecordBatch:
    files = pa.array([file]).take(pa.array(np.zeros(batch.num_rows, np.int64)))
    rows = pa.array(np.arange(row, row + batch.num_rows))
    return pa.RecordBatch.from_arrays([*batch.columns, files, rows], names=[*batch.schema.names, *PLACE])
