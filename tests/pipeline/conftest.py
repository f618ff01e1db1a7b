"""One Spark session for all tests of a process: it takes seconds to start, and no test may change its settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.support.spark import need_spark

from shoal.pipeline.session import SessionOptions, running, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def spark(shared: SparkSession) -> SparkSession:
    """A session on two threads of this machine, made the active one: some tests work in threads of their own."""
    return session()


@pytest.fixture(scope="session")
def shared() -> Iterator[SparkSession]:
    """The same for all tests."""
    need_spark()
    with running(SessionOptions(name="tests")) as found:
        yield found
