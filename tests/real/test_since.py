"""`subscribe(since=...)` on a real cluster: recorded messages, then live ones, without gaps or duplicates."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.support.agent_site import until
from tests.support.cluster_thread import ClusterThread
from tests.support.command import run_json_command
from tests.support.connections import ask

import shoal
from shoal.errors import ArchiveError, SubscribeError
from shoal.history.server_reader import Login
from shoal.message import Gap, Item, Message
from shoal.pipeline.archive.job import ArchiveJob, run_here
from shoal.wire.record_entry import RecordedMessage, read_entry, record_key

pytestmark = pytest.mark.usefixtures("admin")

WAIT_S = 60.0
PUBLISHERS, JOINERS, COUNT = 3, 8, 400
PLACEMENTS = [("s1", "single"), ("s1,s2", "all_subscribers"), ("s2,s3", "all_publishers"), ("s1", "single")]


async def take(messages: shoal.Subscription, count: int) -> list[bytes]:
    items = [await messages.get(WAIT_S) for _ in range(count)]
    assert all(isinstance(item, Message) for item in items), items
    return [item.payload for item in items if isinstance(item, Message)]


async def test_recorded_messages_come_first_and_live_ones_follow(
    channel: str, bus: shoal.Bus, other: shoal.Bus
) -> None:
    for number in range(100):
        await bus.publish(channel, b"%d" % number)
    await bus.drain()
    async with other.subscribe(channel, since=60) as messages:
        for number in range(100, 150):
            await bus.publish(channel, b"%d" % number)
        assert await take(messages, 150) == [b"%d" % number for number in range(150)]
        assert messages.get_nowait() is None


async def test_since_is_a_time_of_publishing(channel: str, bus: shoal.Bus, other: shoal.Bus) -> None:
    await bus.publish(channel, b"before", confirm=True)
    await asyncio.sleep(0.05)
    begin = dt.datetime.now(dt.UTC)
    await asyncio.sleep(0.05)
    await bus.publish(channel, b"after", confirm=True)
    async with other.subscribe(channel, since=begin) as messages:
        await bus.publish(channel, b"live")
        assert await take(messages, 2) == [b"after", b"live"]


async def test_a_filter_holds_for_both(channel: str, bus: shoal.Bus, other: shoal.Bus) -> None:
    for number in range(10):
        await bus.publish(channel, b"%d" % number, attributes={"number": number})
    await bus.drain()
    async with other.subscribe(channel, since=60, where="number in (3, 8, 12)") as messages:
        for number in range(10, 15):
            await bus.publish(channel, b"%d" % number, attributes={"number": number})
        assert await take(messages, 3) == [b"3", b"8", b"12"]


async def test_messages_of_plain_clients_come_once(channel: str, bus: shoal.Bus, other: shoal.Bus) -> None:
    await bus.publish(channel, b"first", confirm=True)
    home = other.ring.home(channel.encode())

    async def plain(number: int) -> None:
        server = next(server for server in other.ring.servers if server.id == home)
        words = (b"PUBLISH", channel.encode(), b"plain %d" % number)
        await asyncio.to_thread(ask, server.host, server.port, *other.login, *words)

    for number in range(5):
        await plain(number)
    async with other.subscribe(channel, since=60) as messages:
        for number in range(5, 8):
            await plain(number)
        assert await take(messages, 9) == [b"first", *(b"plain %d" % number for number in range(8))]
        await asyncio.sleep(0.2)
        assert messages.get_nowait() is None


async def test_the_archive_is_part_of_it(
    channel: str, bus: shoal.Bus, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(20):
        await bus.publish(channel, b"%d" % number, confirm=True)
    await asyncio.sleep(0.3)
    user, password = url.removeprefix("shoal://").split("@")[0].split(":")
    with ArchiveJob(tmp_path, Login(user, password)) as job:
        while job.batch(bus.ring.servers, run_here) is not None:
            pass
    for number in range(20, 30):
        await bus.publish(channel, b"%d" % number, confirm=True)
    async with (
        shoal.connect(url, archive=tmp_path) as reader,
        reader.subscribe(channel, since=60) as messages,
    ):
        await bus.publish(channel, b"30")
        assert await take(messages, 31) == [b"%d" % number for number in range(31)]


async def test_what_cannot_be_is_said(bus: shoal.Bus, url: str, tmp_path: Path) -> None:
    with pytest.raises(SubscribeError, match="no messages of 'unrecorded' are recorded: run `shoal channels record"):
        await bus.subscribe("unrecorded", since=60).open()
    with pytest.raises(TypeError, match="needs a channel"):
        bus.subscribe(pattern="a*", since=60)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="without a zone"):
        bus.subscribe("a", since=dt.datetime(2026, 11, 1))
    async with shoal.connect(url, archive=tmp_path / "nowhere") as reader:
        with pytest.raises(ArchiveError, match="no archive at"):
            await reader.subscribe("a", since=60).open()


@contextlib.asynccontextmanager
async def publishing(url: str, channel: str) -> AsyncIterator[list[Coroutine[Any, Any, None]]]:
    """Run publishers that stay until the block ends, so that a recorder that was down can still request messages."""
    async with contextlib.AsyncExitStack() as stack:
        buses = [await stack.enter_async_context(shoal.connect(url)) for _ in range(PUBLISHERS)]
        yield [publish(bus, channel, name) for name, bus in enumerate(buses)]


async def publish(bus: shoal.Bus, channel: str, name: int) -> None:
    for number in range(COUNT):
        await bus.publish(channel, b"%d %d" % (name, number))
        await asyncio.sleep(0.01)


async def join(url: str, channel: str, begin: dt.datetime, delay_s: float) -> list[Item]:
    """Return all items of a subscriber that joins after a while, until it has all messages."""
    await asyncio.sleep(delay_s)
    items: list[Item] = []
    async with shoal.connect(url) as bus, bus.subscribe(channel, since=begin) as messages:
        while sum(isinstance(item, Message) for item in items) < PUBLISHERS * COUNT:
            items.append(await messages.get(WAIT_S))
        await asyncio.sleep(0.2)
        while (item := messages.get_nowait()) is not None:
            items.append(item)
    return items


def check(items: list[Item], *, absences: bool) -> None:
    """Check that every message arrived once, in order per publisher. Gaps about `absences` of recorders are allowed."""
    heard: defaultdict[int, list[int]] = defaultdict(list)
    for item in items:
        if isinstance(item, Gap):
            assert absences, item
            assert item.publisher is None, item
        else:
            assert isinstance(item, Message), item
            name, number = map(int, item.payload.split())
            heard[name].append(number)
    assert dict(heard) == {name: list(range(COUNT)) for name in range(PUBLISHERS)}


async def all_are_recorded(bus: shoal.Bus, channel: str) -> bool:
    """Return whether the records have a message of each publisher."""
    replies = await bus.ask_servers("XRANGE", record_key(channel.encode()), "-", "+")
    said = [read_entry(fields)[1] for entries in replies.values() for _, fields in entries]
    return len({message.stream for message in said if isinstance(message, RecordedMessage)}) == PUBLISHERS


async def test_joining_at_any_time_through_moves_has_no_hole_and_no_double(
    channel: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(20261101)
    begin = dt.datetime.now(dt.UTC)

    async def move() -> None:
        for target, mode in PLACEMENTS:
            await asyncio.sleep(0.6)
            await run_json_command(capsys, "plan", "move", channel, "--to", target, "--mode", mode, "--eager")

    joins = [asyncio.create_task(join(url, channel, begin, chance.uniform(0.0, 5.0))) for _ in range(JOINERS)]
    async with publishing(url, channel) as publishers:
        await asyncio.gather(*publishers, move())
        for items in await asyncio.gather(*joins):
            check(items, absences=False)


async def test_joining_while_agents_die_has_no_hole_and_no_double(
    channel: str, bus: shoal.Bus, url: str, shared_cluster: ClusterThread, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(20261102)
    begin = dt.datetime.now(dt.UTC)
    _, shown = await run_json_command(capsys, "plan", "show", channel)
    home = shown["channels"][0]["servers"][0]

    async def kill() -> None:
        await until(lambda: all_are_recorded(bus, channel))
        for _ in range(2):
            await asyncio.sleep(1.2)
            await asyncio.to_thread(shared_cluster.call, lambda cluster: cluster.kill(f"agent-{home}"))

    joins = [asyncio.create_task(join(url, channel, begin, chance.uniform(0.0, 5.0))) for _ in range(JOINERS)]
    async with publishing(url, channel) as publishers:
        await asyncio.gather(*publishers, kill())
        for items in await asyncio.gather(*joins):
            check(items, absences=True)
