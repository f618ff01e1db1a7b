"""Recording on a real cluster: messages on a marked channel are in the records, across moves and crashes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.agent_site import until
from tests.support.cluster_thread import ClusterThread
from tests.support.command import run_json_command

import shoal
from shoal.wire.record_entry import RecordedGap, RecordedMessage, read_entry, record_key

pytestmark = pytest.mark.usefixtures("admin")


@pytest.fixture
async def marked(capsys: pytest.CaptureFixture[str]) -> AsyncIterator[str]:
    """A pattern of recorded channels."""
    _, facts = await run_json_command(capsys, "channels", "record", "deals.*")
    assert facts["recorded"]
    yield "deals.*"
    await run_json_command(capsys, "channels", "record", "deals.*", "--off")


async def records(bus: shoal.Bus, channel: str) -> dict[str, list[Any]]:
    """Return the records of each server."""
    replies = await bus.ask_servers("XRANGE", record_key(channel.encode()), "-", "+")
    return {server: [read_entry(fields)[1] for _, fields in entries] for server, entries in replies.items()}


def numbers(said: dict[str, list[Any]]) -> list[int]:
    return sorted({m.sequence for some in said.values() for m in some if isinstance(m, RecordedMessage)})


async def test_marks_are_listed(marked: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, facts = await run_json_command(capsys, "channels", "recorded")
    assert facts == {"recorded": [marked]}
    _, facts = await run_json_command(capsys, "channels", "record", marked)
    assert facts == {"name": marked, "recorded": True, "changed": False, "waiting": []}


async def test_messages_are_recorded_through_a_move(
    marked: str, bus: shoal.Bus, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(100):
        await bus.publish("deals.move", b"%d" % number)
    _, facts = await run_json_command(capsys, "plan", "show", "deals.move")
    home = facts["channels"][0]["servers"][0]
    target = next(server for server in ("s1", "s2", "s3") if server != home)
    moving = asyncio.create_task(run_json_command(capsys, "plan", "move", "deals.move", "--to", target, "--eager"))
    for number in range(100, 300):
        await bus.publish("deals.move", b"%d" % number)
        await asyncio.sleep(0.002)
    await moving
    for number in range(300, 400):
        await bus.publish("deals.move", b"%d" % number, confirm=True)

    async def all_there() -> bool:
        return numbers(await records(bus, "deals.move")) == list(range(1, 401))

    await until(all_there)
    said = await records(bus, "deals.move")
    assert said[home]
    assert said[target]
    assert not [gap for some in said.values() for gap in some if isinstance(gap, RecordedGap)]
    for some in said.values():
        heard = [m.sequence for m in some if isinstance(m, RecordedMessage)]
        assert len(heard) == len(set(heard))


async def test_a_killed_agent_loses_nothing_that_publishers_still_have(
    marked: str, bus: shoal.Bus, shared_cluster: ClusterThread, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(50):
        await bus.publish("deals.kill", b"%d" % number, confirm=True)
    _, facts = await run_json_command(capsys, "plan", "show", "deals.kill")
    home = facts["channels"][0]["servers"][0]
    shared_cluster.call(lambda cluster: cluster.kill(f"agent-{home}"))
    for number in range(50, 300):
        await bus.publish("deals.kill", b"%d" % number)
        await asyncio.sleep(0.004)
    await bus.drain()

    async def all_there() -> bool:
        return numbers(await records(bus, "deals.kill")) == list(range(1, 301))

    await until(all_there)
    said = (await records(bus, "deals.kill"))[home]
    assert [gap.stream for gap in said if isinstance(gap, RecordedGap)] == [0]
