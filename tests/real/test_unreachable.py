"""Servers that refuse or do not answer: the calls of a bus tell within a limit instead of waiting forever."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

import shoal
from shoal.channels.client.context import LEASES_UNREACHABLE
from shoal.cluster.cluster_timeouts import Timing
from shoal.cluster.local import COORDINATOR, LocalCluster
from shoal.cluster.parts import agent_name, shoal_agent
from shoal.errors import (
    AuthenticationError,
    EnrolmentError,
    NotConfirmedError,
    PublishError,
    SubscribeError,
    SubscribeTimeoutError,
    UnreachableError,
)
from shoal.limits import Limits
from shoal.message import Message
from shoal.plan.ring import ServerAddress

WAIT_S = 60.0
LEASE_S = 1.5
CLIENTS_MAX = 40
HASTY = Limits(server_lease_s=LEASE_S, unreachable_s=0.5, enrol_timeout_s=5.0, publish_buffer_messages_max=50)
PATIENT = Limits(server_lease_s=LEASE_S, unreachable_s=10 * WAIT_S, subscribe_timeout_s=10 * WAIT_S)
"""What is told within WAIT_S is not told because of a timeout."""


def agent(server: ServerAddress) -> Sequence[str]:
    return ["env", f"SHOAL_LIMITS_SERVER_LEASE_S={LEASE_S}", *shoal_agent(server)]


def local_cluster(servers: int) -> LocalCluster:
    timing = Timing(restart_pause_s_max=0.2)
    return LocalCluster(servers, limits=HASTY, timing=timing, agent_command=agent)


async def change_users(cluster: LocalCluster, server: str, old: str, new: str) -> None:
    """Changes the users of a server behind the back of the cluster, and restarts it."""
    users = cluster.directory.root / "servers" / server / "users.acl"
    text = users.read_text()
    lines = [line.replace(old, new) if line.startswith("user client ") else line for line in text.splitlines()]
    assert "\n".join(lines) != text.rstrip("\n")
    users.write_text("\n".join(lines) + "\n")
    await cluster.restart(server)


async def raised(call: object) -> BaseException:
    """The error of a call that would otherwise wait."""
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(shoal.ShoalError) as caught:
            await call  # type: ignore[misc]
    return caught.value


async def test_calls_tell_that_the_whole_cluster_is_gone_and_go_on_when_it_is_back() -> None:
    async with local_cluster(1) as cluster, shoal.connect(cluster.url, limits=HASTY) as bus:
        messages = await bus.subscribe("gone").open()
        idle = await bus.psubscribe("idle.*").open()
        await bus.publish("gone", b"1", confirm=True)
        assert isinstance(await messages.get(WAIT_S), Message)
        names = (COORDINATOR, agent_name("s1"), "s1")
        for name in names:
            cluster.hold(name)
            await cluster.kill(name)

        async def read_all() -> None:
            async for _ in idle:
                pass

        errors = await asyncio.gather(
            raised(bus.publish("gone", b"2", confirm=True)),
            raised(bus.subscribe("other").open()),
            raised(messages.get()),
            raised(read_all()),
            raised(bus.drain(timeout=10 * WAIT_S)),
            raised(fill(bus)),
        )
        assert [type(error) for error in errors] == [
            NotConfirmedError,
            SubscribeTimeoutError,
            UnreachableError,
            UnreachableError,
            NotConfirmedError,
            PublishError,
        ]
        assert all("s1" in str(error) and "shoal status" in str(error) for error in errors), errors
        assert isinstance(await raised(messages.get()), UnreachableError), "it is repeated while it lasts"
        for name in reversed(names):
            cluster.release(name)
        async with asyncio.timeout(WAIT_S):
            assert await bus.until(lambda: not bus.router.pending_messages, WAIT_S)
            while not isinstance(item := await read_again(messages), Message):
                pass
            assert item.payload == b"2", "what was not confirmed stayed in the buffer"


async def fill(bus: shoal.Bus) -> None:
    """Publishes until the buffer is full and `publish` waits."""
    while True:
        await bus.publish("gone", b"more")


async def read_again(messages: shoal.Subscription) -> object:
    try:
        return await messages.get()
    except UnreachableError:
        return None


async def test_a_failover_of_one_server_is_not_told() -> None:
    """On a busy machine a failover may take longer than calls wait for one. Then they tell, and not earlier."""
    loop = asyncio.get_running_loop()
    async with local_cluster(3) as cluster, shoal.connect(cluster.url, limits=HASTY) as bus:
        home = bus.ring.home(b"moves on")
        async with bus.subscribe("moves on") as messages:
            killed_at = loop.time()
            for name in (agent_name(home), home):
                cluster.hold(name)
                await cluster.kill(name)

            def check(error: shoal.ShoalError) -> None:
                """No failover has been made in the time that the bus gives it."""
                assert bus.ring.home(b"moves on") == home, error
                assert loop.time() - killed_at >= LEASES_UNREACHABLE * LEASE_S > HASTY.unreachable_s, error

            async with asyncio.timeout(10 * WAIT_S):
                try:
                    await bus.publish("moves on", b"x", confirm=True)
                except NotConfirmedError as error:
                    check(error)
                item: object = None
                while not isinstance(item, Message):  # agent and server died together, so there may be a gap
                    try:
                        item = await messages.get()
                    except UnreachableError as error:
                        check(error)
            assert item.payload == b"x"


async def test_a_rejected_password_is_told_at_once_with_what_to_do() -> None:
    async with local_cluster(1) as cluster, shoal.connect(cluster.url, limits=PATIENT) as bus:
        messages = await bus.subscribe("locked").open()
        reading = asyncio.create_task(raised(messages.get()))
        await change_users(cluster, "s1", " on #", " off #")
        errors = await asyncio.gather(
            raised(bus.publish("locked", b"x", confirm=True)),
            raised(bus.subscribe("other").open()),
            reading,
            raised(bus.drain(timeout=10 * WAIT_S)),
        )
        assert [type(error) for error in errors] == [AuthenticationError] * 4
        assert all("check the user's name and password" in str(error) for error in errors)
        await change_users(cluster, "s1", " off #", " on #")
        assert await bus.until(lambda: not bus.router.pending_messages, WAIT_S)


async def test_missing_permissions_are_told_at_once() -> None:
    async with local_cluster(1) as cluster, shoal.connect(cluster.url, limits=PATIENT) as bus:
        await change_users(cluster, "s1", "&__shoal:agent ", "&__shoal:nobody ")
        publishing, subscribing = await asyncio.gather(
            raised(bus.publish("denied", b"x", confirm=True)), raised(bus.subscribe("denied").open())
        )
        assert isinstance(publishing, PublishError)
        assert isinstance(subscribing, SubscribeError)
        assert "NOPERM" in str(publishing)
        assert "NOPERM" in str(subscribing)
        await change_users(cluster, "s1", "&__shoal:nobody ", "&__shoal:agent ")
        await change_users(cluster, "s1", "(+subscribe &[^_]* ", "(+subscribe &[^_d]* ")
        refused = await raised(bus.subscribe("denied").open())
        assert isinstance(refused, SubscribeError)
        assert "'denied'" in str(refused)
        async with asyncio.timeout(WAIT_S):
            await (await bus.subscribe("permitted").open()).aclose()


async def test_a_server_without_room_for_connections_is_told_and_used_when_it_has_room() -> None:
    async with local_cluster(1) as cluster:
        settings = cluster.directory.root / "servers" / "s1" / "server.conf"
        settings.write_text(settings.read_text() + f"maxclients {CLIENTS_MAX}\n")
        await cluster.restart("s1")
        async with shoal.connect(cluster.url, limits=HASTY) as first, shoal.connect(cluster.url, limits=HASTY) as bus:
            await first.publish("full", b"0", confirm=True)  # the agent has its connections
            (address,) = cluster.servers
            taken = []
            for _ in range(CLIENTS_MAX):
                reader, writer = await asyncio.open_connection(address.host, address.port)
                taken.append(writer)
            assert b"max number of clients" in await reader.read(100)
            errors = await asyncio.gather(
                raised(bus.publish("full", b"1", confirm=True)),
                raised(bus.subscribe("full").open()),
                raised(shoal.connect(cluster.url, limits=HASTY).open()),
            )
            assert [type(error) for error in errors] == [NotConfirmedError, SubscribeTimeoutError, EnrolmentError]
            assert all("raise its maxclients" in str(error) for error in errors), errors
            for writer in taken:
                writer.close()
            assert await bus.until(lambda: not bus.router.pending_messages, WAIT_S)
