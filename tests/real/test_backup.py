"""The coordinator's disk is lost: a backup brings plan and recording marks back while the cluster runs."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import run_command, run_json_command

import shoal
from shoal.cluster.acl import ADMIN
from shoal.cluster.cluster_timeouts import Timing
from shoal.cluster.local import COORDINATOR, LocalCluster
from shoal.cluster.parts import agent_name, shoal_agent
from shoal.message import Message
from shoal.plan.ring import ServerAddress
from shoal.wire.record_entry import MARKS_KEY, read_marks

WAIT_S = 60.0
LEASE_S = 10.0
"""Servers stay in the ring while the coordinator is emptied."""


def agent(server: ServerAddress) -> Sequence[str]:
    return ["env", f"SHOAL_LIMITS_SERVER_LEASE_S={LEASE_S}", *shoal_agent(server)]


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalCluster]:
    timing = Timing(restart_pause_s_max=0.2)
    limits = shoal.Limits(server_lease_s=LEASE_S)
    async with LocalCluster(2, limits=limits, timing=timing, agent_command=agent) as started:
        monkeypatch.setenv("SHOAL_COORDINATOR", started.url_for(ADMIN))
        yield started


async def lose_disk(cluster: LocalCluster) -> None:
    """The coordinator dies, and comes back with an empty disk."""
    cluster.hold(COORDINATOR)
    await cluster.kill(COORDINATOR)
    for path in (cluster.directory.root / COORDINATOR).iterdir():
        if path.name not in ("users.acl", "server.conf"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    await cluster.restart(COORDINATOR)
    cluster.release(COORDINATOR)


async def placement(capsys: pytest.CaptureFixture[str], channel: str) -> dict[str, Any]:
    _, facts = await run_json_command(capsys, "plan", "show", channel)
    found: dict[str, Any] = facts["channels"][0]
    return found


async def test_a_restored_cluster_goes_on_with_its_channels_where_they_were_and_its_recording_marks(
    cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "backup"
    async with shoal.connect(cluster.url) as bus, bus.subscribe("placed") as messages:
        home = bus.ring.home(b"placed")
        target = next(server for server in bus.ring.ids if server != home)
        status, _ = await run_json_command(capsys, "plan", "move", "placed", "--to", target)
        assert status == 0
        await run_json_command(capsys, "channels", "record", "kept.*")
        status, facts = await run_json_command(capsys, "coordinator", "backup", str(saved))
        assert status == 0
        assert facts["keys"] >= 5
        assert "passwords" in facts["not_saved"]
        await lose_disk(cluster)
        status, out, err = await run_command(capsys, "channels", "recorded")
        assert "kept" not in out, "the data is gone"
        for server in cluster.servers:
            value = (await bus.ask_servers("GET", MARKS_KEY))[server.id]
            assert read_marks(value) == [b"kept.*"], "agents do not take lost data for a decision"
        assert await said_loudly(cluster)
        status, facts = await run_json_command(capsys, "coordinator", "restore", str(saved))
        assert status == 0
        assert facts["written"] >= 2
        assert (await run_json_command(capsys, "channels", "recorded"))[1] == {"recorded": ["kept.*"]}
        found = await placement(capsys, "placed")
        assert (found["source"], found["servers"]) == ("entry", [target])
        async with asyncio.timeout(WAIT_S), shoal.connect(cluster.url) as late, late.subscribe("placed") as too:
            await late.publish("placed", b"x", confirm=True)
            for reader in (messages, too):
                item = await reader.get()
                assert isinstance(item, Message)
                assert item.payload == b"x"
        status, _, err = await run_command(capsys, "coordinator", "restore", str(saved))
        assert status == 0, f"the same backup can be restored again: {err}"


async def said_loudly(cluster: LocalCluster) -> bool:
    """The log of an agent says that the coordinator has lost its data, and what to do."""
    log = cluster.directory.log(agent_name("s1"))
    async with asyncio.timeout(WAIT_S):
        while "coordinator data lost" not in (text := log.read_text()):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.1)
    return "shoal coordinator restore" in text


async def test_a_coordinator_with_other_data_is_left_as_it_is(
    cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "backup"
    assert (await run_json_command(capsys, "coordinator", "backup", str(saved)))[0] == 0
    await run_json_command(capsys, "channels", "record", "since.then")
    status, _, err = await run_command(capsys, "coordinator", "restore", str(saved))
    assert status == 1
    assert "not empty" in err
    assert (await run_json_command(capsys, "channels", "recorded"))[1] == {"recorded": ["since.then"]}
