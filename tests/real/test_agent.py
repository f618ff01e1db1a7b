"""An agent process beside a real server, with a real coordinator: it counts, answers, survives, and keeps
its lease."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.agent_site import (
    POLL_S,
    SOURCE,
    TIMEOUT_S,
    SharedSites,
    Site,
    agent_site,
    plain_subscriber,
    shared_sites,
    until,
)
from tests.support.redis_server import RedisServer
from tests.support.router_client import RouterClient

from shoal.limits import Limits
from shoal.plan.format import VALUE
from shoal.plan.keys import FORMAT_KEY, RING_KEY, entry_key
from shoal.plan.placement import Mode, Placement
from shoal.plan.ring import Ring, ServerAddress
from shoal.plan.signature import Signer
from shoal.wire import control
from shoal.wire.envelope import (
    AGENT_CHANNEL,
    HEADER_BYTES,
    HEARTBEAT_CHANNEL,
    TELEMETRY_KEY,
    inbox_channel,
    peer_channel,
)

CAPACITY = ("--max-out-bytes-per-s", "1000000")
PATIENT = {"SHOAL_LIMITS_SERVER_LEASE_S": "30"}
CLIENT_IDS = itertools.count(0xA11CE)

pytestmark = pytest.mark.xdist_group("agent")


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with agent_site() as site:
        yield site


@pytest.fixture(scope="module")
def running() -> Iterator[SharedSites]:
    """A server with its agent that tests share. The agent has the lease for so long that it does not lapse on a busy
    machine. A test that ends the agent starts another, except for the last one of them."""
    with shared_sites(1) as sites:
        yield sites


@pytest.fixture
async def served(running: SharedSites) -> AsyncIterator[Site]:
    async with running.opened(*CAPACITY, **PATIENT) as (site,):
        yield site


def new_clients(count: int) -> Iterator[int]:
    """Ids that no test has used."""
    return itertools.islice(CLIENT_IDS, count)


async def test_telemetry_tells_what_was_done(served: Site) -> None:
    alice_id, bob_id, carol_id = new_clients(3)
    async with (
        RouterClient(alice_id, served.coordinator) as alice,
        RouterClient(bob_id, served.coordinator) as bob,
        RouterClient(carol_id, served.coordinator) as carol,
        plain_subscriber(served, b"tile"),
    ):
        sub = await alice.subscribe(b"tile")
        await bob.subscribe(b"tile")
        await carol.subscribe(b"til*", pattern=True)
        payloads = [b"%04d" % number for number in range(100)]
        await asyncio.gather(bob.publish(b"tile", *payloads), carol.publish(b"tile", *payloads))
        await served.plain.publish(b"tile", b"foreign")
        await alice.receive(sub, 201)

        async def all_counted() -> bool:
            return (await served.totals(b"tile", "publications"))["publications"] >= 201

        await until(all_counted)
        row = await served.seen(b"tile", lambda row: row["publications"] > 1)
        assert set(row["publisher_ids"]) <= {bob_id, carol_id}
        assert row["publishers"] == len(row["publisher_ids"]) >= 1
        assert row["subscribers"] == 3, "the plain one counts"
        assert row["registered"] == 2
        assert set(row["subscriber_ids"]) == {alice_id, bob_id}
        assert row["pattern_subscribers"] == 1
        assert row["complete"]
        totals = await served.totals(
            b"tile", "publications", "foreign", "beacons", "messages_sent", "bytes_in", "bytes_out"
        )
        assert (totals["publications"], totals["foreign"]) == (201, 1)
        assert totals["messages_sent"] == 201 * 4
        sizes = {HEADER_BYTES + 4: 200, len(b"foreign"): 1, HEADER_BYTES + 8: totals["beacons"]}
        assert totals["bytes_in"] == sum(size * count for size, count in sizes.items())
        assert totals["bytes_out"] == sum(
            count * (3 * frame_bytes(b">3\r\n$7\r\nmessage\r\n", size) + frame_bytes(PATTERN_PREFIX, size))
            for size, count in sizes.items()
        )
        server = await until(lambda: _measured(served))
        assert server["max_out_bytes_per_s"] == 1_000_000
        assert server["net_output_bytes_per_s"] > 0
        assert 0 <= server["load_ratio"] < 1
        assert 0 <= server["cpu_share"] < 2


PATTERN_PREFIX = b">4\r\n$8\r\npmessage\r\n$4\r\ntil*\r\n"


def frame_bytes(prefix: bytes, payload_bytes: int) -> int:
    """How many bytes a delivery on the channel `tile` takes."""
    return len(b"%b$4\r\ntile\r\n$%d\r\n\r\n" % (prefix, payload_bytes)) + payload_bytes


async def _measured(site: Site) -> dict[str, Any] | None:
    """A row of the server that compares two samples."""
    rows = [dict(record.host) for record in await site.records()]
    return next((row for row in rows if row["interval_s"] is not None), None)


def mapped_files(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


async def test_a_serving_agent_runs_machine_code_and_has_loaded_neither_numba_nor_arrow(served: Site) -> None:
    await until(served.records)
    assert served.agent is not None
    maps = mapped_files(served.agent.pid)
    assert ".image" in maps  # the loops, see `loop_image`
    for heavy in ("numba", "llvmlite", "arrow"):
        assert heavy not in maps


async def test_a_killed_agent_is_followed_by_one_that_knows_everybody(served: Site) -> None:
    alice_id, bob_id = new_clients(2)
    async with RouterClient(alice_id, served.coordinator) as alice, RouterClient(bob_id, served.coordinator) as bob:
        sub = await alice.subscribe(b"killed")
        await bob.publish(b"killed", b"1", b"2")
        await served.seen(b"killed", lambda row: row["registered"] == 1)
        before = await served.lease()
        served.end_agent(signal.SIGKILL)
        await bob.publish(b"killed", b"3")
        served.start_agent(*CAPACITY, **PATIENT)

        async def taken_over() -> bool:
            now = await served.lease()
            return before is not None and now is not None and now.token > before.token

        await until(taken_over)
        await until(lambda: bob.router.counters.resyncs)
        await served.plain.xtrim(TELEMETRY_KEY, maxlen=0)
        row = await served.seen(b"killed", lambda row: row["registered"] == 1)
        assert row["subscriber_ids"] == [alice_id]
        late = await bob.subscribe(b"killed")
        assert {stream.next for stream in late.streams.values()} == {4}, "the agent knows how far the stream is"
        await bob.publish(b"killed", b"4")
        assert await alice.receive(sub, 4) == [b"1", b"2", b"3", b"4"]
        assert await bob.receive(late, 1) == [b"4"]


async def test_a_restarted_server_is_a_new_incarnation_with_the_same_agent(served: Site) -> None:
    alice_id, bob_id = new_clients(2)
    async with RouterClient(alice_id, served.coordinator) as alice, RouterClient(bob_id, served.coordinator) as bob:
        sub = await alice.subscribe(b"restarted")
        await bob.publish(b"restarted", b"1")
        await alice.receive(sub, 1)
        before = await served.seen(b"restarted", lambda row: row["registered"] == 1)
        assert before["subscriber_ids"] == [alice_id]
        earlier = await served.records()
        (instance,) = {record.id.instance for record in earlier}
        await asyncio.to_thread(served.server.kill)
        await asyncio.to_thread(served.server.restart)
        await bob.publish(b"restarted", b"2")
        assert await alice.receive(sub, 1) == [b"2"]
        row = await served.seen(b"restarted", lambda row: row["registered"] == 1)
        assert row["subscriber_ids"] == [alice_id]
        after = await served.records()
        assert {record.id.instance for record in after} == {instance}
        assert min(record.id.sequence for record in after) > earlier[-1].id.sequence, "the earlier stream is lost"


async def test_clients_that_vanish_leave_the_register(served: Site) -> None:
    alice_id, bob_id = new_clients(2)
    async with RouterClient(bob_id, served.coordinator) as bob:
        await bob.subscribe(b"vanished")
        async with RouterClient(alice_id, served.coordinator) as alice:
            await alice.subscribe(b"vanished")
            await served.seen(b"vanished", lambda row: row["registered"] == 2)
        known = len(await served.records())

        async def forgotten() -> bool:
            tables = [record.tables["channel"].rows() for record in (await served.records())[known:]]
            return any(table[b"vanished"]["subscriber_ids"] == [bob_id] for table in tables if b"vanished" in table)

        await until(forgotten)


async def test_garbage_on_every_internal_channel_harms_nothing(served: Site) -> None:
    alice_id, bob_id = new_clients(2)
    heartbeat = control.encode(
        control.Heartbeat("s2", instance=1, heard=1, incarnation=1, lease_ms=1_000_000, granted=False, ring_version=99),
        number=1,
    )
    present = control.Present(1, 99, 0, 1, [b"x" * 4000], [b"[" * 100], [(b"y" * 4000, 1, 1)])
    forged = control.encode(present, alice_id, 1)
    mark = control.encode(control.Resync("s1", 1, 1))[:3]
    noise = [
        b"",
        b"\x00",
        os.urandom(300),
        mark,
        mark + os.urandom(50),
        heartbeat,
        heartbeat[:-1],
        forged,
        b"\xf5\x5a" + b"\xff" * 40,
        b"\xf5\x5b" + b"\xff" * 40,
    ]
    async with RouterClient(alice_id, served.coordinator) as alice, RouterClient(bob_id, served.coordinator) as bob:
        sub = await alice.subscribe(b"garbage")
        before = await served.lease()
        for channel in (
            AGENT_CHANNEL,
            HEARTBEAT_CHANNEL,
            inbox_channel(alice_id),
            peer_channel(alice_id),
            b"__shoal:",
            b"__shoal:other",
            b"tile.noise",
        ):
            for data in noise:
                await served.plain.publish(channel, data)
        await served.plain.xadd(TELEMETRY_KEY, {"data": b"garbage"})
        await served.plain.xtrim(TELEMETRY_KEY, maxlen=0)
        await bob.publish(b"garbage", b"after")
        assert await alice.receive(sub, 1) == [b"after"]
        await served.seen(b"garbage", lambda row: row["registered"] == 1)
        after = await served.lease()
        assert before is not None
        assert after is not None
        assert before.token == after.token


async def test_entries_of_the_plan_reach_clients_and_forged_ones_do_not(served: Site) -> None:
    (alice_id,) = new_clients(1)
    ring = Ring(2, (served.address, ServerAddress("s9", served.address.host, served.address.port)))
    true = served.signer.entry(b"moved", Placement(7, Mode.SINGLE, ("s1",)))
    forged = Signer(Signer.generate()).entry(b"forged", Placement(9, Mode.SINGLE, ("s9",)))
    await served.coordinator.put(entry_key(b"moved"), true)
    await served.coordinator.put(entry_key(b"forged"), forged)
    await served.coordinator.put("plan/entries/no base64", b"garbage")
    await served.coordinator.put(RING_KEY, Signer(Signer.generate()).ring(ring))

    async def answer(name: bytes) -> control.Answer:
        async with plain_subscriber(served, inbox_channel(alice_id)) as inbox:
            hello = control.Hello(5, name, False, True, version=1, ring_version=1)
            await served.plain.publish(AGENT_CHANNEL, control.encode(hello, alice_id, 1))
            message = await inbox.get_message(timeout=TIMEOUT_S)
            found = control.decode(message["data"]).message
            assert isinstance(found, control.Answer)
            return found

    async def updated() -> bool:
        return (await answer(b"moved")).entry == true

    await until(updated)
    assert (await answer(b"forged")).entry == b""
    assert (await answer(b"forged")).version == 0


async def test_the_lease_of_a_server_that_does_not_answer_runs_out_and_comes_back(site: Site) -> None:
    site.start_agent()
    before = await until(site.lease)
    os.kill(site.server.pid, signal.SIGSTOP)
    try:
        await until(lambda: _gone(site))
    finally:
        os.kill(site.server.pid, signal.SIGCONT)
    after = await until(site.lease)
    assert after.token > before.token
    assert after.holder == before.holder


async def _gone(site: Site) -> bool:
    return await site.lease() is None


ORPHANS = Limits(server_lease_s=6.0, heartbeat_interval_s=1.0)
LEEWAY_S = 2.0
"""By how much the ends of two grants may differ for these limits: see `AgentLease`."""
OUTAGES_MAX = 10


async def test_with_the_coordinator_down_agents_that_hear_each_other_go_on(site: Site) -> None:
    """Agents go on if their grants ran out together. On a busy machine one may have renewed its grant much later than
    the other. Then they may fall silent, which is safe, and the coordinator goes down once more."""
    with RedisServer() as server:
        second = Site(site.coordinator, site.redis, server, id="s2")
        try:
            for each in (site, second):
                each.start_agent(
                    SHOAL_LIMITS_SERVER_LEASE_S=str(ORPHANS.server_lease_s),
                    SHOAL_LIMITS_HEARTBEAT_INTERVAL_S=str(ORPHANS.heartbeat_interval_s),
                )
            await asyncio.gather(until(site.lease), until(second.lease))
            ring = Ring(2, (site.address, second.address))
            await site.coordinator.put(RING_KEY, site.signer.ring(ring))
            async with (
                plain_subscriber(site, HEARTBEAT_CHANNEL) as one,
                plain_subscriber(second, HEARTBEAT_CHANNEL) as other,
            ):
                for _ in range(OUTAGES_MAX):
                    for heartbeats in (one, other):
                        await _heartbeat(
                            heartbeats,
                            lambda heartbeat: (
                                heartbeat.granted and heartbeat.lease_ms > 0 and heartbeat.ring_version == 2
                            ),
                        )
                    site.redis.kill()
                    ended_at = await asyncio.gather(_grant_ended_at(one), _grant_ended_at(other))
                    together = abs(ended_at[0] - ended_at[1]) < LEEWAY_S / 2
                    for heartbeats in (one, other) if together else ():
                        for _ in range(3):
                            await _heartbeat(
                                heartbeats, lambda heartbeat: not heartbeat.granted and heartbeat.lease_ms > 0
                            )
                    await asyncio.to_thread(site.redis.restart)
                    if together:
                        break
                else:
                    pytest.fail("the two grants never ran out together")
                for heartbeats in (one, other):
                    await _heartbeat(heartbeats, lambda heartbeat: heartbeat.granted)
            assert await until(site.lease)
        finally:
            second.close()
            await second.plain.connection_pool.disconnect()


async def _grant_ended_at(heartbeats: Any) -> float:
    """When the grant of an agent ran out, by its next heartbeat without one."""
    heartbeat = await _heartbeat(heartbeats, lambda heartbeat: heartbeat.lapsed_ms is not None)
    assert heartbeat.lapsed_ms is not None
    return time.monotonic() - heartbeat.lapsed_ms / 1000


async def _heartbeat(pubsub: Any, condition: Callable[[control.Heartbeat], bool]) -> control.Heartbeat:
    """The next heartbeat for which the condition holds."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=TIMEOUT_S)
            heartbeat = control.decode(message["data"]).message if message else None
            if isinstance(heartbeat, control.Heartbeat) and condition(heartbeat):
                return heartbeat


async def test_an_agent_waits_for_an_older_plan_and_ends_at_a_newer_one(site: Site) -> None:
    await site.coordinator.delete(FORMAT_KEY)
    agent = site.start_agent()
    await asyncio.sleep(1.0)
    assert agent.poll() is None
    assert await site.lease() is None, "it cannot serve by a plan of format 1"
    await site.coordinator.put(FORMAT_KEY, VALUE)
    await until(site.lease)
    await site.coordinator.put(FORMAT_KEY, b"3")

    async def ended() -> bool:
        return agent.poll() is not None

    await until(ended)
    assert agent.returncode == 1


async def test_of_two_agents_for_one_server_the_newer_one_stays(site: Site) -> None:
    older = site.start_agent(**PATIENT)
    first = await until(site.lease)
    site.start_agent(**PATIENT)

    async def replaced() -> bool:
        now = await site.lease()
        return now is not None and now.holder != first.holder

    try:
        await until(replaced)
        renewed = time.monotonic() + 1.5
        while time.monotonic() < renewed:
            now = await site.lease()
            assert now is not None
            assert now.holder != first.holder
            await asyncio.sleep(POLL_S)
    finally:
        older.kill()
        older.wait(TIMEOUT_S)


async def test_sigterm_gives_up_lease_and_membership_at_once(served: Site) -> None:
    assert "s1" in await served.coordinator.members("servers")
    assert served.end_agent(signal.SIGTERM) == 0
    assert await served.lease() is None
    assert await served.coordinator.members("servers") == {}


@pytest.mark.parametrize(
    ("flags", "environment", "error"),
    [
        (["--server", "s 1"], {}, "is not a valid id"),
        (["--address", "nowhere"], {}, "host:port"),
        (["--max-out-bytes-per-s", "-1"], {}, "above 0"),
        ([], {}, "SHOAL_URL"),
        ([], {"SHOAL_URL": "shoal://agent:wrong@{coordinator}"}, "refused user 'agent'"),
    ],
)
def test_bad_arguments_end_the_agent_with_one_line(flags: list[str], environment: dict[str, str], error: str) -> None:
    with RedisServer() as coordinator:
        settings = {
            name: value.format(coordinator=f"{coordinator.host}:{coordinator.port}")
            for name, value in environment.items()
        }
        command = [
            sys.executable,
            "-m",
            "shoal.cli",
            "agent",
            "--server",
            "s1",
            "--address",
            "127.0.0.1:1",
            *flags,
        ]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        ended = subprocess.run(
            command,
            env={**inherited, "PYTHONPATH": str(SOURCE), **settings},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert ended.returncode == 1
    assert error in ended.stderr
    assert "Traceback" not in ended.stderr
