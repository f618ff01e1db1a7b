"""`shoal users rotate agents-secret` and `revoke` on a running cluster, under traffic: nothing is lost, no gap, and the
old secret is worth nothing afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.support.command import run_command, run_json_command

import shoal
from shoal.bus import Bus
from shoal.cluster.acl import ADMIN
from shoal.cluster.local import LocalCluster
from shoal.message import Item, Message, Retraction
from shoal.plan import keys
from shoal.plan.secret_rotation import generations
from shoal.runtime import PRODUCTION
from shoal.wire import envelope
from shoal.wire.envelope import HEADER, HEADER_BYTES, MAGIC
from shoal.wire.identity import AgentSecret
from shoal.wire.lane_tag import lane_state, tagged

WAIT_S = 60.0
CHANNELS = ("one", "two", "three", "four")


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalCluster]:
    state = tmp_path / "state"
    monkeypatch.setenv("SHOAL_STATE_DIR", str(state))
    async with LocalCluster(2, state) as started:
        yield started


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.02)


async def stored_secrets(cluster: LocalCluster) -> dict[int, bytes]:
    async with await PRODUCTION.coordinator(cluster.url_for(ADMIN), 5.0) as coordinator:
        stored = await coordinator.list(keys.AGENT_SECRETS_PREFIX)
    return {keys.agent_secret_generation(key) or 0: one.value for key, one in stored.items()}


async def deleted(cluster: LocalCluster, generation: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while generation in await stored_secrets(cluster):  # noqa: ASYNC110 - the cluster has no event for this
            await asyncio.sleep(0.1)


class Traffic:
    """A publisher that does not stop, and a subscriber that keeps all it gets."""

    def __init__(self, publisher: Bus, subscriber: Bus) -> None:
        self._publisher = publisher
        self._subscriber = subscriber
        self.sent: dict[str, list[bytes]] = {channel: [] for channel in CHANNELS}
        self.got: dict[str, list[Item]] = {channel: [] for channel in CHANNELS}

    async def _publish(self) -> None:
        for number in itertools.count():
            channel, payload = CHANNELS[number % len(CHANNELS)], b"%d" % number
            await self._publisher.publish(channel, payload, confirm=True)
            self.sent[channel].append(payload)
            await asyncio.sleep(0.002)

    async def _read(self, messages: shoal.Subscription, channel: str) -> None:
        async for item in messages:
            self.got[channel].append(item)

    @contextlib.asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            subs = [(await stack.enter_async_context(self._subscriber.subscribe(name)), name) for name in CHANNELS]
            reading = [asyncio.create_task(self._read(sub, name)) for sub, name in subs]
            publishing = asyncio.create_task(self._publish())
            yield
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
            assert publishing.cancelled(), publishing.exception()
            await self._publisher.drain()
            with contextlib.suppress(TimeoutError):
                await until(lambda: all(len(self.got[name]) >= len(self.sent[name]) for name in CHANNELS))
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)

    def check(self) -> None:
        for channel, items in self.got.items():
            assert all(isinstance(item, Message) for item in items), [i for i in items if not isinstance(i, Message)]
            got = [item.payload for item in items if isinstance(item, Message)]
            assert got[: len(self.sent[channel])] == self.sent[channel]
            assert len(got) <= len(self.sent[channel]) + 1, "the last one may not have been confirmed to the test"


@pytest.fixture
def connect(tmp_path: Path) -> Callable[[], Bus]:
    """Clients keep the plan here. Agents use the user's cache, which has their compiled loops."""
    return lambda: shoal.connect(cache_dir=tmp_path / "cache")


def renewed(bus: Bus) -> bool:
    links = bus.statistics().links
    return bus.statistics().counters["renewals"] >= sum(state == "usable" for state in links.values()) > 0


async def test_a_rotation_and_a_revocation_under_traffic_lose_nothing(
    cluster: LocalCluster, connect: Callable[[], Bus], capsys: pytest.CaptureFixture[str]
) -> None:
    async with connect() as publisher, connect() as subscriber:
        traffic = Traffic(publisher, subscriber)
        ids = publisher.client_id, subscriber.client_id
        async with traffic.flowing():
            await until(lambda: all(traffic.got.values()))
            status, facts = await run_json_command(capsys, "users", "rotate", "agents-secret")
            assert (status, facts["generations"]) == (0, [1, 2])
            assert facts["since_s"] > 0
            status, _, err = await run_command(capsys, "users", "rotate", "agents-secret")
            assert status == 1
            assert "shoal users revoke agents-secret" in err
            await until(lambda: renewed(publisher) and renewed(subscriber))
            shown = cluster.status().agents_secret
            assert shown is not None
            assert shown.generations == (1, 2)
            status, facts = await run_json_command(capsys, "users", "revoke", "agents-secret")
            assert (status, facts["generations"]) == (0, [2])
            await until(lambda: generations(publisher.ring) == generations(subscriber.ring) == [2])
            await deleted(cluster, 1)
            before = len(traffic.sent["one"])
            await until(lambda: len(traffic.sent["one"]) > before + 100)
        traffic.check()
        assert (publisher.client_id, subscriber.client_id) == ids, "they kept their ids"
    assert (await run_command(capsys, "users", "revoke", "agents-secret"))[0] == 1, "there is nothing to revoke"


async def test_the_old_secret_is_worth_nothing_after_a_revocation(
    cluster: LocalCluster, connect: Callable[[], Bus], capsys: pytest.CaptureFixture[str]
) -> None:
    stolen = AgentSecret(1, (await stored_secrets(cluster))[1])
    async with connect() as victim, connect() as reader, connect() as thief:
        await victim.publish("one", b"true 1", confirm=True)
        async with reader.subscribe("one") as messages, asyncio.timeout(WAIT_S):
            await forge(thief, victim, stolen, 2)
            assert isinstance(await messages.get(), Message), "before that it passes as the victim's"
            await run_json_command(capsys, "users", "rotate", "agents-secret")
            await until(lambda: renewed(victim) and renewed(reader))
            await run_json_command(capsys, "users", "revoke", "agents-secret")
            await deleted(cluster, 1)
            await until_refuted(thief, victim, stolen, messages)


async def until_refuted(thief: Bus, victim: Bus, stolen: AgentSecret, messages: shoal.Subscription) -> None:
    """Forges until a message is taken back: the agent hears of the deletion after the coordinator has done it."""
    passed: set[int] = set()
    for number in itertools.count(3):
        await forge(thief, victim, stolen, number)
        with contextlib.suppress(TimeoutError):
            while isinstance(item := await messages.get(timeout=0.5), Message):
                passed.add(item.sequence)
            assert item in {Retraction("one", victim.client_id, false) for false in passed}
            return


async def forge(thief: Bus, victim: Bus, stolen: AgentSecret, sequence: int) -> None:
    """Publishes under the victim's stream, with a tag that the secret makes."""
    placement = victim.router.book.placement(b"one")
    (server,) = placement.servers
    stream = envelope.stream_id(victim.client_id, 1)
    blob = HEADER.pack(MAGIC, 0, placement.version, stream, sequence, 0)[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0")
    state = lane_state(stolen.client(victim.client_id).lane(server, b"one"))
    address = thief.ring.address(server)
    assert address is not None
    await thief._ask_server(address, (b"PUBLISH", b"one", tagged(blob + b"false", state)))


async def test_a_client_that_was_away_goes_on_with_another_id(
    cluster: LocalCluster, connect: Callable[[], Bus], capsys: pytest.CaptureFixture[str]
) -> None:
    async with connect() as away, connect() as reader, reader.subscribe("one") as messages:
        await away.publish("one", b"1", confirm=True)
        old = away.client_id
        away.shell._renewal.want = lambda done: None  # type: ignore[method-assign]  # as if it slept
        for action in ("rotate", "revoke"):
            assert (await run_command(capsys, "users", action, "agents-secret"))[0] == 0
        await until(lambda: generations(away.ring) == [2])
        del away.shell._renewal.want
        away.shell._renewal.want(away.shell.flush)
        await until(lambda: away.client_id != old)
        async with asyncio.timeout(WAIT_S):
            await away.publish("one", b"2", confirm=True)
            items = [await messages.get(), await messages.get()]
        assert [item.payload for item in items if isinstance(item, Message)] == [b"1", b"2"]


async def test_it_works_through_the_coordinator_alone(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_COORDINATOR", cluster.url_for(ADMIN))
    monkeypatch.delenv("SHOAL_STATE_DIR")
    status, facts = await run_json_command(capsys, "users", "secret")
    assert (status, facts) == (0, {"generations": [1], "since_s": 0.0})
    assert (await run_command(capsys, "users", "revoke", "agents-secret"))[0] == 1, "there is one generation"
    assert (await run_json_command(capsys, "users", "rotate", "agents-secret"))[1]["generations"] == [1, 2]
    status, out, _ = await run_command(capsys, "users", "secret")
    assert "generation 2 for" in out
    assert "generation 1 is still valid" in out
