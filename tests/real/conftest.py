"""One real cluster for all tests of a session that do not need their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.cluster_thread import ClusterThread
from tests.support.command import run_json_command
from tests.support.one_worker import only_one_worker

import shoal
from shoal.cluster.acl import ADMIN
from shoal.cluster.local import LocalCluster


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterThread]:
    only_one_worker("shared_cluster", tmp_path_factory)
    with ClusterThread(servers=3, stores=1, engine=True) as cluster:
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


@pytest.fixture
def admin(shared_cluster: ClusterThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of the test log in as administrator of the shared cluster."""

    async def url(cluster: LocalCluster) -> str:
        return cluster.url_for(ADMIN)

    monkeypatch.setenv("SHOAL_COORDINATOR", shared_cluster.call(url))


@pytest.fixture
async def channel(
    admin: None, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> AsyncIterator[str]:
    """A recorded channel of the test's own."""
    name = f"{request.path.stem}.{request.node.name}"
    await run_json_command(capsys, "channels", "record", name)
    yield name
    await run_json_command(capsys, "channels", "record", name, "--off")
