"""The Spark data source "shoal".

PySpark finds it by itself where this package can be imported; `register` does the same explicitly. What it does is in
`shoal.pipeline.source`.

    spark.readStream.format("shoal").option("kind", "telemetry").load()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.pipeline.source.source import ShoalSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DefaultSource", "register"]


class DefaultSource(ShoalSource):
    """What PySpark looks for in modules whose names begin with `pyspark_`."""


def register(spark: SparkSession) -> None:
    """Makes the format "shoal" known to a session."""
    spark.dataSource.register(DefaultSource)
