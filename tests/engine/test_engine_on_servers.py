"""The engine on a real cluster: emit and match on buses, an engine that dies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

import shoal
from shoal.cluster.acl import ENGINE
from shoal.cluster.local import LocalCluster
from shoal.engine.shell import EngineShell
from shoal.filters.index.warm_up import warm_up
from shoal.limits import DEFAULT_LIMITS
from shoal.message import Match
from shoal.runtime import PRODUCTION

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    warm_up()


@contextlib.asynccontextmanager
async def engine(cluster: LocalCluster, holder: str = "one") -> AsyncIterator[EngineShell]:
    url = cluster.url_for(ENGINE)
    async with shoal.connect(url) as bus, await PRODUCTION.coordinator(url, 2.0) as coordinator:
        shell = EngineShell("main", bus, coordinator, holder, DEFAULT_LIMITS)
        task = asyncio.create_task(shell.run())
        try:
            yield shell
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_events_reach_the_readers_whose_filters_match() -> None:
    async with LocalCluster(1) as cluster, engine(cluster):
        async with shoal.connect(cluster.url) as bus, shoal.connect(cluster.url) as other:
            async with bus.match("class = 'STOCK' and volume > 300000") as big, other.match() as many:
                await many.add_many({"yhoo": "symbol = 'YHOO'", "small": "volume < 10", "stock": "class = 'STOCK'"})
                await other.emit({"class": "STOCK", "symbol": "YHOO", "volume": 310_000}, b"first", confirm=True)
                await other.emit({"class": "STOCK", "symbol": "MSFT", "volume": 5}, b"second", confirm=True)
                first = await big.get(5)
                assert isinstance(first, Match)
                assert (first.payload, first.publisher, first.sequence) == (b"first", other.client_id, 1)
                assert first.attributes == {"class": "STOCK", "symbol": "YHOO", "volume": 310_000}
                one, two = await many.get(5), await many.get(5)
                assert isinstance(one, Match)
                assert isinstance(two, Match)
                assert (one.payload, set(one.matched)) == (b"first", {"yhoo", "stock"})
                assert (two.payload, set(two.matched)) == (b"second", {"small", "stock"})
                await many.remove("stock", "small")
                await other.emit({"class": "STOCK", "symbol": "MSFT", "volume": 5}, b"third", confirm=True)
                await other.emit({"symbol": "YHOO"}, b"fourth", confirm=True)
                last = await many.get(5)
                assert isinstance(last, Match)
                assert last.payload == b"fourth"
