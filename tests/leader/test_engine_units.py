"""The balancer's view of an engine: its report and what is wanted of it; and what it writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec
import pytest
from tests.support.connections import connect_coordinator
from tests.support.redis_server import RedisServer

from shoal.balance.change import Units
from shoal.balance.engine_entry import EngineRequest, Layers
from shoal.coordination.redis import RedisCoordinator
from shoal.engine.director import Wanted
from shoal.engine.engine_report import (
    EngineReport,
    MemberReport,
    decode_wanted,
    encode_report,
    encode_wanted,
    report_key,
    wanted_key,
)
from shoal.errors import ConflictError
from shoal.leader.engine_units import SILENT_S, EngineUnits
from shoal.load.engine_load import EngineLoad, ProcessLoad

NAMES: Final = ("engine-main-1-9f1c2a33", "engine-4711-00c0ffee")
REPORT: Final = EngineReport(
    instance=1,
    configuration="1-1-1",
    phase="idle",
    head=NAMES[0],
    access_points=[NAMES[0]],
    matchers=[NAMES[0]],
    exits=[NAMES[0]],
    members=[MemberReport(name, 1.0, 0) for name in NAMES],
    load=EngineLoad(5.0, 60.0, 100.0, processes=tuple(ProcessLoad(name) for name in NAMES)),
)


class Site:
    """A coordinator with an engine, and the balancer's view of it."""

    def __init__(self, coordinator: RedisCoordinator) -> None:
        self.coordinator = coordinator
        self.now = 100.0
        self.engines = EngineUnits(coordinator, asyncio.Event(), lambda: self.now, lambda: 3)

    async def report(self, report: EngineReport = REPORT) -> None:
        await self.coordinator.put(report_key("main"), encode_report(report))

    async def want(self, wanted: Wanted) -> int:
        return await self.coordinator.put(wanted_key("main"), encode_wanted(wanted))

    async def units(self) -> Units:
        for mirror in self.engines.mirrors:
            await mirror.load()
        return self.engines.units


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    with RedisServer() as store:
        async with await connect_coordinator(f"{store.host}:{store.port}") as coordinator:
            yield Site(coordinator)


async def test_without_an_engine_there_is_nothing(site: Site) -> None:
    assert await site.units() == Units({}, {})
    await site.want(Wanted(2))
    assert await site.units() == Units({}, {})


async def test_an_engine_is_what_it_reports_and_what_is_wanted_of_it(site: Site) -> None:
    await site.report()
    units = await site.units()
    (entry,) = units.entries.values()
    assert (entry.unit, entry.layers, entry.load) == (b"main", Layers(1, 1, 1), REPORT.load)
    assert (entry.revision, entry.wanted, entry.is_pinned, entry.startable) == (0, None, False, 1)
    assert units.hosts == {"engine-main-1", "engine-4711"}
    assert units.requests == {}
    version = await site.want(Wanted(2, by="plan-0"))
    units = await site.units()
    assert units.requests == {b"main": EngineRequest(b"main", "plan-0", Layers(1, 2, 1), version)}
    await site.report(msgspec.structs.replace(REPORT, matchers=list(NAMES)))
    units = await site.units()
    assert (units.entries[b"main"].layers, units.requests) == (Layers(1, 2, 1), {})
    await site.want(Wanted(3, 1))  # there are two processes: nobody waits for the third
    units = await site.units()
    assert (units.entries[b"main"].is_pinned, units.requests) == (True, {})


async def test_an_engine_that_reports_no_more_is_left_out(site: Site) -> None:
    await site.report()
    assert (await site.units()).entries
    site.now += SILENT_S + 0.1
    assert not (await site.units()).entries
    await site.report()
    assert (await site.units()).entries


async def test_a_request_keeps_processes_left_out_and_is_not_written_over_an_operator(site: Site) -> None:
    version = await site.want(Wanted(1, 1, (NAMES[1],), by="auto"))
    await site.report()
    await site.units()
    write = site.engines.write(EngineRequest(b"main", "plan-0", Layers(1, 2, 1), version))
    assert write.value is not None
    assert decode_wanted(write.value) == Wanted(2, 1, (NAMES[1],), by="plan-0")
    await site.want(Wanted(1))
    (outcome,) = await site.coordinator.write_all([write])
    assert isinstance(outcome, ConflictError)
