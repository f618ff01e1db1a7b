"""One real cluster for all tests of a session that do not need their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.cluster_thread import ClusterThread

import shoal


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[ClusterThread]:
    with ClusterThread(servers=3) as cluster:
        yield cluster


@pytest.fixture
def url(shared_cluster: ClusterThread) -> str:
    return shared_cluster.url


@pytest.fixture
async def bus(url: str) -> AsyncIterator[shoal.Bus]:
    async with shoal.connect(url) as opened:
        yield opened


@pytest.fixture
async def other(url: str) -> AsyncIterator[shoal.Bus]:
    async with shoal.connect(url) as opened:
        yield opened
