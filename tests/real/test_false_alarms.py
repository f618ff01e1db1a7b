"""A server that freezes until it leaves the ring loses nothing that was confirmed, so no subscriber gets a gap."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.support.agent_site import until
from tests.support.command import run_json_command

import shoal
from shoal.cluster.acl import ADMIN
from shoal.cluster.cluster_timeouts import Timing
from shoal.cluster.local import LocalCluster
from shoal.cluster.parts import agent_name, shoal_agent
from shoal.limits import Limits
from shoal.plan.ring import ServerAddress

WAIT_S = 60.0
LEASE_S = 1.5
LIMITS = Limits(server_lease_s=LEASE_S, gap_timeout_s=4.0)
ENDED_PUBLISHERS = 3


def agent(server: ServerAddress) -> Sequence[str]:
    settings = [f"SHOAL_LIMITS_SERVER_LEASE_S={LEASE_S}", f"SHOAL_LIMITS_GAP_TIMEOUT_S={LIMITS.gap_timeout_s}"]
    return ["env", *settings, *shoal_agent(server)]


def in_ring(cluster: LocalCluster) -> set[str]:
    return {server.id for server in cluster.status().servers if server.in_ring}


async def freeze_until_it_has_left(cluster: LocalCluster, server: str) -> None:
    """Stops a server and its agent until the ring goes on without them, and lets them return."""
    members = in_ring(cluster)
    for name in (agent_name(server), server):
        cluster.pause(name)
    await until(lambda: in_ring(cluster) == members - {server})
    await asyncio.sleep(1.0)
    for name in (server, agent_name(server)):
        cluster.resume(name)
    await until(lambda: in_ring(cluster) == members)


async def publish_and_close(cluster: LocalCluster, channel: str, *payloads: bytes) -> None:
    """A publisher that ends in order, like `shoal pub`."""
    async with shoal.connect(cluster.url, limits=LIMITS) as bus:
        for payload in payloads:
            await bus.publish(channel, payload, confirm=True)


async def everything(messages: shoal.Subscription, last: bytes) -> list[object]:
    """What a subscription gets up to a payload, and within the gap timeout after it."""
    items: list[object] = []
    async with asyncio.timeout(WAIT_S):
        while not items or getattr(items[-1], "payload", None) != last:
            items.append(await messages.get())
    try:
        async with asyncio.timeout(LIMITS.gap_timeout_s + 2 * LEASE_S):
            while True:
                items.append(await messages.get())
    except TimeoutError:
        return items


async def test_a_frozen_server_gives_no_gap_about_publishers_that_ended_before(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    timing = Timing(restart_pause_s_max=0.2)
    async with LocalCluster(3, limits=LIMITS, timing=timing, agent_command=agent) as cluster:
        monkeypatch.setenv("SHOAL_COORDINATOR", cluster.url_for(ADMIN))
        await publish_and_close(cluster, "evt", b"before the move")
        status, facts = await run_json_command(capsys, "plan", "move", "evt", "--to", "s1")
        assert (status, facts["servers"]) == (0, ["s1"])
        for number in range(ENDED_PUBLISHERS):
            await publish_and_close(cluster, "evt", *(b"%d of %d" % (count, number) for count in range(5)))
        async with (
            shoal.connect(cluster.url, limits=LIMITS) as bus,
            bus.subscribe("evt") as messages,
            bus.psubscribe("ev*") as all_messages,
        ):
            await bus.publish("evt", b"first", confirm=True)
            await publish_and_close(cluster, "evt", b"short")
            await freeze_until_it_has_left(cluster, "s1")
            await bus.publish("evt", b"last", confirm=True)
            for subscription in (messages, all_messages):
                items = await everything(subscription, b"last")
                assert sorted((getattr(item, "payload", item) for item in items), key=str) == [
                    b"first",
                    b"last",
                    b"short",
                ]
