"""`shoal pub` and `shoal sub` as processes on a real cluster."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process

import pytest

import shoal

WAIT_S = 60.0


async def shoal_command(*words: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "shoal.cli", *words, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )


async def finish(process: Process, text: bytes = b"") -> tuple[int, list[str], str]:
    out, err = await asyncio.wait_for(process.communicate(text), WAIT_S)
    assert process.returncode is not None
    return process.returncode, out.decode().splitlines(), err.decode()


async def subscribed(process: Process) -> None:
    assert process.stderr is not None
    line = await asyncio.wait_for(process.stderr.readline(), WAIT_S)
    assert line.startswith(b"subscribed"), line


async def test_lines_become_messages(url: str, bus: shoal.Bus) -> None:
    async with bus.subscribe("lines") as messages:
        process = await shoal_command(
            "pub", "lines", "--url", url, "--attribute", "n=1", "--attribute", "b=true", "--json"
        )
        status, out, _ = await finish(process, b"one\n\nthree")
        items = [await messages.get(WAIT_S) for _ in range(3)]
    assert status == 0
    assert [json.loads(line) for line in out] == [{"channel": "lines", "published": 3}]
    assert [item.payload for item in items if isinstance(item, shoal.Message)] == [b"one", b"", b"three"]
    assert {type(item) for item in items} == {shoal.Message}
    assert [item.attributes for item in items if isinstance(item, shoal.Message)] == [{"n": 1, "b": True}] * 3


@pytest.mark.parametrize(
    ("source", "status", "says"),
    [
        ("<&-", 0, ""),
        ("0> /dev/null", 1, "shoal: cannot read standard input: Bad file descriptor: give it lines to read\n"),
    ],
)
async def test_input_that_cannot_be_read_is_told(url: str, source: str, status: int, says: str) -> None:
    """The reading thread died with a traceback, and the command waited for it for ever."""
    command = f"{sys.executable} -m shoal.cli pub unread {source}"
    process = await asyncio.create_subprocess_shell(command, env={**os.environ, "SHOAL_URL": url}, stderr=PIPE)
    _, words = await asyncio.wait_for(process.communicate(), WAIT_S)
    assert (process.returncode, words.decode()) == (status, says)


async def test_messages_become_lines(url: str, bus: shoal.Bus) -> None:
    text = await shoal_command("sub", "one", "two", "--url", url, "--count", "2")
    objects = await shoal_command("sub", "--pattern", "on?", "--url", url, "--count", "1", "--format", "json")
    await subscribed(text)
    await subscribed(objects)
    await bus.publish("one", b"\xff raw", attributes={"k": 2}, confirm=True)
    await bus.publish("two", "text", confirm=True)
    out, _ = await asyncio.wait_for(text.communicate(), WAIT_S)
    assert sorted(out.splitlines()) == [b"one \xff raw", b"two text"]
    status, lines, _ = await finish(objects)
    assert status == 0
    (message,) = map(json.loads, lines)
    assert message["channel"] == "one"
    assert message["payload_hex"] == "ff20726177"
    assert message["attributes"] == {"k": 2}
    assert message["pattern"] == "on?"


async def test_the_summary_is_all_that_json_prints(url: str, bus: shoal.Bus) -> None:
    for pause_s in (0.2, 2.0, 20.0):  # whether a process has read its messages is not visible from outside
        process = await shoal_command("sub", "summed", "--url", url, "--json")
        await subscribed(process)
        for _ in range(3):
            await bus.publish("summed", b"x", confirm=True)
        await asyncio.sleep(pause_s)
        process.send_signal(signal.SIGINT)
        status, out, _ = await finish(process)
        assert status == 0
        (facts,) = map(json.loads, out)
        if facts["messages"] == 3:
            break
    assert facts == {"names": ["summed"], "messages": 3, "gaps": 0, "lost": 0, "retracted": 0}


async def test_too_few_messages_in_time_is_a_failure(url: str) -> None:
    process = await shoal_command("sub", "silent", "--url", url, "--count", "1", "--seconds", "0.3")
    status, out, _ = await finish(process)
    assert status == 1
    assert out == []


async def test_errors_say_what_to_do(url: str) -> None:
    for words, expected in (
        (("pub", "", "--url", url), "must not be empty"),
        (("pub", "x", "--url", url, "--attribute", "n"), "NAME=VALUE"),
        (("sub", "x", "--url", "redis://127.0.0.1:1"), "shoal://"),
        (("sub", "x", "--state-dir", "/nowhere/at/all"), "shoal up"),
    ):
        status, out, err = await finish(await shoal_command(*words), b"line\n")
        assert (status, out) == (1, [])
        assert expected in err
