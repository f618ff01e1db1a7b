"""Bounds on real processes: what one client sends or holds, however much, costs others nothing.

One server with its agent. `lost` counts how often the agent has lost its connection to the server.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.cluster_thread import ClusterThread

import shoal
from shoal.cluster.acl import ADMIN, CLIENT
from shoal.cluster.local import LocalCluster
from shoal.limits import DEFAULT_LIMITS, MIB
from shoal.message import Gap
from shoal.plan.keys import agent_secret_key
from shoal.plan.ring import ServerAddress
from shoal.runtime import PRODUCTION
from shoal.wire import control, envelope
from shoal.wire.commands import Command, encode_commands
from shoal.wire.envelope import AGENT_CHANNEL, peer_channel, stream_id
from shoal.wire.identity import AgentSecret, ClientKey
from shoal.wire.lane_tag import lane_state, tagged

WAIT_S = 600.0
PATIENT = msgspec.structs.replace(DEFAULT_LIMITS, unreachable_s=WAIT_S, subscribe_timeout_s=WAIT_S)
"""On a busy machine an agent takes long to read a flood; until then nothing is answered."""
FLOOD = 80_000
"""More messages than an agent reads of one client at once."""
SUBSCRIPTIONS = 10_000
STREAMS = 105_000
"""More than an agent remembers on one channel."""


class Scene:
    """The cluster, and what its agent has logged."""

    def __init__(self, cluster: ClusterThread) -> None:
        self.url = cluster.url
        self.root: Path = cluster.call(_root)

        self.address: ServerAddress = cluster.call(_address)
        self.password: str = cluster.call(_password)
        self.secret: AgentSecret = cluster.call(_secret)
        """With it a test has the keys of as many clients as it wants, like a client that enrols again and again."""

    def send(self, commands: Iterable[Command]) -> None:
        """A client that speaks raw RESP sends commands, and waits until the server has answered all. Blocks."""
        with socket.create_connection((self.address.host, self.address.port), WAIT_S) as client:
            login = (b"AUTH", CLIENT.encode(), self.password.encode())
            sending = threading.Thread(
                target=client.sendall, args=(encode_commands([login, *commands, (b"PING", b"done")]),)
            )
            sending.start()
            said = b""
            while b"done" not in said:
                more = client.recv(1 << 16)
                assert more, "the server closed the connection"
                said = said[-10:] + more
            sending.join()

    @property
    def lost(self) -> int:
        return (self.root / "logs" / "agent-s1.log").read_text(errors="replace").count("server connection lost")


async def _address(cluster: LocalCluster) -> ServerAddress:
    return cluster.servers[0]


async def _password(cluster: LocalCluster) -> str:
    return cluster.state.passwords[CLIENT]


async def _secret(cluster: LocalCluster) -> AgentSecret:
    coordinator = await PRODUCTION.coordinator(cluster.url_for(ADMIN), 1.0)
    try:
        stored = await coordinator.get(agent_secret_key(1))
    finally:
        await coordinator.close()
    assert stored is not None
    return AgentSecret(1, stored.value)


async def _root(cluster: LocalCluster) -> Path:
    return cluster.directory.root


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterThread]:
    with ClusterThread(servers=1) as one:
        yield one


@pytest.fixture
def scene(cluster: ClusterThread) -> Scene:
    return Scene(cluster)


async def until_in_force(bus: shoal.Bus) -> None:
    async with asyncio.timeout(WAIT_S):
        while not all(sub.settled for sub in bus.router.subscriptions):  # noqa: ASYNC110 - the router has no event
            await asyncio.sleep(0.05)


async def test_a_bus_with_many_subscriptions_comes_back_without_being_refused(scene: Scene) -> None:
    """It does not repeat its questions, of which a busy machine would need many."""
    patient = msgspec.structs.replace(DEFAULT_LIMITS, hello_retry_s=20.0, subscribe_timeout_s=WAIT_S)
    async with shoal.connect(scene.url, limits=patient) as bus, shoal.connect(scene.url) as other:
        subs = [bus.subscribe(f"many.{number}") for number in range(SUBSCRIPTIONS)]
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*(sub.open() for sub in subs))
        connection = bus.shell._connections["s1"]._connection
        assert connection is not None
        connection.abort()
        async with asyncio.timeout(WAIT_S):
            while not bus.statistics().counters["reconnects"]:  # noqa: ASYNC110 - the bus has no event for it
                await asyncio.sleep(0.01)
        await until_in_force(bus)
        assert bus.statistics().counters["busy"] == 0
        for number in range(0, SUBSCRIPTIONS, 997):
            await other.publish(f"many.{number}", b"here", confirm=True)
            async with asyncio.timeout(WAIT_S):
                item = await anext(subs[number])
            assert isinstance(item, shoal.Message)
            assert item.payload == b"here"
    assert scene.lost == 0


async def cut(bus: shoal.Bus) -> None:
    """Ends the connection of a bus, which opens another."""
    connection = bus.shell._connections["s1"]._connection
    assert connection is not None
    connection.abort()


# Sizes


async def test_messages_of_30_mb_on_any_channel_do_not_cut_the_agent_off(scene: Scene) -> None:
    before = scene.lost
    async with shoal.connect(scene.url) as bus, bus.subscribe("large.other") as messages:
        await asyncio.to_thread(scene.send, [(b"PUBLISH", b"large.any", b"x" * 30_000_000)] * 3)
        await bus.publish("large.other", b"after", confirm=True)
        async with asyncio.timeout(WAIT_S):
            item = await anext(messages)
        assert isinstance(item, shoal.Message)
        async with bus.subscribe("large.new"):  # the agent answers
            pass
    assert scene.lost == before


async def test_twelve_of_the_largest_messages_reach_a_subscriber(scene: Scene) -> None:
    payload = b"x" * (8 * MIB)
    async with shoal.connect(scene.url) as writer, shoal.connect(scene.url) as reader:
        async with reader.subscribe("large.twelve") as messages:
            publishing = asyncio.create_task(publish_many(writer, "large.twelve", payload, 12))
            async with asyncio.timeout(WAIT_S):
                items = [await anext(messages) for _ in range(12)]
            await publishing
        assert reader.statistics().counters["reconnects"] == 0
    assert [(type(item), getattr(item, "sequence", 0)) for item in items] == [(shoal.Message, n) for n in range(1, 13)]


async def publish_many(bus: shoal.Bus, channel: str, payload: bytes, count: int) -> None:
    for _ in range(count):
        await bus.publish(channel, payload)
    await bus.drain()


# Resends


async def test_requests_are_not_amplified(scene: Scene) -> None:
    """Forty requests of 80 bytes asked for twelve messages of 1 MiB each time."""
    async with shoal.connect(scene.url) as bus:
        for _ in range(12):
            await bus.publish("amplified", b"x" * MIB, confirm=True)
        stream = stream_id(bus.client_id, 1)
        seal = control.asking(scene.secret.client(bus.client_id).peer(7), 1)
        heals = [control.encode(control.Heal(b"amplified", stream, 1, 1 << 60), 7, nonce, seal) for nonce in range(40)]
        await asyncio.to_thread(scene.send, [(b"PUBLISH", peer_channel(bus.client_id), heal) for heal in heals])
        async with asyncio.timeout(WAIT_S):
            while bus.statistics().counters["heals_over_quota"] < 30:  # noqa: ASYNC110 - the bus has no event for it
                await asyncio.sleep(0.02)
        assert bus.statistics().counters["resent"] <= 9


# Full tables


async def test_a_full_table_is_reported_to_those_who_were_cut_off_and_to_those_who_come(scene: Scene) -> None:
    channel = "crowded"
    async with shoal.connect(scene.url) as reader, reader.subscribe(channel) as messages:
        blobs = (first_message(scene.secret.client(client), channel) for client in range(1, STREAMS))
        await asyncio.to_thread(scene.send, [(b"PUBLISH", channel.encode(), blob) for blob in blobs])
        await cut(reader)
        found = await until_gap(messages)
        assert found.publisher is None
        assert "no room for all publishers" in found.reason
    async with shoal.connect(scene.url) as other, other.subscribe("not crowded") as quiet:
        await other.publish("not crowded", b"here", confirm=True)
        async with asyncio.timeout(WAIT_S):
            assert isinstance(await anext(quiet), shoal.Message)
    async with shoal.connect(scene.url) as late, late.subscribe(channel) as more:
        found = await until_gap(more)
        assert "no room for all publishers" in found.reason
    assert scene.lost == 0


def first_message(key: ClientKey, channel: str) -> bytes:
    blob = envelope.prefix(0, 0, stream_id(key.client, 1)) + envelope.SUFFIX.pack(1, 0)
    return tagged(blob, lane_state(key.lane("s1", channel.encode())))


async def until_gap(messages: shoal.Subscription) -> Gap:
    async with asyncio.timeout(WAIT_S):
        async for item in messages:
            if isinstance(item, Gap):
                return item
    raise AssertionError("the subscription ended")


# Floods


async def test_a_flood_of_hellos_leaves_the_agent_serving_others(scene: Scene) -> None:
    seal = control.KeySeal(control.CLIENT_SCHEME, 1, scene.secret.client(0xBAD).to_agent("s1"))
    await flood_beside_a_bus(scene, 0xBAD, seal)


async def test_a_flood_in_the_name_of_a_client_does_not_use_up_its_quota(scene: Scene) -> None:
    seal = control.KeySeal(control.CLIENT_SCHEME, 1, scene.secret.client(0xBAD).to_agent("s1"))
    await flood_beside_a_bus(scene, None, seal)


async def flood_beside_a_bus(scene: Scene, client: int | None, seal: control.Seal) -> None:
    """A bus subscribes and publishes while Hellos come in the name of a client, or of the bus."""
    before = scene.lost
    hellos = (control.Hello(nonce, b"flood.%d" % nonce, False, True, 0, 0) for nonce in range(1, FLOOD))
    assert 1.5 * PATIENT.control_at_once_max < FLOOD
    async with shoal.connect(scene.url, limits=PATIENT) as bus:
        name = bus.client_id if client is None else client
        flood = [(b"PUBLISH", AGENT_CHANNEL, control.encode(hello, name, hello.nonce, seal)) for hello in hellos]
        flooding = asyncio.create_task(asyncio.to_thread(scene.send, flood))
        for number in range(10):
            async with bus.subscribe(f"beside.{number}") as messages:
                await bus.publish(f"beside.{number}", b"here", confirm=True)
                async with asyncio.timeout(WAIT_S):
                    assert isinstance(await anext(messages), shoal.Message)
        await flooding
        assert bus.statistics().counters["busy"] == 0
    assert scene.lost == before
