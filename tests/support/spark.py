"""What tests on Spark need: Java and PySpark. `./shoal test` brings both where it may, and says so where it cannot."""

from __future__ import annotations

import pytest

from shoal.errors import NoJavaError, NoSparkError
from shoal.pipeline.session import import_spark
from shoal.pipeline.spark.java import find_java


def need_spark() -> None:
    """Skips the test where Java or PySpark is missing, with the reason."""
    try:
        find_java()
        import_spark()
    except (NoJavaError, NoSparkError) as error:
        pytest.skip(str(error))
