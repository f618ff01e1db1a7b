"""Bad input on a real cluster: clear errors; forged and invalid messages are counted and harm no other client.

During every kind of invalid input, a publisher and a subscriber continue, and none of their messages is lost,
duplicated or reordered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
import redis.asyncio as redis_py
from redis.exceptions import NoPermissionError
from tests.support.cluster_thread import ClusterThread
from tests.support.core_driver import answer_of
from tests.support.redis_server import RedisServer, free_port

import shoal
from shoal.cluster.acl import AGENT, CLIENT
from shoal.cluster.local import LocalCluster
from shoal.cluster.state import ClusterState
from shoal.errors import (
    AuthenticationError,
    ChannelNameError,
    ConnectError,
    CoordinatorError,
    CoordinatorUnavailableError,
    PayloadTooLargeError,
    PublishError,
    ShoalError,
)
from shoal.limits import DEFAULT_LIMITS
from shoal.message import Message
from shoal.plan.placement import Mode, Placement
from shoal.plan.ring import Ring, ServerAddress
from shoal.plan.signature import Signer
from shoal.wire import control, envelope
from shoal.wire.envelope import AGENT_CHANNEL, HEARTBEAT_CHANNEL, inbox_channel, peer_channel

WAIT_S = 60.0
FORGER = Signer(bytes(32))
FAST = msgspec.structs.replace(DEFAULT_LIMITS, connect_timeout_s=1.0)
STRANGER = envelope.stream_id(0xBAD, 1)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in the router, which has no events
            await asyncio.sleep(0.005)


@pytest.fixture
def state(shared_cluster: ClusterThread) -> ClusterState:
    async def read(cluster: LocalCluster) -> ClusterState:
        return cluster.state

    return shared_cluster.call(read)


@pytest.fixture
def signer(shared_cluster: ClusterThread) -> Signer:
    """The cluster's own key, for signing entries that are stale but not forged."""

    async def read(cluster: LocalCluster) -> Signer:
        return cluster._signer

    return shared_cluster.call(read)


@contextlib.asynccontextmanager
async def plain_clients(state: ClusterState, role: str) -> AsyncIterator[dict[str, Any]]:
    """Plain connections to every server, with the permissions of a role."""
    async with contextlib.AsyncExitStack() as stack:
        clients = {}
        for server in state.servers:
            client = redis_py.Redis(host=server.host, port=server.port, username=role, password=state.passwords[role])
            clients[server.id] = await stack.enter_async_context(client)
        yield clients


# Invalid calls


async def test_an_oversized_payload_is_refused_and_the_bus_goes_on(bus: shoal.Bus) -> None:
    async with bus.subscribe("bad.size") as messages:
        with pytest.raises(PayloadTooLargeError, match="payload_bytes_max"):
            await bus.publish("bad.size", bytes(DEFAULT_LIMITS.payload_bytes_max + 1))
        await bus.publish("bad.size", b"small")
        item = await messages.get(WAIT_S)
    assert isinstance(item, Message)
    assert (item.payload, item.sequence) == (b"small", 1)


@pytest.mark.parametrize("name", ["", b"", "x" * 513, "__shoal:agent", b"__shoal:in:000000000001", 17, [b"a"]])
async def test_a_bad_name_is_refused_everywhere(bus: shoal.Bus, name: Any) -> None:
    with pytest.raises(ChannelNameError):
        await bus.publish(name, b"x")
    with pytest.raises(ChannelNameError):
        async with bus.subscribe(name):
            pass
    with pytest.raises(ChannelNameError):
        async with bus.subscribe(pattern=name):
            pass
    await bus.publish("bad.names", b"the bus goes on", confirm=True)


@pytest.mark.parametrize(
    "attributes", [{"x": float("nan")}, {"x": 1 << 64}, {"x": [[1]]}, {"": 1}, {"x": "y" * 9000}, {"x": "\udc80"}]
)
async def test_bad_attributes_are_refused_and_leave_no_hole(bus: shoal.Bus, attributes: Any) -> None:
    async with bus.subscribe("bad.attributes") as messages:
        with pytest.raises(PublishError):
            await bus.publish("bad.attributes", b"bad", attributes=attributes)
        await bus.publish("bad.attributes", b"good", attributes={"n": 1}, confirm=True)
        item = await messages.get(WAIT_S)
    assert isinstance(item, Message)
    assert item.payload == b"good"


# Invalid addresses and logins


async def test_a_wrong_password_is_said_without_being_shown(url: str) -> None:
    user, _, rest = url.removeprefix("shoal://").partition(":")
    address = rest.partition("@")[2]
    with pytest.raises(AuthenticationError) as caught:
        async with shoal.connect(f"shoal://{user}:wrong-secret@{address}", limits=FAST):
            pass
    assert "wrong-secret" not in str(caught.value)


async def test_an_unreachable_coordinator_is_said_with_its_address() -> None:
    port = free_port()
    with pytest.raises(CoordinatorUnavailableError, match=str(port)):
        async with shoal.connect(f"shoal://127.0.0.1:{port}", limits=FAST):
            pass


async def test_something_else_behind_the_address_is_a_clear_error() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ShoalError):
            async with shoal.connect(f"shoal://127.0.0.1:{port}", limits=FAST):
                pass


async def test_a_redis_without_a_cluster_is_a_clear_error() -> None:
    with RedisServer() as server, pytest.raises((CoordinatorError, ConnectError)):
        async with shoal.connect(f"shoal://{server.host}:{server.port}", limits=FAST):
            pass


# Permissions


async def test_a_client_cannot_speak_in_an_agents_name(state: ClusterState) -> None:
    async with plain_clients(state, CLIENT) as clients:
        for client in clients.values():
            with pytest.raises(NoPermissionError):
                await client.publish(HEARTBEAT_CHANNEL, b"I hold the lease")


# Invalid messages on every internal channel


def garbage(channel: bytes, bus: shoal.Bus) -> dict[str, list[tuple[bytes, bytes]]]:
    """Invalid messages that a foreign client might publish, by kind. All of them must be harmless."""
    here = ServerAddress("s1", "127.0.0.1", 1)
    forged_ring = FORGER.ring(Ring(999, (here,)))
    forged_entry = FORGER.entry(channel, Placement(999, Mode.SINGLE, ("s1",)))
    deep = b"\x94\xc4\x0ashoal ring\xc4\x00\xc4\x00" + b"\x91" * 50_000 + b"\xc0"
    inbox = inbox_channel(bus.client_id)
    peer = peer_channel(bus.client_id)
    head = control.encode(control.Greet(1, 1), 0xBAD, 1)[: control.HEAD_BYTES]
    noise = [b"", b"x", b"\xf5", b"\xf5D", head, head + b"\xc1", head + b"\x91" * 5000, b"\xf5\x5b" * 20, bytes(100)]
    misplaced: list[control.Control] = [
        control.Greet(1, 1),
        control.Resync("s1", 1, 1),
        control.Resend(channel, b"not an envelope"),
        control.Healed(channel, STRANGER, 99, 99, 99, 1),
        control.Heal(channel, STRANGER, 0, (1 << 64) - 1),
        control.Heartbeat("nowhere", 1, 1, 1, 60_000, True, 1),
        control.Refused("version", 3, 3, 0, "not asked"),
    ]
    answer = answer_of("s1", channel, version=999, entry=forged_entry, ring=forged_ring)
    versions = [b"\xf5C\x94\x01\x01\x02\x03", *(head[:2] + bytes((version,)) + head[3:] for version in (0, 1, 3, 255))]
    header = envelope.prefix(envelope.ATTRIBUTES, 1, STRANGER) + envelope.SUFFIX.pack(1, 1)
    return {
        "noise on the agent's channel": [(AGENT_CHANNEL, data) for data in noise],
        "noise on the heartbeat channel": [(HEARTBEAT_CHANNEL, data) for data in noise],
        "noise in inboxes": [(where, data) for where in (inbox, peer) for data in noise],
        "messages in the wrong place": [
            (where, control.encode(message, bus.client_id, 1 << 61))
            for where in (AGENT_CHANNEL, HEARTBEAT_CHANNEL, inbox, peer)
            for message in misplaced
        ],
        "messages of other versions": [(where, data) for where in (AGENT_CHANNEL, inbox, peer) for data in versions],
        "forged rings and entries": [
            (
                inbox,
                control.encode(control.Welcome("s1", 1, 1, 1, 60_000, 999, forged_ring), bus.client_id, 1 << 60),
            ),
            (inbox, control.encode(answer, bus.client_id, 1 << 60)),
        ],
        "rings without end": [
            (inbox, control.encode(control.Welcome("s1", 1, 1, 1, 60_000, 999, deep), bus.client_id, 1 << 60))
        ],
        "hellos of nobody": [
            (AGENT_CHANNEL, control.encode(message, 0xBAD, 1))
            for message in (
                control.Hello(1, b"", False, True, 1, 1),
                control.Hello(1, b"[[[", True, True, 1, 1),
                control.Hello(1, b"bad.nobody", False, False, 1, 1, (1 << 64) - 1, (1 << 64) - 1),
                control.Present(1, 99, 0, 1, [b""], [b"["], [(b"bad.nobody", 1, (1 << 64) - 1)]),
                control.Bye(b"never there", False),
            )
        ],
        "unknown flags": [(channel, envelope.prefix(32, 1, STRANGER) + envelope.SUFFIX.pack(1, 1) + b"newer")],
        "broken envelopes on the channel": [
            (channel, header),
            (channel, header + b"\xff\xff\x80"),
            (channel, envelope.beacon(1, STRANGER, 1, 9, 0)),
            (channel, envelope.beacon(1, STRANGER, 1, 1, 0)[:-3]),
        ],
        "attributes that are no text": [(channel, header + b"\x04\x00\x81\xa1\xff\x01")],
    }


KINDS = list(garbage(b"", shoal.connect("shoal://127.0.0.1:1")))


@pytest.mark.parametrize("kind", KINDS)
async def test_across_garbage_nothing_is_lost(bus: shoal.Bus, other: shoal.Bus, state: ClusterState, kind: str) -> None:
    channel = f"bad.{KINDS.index(kind)}"
    count = 300
    async with bus.subscribe(channel) as messages, plain_clients(state, AGENT) as clients:
        before = bus.statistics().counters
        await other.publish(channel, b"0", confirm=True)
        for where, data in (
            *garbage(channel.encode(), bus)[kind],
            *garbage(channel.encode(), other)[kind],
        ):
            for client in clients.values():
                await client.publish(where, data)
        for number in range(1, count):
            await other.publish(channel, b"%d" % number)
        await other.drain(WAIT_S)
        items = [await messages.get(WAIT_S) for _ in range(count)]
        after = bus.statistics().counters
        assert all(isinstance(item, Message) for item in items), items
        assert [item.payload for item in items if isinstance(item, Message)] == [b"%d" % n for n in range(count)]
        assert messages.get_nowait() is None
        assert after["reconnects"] == before["reconnects"], "no connection was given up because of it"
    async with bus.subscribe(channel) as messages:
        await other.publish(channel, b"agents answer as before")
        item = await messages.get(WAIT_S)
        assert isinstance(item, Message)


async def test_forgeries_are_counted_and_change_no_plan(bus: shoal.Bus, other: shoal.Bus, state: ClusterState) -> None:
    async with bus.subscribe("bad.forged") as messages, plain_clients(state, AGENT) as clients:
        ring, before = bus.ring, bus.statistics().counters
        home = clients[ring.home(b"bad.forged")]
        for where, data in garbage(b"bad.forged", bus)["forged rings and entries"]:
            await home.publish(where, data)
        await until(lambda: bus.statistics().counters["unauthentic"] >= before["unauthentic"] + 2)
        assert bus.ring == ring
        await other.publish("bad.forged", b"as before")
        assert isinstance(await messages.get(WAIT_S), Message)


async def test_what_is_stale_is_counted_and_changes_no_plan(
    bus: shoal.Bus, other: shoal.Bus, state: ClusterState, signer: Signer
) -> None:
    """Authentic and correctly signed, but older than the entry in use, as from an agent that is behind."""
    channel = b"bad.stale"
    async with bus.subscribe(channel) as messages, plain_clients(state, AGENT) as clients:
        ring = bus.ring
        home = ring.home(channel)
        away = next(server for server in ring.ids if server != home)
        old_ring = signer.ring(Ring(0, ring.servers[:1]))
        inbox = inbox_channel(bus.client_id)

        async def tell(entry: bytes, ring_data: bytes = b"") -> None:
            answer = answer_of(home, channel, version=9, entry=entry, ring=ring_data)
            keys = bus.shell.router._context.links[home].from_agent
            assert keys is not None
            ((generation, key),) = keys.items()
            seal = control.KeySeal(control.CLIENT_SCHEME, generation, key)
            await clients[home].publish(inbox, control.encode(answer, bus.client_id, 1 << 60, seal))

        before = bus.statistics().counters["stale_entries"]
        await tell(signer.entry(channel, Placement(8, Mode.SINGLE, (home,))))
        await tell(signer.entry(channel, Placement(7, Mode.SINGLE, (away,))), old_ring)
        await until(lambda: bus.statistics().counters["stale_entries"] == before + 2)
        assert bus.ring == ring
        assert bus.shell.router.book.placement(channel).servers == (home,)
        await other.publish(channel, b"as before")
        assert isinstance(await messages.get(WAIT_S), Message)


async def test_foreign_payloads_are_delivered_as_they_are(bus: shoal.Bus, state: ClusterState) -> None:
    payloads = [
        b"plain",
        b"",
        bytes(range(256)),
        b"\xf5\x5b",
        b"\xf5\x5a\xf0" + bytes(60),
        b"\xf5\x5b\x00\x09" + bytes(60),
    ]
    async with bus.subscribe("bad.foreign") as messages, plain_clients(state, CLIENT) as clients:
        for payload in payloads:
            await clients[bus.ring.home(b"bad.foreign")].publish("bad.foreign", payload)
        items = [await messages.get(WAIT_S) for _ in payloads]
    assert [item.payload for item in items if isinstance(item, Message) and item.foreign] == payloads
