"""One store for all tests of queues that do not harm it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.queue_store import store_server
from tests.support.redis_server import RedisServer


@pytest.fixture(scope="session")
def store() -> Iterator[RedisServer]:
    """A store that tests share. Each test uses queues of its own."""
    with store_server() as server:
        yield server
