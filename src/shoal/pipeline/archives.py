"""Archives as jobs read them, in process or on Spark, as batches of columns.

Owns the reading of both kinds:

- plain: a Parquet file or a folder of them. Folders named `name=value` are columns. Files whose names begin with `_` or
  `.` are no part of it. A row's place (`file`, relative to the archive, and `row`) comes with it if it is asked for;
- recorded: the archive of recorded channels, read by its manifest, each message once and nothing but messages. What
  is read at once is a channel's day: there all records of one message are, and a worker holds it in memory.

On Spark a task, a function from batches to batches, gets exactly the batches that `read` gives in process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
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
"""Spark's own default."""

MESSAGE_SCHEMA: Final = pa.schema(
    [field for field in SCHEMA if field.name not in ("number", "is_gap", "gap_from", "gap_to", "reason", "is_end")]
)
"""What there is of a recorded message."""
_SAME: Final = ("channel", "server", "entry", "publisher", "epoch", "sequence", "is_gap", "reason", "is_end")
"""The columns by which records of one message are known."""
_PART_BYTES: Final = "spark.sql.files.maxPartitionBytes"
_INFERENCE: Final = "spark.sql.sources.partitionColumnTypeInference.enabled"
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


class Plain:
    """Parquet files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._files = ds.dataset(path, format="parquet", partitioning=_folders(path), ignore_prefixes=["_", "."])
        except (pa.ArrowException, OSError, ValueError) as error:
            raise PipelineError(f"cannot read the archive {path}: {error}", do=_ADVICE) from error
        if not self._files.files:
            raise PipelineError(f"there is no Parquet in {path}", do=_ADVICE)

    @property
    def schema(self) -> pa.Schema:
        """The columns of all files, and those of the folders."""
        return self._files.schema

    def read(self, columns: Sequence[str], *, place: bool = False) -> Iterator[pa.RecordBatch]:
        """The batches, file by file."""
        root = self._path if self._path.is_dir() else self._path.parent
        for fragment in sorted(self._files.get_fragments(), key=lambda fragment: str(fragment.path)):
            file, row = str(Path(fragment.path).relative_to(root)), 0
            for batch in fragment.to_batches(
                schema=self.schema, columns=list(columns), batch_size=READ_ROWS, use_threads=False
            ):
                if batch.num_rows:
                    yield _placed(batch, file, row) if place else batch
                row += batch.num_rows

    def on_spark(
        self, spark: SparkSession, columns: Sequence[str], task: Task, schema: pa.Schema, *, place: bool = False
    ) -> DataFrame:
        """Spark reads the files and divides them."""
        from pyspark.sql import functions

        chosen = [functions.col(f"`{name}`") for name in columns]
        if place:
            chosen.append(functions.col("_metadata.file_path").alias(PLACE[0]))
            chosen.append(functions.col("_metadata.row_index").alias(PLACE[1]))
            task = _after(_relative(self._path), task)
        before = {name: spark.conf.get(name) for name in (_PART_BYTES, _INFERENCE)}
        size = sum(file.stat().st_size for file in _data_files(self._path))
        parts = PARTS_PER_CORE * spark.sparkContext.defaultParallelism
        spark.conf.set(_PART_BYTES, str(min(max(size // parts, PART_BYTES_MIN), PART_BYTES_MAX)))
        spark.conf.set(_INFERENCE, "false")
        try:
            frame = spark.read.parquet(str(self._path)).select(*chosen).mapInArrow(task, spark_schema(schema))
            frame._jdf.queryExecution().executedPlan()  # files are divided by the settings of this moment
            return frame
        finally:
            for name, value in before.items():
                if value is not None:
                    spark.conf.set(name, value)


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
            parts = [pq.read_table(file, columns=wanted, use_threads=False, partitioning=None) for file in files]
        except (pa.ArrowException, OSError) as error:
            raise PipelineError(f"a file of the archive cannot be read: {error}", do="start the job again") from error
        rows = dedupe(pa.concat_tables(parts))
        rows = rows.filter(pc.invert(pc.or_(rows["is_gap"], rows["is_end"]))).select(list(columns))
        yield from rows.combine_chunks().to_batches(READ_ROWS)


def spark_schema(schema: pa.Schema) -> Any:
    """Columns in Spark's words."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def _after(first: Task, then: Task) -> Task:
    """Two tasks as one."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        yield from then(first(batches))

    return run


def _relative(path: Path) -> Task:
    """Makes Spark's names of files (addresses) those that `read` has."""
    folder = str((path if path.is_dir() else path.parent).resolve())

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            at = batch.schema.get_field_index(PLACE[0])
            coded = batch.column(at).dictionary_encode()
            names = [unquote(str(name)).removeprefix("file:") for name in coded.dictionary.to_pylist()]
            short = pa.array([f"/{name.lstrip('/')}".removeprefix(folder).lstrip("/") for name in names], pa.string())
            yield batch.set_column(at, batch.schema.field(at), short.take(coded.indices))

    return run


def _data_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in path.rglob("*"):
        if file.is_file() and not any(part.startswith(("_", ".")) for part in file.relative_to(path).parts):
            yield file


def _folders(path: Path) -> ds.Partitioning | None:
    """The columns that are names of folders. They are text: what looks like a number is the name of a channel too."""
    folders = {part for file in _data_files(path) for part in file.relative_to(path).parts[:-1] if "=" in part}
    names = sorted({folder.partition("=")[0] for folder in folders})
    return ds.partitioning(pa.schema([(name, pa.string()) for name in names]), flavor="hive") if names else None


def _placed(batch: pa.RecordBatch, file: str, row: int) -> pa.RecordBatch:
    files = pa.DictionaryArray.from_arrays(np.zeros(batch.num_rows, np.int32), pa.array([file])).dictionary_decode()
    rows = pa.array(np.arange(row, row + batch.num_rows))
    return pa.RecordBatch.from_arrays([*batch.columns, files, rows], names=[*batch.schema.names, *PLACE])
