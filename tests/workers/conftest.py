"""The places in which tests of workers run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.queue_store import store_server
from tests.support.redis_server import RedisServer
from tests.workers.places import Place, open_place


@pytest.fixture(scope="session")
def store() -> Iterator[RedisServer]:
    """A store that tests share."""
    with store_server() as server:
        yield server


@pytest.fixture(params=["real", "memory"])
async def place(request: pytest.FixtureRequest, store: RedisServer) -> AsyncIterator[Place]:
    """Queues on a real store, and without a server."""
    async with open_place(request.param, store) as found:
        yield found
