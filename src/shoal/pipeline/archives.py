"""Archives as jobs read them: Parquet in a file or a folder of files, in process or by Spark, as batches of columns.

Owns the reading. Both ways give the same columns, and a row's place (`file`, relative to the archive, and `row`) if it
is asked for. Folders named `name=value` are columns. Files whose names begin with `_` or `.` are no part of an archive:
a manifest, say, or what a job has not finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from shoal.errors import PipelineError
from shoal.pipeline.matching import PLACE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ_ROWS: Final = 65_536
"""Rows of a batch that is read in process."""
PARTS_PER_CORE: Final = 6
"""Tasks for each core: so many that the last one to end does not keep the others waiting for long."""
PART_BYTES_MIN: Final = 1 << 20
PART_BYTES_MAX: Final = 128 << 20
"""Spark's own default."""


def open_archive(path: Path) -> ds.Dataset:
    """The archive at a path. PipelineError if there is none."""
    advice = "name a Parquet file, or a folder of them"
    if not path.exists():
        raise PipelineError(f"there is no archive at {path}", do=advice)
    try:
        archive = ds.dataset(path, format="parquet", partitioning=_folders(path), ignore_prefixes=["_", "."])
        files = archive.files
    except (pa.ArrowException, OSError, ValueError) as error:
        raise PipelineError(f"cannot read the archive {path}: {error}", do=advice) from error
    if not files:
        raise PipelineError(f"there is no Parquet in {path}", do=advice)
    return archive


def read(path: Path, columns: Sequence[str], *, place: bool = False) -> Iterator[pa.RecordBatch]:
    """The batches of an archive, file by file, on this thread."""
    archive = open_archive(path)
    root = path if path.is_dir() else path.parent
    for fragment in sorted(archive.get_fragments(), key=lambda fragment: str(fragment.path)):
        batches = fragment.to_batches(
            schema=archive.schema, columns=list(columns), batch_size=READ_ROWS, use_threads=False
        )
        if not place:
            yield from (batch for batch in batches if batch.num_rows)
            continue
        file, row = str(Path(fragment.path).relative_to(root)), 0
        for batch in batches:
            yield _placed(batch, file, row)
            row += batch.num_rows


def on_spark(spark: SparkSession, path: Path, columns: Sequence[str], *, place: bool = False) -> DataFrame:
    """The same rows as a data frame. The place is Spark's: `relative` makes it ours."""
    from pyspark.sql import functions

    before = {name: spark.conf.get(name) for name in (_PART_BYTES, _INFERENCE)}
    size = sum(file.stat().st_size for file in _files(path))
    parts = PARTS_PER_CORE * spark.sparkContext.defaultParallelism
    spark.conf.set(_PART_BYTES, str(min(max(size // parts, PART_BYTES_MIN), PART_BYTES_MAX)))
    spark.conf.set(_INFERENCE, "false")
    try:
        frame = spark.read.parquet(str(path))
        chosen = [functions.col(f"`{name}`") for name in columns]
        if place:
            chosen.append(functions.col("_metadata.file_path").alias(PLACE[0]))
            chosen.append(functions.col("_metadata.row_index").alias(PLACE[1]))
        frame = frame.select(*chosen)
        frame._jdf.queryExecution().executedPlan()  # files are divided by the settings of this moment
        return frame
    finally:
        for name, value in before.items():
            if value is not None:
                spark.conf.set(name, value)


def relative(root: Path) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Makes Spark's names of files (addresses) those that `read` has."""
    folder = str((root if root.is_dir() else root.parent).resolve())

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            at = batch.schema.get_field_index(PLACE[0])
            coded = batch.column(at).dictionary_encode()
            names = [unquote(str(name)).removeprefix("file:") for name in coded.dictionary.to_pylist()]
            short = pa.array([f"/{name.lstrip('/')}".removeprefix(folder).lstrip("/") for name in names], pa.string())
            yield batch.set_column(at, batch.schema.field(at), short.take(coded.indices))

    return run


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """The columns that workers get for a data frame."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema: pa.Schema = to_arrow_schema(frame.schema)
    return schema


def spark_schema(schema: pa.Schema) -> Any:
    """The columns that workers give, in Spark's words."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


_PART_BYTES: Final = "spark.sql.files.maxPartitionBytes"
_INFERENCE: Final = "spark.sql.sources.partitionColumnTypeInference.enabled"


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in path.rglob("*"):
        if file.is_file() and not any(part.startswith(("_", ".")) for part in file.relative_to(path).parts):
            yield file


def _folders(path: Path) -> ds.Partitioning | None:
    """The columns that are names of folders. They are text: what looks like a number is the name of a channel too."""
    folders = {part for file in _files(path) for part in file.relative_to(path).parts[:-1] if "=" in part}
    names = sorted({folder.partition("=")[0] for folder in folders})
    return ds.partitioning(pa.schema([(name, pa.string()) for name in names]), flavor="hive") if names else None


def _placed(batch: pa.RecordBatch, file: str, row: int) -> pa.RecordBatch:
    files = pa.DictionaryArray.from_arrays(np.zeros(batch.num_rows, np.int32), pa.array([file])).dictionary_decode()
    rows = pa.array(np.arange(row, row + batch.num_rows))
    return pa.RecordBatch.from_arrays([*batch.columns, files, rows], names=[*batch.schema.names, *PLACE])
