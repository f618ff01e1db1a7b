"""Runs functions over Arrow batches as Spark tasks.

Owns the calls of `mapInArrow`. Knows nothing of what the functions do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Batches: TypeAlias = Iterable[pa.RecordBatch]
Task: TypeAlias = Callable[[Batches], Iterator[pa.RecordBatch]]
"""A function from batches to batches, which runs in a Spark worker or in process."""
NumberedTask: TypeAlias = Callable[[int], Batches]
"""The batches of the task with a number."""


def spark_schema(schema: pa.Schema) -> Any:
    """An Arrow schema as a Spark schema."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def map_numbers(spark: SparkSession, count: int, task: NumberedTask, schema: pa.Schema) -> DataFrame:
    """Runs a task for each number below `count`, each as a Spark task of its own."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from task(number)

    return spark.range(0, count, 1, max(count, 1)).mapInArrow(run, spark_schema(schema))


def collect_numbers(spark: SparkSession, count: int, task: NumberedTask, schema: pa.Schema) -> pa.Table:
    """The same, with all results in one table in this process."""
    table: pa.Table = map_numbers(spark, count, task, schema).toArrow()
    return table.cast(schema)
