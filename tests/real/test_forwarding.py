"""Two servers with their agents, all real: messages published on an old server are forwarded, clients are notified of
the move, and the coordinator has the agents' reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.support.agent_site import TIMEOUT_S, SharedSites, Site, plain_subscriber, shared_sites, until
from tests.support.core_driver import blob
from tests.support.router_client import RouterClient

from shoal.plan.entry import Entry, Phase
from shoal.plan.keys import entry_key, report_key
from shoal.plan.move_request import ChannelReport, decode_report
from shoal.plan.placement import Mode, Placement
from shoal.plan.ring import Ring
from shoal.wire import control
from shoal.wire.envelope import BEACON, FORWARDED, HEADER, forwarded, inbox_channel, stream_id

ALICE, BOB = 0xA11CE, 0xB0B
STREAM = stream_id(BOB, 1)

pytestmark = pytest.mark.xdist_group("forwarding")


class Pair:
    """Two sites of one cluster, and a channel of the test's own whose home is s1."""

    def __init__(self, one: Site, two: Site, test: str) -> None:
        self.one = one
        self.two = two
        ring = Ring(2, (one.address, two.address))
        names = (f"{test}.{number}".encode() for number in range(1000))
        self.channel = next(name for name in names if ring.home(name) == "s1")

    async def enter(self, entry: Entry) -> bytes:
        data = self.one.signer.line(entry)
        await self.one.coordinator.put(entry_key(entry.unit), data)
        return data

    async def report(self, server: str) -> ChannelReport | None:
        found = await self.one.coordinator.get(report_key(server))
        return decode_report(found.value).channels.get(self.channel) if found is not None else None

    async def reported(self, server: str, revision: int) -> ChannelReport:
        async def look() -> ChannelReport | None:
            report = await self.report(server)
            return report if report is not None and report.revision == revision else None

        report: ChannelReport = await until(look)
        return report

    def entry(self, phase: Phase, revision: int) -> Entry:
        """A move of the channel from its home, s1, to s2."""
        old, new = Placement(2, Mode.SINGLE, ("s1",)), Placement(7, Mode.SINGLE, ("s2",))
        earlier = () if phase is Phase.END else (old,)
        publish = 2 if phase in (Phase.PREPARE, Phase.WIDEN) else 0
        return Entry(self.channel, new, phase, earlier, publish, revision, since=revision)


@pytest.fixture(scope="module")
def running() -> Iterator[SharedSites]:
    with shared_sites(2) as sites:
        yield sites


@pytest.fixture
async def pair(running: SharedSites, request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async with running.opened(SHOAL_LIMITS_SERVER_LEASE_S="30") as (one, two):  # no lease lapses on a busy machine
        yield Pair(one, two, request.node.name)


async def heard(pubsub: Any) -> bytes:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=TIMEOUT_S)
            if message is not None:
                data: bytes = message["data"]
                return data


async def told(inbox: Any) -> control.Notice:
    while True:
        message = control.decode(await heard(inbox)).message
        if isinstance(message, control.Notice):
            return message


async def test_what_is_published_away_from_home_arrives_there(pair: Pair) -> None:
    async with plain_subscriber(pair.one, pair.channel) as home:
        stale = blob(STREAM, 1, b"stale")
        for data in (stale, b"foreign"):
            await pair.two.plain.publish(pair.channel, data)
            assert await heard(home) == forwarded(data)
        await pair.one.plain.publish(pair.channel, b"at home")
        assert await heard(home) == b"at home"


async def test_a_server_that_was_away_gets_what_waited_for_it(pair: Pair) -> None:
    async with plain_subscriber(pair.one, pair.channel) as home:
        await pair.two.plain.publish(pair.channel, b"before")
        assert await heard(home) == forwarded(b"before")
    await asyncio.to_thread(pair.one.server.kill)
    await pair.two.plain.publish(pair.channel, b"while it was away")
    await asyncio.to_thread(pair.one.server.restart)
    async with plain_subscriber(pair.one, pair.channel) as home:
        await pair.two.plain.publish(pair.channel, b"after")
        arrived = [await heard(home)]
        if arrived == [forwarded(b"while it was away")]:
            arrived.append(await heard(home))
        assert arrived[-1] == forwarded(b"after")


async def test_a_move_is_reported_told_and_handed_over(pair: Pair) -> None:
    channel = pair.channel
    async with RouterClient(ALICE, pair.one.coordinator) as alice, plain_subscriber(pair.two, channel) as new:
        await alice.subscribe(channel)
        await pair.one.plain.publish(channel, blob(STREAM, 1, b"x", version=2))
        await pair.enter(pair.entry(Phase.PREPARE, 7))
        for server in ("s1", "s2"):
            await pair.reported(server, 7)
        async with plain_subscriber(pair.one, inbox_channel(BOB)) as bob:
            data = await pair.enter(pair.entry(Phase.SWITCH, 9))
            _, flags, version, stream, last, _ = HEADER.unpack_from(await heard(new))
            assert (flags, version, stream, last) == (BEACON | FORWARDED, 7, STREAM, 1)

            async def handed() -> bool:
                report = await pair.report("s1")
                return report is not None and report.handed == 9

            await until(handed)
            assert (await pair.reported("s1", 9)).here >= 1
            second = blob(STREAM, 2, b"x", version=2)
            await pair.one.plain.publish(channel, second)
            assert await heard(new) == forwarded(second)
            assert await told(bob) == control.Notice("s1", channel, data)
        await pair.enter(pair.entry(Phase.END, 11))
        for server in ("s1", "s2"):

            async def ended(server: str = server) -> bool:
                return await pair.report(server) is None

            await until(ended)
