"""`shoal history` on a real cluster: archive and records merged, in order, each message once, with gaps shown."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.support.agent_site import until
from tests.support.cluster_thread import ClusterThread
from tests.support.command import run_json_command

import shoal
from shoal import cli
from shoal.cluster.local import LocalCluster
from shoal.cluster.parts import agent_name
from shoal.history.server_reader import Login
from shoal.pipeline.archive.job import ArchiveJob, run_here
from shoal.wire.record_entry import MESSAGE_FIELD, record_key

pytestmark = pytest.mark.usefixtures("admin")


async def archive(bus: shoal.Bus, url: str, directory: Path) -> None:
    user, password = url.removeprefix("shoal://").split("@")[0].split(":")
    with ArchiveJob(directory, Login(user, password)) as job:
        while job.batch(bus.ring.servers, run_here) is not None:
            pass


async def published(bus: shoal.Bus, channel: str, first: int, last: int) -> None:
    for number in range(first, last):
        await bus.publish(channel, b"%d" % number, attributes={"number": number}, confirm=True)

    async def recorded() -> bool:
        replies = await bus.ask_servers("XRANGE", record_key(channel.encode()), "-", "+")
        entries = [fields for found in replies.values() for _, fields in found]
        return sum(MESSAGE_FIELD in fields[::2] for fields in entries) >= last

    await until(recorded)


def payloads(facts: dict[str, Any]) -> list[int]:
    return [int(item["payload"]) for item in facts["items"] if item["type"] == "message"]


async def test_archive_and_records_are_one_history(
    channel: str, bus: shoal.Bus, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await published(bus, channel, 0, 50)
    await archive(bus, url, tmp_path)
    await published(bus, channel, 50, 80)
    words = ("history", channel, "--since", "10m", "--url", url, "--archive", str(tmp_path))
    status, facts = await run_json_command(capsys, *words)
    assert (status, payloads(facts), facts["gaps"]) == (0, list(range(80)), 0)
    status, facts = await run_json_command(capsys, *words, "--where", "number >= 40 and number < 60", "--limit", "15")
    assert payloads(facts) == list(range(40, 55))


async def test_messages_that_agents_have_not_written_down_yet_are_waited_for(
    channel: str, bus: shoal.Bus, url: str, shared_cluster: ClusterThread, capsys: pytest.CaptureFixture[str]
) -> None:
    """All agents stand still for a second, in which a message is confirmed and the command begins."""
    await published(bus, channel, 0, 1)

    async def agents(cluster: LocalCluster) -> list[int]:
        names = {agent_name(server.id) for server in cluster.servers}
        return [each.pid for each in cluster.status().processes if each.name in names and each.pid is not None]

    pids = shared_cluster.call(agents)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        await bus.publish(channel, b"1", confirm=True)
        command = asyncio.create_task(run_json_command(capsys, "history", channel, "--since", "10m", "--url", url))
        await asyncio.sleep(1.0)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    _, facts = await command
    assert payloads(facts) == [0, 1]


async def test_since_and_until_are_times_of_publishing(
    channel: str, bus: shoal.Bus, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await published(bus, channel, 0, 5)
    await asyncio.sleep(0.05)
    middle = dt.datetime.now(dt.UTC).isoformat()
    await asyncio.sleep(0.05)
    await published(bus, channel, 5, 10)
    _, facts = await run_json_command(capsys, "history", channel, "--since", middle, "--url", url)
    assert payloads(facts) == [5, 6, 7, 8, 9]
    _, facts = await run_json_command(capsys, "history", channel, "--since", "1h", "--until", middle, "--url", url)
    assert payloads(facts) == [0, 1, 2, 3, 4]


async def test_a_record_that_is_too_short_shows_a_gap(
    channel: str, bus: shoal.Bus, url: str, shared_cluster: ClusterThread, capsys: pytest.CaptureFixture[str]
) -> None:
    await published(bus, channel, 0, 10)

    async def recorded() -> bool:
        replies = await bus.ask_servers("XRANGE", record_key(channel.encode()), "-", "+")
        return sum(len(entries) for entries in replies.values()) == 11

    await until(recorded)

    async def agent_url(cluster: LocalCluster) -> str:
        return cluster.url_for("agent")

    async with shoal.connect(shared_cluster.call(agent_url)) as agent:
        await agent.ask_servers("XTRIM", record_key(channel.encode()), "MAXLEN", "=", 4)
    status, facts = await run_json_command(capsys, "history", channel, "--since", "1h", "--url", url)
    assert status == 1
    assert payloads(facts) == [6, 7, 8, 9]
    assert "7 entries of the record were dropped" in facts["items"][0]["reason"]


async def test_bad_input_is_refused_with_what_to_do(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in {
        ("--since", "yesterday"): "is not a time",
        ("--since", "2026-11-01T10:00", "--until", "2026-11-01T09:00"): "is not before",
        ("--since", "1h", "--archive", str(tmp_path / "nowhere")): "no archive at",
        ("--since", "1h", "--where", "volume >"): "line 1",
        ("--since", "1h", "--limit", "0"): "--limit is 0",
        ("--since", "-5m"): "an age has no sign: write 5m",
    }.items():
        assert await asyncio.to_thread(cli.main, ["history", "tile", *words, "--url", url]) == 1
        assert said in capsys.readouterr().err


async def test_why_there_is_nothing_of_a_channel_is_said(
    channel: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def said(name: str) -> tuple[int, str]:
        status = await asyncio.to_thread(cli.main, ["history", name, "--since", "1h", "--url", url])
        return status, capsys.readouterr().err

    assert await said(channel) == (0, f"no messages of {channel} were recorded in that time\n")
    status, words = await said("nowhere")
    assert status == 0
    assert "nowhere is not recorded; recorded channels: " in words
    assert channel in words
    status, words = await said("history.*")
    assert status == 1
    assert "history.* is a pattern" in words
    assert not (await run_json_command(capsys, "history", "nowhere", "--since", "1h", "--url", url))[1]["is_recorded"]
    assert (await run_json_command(capsys, "history", channel, "--since", "1h", "--url", url))[1]["is_recorded"]
