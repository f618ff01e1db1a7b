"""Processes: tied to their parent, identified by more than a pid, stopped reliably."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shoal.cluster.process import (
    LOG_TAIL_LINES,
    ProcessId,
    exit_text,
    is_running,
    kill_process,
    log_tail,
    start,
    start_ticks,
    wait_until,
)

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]


def says_up(log: Path) -> bool:
    return "up" in log.read_text()


async def test_the_end_of_a_child_is_noticed(tmp_path: Path) -> None:
    child = start([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log")
    assert await child.wait() == 3
    assert await child.wait() == 3
    assert not is_running(child.id)


async def test_a_child_gets_its_environment_and_its_log_is_private(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os; print(os.environ['MARK'], 'PATH' in os.environ)"]
    child = start(command, tmp_path / "log", {"MARK": "here"})
    await child.wait()
    assert (tmp_path / "log").read_text() == "here True\n"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


async def test_stop_ends_a_willing_child_by_sigterm(tmp_path: Path) -> None:
    child = start(SLEEP, tmp_path / "log")
    await child.stop(10)
    assert child.exit_code == -signal.SIGTERM


async def test_stop_ends_a_stubborn_child_by_sigkill(tmp_path: Path) -> None:
    child = start(STUBBORN, tmp_path / "log")
    assert await asyncio.to_thread(wait_until, lambda: says_up(tmp_path / "log"), 10)
    await child.stop(0.05)
    assert child.exit_code == -signal.SIGKILL


async def test_stop_ends_a_paused_child(tmp_path: Path) -> None:
    child = start(SLEEP, tmp_path / "log")
    child.send(signal.SIGSTOP)
    await child.stop(10)
    assert child.exit_code == -signal.SIGTERM


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGKILL])
async def test_stop_ends_what_the_child_has_started(first: signal.Signals, tmp_path: Path) -> None:
    """Like Spark's Java, which outlives a job that ends while Java starts."""
    command = f"import subprocess; subprocess.Popen({STUBBORN!r}); {'' if first is signal.SIGTERM else STUBBORN[2]}"
    log = tmp_path / "log"
    child = start([sys.executable, "-c", f"{command}\nimport time; time.sleep(600)"], log)
    assert await asyncio.to_thread(wait_until, lambda: says_up(log), 10)
    members = _group(child.pid)
    assert len(members) == 2
    await child.stop(10 if first is signal.SIGTERM else 0.2)
    assert wait_until(lambda: all(start_ticks(pid) is None for pid in members), 10)


def _group(leader: int) -> list[int]:
    """The processes of a group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[2]) == leader:
                found.append(int(path.parent.name))
    return found


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from shoal.cluster.process import start;"
        f"child = start({SLEEP!r}, Path({str(tmp_path / 'log')!r}));"
        "print(child.id.pid, child.id.start_ticks, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pid, ticks = map(int, parent.stdout.readline().split())
        child = ProcessId(pid, ticks)
        assert is_running(child)
    finally:
        parent.kill()
        parent.communicate()
    assert wait_until(lambda: not is_running(child), 10)


def test_a_stranger_with_the_same_pid_is_not_touched() -> None:
    bystander = subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL)
    try:
        ticks = start_ticks(bystander.pid)
        assert ticks is not None
        assert not kill_process(ProcessId(bystander.pid, ticks - 1), 1)
        assert bystander.poll() is None
        assert kill_process(ProcessId(bystander.pid, ticks), 10)
    finally:
        bystander.kill()
        assert bystander.wait() == -signal.SIGTERM


def test_a_stubborn_stranger_is_killed(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb") as log:
        stranger = subprocess.Popen(STUBBORN, stdout=log)
    try:
        assert wait_until(lambda: says_up(tmp_path / "log"), 10)
        assert kill_process(ProcessId(stranger.pid, start_ticks(stranger.pid) or 0), 0.05)
    finally:
        stranger.kill()
        assert stranger.wait() == -signal.SIGKILL


def test_killing_an_exited_process_signals_no_other_process() -> None:
    done = subprocess.Popen(["true"])
    ticks = start_ticks(done.pid) or 0
    done.wait()
    assert start_ticks(done.pid) is None
    assert not kill_process(ProcessId(done.pid, ticks), 1)


def test_this_process_runs() -> None:
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    assert is_running(ProcessId(os.getpid(), ticks))


@pytest.mark.parametrize(
    ("code", "text"), [(0, "exit status 0"), (-9, "killed by SIGKILL"), (-63, "killed by signal 63")]
)
def test_an_exit_status_in_words(code: int, text: str) -> None:
    assert exit_text(code) == text


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert log_tail(log) == ""
    log.write_text("".join(f"line {number}\n" for number in range(5000)))
    assert log_tail(log).splitlines() == [f"line {number}" for number in range(5000 - LOG_TAIL_LINES, 5000)]
    assert log_tail(log, from_byte=log.stat().st_size - 10) == "line 4999"


def test_waiting_has_an_end() -> None:
    began = time.monotonic()
    assert not wait_until(lambda: False, 0.05)
    assert time.monotonic() - began >= 0.05
