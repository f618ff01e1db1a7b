"""`shoal queue`: every command against real processes; the test plays the leader."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.command import run_command, run_json_command
from tests.support.connections import ask
from tests.support.queue_site import QueueSite, queue_site

import shoal
from shoal.queues.queue import NewMessage

WAIT_S = 60.0
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def site() -> Iterator[QueueSite]:
    with queue_site() as started:
        yield started


@pytest.fixture
async def bus(site: QueueSite, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[shoal.Bus]:
    """A bus of the cluster, whose leader works; commands find the cluster too."""
    monkeypatch.setenv("SHOAL_URL", site.url)
    monkeypatch.setenv("SHOAL_COORDINATOR", site.url)
    async with site.leader(), shoal.connect(site.url) as opened:
        yield opened


async def run_with_input(*words: str, text: bytes = b"") -> tuple[int, list[str], str]:
    """A command as a process of its own, with standard input."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "shoal.cli", "queue", *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(text), WAIT_S)
    assert process.returncode is not None
    return process.returncode, out.decode().splitlines(), err.decode()


async def test_a_queue_is_created_configured_and_dropped(bus: shoal.Bus, capsys: Capture) -> None:
    status, facts = await run_json_command(
        capsys, "queue", "create", "life", "--messages-max", "5", "--on-dead", "halt"
    )
    assert (status, facts["created"], facts["stores"]) == (0, True, ["q1"])
    assert (facts["settings"]["messages_max"], facts["settings"]["on_dead"]) == (5, "halt")
    status, out, _ = await run_command(capsys, "queue", "create", "life")
    assert (status, out) == (0, "life: exists already, and was not changed\n")
    status, facts = await run_json_command(capsys, "queue", "create", "life")
    assert (status, facts["created"], facts["settings"]["messages_max"]) == (0, False, 5)
    status, facts = await run_json_command(capsys, "queue", "create", "life", "--messages-max", "6", "--keys-max", "5")
    assert (status, facts["created"], facts["settings"]["messages_max"]) == (1, False, 5)
    status, out, _ = await run_command(capsys, "queue", "create", "life", "--messages-max", "6", "--on-dead", "halt")
    assert (status, out) == (
        1,
        "life: exists already with messages_max 5, and stays as it is: see `shoal queue configure`\n",
    )
    assert (await run_json_command(capsys, "queue", "create", "life", "--messages-max", "5"))[0] == 0
    status, facts = await run_json_command(capsys, "queue", "configure", "life", "--messages-max", "7")
    assert (status, facts["configured"], facts["settings"]["on_dead"]) == (0, True, "halt")
    assert (await bus.queue("life").stats()).settings.messages_max == 7
    status, _, err = await run_command(capsys, "queue", "drop", "life")
    assert (status, err) == (1, "shoal: this deletes queue life and everything in it: repeat the command with --yes\n")
    status, facts = await run_json_command(capsys, "queue", "drop", "life", "--yes")
    assert (status, facts["dropped"]) == (0, True)
    assert "life" not in await bus.queues()


async def test_without_a_leader_create_says_so(
    site: QueueSite, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_COORDINATOR", site.url)
    status, _, err = await run_command(capsys, "queue", "create", "nobody")
    assert status == 1
    assert err == "shoal: no balancer is running: the plan's lease is not held: start the cluster (shoal up)\n"


async def test_lines_become_messages_and_messages_lines(bus: shoal.Bus, capsys: Capture) -> None:
    status, out, _ = await run_with_input("put", "lines", "--key", "k", "--json", text=b"one\n\nthree")
    assert (status, json.loads(out[-1])) == (0, {"queue": "lines", "stored": 3, "refused": 0})
    status, lines, _ = await run_with_input("take", "lines", "--count", "2")
    assert (status, lines) == (0, ["one", ""])
    status, lines, _ = await run_with_input("take", "lines", "--count", "1", "--no-ack", "--format", "json")
    (message,) = map(json.loads, lines)
    assert (status, message["payload"], message["key"], message["attempt"]) == (0, "three", "k", 1)
    status, lines, _ = await run_with_input("take", "lines", "--count", "1", "--format", "json")
    (message,) = map(json.loads, lines)
    assert (message["payload"], message["attempt"]) == ("three", 2)
    assert (await bus.queue("lines").stats()).messages == 0


@pytest.mark.parametrize(
    ("number", "flags", "status"),
    [
        (signal.SIGINT, ["--json"], 0),
        (signal.SIGTERM, ["--json"], 0),
        (signal.SIGINT, [], 130),
        (signal.SIGTERM, [], 143),
    ],
)
async def test_take_goes_on_until_a_signal_and_leaves(
    bus: shoal.Bus, number: signal.Signals, flags: list[str], status: int
) -> None:
    """SIGTERM ended it without leaving: messages that it had printed came again after the lease."""
    command = [sys.executable, "-m", "shoal.cli", "queue", "take", "endless", *flags]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert await asyncio.wait_for(process.stderr.readline(), WAIT_S) == b"takes from endless\n"
    queue = bus.queue("endless")
    await queue.put_many([b"1", b"2"])
    async with asyncio.timeout(WAIT_S):
        while (await queue.stats()).messages:  # noqa: ASYNC110  # the store sets no event
            await asyncio.sleep(0.05)
    process.send_signal(number)
    out, err = await asyncio.wait_for(process.communicate(), WAIT_S)
    assert (process.returncode, err) == (status, b"")
    if flags:
        assert json.loads(out) == {"queue": "endless", "messages": 2, "acknowledged": True}
    else:
        assert sorted(out.splitlines()) == [b"1", b"2"]
    assert (await queue.stats()).consumers == 0


async def test_take_stops_after_its_time(bus: shoal.Bus) -> None:
    status, lines, _ = await run_with_input("take", "quiet", "--count", "1", "--seconds", "0.3")
    assert (status, lines) == (1, [])


async def test_an_id_is_accepted_once_and_lines_have_ids_of_their_own(bus: shoal.Bus, capsys: Capture) -> None:
    for expected in (0, 1):
        status, _, err = await run_command(capsys, "queue", "put", "ids", "x", "--key", "k", "--id", "7")
        assert status == expected
    assert err.startswith("shoal: queue ids has already accepted a message with id '7' and key 'k': if this")
    assert (await run_with_input("put", "ids", "--key", "k", "--id", "f", text=b"a\nb"))[0] == 0
    status, out, err = await run_with_input("put", "ids", "--key", "k", "--id", "f", "--json", text=b"a\nb\nc")
    facts = json.loads(out[-1])
    assert (status, facts["stored"], facts["refused"], [one["line"] for one in facts["errors"]]) == (1, 1, 2, [1, 2])
    assert "1 message stored in ids, 2 refused, the first in line 1" in err


async def test_a_delayed_message_comes_later(bus: shoal.Bus, capsys: Capture) -> None:
    assert (await run_command(capsys, "queue", "put", "slow", "x", "--delay", "600"))[0] == 0
    stats = await bus.queue("slow").stats()
    assert (stats.messages, stats.delayed) == (1, 1)


async def test_a_full_queue_fails_or_waits(bus: shoal.Bus, capsys: Capture) -> None:
    await run_json_command(capsys, "queue", "create", "full", "--messages-max", "1")
    assert (await run_command(capsys, "queue", "put", "full", "1"))[0] == 0
    status, _, err = await run_command(capsys, "queue", "put", "full", "2")
    assert (status, err.count("\n")) == (1, 1)
    assert err.startswith("shoal: queue full is full: it holds 1 messages: start more consumers, raise messages_max")
    waiting = asyncio.create_task(run_with_input("put", "full", "2", "--full", "wait"))
    status, lines, _ = await run_with_input("take", "full", "--count", "2")
    assert (status, lines, (await waiting)[0]) == (0, ["1", "2"], 0)


async def test_an_oversized_payload_is_refused_alone(bus: shoal.Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_LIMITS_PAYLOAD_BYTES_MAX", "10")
    status, _, err = await run_with_input("put", "large", "12345678901")
    assert (status, err.count("\n")) == (1, 1)
    assert err.startswith("shoal: the payload has 11 bytes, the limit is 10: store it elsewhere and put a reference")
    status, out, _ = await run_with_input("put", "large", "--json", text=b"1\n12345678901\n3\n")
    facts = json.loads(out[-1])
    assert (status, facts["stored"], [one["line"] for one in facts["errors"]]) == (1, 2, [2])
    assert {message.payload for message in await bus.queue("large").peek()} == {b"1", b"3"}


@pytest.mark.parametrize("command", ["stats", "peek", "dead", "pause", "resume", "replay --all", "purge --yes"])
async def test_an_unknown_queue_is_named_in_one_line(bus: shoal.Bus, capsys: Capture, command: str) -> None:
    word, *flags = command.split()
    status, out, err = await run_command(capsys, "queue", word, "unknown", *flags)
    assert (status, out) == (1, "")
    assert err == "shoal: there is no queue unknown: put something into it, or run `shoal queue create unknown`\n"


@pytest.mark.parametrize("command", ["drop --yes", "configure --messages-max 5"])
async def test_an_unknown_queue_cannot_be_changed(bus: shoal.Bus, capsys: Capture, command: str) -> None:
    word, *flags = command.split()
    status, _, err = await run_command(capsys, "queue", word, "unknown", *flags)
    assert (status, err) == (1, "shoal: there is no queue unknown: see `shoal queue list`\n")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--messages-max", "0"), "messages_max is 0: give a whole number from 1"),
        (("--lease-s", "nan"), "lease_s is nan: give seconds from 4"),
        (("--shards", "300"), "shards is 300: give a whole number from 1 to 256"),
        (("--timeout", "-1"), "--timeout is -1: give a number of seconds above 0"),
    ],
)
async def test_bad_settings_are_refused_in_one_line(
    bus: shoal.Bus, capsys: Capture, flags: tuple[str, ...], said: str
) -> None:
    status, _, err = await run_command(capsys, "queue", "create", "bad", *flags)
    assert (status, err.count("\n")) == (1, 1)
    assert err.startswith(f"shoal: {said}")
    assert "bad" not in await bus.queues()


async def test_no_cluster_is_reported_in_one_line(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]
) -> None:
    monkeypatch.delenv("SHOAL_URL", raising=False)
    monkeypatch.delenv("SHOAL_COORDINATOR", raising=False)
    for words in (("put", "x", "y"), ("create", "x"), ("list",)):
        status, _, err = await run_command(capsys, "queue", *words, "--state-dir", os.fspath(tmp_path))
        assert (status, err.count("\n")) == (1, 1), err
        assert "shoal up" in err


async def test_stats_show_blocked_keys_and_their_consumers(bus: shoal.Bus, capsys: Capture) -> None:
    queue = bus.queue("blocked")
    await run_json_command(capsys, "queue", "create", "blocked", "--attempts-max", "1", "--on-dead", "halt")
    await queue.put_many([NewMessage(b"poison", "bad"), NewMessage(b"next", "bad"), NewMessage(b"1", "x" * 60)])
    async with queue.take() as jobs:
        for _ in range(2):
            job = await anext(jobs)
            if job.key == b"bad":
                await job.fail("cannot be read")
        status, facts = await run_json_command(capsys, "queue", "stats", "blocked", "--keys")
        (shown,) = facts["queues"]
        states = {key["key"]: key["state"] for key in shown["key_states"]}
        assert (status, states) == (0, {"bad": "halted", "x" * 60: "held"})
        consumers = {key["key"]: key["consumer"] for key in shown["key_states"]}
        assert consumers["x" * 60] == jobs.core.name.decode()
        assert (shown["messages"], shown["dead"], shown["halted"]) == (2, 1, 1)
        status, out, _ = await run_command(capsys, "queue", "stats", "blocked", "--keys")
        assert "halted: replay or release" in out
        assert f"held by {jobs.core.name.decode()[-10:]}" in out
        assert max(map(len, out.splitlines())) <= 80


async def test_dead_letters_are_listed_and_replayed(bus: shoal.Bus, capsys: Capture) -> None:
    queue = bus.queue("poison")
    await run_json_command(capsys, "queue", "create", "poison", "--attempts-max", "1")
    await queue.put_many([NewMessage(b"%d" % n * 100, f"k{n}") for n in range(3)])
    async with queue.take() as jobs:
        for _ in range(3):
            await (await anext(jobs)).fail("cannot be read")
    status, facts = await run_json_command(capsys, "queue", "dead", "poison")
    assert (status, {letter["reason"] for letter in facts["dead"]}) == (0, {"cannot be read"})
    _, out, _ = await run_command(capsys, "queue", "dead", "poison", "--count", "1")
    assert out.startswith(facts["dead"][0]["entry"])
    assert "reason   cannot be read" in out
    assert max(map(len, out.splitlines())) <= 80
    entry = facts["dead"][0]["entry"]
    status, facts = await run_json_command(capsys, "queue", "replay", "poison", entry, "1-1")
    assert (status, facts["replayed"], facts["missing"]) == (1, 1, ["1-1"])
    status, facts = await run_json_command(capsys, "queue", "replay", "poison", "--all")
    assert (status, facts["replayed"]) == (0, 2)
    status, _, err = await run_command(capsys, "queue", "replay", "poison")
    assert (status, err) == (1, "shoal: nothing says which dead letters to replay: give their names, or --all\n")


async def test_what_applications_have_stored_does_not_control_the_terminal(bus: shoal.Bus, capsys: Capture) -> None:
    """The reason of a failure and payloads were printed as they are, with line ends and escape sequences."""
    queue, evil = bus.queue("escapes"), "a\x1b[2Jb\nc"
    await queue.put(evil, key=evil)
    async with queue.take() as jobs:
        await (await anext(jobs)).fail(evil, dead=True)
    await queue.put(evil, key=evil)
    for words, lines in (("peek", 1), ("dead", 3), ("stats", None)):
        _, out, _ = await run_command(capsys, "queue", words, "escapes", *(["--keys"] if words == "stats" else []))
        assert "\x1b" not in out
        assert "a [2Jb c" in out
        assert lines is None or len(out.splitlines()) == lines


async def test_replay_into_a_full_queue_tells_how_many_came_back(bus: shoal.Bus, capsys: Capture) -> None:
    queue = bus.queue("tight")
    await queue.create(shoal.QueueSettings(messages_max=2, attempts_max=1))
    async with queue.take() as jobs:
        for number in range(3):
            await queue.put(b"%d" % number)
            await (await anext(jobs)).fail("no")
    await queue.pause()
    status, facts = await run_json_command(capsys, "queue", "replay", "tight", "--all")
    assert (status, facts["replayed"], facts["missing"]) == (1, 2, [])
    assert "no room" in facts["error"]
    assert (await queue.stats()).dead == 1
    status, out, err = await run_command(capsys, "queue", "replay", "tight", "--all")
    assert (status, out) == (1, "0 messages put back into tight\n")
    assert "shoal: queue tight has no room" in err
    status, _, err = await run_command(capsys, "queue", "replay", "tight", "1-0@q1", "--all")
    assert (status, err) == (1, "shoal: names of dead letters were given, and --all: give either\n")


async def test_a_halted_key_is_released(bus: shoal.Bus, capsys: Capture) -> None:
    queue = bus.queue("halted")
    await run_json_command(capsys, "queue", "create", "halted", "--attempts-max", "1", "--on-dead", "halt")
    await queue.put_many([NewMessage(b"poison", "k"), NewMessage(b"next", "k")])
    async with queue.take() as jobs:
        await (await anext(jobs)).fail("no")
        status, facts = await run_json_command(capsys, "queue", "release", "halted", "k")
        assert (status, facts["released"]) == (0, True)
        assert (await anext(jobs)).payload == b"next"
    status, out, _ = await run_command(capsys, "queue", "release", "halted", "k")
    assert (status, out) == (1, "key k is not halted\n")


async def test_pause_resume_peek_purge_and_list(bus: shoal.Bus, capsys: Capture) -> None:
    queue = bus.queue("handled")
    await queue.put_many([NewMessage(b"1", "a"), NewMessage(b"2", "a"), NewMessage(b"3", "b")])
    assert (await run_json_command(capsys, "queue", "pause", "handled"))[1] == {"queue": "handled", "paused": True}
    assert "handled, paused" in (await run_command(capsys, "queue", "stats", "handled"))[1]
    assert (await run_json_command(capsys, "queue", "resume", "handled"))[1] == {"queue": "handled", "paused": False}
    _, out, _ = await run_command(capsys, "queue", "peek", "handled", "--key", "a")
    assert out == "a  1\na  2\n"
    _, facts = await run_json_command(capsys, "queue", "peek", "handled")
    assert {(message["key"], message["payload"]) for message in facts["messages"]} == {("a", "1"), ("b", "3")}
    status, _, err = await run_command(capsys, "queue", "purge", "handled")
    assert (status, err) == (1, "shoal: this deletes the messages of queue handled: repeat the command with --yes\n")
    assert (await run_json_command(capsys, "queue", "purge", "handled", "--yes"))[1]["deleted"] == 3
    _, facts = await run_json_command(capsys, "queue", "list")
    assert "handled" in facts["queues"]
    _, out, _ = await run_command(capsys, "queue", "list")
    assert "handled" in out.splitlines()


async def test_purge_deletes_dead_letters_on_request(bus: shoal.Bus, capsys: Capture) -> None:
    queue = bus.queue("graves")
    await queue.put(b"1")
    async with queue.take() as jobs:
        await (await anext(jobs)).fail("no", dead=True)
    status, facts = await run_json_command(capsys, "queue", "purge", "graves", "--dead", "--yes")
    assert (status, facts["deleted"]) == (0, 1)
    assert await queue.dead() == []


async def test_a_damaged_queue_does_not_hide_the_others(bus: shoal.Bus, site: QueueSite, capsys: Capture) -> None:
    for name in ("damaged", "whole"):
        await bus.queue(name).create()
    ask(site.store.host, site.store.port, None, None, b"RPUSH", b"__shoal:q:damaged:leases", b"x")
    status, facts = await run_json_command(capsys, "queue", "stats")
    assert (status, [*facts["failed"]]) == (1, ["damaged"])
    assert "whole" in {one["queue"] for one in facts["queues"]}
    status, out, err = await run_command(capsys, "queue", "stats", "damaged")
    assert (status, out) == (1, "")
    assert "WRONGTYPE" in err
    await run_json_command(capsys, "queue", "drop", "damaged", "--yes")


async def test_purge_of_dead_letters_ends_if_some_cannot_be_deleted(
    bus: shoal.Bus, site: QueueSite, capsys: Capture
) -> None:
    """It went on for ever."""
    await bus.queue("graves-2").create()
    name = b"9" * 18 + b"-0"
    ask(site.store.host, site.store.port, None, None, b"XADD", b"__shoal:q:graves-2:dead", name, b"colour", b"red")
    async with asyncio.timeout(WAIT_S):
        status, facts = await run_json_command(capsys, "queue", "purge", "graves-2", "--dead", "--yes")
    assert (status, facts["deleted"]) == (0, 0)
