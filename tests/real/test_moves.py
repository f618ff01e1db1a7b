"""Channels of a real cluster move by `shoal plan move`, unnoticed by publishers and subscribers."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.agent_site import until
from tests.support.command import run_json_command

import shoal
from shoal.message import Item, Message

pytestmark = pytest.mark.usefixtures("admin")

WAIT_S = 60.0
ENDS_WITH = b"last"


async def where(capsys: pytest.CaptureFixture[str], channel: str) -> list[str]:
    _, facts = await run_json_command(capsys, "plan", "show", channel)
    servers: list[str] = facts["channels"][0]["servers"]
    return servers


async def elsewhere(capsys: pytest.CaptureFixture[str], channel: str) -> str:
    lives = await where(capsys, channel)
    return next(server for server in ("s1", "s2", "s3") if server not in lives)


async def rests(capsys: pytest.CaptureFixture[str], channel: str) -> bool:
    """Whether a channel does not move any more."""
    _, facts = await run_json_command(capsys, "plan", "show", "--moves")
    return all(move["channel"] != channel for move in facts["moves"])


async def speak(bus: shoal.Bus, channel: str, stop: asyncio.Event) -> int:
    """Publishes numbers until it is stopped, then the last payload."""
    number = 0
    while not stop.is_set():
        await bus.publish(channel, b"%d" % number)
        number += 1
        await asyncio.sleep(0.002)
    await bus.publish(channel, ENDS_WITH)
    return number


async def listen(messages: shoal.Subscription) -> list[Item]:
    items: list[Item] = []
    while not items or getattr(items[-1], "payload", None) != ENDS_WITH:
        items.append(await messages.get(WAIT_S))
    return items[:-1]


async def test_a_channel_moves_through_all_kinds_of_placements_under_load(
    bus: shoal.Bus, other: shoal.Bus, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = asyncio.Event()
    targets = [
        ("single", await elsewhere(capsys, "busy")),
        ("all_subscribers", "s1,s2"),
        ("all_publishers", "s2,s3"),
        ("single", "s1"),
    ]
    async with bus.subscribe("busy") as messages:
        listening = asyncio.create_task(listen(messages))
        speaking = asyncio.create_task(speak(other, "busy", stop))
        for mode, servers in targets:
            status, facts = await run_json_command(capsys, "plan", "move", "busy", "--to", servers, "--mode", mode)
            assert (status, facts["moved"]) == (0, True), facts
            await until(lambda: rests(capsys, "busy"))
            assert await where(capsys, "busy") == servers.split(",")
        stop.set()
        count = await speaking
        items = await listening
    assert all(isinstance(item, Message) for item in items)
    assert [item.payload for item in items if isinstance(item, Message)] == [b"%d" % number for number in range(count)]


async def test_idle_subscribers_follow_with_the_next_message(
    bus: shoal.Bus, other: shoal.Bus, capsys: pytest.CaptureFixture[str]
) -> None:
    async with bus.subscribe("idle") as messages:
        target = await elsewhere(capsys, "idle")
        status, facts = await run_json_command(capsys, "plan", "move", "idle", "--to", target)
        assert (status, facts["phase"]) == (0, "narrow"), facts
        _, facts = await run_json_command(capsys, "plan", "show", "--moves")
        (move,) = [move for move in facts["moves"] if move["channel"] == "idle"]
        assert (move["phase"], move["to"]["servers"]) == ("narrow", [target])
        await other.publish("idle", b"wake up")
        await until(lambda: rests(capsys, "idle"))
        await other.publish("idle", b"awake")
        items = [await messages.get(WAIT_S) for _ in range(2)]
        assert [item.payload for item in items if isinstance(item, Message)] == [b"wake up", b"awake"]


async def test_an_eager_move_of_an_idle_channel_ends_without_a_message(
    bus: shoal.Bus, capsys: pytest.CaptureFixture[str]
) -> None:
    async with bus.subscribe("eager"):
        target = await elsewhere(capsys, "eager")
        status, facts = await run_json_command(capsys, "plan", "move", "eager", "--to", target, "--eager")
        assert (status, facts["moved"]) == (0, True), facts
        await until(lambda: rests(capsys, "eager"))
        assert await where(capsys, "eager") == [target]
