"""The harness for load processes: orders and reports, failures, deadlines, and that no child outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from tests.lab.echo_worker import REPORTS, Count, Fail, Hang, Leave, Number, Print, Said, Say

from shoal.lab.harness import LoadError, LoadProcess, Ready

ROOT = Path(__file__).parent.parent.parent
ANSWER_S_MAX = 60.0

PARENT = """
import asyncio
from tests.lab.echo_worker import REPORTS, Hang, Said, Say
from shoal.lab.harness import LoadProcess, Ready

async def main():
    async with LoadProcess("child", "tests.lab.echo_worker", REPORTS) as child:
        said = await child.ask(Say("here"), Said, 60.0)
        await child.ask(Hang(600.0), Ready, 60.0)
        print(said.pid, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def environment() -> list[str]:
    return ["env", f"PYTHONPATH={ROOT}:{ROOT / 'src'}"]


def echo(log: Path | None = None) -> LoadProcess:
    return LoadProcess("echo", "tests.lab.echo_worker", REPORTS, prefix=environment(), log=log)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


async def test_an_order_is_answered_by_a_child_that_ends_with_its_input() -> None:
    async with echo() as child:
        said = await child.ask(Say("north\n\N{SNOWMAN}"), Said, ANSWER_S_MAX)
        assert said == Said("north\n\N{SNOWMAN}", child.pid)
        child.check()
    assert child.is_over
    child.check()


async def test_reports_with_a_handler_are_no_answers() -> None:
    numbers: list[int] = []
    child = echo()
    child.on(Number, lambda report: numbers.append(report.number))
    async with child:
        await child.ask(Count(1000), Ready, ANSWER_S_MAX)
        assert numbers == list(range(1000))


async def test_answers_come_in_the_order_of_their_orders() -> None:
    async with echo() as child:
        for text in "abc":
            child.send(Say(text))
        assert [(await child.answer(Said, ANSWER_S_MAX)).text for _ in range(3)] == ["a", "b", "c"]


async def test_long_lines_pass_both_ways() -> None:
    text = "x" * 3_000_000
    async with echo() as child:
        assert (await child.ask(Say(text), Said, ANSWER_S_MAX)).text == text


async def test_what_a_library_prints_is_no_report(tmp_path: Path) -> None:
    log = tmp_path / "echo.log"
    async with echo(log) as child:
        child.send(Print("a banner"))
        assert (await child.ask(Say("still fine"), Said, ANSWER_S_MAX)).text == "still fine"
    assert log.read_text() == "a banner\n"


async def test_a_child_that_fails_is_an_error_that_quotes_its_log(tmp_path: Path) -> None:
    async with echo(tmp_path / "echo.log") as child:
        with pytest.raises(LoadError, match=r"(?s)echo: the process ended with exit status 1.*no more sugar"):
            await child.ask(Fail("no more sugar"), Said, ANSWER_S_MAX)
        with pytest.raises(LoadError, match="exit status 1"):
            child.check()
        child.send(Say("too late"))


async def test_a_child_that_leaves_too_early_is_an_error() -> None:
    async with echo() as child:
        with pytest.raises(LoadError, match="exit status 0"):
            await child.ask(Leave(), Said, ANSWER_S_MAX)
        with pytest.raises(LoadError, match="exit status 0"):
            child.check()


async def test_an_answer_that_is_late_or_of_another_kind_is_an_error() -> None:
    async with echo() as child:
        with pytest.raises(LoadError, match=r"no answer in 0\.05 s"):
            await child.answer(Said, 0.05)
        with pytest.raises(LoadError, match="answered Said instead of Ready"):
            await child.ask(Say("x"), Ready, ANSWER_S_MAX)


async def test_a_report_that_cannot_be_read_is_an_error() -> None:
    child = LoadProcess("echo", "tests.lab.echo_worker", msgspec.json.Decoder(Number), prefix=environment())
    async with child:
        with pytest.raises(LoadError, match="echo: unreadable report"):
            await child.ask(Say("x"), Number, ANSWER_S_MAX)
        with pytest.raises(LoadError, match="unreadable"):
            child.check()


async def test_a_child_that_is_stuck_is_killed() -> None:
    async with echo() as child:
        await child.ask(Hang(600.0), Ready, ANSWER_S_MAX)
    assert child.is_over
    assert not is_running(child.pid)


def test_a_child_that_is_stuck_dies_with_its_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    deadline = time.monotonic() + 20.0
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(pid)
