"""One Spark session for all tests of a process: it takes seconds to start, and no test may change its settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from shoal.errors import NoJavaError, NoSparkError
from shoal.pipeline.java import find_java
from shoal.pipeline.session import SessionOptions, import_spark, running, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def spark(shared: SparkSession) -> SparkSession:
    """A session on two threads of this machine, made the active one: some tests work in threads of their own."""
    return session()


@pytest.fixture(scope="session")
def shared() -> Iterator[SparkSession]:
    """The same for all tests."""
    try:
        find_java()
        import_spark()
    except (NoJavaError, NoSparkError) as error:
        pytest.skip(str(error))
    with running(SessionOptions(name="tests")) as found:
        yield found
