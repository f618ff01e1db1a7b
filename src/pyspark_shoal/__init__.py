"""Registers the Spark data source "shoal".

PySpark finds a package named `pyspark_*` with a `DefaultSource` by itself, wherever it can be imported. In other
sessions `register` does the same. The source itself is `shoal.pipeline.source`. `submit.py` is the program that
`spark-submit` runs for jobs; Python puts its folder on the import path, so no module here may have the name of another.

    spark.readStream.format("shoal").option("kind", "telemetry").load()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.pipeline.source.datasource import ShoalSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DefaultSource", "register"]


class DefaultSource(ShoalSource):
    """The class that PySpark looks for."""


def register(spark: SparkSession) -> None:
    """Makes the format "shoal" known to a session."""
    spark.dataSource.register(DefaultSource)
