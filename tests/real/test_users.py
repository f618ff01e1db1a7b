"""`shoal users rotate` and `revoke` on a running cluster: two passwords for a while, then one, and nothing is lost."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.cluster_thread import LEASE_S, patient_agent
from tests.support.command import run_command, run_json_command

import shoal
from shoal.cluster.acl import ADMIN, AGENT, CLIENT, ROLES, SUPERVISOR
from shoal.cluster.cluster_timeouts import Timing
from shoal.cluster.local import COORDINATOR, LocalCluster
from shoal.cluster.parts import answers
from shoal.errors import AuthenticationError
from shoal.limits import Limits
from shoal.message import Message

WAIT_S = 60.0


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalCluster]:
    timing = Timing(restart_pause_s_max=0.2)
    limits = Limits(server_lease_s=LEASE_S)
    state = tmp_path / "state"
    monkeypatch.setenv("SHOAL_STATE_DIR", str(state))
    async with LocalCluster(2, state, limits=limits, timing=timing, agent_command=patient_agent) as started:
        yield started


async def accepted(cluster: LocalCluster, role: str, password: str) -> set[bool]:
    """Whether the servers and the coordinator accept a password."""
    state = cluster.state
    places = (state.coordinator, *state.servers)
    return {await answers(one.host, one.port, role, password, state.tls_for(role)) for one in places}


async def restart_all(cluster: LocalCluster) -> None:
    for name in (COORDINATOR, "s1", "s2"):
        await cluster.restart(name)


async def test_both_passwords_are_valid_until_the_old_one_is_revoked_also_after_a_restart(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    old = cluster.state.passwords[CLIENT]
    status, facts = await run_json_command(capsys, "users", "rotate", "client")
    assert (status, facts) == (0, {"roles": ["client"], "missed": []})
    new = cluster.directory.read().passwords[CLIENT]  # type: ignore[union-attr]
    assert new != old
    for _ in range(2):
        assert await accepted(cluster, CLIENT, old) == {True}
        assert await accepted(cluster, CLIENT, new) == {True}
        await restart_all(cluster)
    status, _, err = await run_command(capsys, "users", "rotate", "client")
    assert status == 1
    assert "shoal users revoke client" in err
    assert (await run_json_command(capsys, "users", "revoke"))[1] == {"roles": ["client"], "missed": []}
    for _ in range(2):
        assert await accepted(cluster, CLIENT, old) == {False}
        assert await accepted(cluster, CLIENT, new) == {True}
        await restart_all(cluster)
    assert (await run_command(capsys, "users", "revoke", "client"))[0] == 1, "there is nothing to revoke"


async def test_clients_that_read_their_password_go_on_and_others_are_told(
    cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = cluster.state
    file = tmp_path / "password"
    file.write_text(state.passwords[CLIENT] + "\n")
    place = f"{state.coordinator.host}:{state.coordinator.port}"
    tls = cluster.state.tls_for("client")
    scheme, query = ("shoal", "") if tls is None else ("shoals", f"&{tls.query()}")
    by_file = f"{scheme}://client@{place}?password_file={file}{query}"
    connect = functools.partial(shoal.connect, cache_dir=tmp_path / "cache")
    async with connect() as local, connect(by_file) as filed, connect(cluster.url) as fixed:
        async with local.subscribe("kept") as first, filed.subscribe("kept") as second:
            lost = await fixed.subscribe("kept").open()
            await fixed.publish("kept", b"before", confirm=True)
            reading = asyncio.create_task(lost_login(lost))
            await run_json_command(capsys, "users", "rotate", "client")
            file.write_text(cluster.state.passwords[CLIENT])
            await run_json_command(capsys, "users", "revoke", "client")
            async with asyncio.timeout(WAIT_S):
                await local.publish("kept", b"after", confirm=True)
                for messages in (first, second):
                    items = [await messages.get(), await messages.get()]
                    assert [item.payload for item in items if isinstance(item, Message)] == [b"before", b"after"]
                with pytest.raises(AuthenticationError, match="check the user's name and password"):
                    await fixed.publish("kept", b"never", confirm=True)
                assert await reading
        fixed.shell.abandon()


async def lost_login(messages: shoal.Subscription) -> bool:
    """Reads until the login is refused."""
    try:
        async for _ in messages:
            pass
    except AuthenticationError:
        return True
    return False


async def test_the_clusters_own_processes_use_the_new_passwords(
    cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, facts = await run_json_command(capsys, "users", "rotate")
    assert (status, facts["roles"]) == (0, list(ROLES))
    status, facts = await run_json_command(capsys, "users", "revoke")
    assert (status, facts["roles"]) == (0, list(ROLES))
    assert await accepted(cluster, AGENT, cluster.state.passwords[AGENT]) == {True}
    async with shoal.connect(cache_dir=tmp_path) as bus, bus.subscribe("still") as messages, asyncio.timeout(WAIT_S):
        await bus.publish("still", b"x", confirm=True)
        assert isinstance(await messages.get(), Message)
    status, _ = await run_json_command(capsys, "plan", "show")
    assert status == 0
    version = cluster.status().ring_version
    await cluster.add_server()
    async with asyncio.timeout(WAIT_S):
        while cluster.status().ring_version == version:  # noqa: ASYNC110 - the cluster has no event for this
            await asyncio.sleep(0.05)
    state = cluster.state
    assert await answers(*address(cluster, "s3"), ADMIN, state.passwords[ADMIN], state.tls_for(ADMIN))


def address(cluster: LocalCluster, server: str) -> tuple[str, int]:
    return next((one.host, one.port) for one in cluster.servers if one.id == server)


async def test_the_right_to_change_users_stays_with_the_supervisor(cluster: LocalCluster) -> None:
    text = (cluster.directory.root / "cluster.json").read_text()
    assert SUPERVISOR not in cluster.state.passwords
    assert cluster._users.supervisor_password not in text
