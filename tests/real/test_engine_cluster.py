"""The engine of a local cluster: the program of the documentation, the commands, and an engine process that is
killed."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.support.command import run_command, run_json_command, start_process

import shoal
import shoal.errors
from shoal.cluster.local import LocalCluster
from shoal.cluster.state import StateDir
from shoal.engine.warm_up import warm_up
from shoal.limits import DEFAULT_LIMITS

PAGE = Path(__file__).parents[2] / "docs" / "engine.md"
WAIT_S = 120.0


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    warm_up()  # so that the engine's process starts quickly


async def test_commands_and_the_program_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    where = ("--state-dir", str(state))
    program, printed = re.findall(r"^```(?:python|text)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    async with LocalCluster(1, state, engine=True) as cluster:
        ran = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            env={**os.environ, "SHOAL_URL": cluster.url},
        )
        assert (ran.stdout, ran.stderr) == (printed, "")
        matching = await start_process("match", "volume > 3", "class = 'S'", "--count", "2", *where)
        assert matching.stderr is not None
        assert b"matching" in await matching.stderr.readline()
        _, before = await run_json_command(capsys, "engine", "status", *where)
        async with asyncio.timeout(WAIT_S):  # the report is a second old at most
            engine = None
            while engine is None or engine["filters"] < 2:
                _, facts = await run_json_command(capsys, "status", *where)
                engine = facts["engine"]
        assert (engine["clients"], engine["instance"], engine["in_flight"]) == (1, before["instance"], 0)
        _, facts = await run_json_command(capsys, "top", "--once", *where)
        assert facts["engine"]["filters"] == 2
        _, text, _ = await run_command(capsys, "status", *where)
        assert re.search(
            rf"engine 1-1-1, instance {before['instance']}: 1 client, 2 filters, \d+ events/s, 0 in flight", text
        )
        _, facts = await run_json_command(capsys, "doctor", *where)
        assert any("an engine runs" in finding["text"] for finding in facts["findings"])
        await cluster.kill("engine-main-1")
        async with asyncio.timeout(WAIT_S):  # the process starts again; a busy machine takes a while
            after = before
            while after["instance"] == before["instance"] or not after["serving"]:
                await asyncio.sleep(0.2)
                _, after = await run_json_command(capsys, "engine", "status", *where)
        status, facts = await run_json_command(capsys, "emit", '{"volume": 5, "class": "S"}', "[volume,9]", *where)
        assert (status, facts) == (0, {"emitted": 2})
        out, _ = await asyncio.wait_for(matching.communicate(), WAIT_S)
        assert matching.returncode == 0
        assert b'"events":2' in out.replace(b" ", b"")
        async with asyncio.timeout(WAIT_S):  # the counts are a second old at most
            facts = {"events": 0}
            while facts["events"] < 2:
                await asyncio.sleep(0.2)
                _, facts = await run_json_command(capsys, "engine", "status", *where)
        assert (facts["serving"], facts["events"]) == (True, 2)
        status, _, said = await run_command(capsys, "emit", "{oops", *where)
        assert status == 1
        assert "is not a JSON object" in said
        emit = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shoal.cli", "emit", *where), stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
        lines = b'{"volume": 1}\n\n[volume,2]\n{oops\n{"volume": 4}\n'
        _, error = await asyncio.wait_for(emit.communicate(lines), WAIT_S)
        assert emit.returncode == 1
        assert b"line 4 of standard input is not an event, 2 events before it emitted" in error
        async with shoal.connect(cluster.url) as bus, bus.match("bytes = true") as events:
            words = ('{"bytes": true}', "--payload", "\udcffx")  # how Python has a byte that is not UTF-8
            assert (await run_command(capsys, "emit", *words, *where))[0] == 0
            event = await events.get(WAIT_S)
            assert isinstance(event, shoal.Match)
            assert event.payload == b"\xffx"
            monkeypatch.setenv("SHOAL_LIMITS_PAYLOAD_BYTES_MAX", "1100")
            large = f'{{"bytes": true, "large": "{"x" * 100}"}}'
            status, _, error_text = await run_command(capsys, "emit", words[0], large, *where)
            assert status == 1
            assert "event 2 is too large, 1 event before it emitted" in error_text
            assert isinstance(await events.get(WAIT_S), shoal.Match)


async def test_every_layer_changes_while_events_flow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state"
    where = ("--state-dir", str(state), "--timeout", str(WAIT_S))
    async with LocalCluster(1, state, engine=True) as cluster, shoal.connect(cluster.url) as bus:
        async with bus.match() as events:
            await events.add_many({f"filter {number}": f"a = {number}" for number in range(60)})
            emitting = asyncio.create_task(_emit_until_cancelled(bus))
            for text in ("1-3-1", "2-1-1", "1-1-2", "2-2-2", "1-2-2"):
                status, facts = await run_json_command(capsys, "engine", "scale", text, *where)
                assert (status, facts["configuration"], facts["done"]) == (0, text, True)
            status, facts = await run_json_command(capsys, "engine", "scale", "1-2-2", *where)
            gone = facts["matchers"][0]
            status, facts = await run_json_command(capsys, "engine", "scale", "1-2-2", "--without", gone, *where)
            assert (status, gone in facts["matchers"]) == (0, False)
            emitting.cancel()
            emitted = await emitting
            got = [await events.get(WAIT_S) for _ in range(emitted)]
        assert [item.sequence for item in got if isinstance(item, shoal.Match)] == [*range(1, emitted + 1)]
        status, text, _ = await run_command(capsys, "engine", "status", *where[:2])
        assert (status, "configuration 1-2-2" in text, "access point" in text) == (0, True, True)
        for words, said in (
            (("17-1-1",), "16 lanes"),
            (("1-1",), "not a configuration"),
            (("1-0-1",), "not a configuration"),
            (("01-1-1",), "not a configuration"),
            (("\uff11-1-1",), "not a configuration"),
            (("1-" + "9" * 5000 + "-1",), "not a configuration"),
            (("1-3-1", "--without", "nobody"), "no process 'nobody'"),
        ):
            status, _, error = await run_command(capsys, "engine", "scale", *words, *where)
            assert status == 1
            assert said in error
        stored = StateDir(state).read()
        assert stored is not None
        assert len(stored.others["engine"]) == 3  # none was started for what was refused


async def _emit_until_cancelled(bus: shoal.Bus) -> int:
    """Emits events one by one; returns how many."""
    number = 0
    try:
        while True:
            number += 1
            await bus.emit({"a": number % 60})
            await asyncio.sleep(0.005)
    except asyncio.CancelledError:
        return number


async def test_the_first_match_starts_the_engine() -> None:
    async with LocalCluster(2, engine_when_asked=True) as cluster:
        async with shoal.connect(cluster.url) as bus, bus.subscribe("a") as messages:
            await bus.publish("a", b"x", confirm=True)
            await messages.get(WAIT_S)
            await asyncio.sleep(1.5)  # long enough to see a client that waits
            assert [child.name for child in cluster.status().processes if child.kind == "engine"] == []
            async with bus.match("a > 0") as events:
                await bus.emit({"a": 1}, confirm=True)
                assert not isinstance(await events.get(WAIT_S), shoal.Gap)
        assert [child.name for child in cluster.status().processes if child.kind == "engine"] == ["engine-main-1"]


async def test_without_an_engine_clients_and_status_say_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = msgspec.structs.replace(DEFAULT_LIMITS, subscribe_timeout_s=2.0)
    state = tmp_path / "state"
    async with LocalCluster(1, state) as cluster, shoal.connect(cluster.url, limits=limits) as bus:
        with pytest.raises(shoal.errors.EngineUnavailableError, match="--no-engine"):
            await bus.match("a > 0").open()
        status, out, _ = await run_command(capsys, "engine", "status", "--state-dir", str(state))
        assert status == 1
        assert "shoal up --engine" in out


async def test_the_city_of_the_example_measures_and_alerts(url: str) -> None:
    example = Path(__file__).parents[2] / "examples" / "air_quality.py"
    words = ["--headless", "--seconds", "1", "--residents", "4", "--stations", "5", "--url", url]
    ran = await asyncio.to_thread(
        subprocess.run, [sys.executable, str(example), *words], capture_output=True, text=True, timeout=WAIT_S
    )
    assert ran.stderr == ""
    found = re.fullmatch(r"(\d+) measurements, (\d+) alerts\n", ran.stdout)
    assert found is not None
    assert int(found[1]) > 0 < int(found[2])


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--stations", "0"), 2, "invalid number value: '0'"),  # it measured nothing, and could not be stopped
        (("--rate", "nan"), 2, "invalid number value: 'nan'"),
        ((), 1, "cannot connect to the coordinator"),
    ],
)
async def test_the_example_says_what_is_wrong(words: tuple[str, ...], status: int, said: str) -> None:
    example = Path(__file__).parents[2] / "examples" / "air_quality.py"
    command = [sys.executable, str(example), "--headless", "--url", "shoal://client:x@127.0.0.1:1", *words]
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=WAIT_S)
    assert ran.returncode == status
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


async def test_a_cluster_that_is_continued_with_its_engine_waits_until_it_serves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report of the engine before was taken for that of the new one."""
    where = ("--state-dir", str(tmp_path / "state"))
    try:
        for words in (("up", "--servers", "1", "--stores", "1", "--engine"), ("down",)) * 2:
            status, _, error = await run_command(capsys, *words, *where)
            assert status == 0, error
            if words[0] == "up":
                status, facts = await run_json_command(capsys, "engine", "status", *where)
                assert (status, facts["serving"]) == (0, True)
    finally:
        await run_command(capsys, "down", "--purge", *where)
