"""A hostile client on a real cluster: it has a client's password, hears everything and forges what it likes.

Each attack runs twice: on servers whose access rules forbid most of it (Redis 7), and on servers where clients may
publish on every channel, as on Redis 6.2. What the rules forbid is skipped; the rest must have no effect.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

import pytest
import redis.asyncio as redis_py
from redis.exceptions import NoPermissionError
from tests.support.cluster_thread import ClusterThread
from tests.support.core_driver import answer_of

import shoal
from shoal.bus.shell import BusShell
from shoal.cluster import acl
from shoal.cluster.acl import CLIENT
from shoal.cluster.local import LocalCluster
from shoal.cluster.state import ClusterState
from shoal.message import Message
from shoal.wire import control
from shoal.wire.envelope import AGENT_CHANNEL, inbox_channel, peer_channel, stream_id

T = TypeVar("T")
WAIT_S = 60.0
QUIET_S = 3.0
"""How long a test waits for something that must not happen."""
FAR = 1 << 60
FOREVER_MS = (1 << 32) - 1
MESSAGES = 20
GUARDED = acl.client_publish_guarded


@contextlib.contextmanager
def rules_as_on(version: str) -> Iterator[None]:
    """New clusters write access rules as for this version."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acl, "client_publish_guarded", GUARDED if version == "7" else lambda version: False)
        yield


@pytest.fixture(scope="module", params=["7", "6.2"])
def hostile(request: pytest.FixtureRequest) -> Iterator[ClusterThread]:
    with rules_as_on(request.param), ClusterThread(servers=2) as cluster:
        yield cluster


class Attacker:
    """A plain client of one server, with the password that all clients have."""

    def __init__(self, state: ClusterState, server: str) -> None:
        at = next(each for each in state.servers if each.id == server)
        self.redis: Any = redis_py.Redis(host=at.host, port=at.port, username=CLIENT, password=state.passwords[CLIENT])
        self.heard: list[tuple[bytes, control.Received]] = []
        self._answer: Callable[[bytes, control.Received], list[tuple[bytes, bytes]]] = lambda channel, message: []

    @contextlib.asynccontextmanager
    async def listening(
        self, answer: Callable[[bytes, control.Received], list[tuple[bytes, bytes]]] | None = None
    ) -> AsyncIterator[Attacker]:
        """Hears all internal channels; `answer` gives the forgeries for a message."""
        self._answer = answer or self._answer
        async with self.redis, self.redis.pubsub() as pubsub:
            await pubsub.psubscribe(b"__shoal:*")
            await pubsub.get_message(timeout=WAIT_S)
            task = asyncio.create_task(self._listen(pubsub))
            try:
                yield self
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _listen(self, pubsub: Any) -> None:
        async for item in pubsub.listen():
            if item["type"] == "pmessage":
                with contextlib.suppress(shoal.ShoalError):
                    received = control.decode(item["data"])
                    self.heard.append((item["channel"], received))
                    for channel, data in self._answer(item["channel"], received):
                        await self.publish(channel, data)

    async def hears(self, kind: type[T]) -> T:
        """Waits for a message of a kind."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for _, received in self.heard:
                    if isinstance(received.message, kind):
                        return received.message
                await asyncio.sleep(0.01)

    async def publish(self, channel: bytes, data: bytes) -> None:
        """Publishes, if the rules allow it."""
        with contextlib.suppress(NoPermissionError):
            await self.redis.publish(channel, data)


async def state_of(cluster: LocalCluster) -> ClusterState:
    return cluster.state


@contextlib.asynccontextmanager
async def frozen(cluster: ClusterThread, process: str) -> AsyncIterator[None]:
    """A process of the cluster does not run meanwhile."""

    async def pause(local: LocalCluster) -> None:
        local.pause(process)

    async def resume(local: LocalCluster) -> None:
        local.resume(process)

    await asyncio.to_thread(cluster.call, pause)
    try:
        yield
    finally:
        await asyncio.to_thread(cluster.call, resume)


async def payloads(messages: shoal.Subscription, count: int) -> list[bytes]:
    items = [await messages.get(WAIT_S) for _ in range(count)]
    assert all(isinstance(item, Message) for item in items), items
    return [item.payload for item in items if isinstance(item, Message)]


@pytest.mark.parametrize("version", ["7", "6.2"])
async def test_a_forged_welcome_does_not_keep_a_server_in_use(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent is stopped and its server leaves the ring. A victim that believed the Welcome would go on there,
    confirmed, where no new subscriber listens."""
    with rules_as_on(version):
        async with LocalCluster(2) as cluster, shoal.connect(cluster.url) as victim:
            await check_forged_welcome(cluster, victim, monkeypatch)


async def check_forged_welcome(cluster: LocalCluster, victim: shoal.Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = "identity.welcome"
    await victim.publish(channel, b"before", confirm=True)
    home = victim.ring.home(channel.encode())

    def welcome(at: bytes, received: control.Received) -> list[tuple[bytes, bytes]]:
        greet = received.message
        if not isinstance(greet, control.Greet) or received.client != victim.client_id:
            return []
        lie = control.Welcome(home, 1, 1, 0, FOREVER_MS, greet.ring_version, b"")
        return [(inbox_channel(received.client), control.encode(lie, received.client, greet.nonce))]

    fetch_ring = BusShell.fetch_ring
    monkeypatch.setattr(BusShell, "fetch_ring", lambda shell: None if shell is victim.shell else fetch_ring(shell))
    async with Attacker(cluster.state, home).listening(welcome):
        cluster.pause(f"agent-{home}")
        async with shoal.connect(cluster.url) as other, asyncio.timeout(WAIT_S):
            while home in other.ring.ids:
                other.fetch_ring()
                await asyncio.sleep(0.1)
            async with other.subscribe(channel) as messages:
                publishing = asyncio.create_task(publish_all(victim, channel, 10))
                await asyncio.sleep(QUIET_S)
                assert not publishing.done(), "confirmed on a server outside the ring"
                monkeypatch.undo()
                victim.fetch_ring()
                await publishing
                assert await payloads(messages, 10) == [b"%d" % number for number in range(10)]
        cluster.resume(f"agent-{home}")


async def publish_all(bus: shoal.Bus, channel: str, count: int) -> None:
    for number in range(count):
        await bus.publish(channel, b"%d" % number, confirm=True)


async def test_a_forged_answer_does_not_silence_a_subscription(hostile: ClusterThread) -> None:
    """The agent is stopped, so that the forged answer certainly comes first."""
    state = hostile.call(state_of)
    async with shoal.connect(hostile.url) as publisher, shoal.connect(hostile.url) as bus:
        channel = "identity.answer"
        await publisher.publish(channel, b"before", confirm=True)
        home = bus.ring.home(channel.encode())

        def answer(at: bytes, received: control.Received) -> list[tuple[bytes, bytes]]:
            hello = received.message
            if not isinstance(hello, control.Hello):
                return []
            streams = [(hello.name, stream_id(publisher.client_id, epoch), FAR, 0) for epoch in range(1, 9)]
            lie = answer_of(home, hello.name, streams=streams)
            return [(inbox_channel(received.client), control.encode(lie, received.client, hello.nonce))]

        async with Attacker(state, home).listening(answer) as attacker:
            async with frozen(hostile, f"agent-{home}"):
                opening = asyncio.create_task(bus.subscribe(channel).open())
                await attacker.hears(control.Hello)
                await asyncio.sleep(QUIET_S)
                assert not opening.done(), "in force by a forged answer"
            async with asyncio.timeout(WAIT_S):
                messages = await opening
            await publish_all(publisher, channel, MESSAGES)
            assert await payloads(messages, MESSAGES) == [b"%d" % number for number in range(MESSAGES)]
            await messages.aclose()


async def test_a_claim_for_anothers_stream_is_no_baseline(hostile: ClusterThread) -> None:
    """In the victim's name, in a Hello, a Present and a Left."""
    state = hostile.call(state_of)
    async with shoal.connect(hostile.url) as publisher, shoal.connect(hostile.url) as bus:
        channel = "identity.claim"
        await publisher.publish(channel, b"before", confirm=True)
        home = bus.ring.home(channel.encode())
        async with Attacker(state, home).listening() as attacker:
            heartbeat = await attacker.hears(control.Heartbeat)
            for claim in claims(channel.encode(), publisher.client_id, heartbeat.incarnation):
                await attacker.publish(AGENT_CHANNEL, control.encode(claim, publisher.client_id, FAR))
        async with bus.subscribe(channel) as messages:
            await publish_all(publisher, channel, MESSAGES)
            assert await payloads(messages, MESSAGES) == [b"%d" % number for number in range(MESSAGES)]


def claims(channel: bytes, victim: int, incarnation: int) -> list[control.ToAgent]:
    streams = [stream_id(victim, epoch) for epoch in range(1, 9)]
    return [
        *(control.Hello(FAR, channel, False, False, 0, 1, stream, FAR) for stream in streams),
        control.Present(incarnation, 1, 0, 1, [], [], [(channel, stream, FAR) for stream in streams]),
        *(control.Left(channel, stream, 1, incarnation) for stream in streams),
    ]


async def test_forged_heals_are_not_answered(hostile: ClusterThread) -> None:
    """Aimed at a third client: the publisher would send it megabytes."""
    state = hostile.call(state_of)
    async with shoal.connect(hostile.url) as publisher, shoal.connect(hostile.url) as third:
        channel = "identity.heal"
        for _ in range(50):
            await publisher.publish(channel, bytes(10_000))
        await publisher.drain(WAIT_S)
        async with third.subscribe(channel) as messages:
            home = third.ring.home(channel.encode())
            async with Attacker(state, home).listening() as attacker:
                for epoch in range(1, 9):
                    heal = control.Heal(channel.encode(), stream_id(publisher.client_id, epoch), 1, 50)
                    data = control.encode(heal, third.client_id, FAR + epoch)
                    await attacker.publish(peer_channel(publisher.client_id), data)
                await publisher.publish(channel, b"after")
                assert await payloads(messages, 1) == [b"after"]
                await asyncio.sleep(QUIET_S)
                resent = [item for _, item in attacker.heard if isinstance(item.message, control.Resend)]
                assert resent == []
                assert any(isinstance(item.message, control.Heal) for _, item in attacker.heard), "it was sent"
