"""Archives as jobs read them, in process or on Spark, as batches of columns.

Owns the reading of both kinds:

- plain: a Parquet file or a folder of them. Folders named `name=value` are columns. Files whose names begin with `_` or
  `.` are no part of it. A row's place (`file`, relative to the archive, and `row`) comes with it if it is asked for;
- recorded: the archive of recorded channels, read by its manifest, each message once and nothing but messages. What
  is read at once is a channel's day: there all records of one message are, and a worker holds it in memory.

On Spark a task, a function from batches to batches, gets exactly the batches that `read` gives in process: workers read
themselves, by Arrow, and must see the files where the driver does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from urllib.parse import unquote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shoal.errors import PipelineError
from shoal.history import manifest as manifests
from shoal.history.table import SCHEMA, dedupe
from shoal.pipeline.matching import PLACE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Batches: TypeAlias = Iterable[pa.RecordBatch]
Task: TypeAlias = Callable[[Batches], Iterator[pa.RecordBatch]]

READ_ROWS: Final = 65_536
"""Rows of a batch that is read in process."""
PARTS_PER_CORE: Final = 6
"""Tasks for each core: so many that the last one to end does not keep the others waiting for long."""
PART_BYTES_MIN: Final = 1 << 20
PART_BYTES_MAX: Final = 128 << 20
"""Bytes of a part, in the file."""

MESSAGE_SCHEMA: Final = pa.schema(
    [field for field in SCHEMA if field.name not in ("number", "is_gap", "gap_from", "gap_to", "reason", "is_end")]
)
"""What there is of a recorded message."""
_SAME: Final = ("channel", "server", "entry", "publisher", "epoch", "sequence", "is_gap", "reason", "is_end")
"""The columns by which records of one message are known."""
_NOTHING: Final = "__HIVE_DEFAULT_PARTITION__"
"""The name of a folder for rows without a value."""
_DAMAGED: Final = "put back a copy of the file"
_MAGIC: Final = b"PAR1"
_ADVICE: Final = "name a Parquet file, or a folder of them"


class Archive(Protocol):
    """What jobs read."""

    @property
    def schema(self) -> pa.Schema:
        """The columns that can be asked for."""

    def read(self, columns: Sequence[str], *, place: bool = False) -> Iterator[pa.RecordBatch]:
        """The batches, on this thread."""

    def on_spark(
        self, spark: SparkSession, columns: Sequence[str], task: Task, schema: pa.Schema, *, place: bool = False
    ) -> DataFrame:
        """What a task makes of the batches, whose columns are `schema`."""


def open_archive(path: Path) -> Archive:
    """The archive at a path. PipelineError if there is none."""
    if not path.exists():
        raise PipelineError(f"there is no archive at {path}", do=_ADVICE)
    return Recorded(path) if (path / manifests.NAME).is_file() else Plain(path)


class Part(msgspec.Struct, frozen=True):
    """Some groups of rows of one file: what a task reads."""

    path: str
    file: str
    """The same, relative to the archive."""
    groups: tuple[int, ...]
    first: int
    """The place of the first row in the file."""


class Plain:
    """Parquet files."""

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
        """The columns of all files, and those of the folders, which are text: `17` is the name of a channel too."""
        return self._schema

    def read(self, columns: Sequence[str], *, place: bool = False) -> Iterator[pa.RecordBatch]:
        """The batches, file by file."""
        return _rows(self._parts(PART_BYTES_MAX), columns, self._schema, place)

    def on_spark(
        self, spark: SparkSession, columns: Sequence[str], task: Task, schema: pa.Schema, *, place: bool = False
    ) -> DataFrame:
        """Workers read, each its groups of rows: what comes from Arrow need not go through Java."""
        size = sum(file.stat().st_size for file in self._footers)
        parts_wanted = PARTS_PER_CORE * spark.sparkContext.defaultParallelism
        parts = list(self._parts(min(max(size // parts_wanted, PART_BYTES_MIN), PART_BYTES_MAX)))
        wanted, known = list(columns), self._schema

        def run(batches: Batches) -> Iterator[pa.RecordBatch]:
            mine = (parts[number] for batch in batches for number in batch.column(0).to_pylist())
            yield from task(_rows(mine, wanted, known, place))

        return spark.range(0, len(parts), 1, len(parts)).mapInArrow(run, spark_schema(schema))

    def _parts(self, bytes_max: int) -> Iterator[Part]:
        """The files in parts of about so many bytes: at least a group of rows each."""
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
                    yield Part(path, name, tuple(groups), first)
                    groups, first, size = [], row, 0

    def _relative(self, file: Path) -> str:
        return str(file.relative_to(self._path if self._path.is_dir() else self._path.parent))


class Recorded:
    """The archive of recorded channels, as its manifest is now."""

    def __init__(self, path: Path) -> None:
        found = manifests.read_manifest(path)
        if found is None or not found.files:
            raise PipelineError(f"the archive {path} is empty", do="run shoal pipeline archive first")
        days: dict[tuple[str, str], list[str]] = {}
        for file in found.files:
            days.setdefault((file.day, file.channel), []).append(str((path / file.path).resolve()))
        self._days = [days[key] for key in sorted(days)]

    @property
    def schema(self) -> pa.Schema:
        """The columns of a message."""
        return MESSAGE_SCHEMA

    def read(self, columns: Sequence[str], *, place: bool = False) -> Iterator[pa.RecordBatch]:
        """The batches, a channel's day after the other. A message is known by itself, not by its place."""
        return _messages(self._days, columns)

    def on_spark(
        self, spark: SparkSession, columns: Sequence[str], task: Task, schema: pa.Schema, *, place: bool = False
    ) -> DataFrame:
        """Workers read: all files of a channel's day are one task's."""
        days, wanted = self._days, list(columns)

        def run(batches: Batches) -> Iterator[pa.RecordBatch]:
            mine = (days[number] for batch in batches for number in batch.column(0).to_pylist())
            yield from task(_messages(mine, wanted))

        return spark.range(0, len(days), 1, len(days)).mapInArrow(run, spark_schema(schema))


def _messages(days: Iterable[Sequence[str]], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The messages of channels' days, each once."""
    wanted = [name for name in SCHEMA.names if name in {*columns, *_SAME}]
    for files in days:
        try:
            parts = [_read(file, wanted) for file in files]
        except FileNotFoundError as error:
            raise PipelineError(
                f"a file of the archive is gone ({error}): the archive was compacted while the job ran, and replaced "
                "files are removed after ten minutes",
                do="start the job again",
            ) from error
        rows = dedupe(pa.concat_tables(parts))
        rows = rows.filter(pc.invert(pc.or_(rows["is_gap"], rows["is_end"]))).select(list(columns))
        yield from rows.combine_chunks().to_batches(READ_ROWS)


def _read(file: str, columns: Sequence[str]) -> pa.Table:
    """Columns of a file of recorded messages. FileNotFoundError if it is gone."""
    try:
        return pq.read_table(file, columns=columns, use_threads=False, partitioning=None)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise PipelineError(f"{file} cannot be read: {error}", do=_DAMAGED) from error


def spark_schema(schema: pa.Schema) -> Any:
    """Columns in Spark's words."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def _rows(parts: Iterable[Part], columns: Sequence[str], schema: pa.Schema, place: bool) -> Iterator[pa.RecordBatch]:
    """The rows of parts of files, with these columns of the archive, and their place if that is wanted."""
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
    """What a file says of itself. PipelineError names the file if it cannot be read."""
    try:
        with pq.ParquetFile(file) as opened:
            return opened.metadata, opened.schema_arrow.remove_metadata()
    except (pa.ArrowException, OSError) as error:
        do = _DAMAGED if archive.is_dir() and file.suffix == ".parquet" else _ADVICE
        raise PipelineError(f"cannot read the archive file {file}: {error}", do=do) from error


def _column(batch: pa.RecordBatch, field: pa.Field, folders: Mapping[str, str | None]) -> pa.Array:
    """A column of the archive for a batch of one file."""
    if field.name in batch.schema.names:
        column = batch.column(batch.schema.get_field_index(field.name))
        return column if column.type == field.type else column.cast(field.type)
    return pa.array([folders.get(field.name)], field.type).take(pa.array(np.zeros(batch.num_rows, np.int64)))


def _folder_values(file: str) -> dict[str, str | None]:
    """The columns that are names of folders."""
    pairs = (part.partition("=") for part in Path(file).parts[:-1] if "=" in part)
    return {name: None if value == _NOTHING else unquote(value) for name, _, value in pairs}


def _data_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in path.rglob("*"):
        if file.is_file() and not any(part.startswith(("_", ".")) for part in file.relative_to(path).parts):
            yield file


def is_output(path: Path) -> bool:
    """Whether a path is what a job writes: a Parquet file, or a folder with nothing but those and what Spark puts
    beside them. Nothing else is ever replaced."""
    if path.is_file():
        return _is_parquet(path)
    files = (file for file in path.rglob("*") if not file.is_dir() or file.is_symlink())
    return all(file.name == "_SUCCESS" or file.suffix == ".crc" or _is_parquet(file) for file in files)


def _is_parquet(file: Path) -> bool:
    """Whether a file begins as Parquet does; one that was cut off may be empty."""
    try:
        with file.open("rb") as stream:
            return stream.read(len(_MAGIC)) in (_MAGIC, b"")
    except OSError:
        return False


def _placed(batch: pa.RecordBatch, file: str, row: int) -> pa.RecordBatch:
    files = pa.array([file]).take(pa.array(np.zeros(batch.num_rows, np.int64)))
    rows = pa.array(np.arange(row, row + batch.num_rows))
    return pa.RecordBatch.from_arrays([*batch.columns, files, rows], names=[*batch.schema.names, *PLACE])
