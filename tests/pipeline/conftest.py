"""One Spark session for all tests of a process: it takes seconds to start, and no test may change its settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from shoal.pipeline.session import SessionOptions, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two threads of this machine."""
    with running(SessionOptions(name="tests")) as session:
        yield session
