"""Which ends of a process `shoal worker --processes` answers with a new start."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from shoal.cli import worker_processes
from shoal.cli.worker_processes import _Processes


@pytest.mark.parametrize(
    ("healthy_s", "statuses", "starts", "failed"),
    [
        (60.0, [1], 1, True),  # it could not begin
        (60.0, [-9, 1, 0], 3, False),  # it crashed; afterwards it is started whatever it says
        (0.0, [1, 0], 2, False),  # its queue was dropped after it had worked: all processes ended for good
    ],
)
async def test_a_process_that_has_worked_is_started_again(
    monkeypatch: pytest.MonkeyPatch, healthy_s: float, statuses: list[int], starts: int, failed: bool
) -> None:
    monkeypatch.setattr(worker_processes, "HEALTHY_S", healthy_s)
    monkeypatch.setattr(worker_processes, "RESTART_S_MIN", 0.0)
    monkeypatch.setattr(worker_processes, "RESTART_S_MAX", 0.0)
    processes = _Processes(argparse.Namespace())
    left: Iterator[int] = iter(statuses)
    count = 0

    async def run_one(slot: int) -> int:
        nonlocal count
        count += 1
        status = next(left)
        if status == 0:
            processes._stopping.set()
        return status

    monkeypatch.setattr(processes, "_run_one", run_one)
    await processes._keep(1)
    assert (count, processes._failed) == (starts, failed)


PROGRAM = """
import json, os, sys, time
if sys.argv[2] != "0" and os.fork() == 0:
    time.sleep(3600)
    os._exit(0)
with os.fdopen(int(sys.argv[1]), "w") as pipe:
    json.dump({"queues": {"q%d" % n: {} for n in range(int(sys.argv[3]))}}, pipe)
"""


@pytest.mark.parametrize(("forks", "queues"), [("0", 2), ("1", 2), ("0", 20_000)])
async def test_the_summary_of_a_process_is_read_whoever_holds_its_pipe(
    monkeypatch: pytest.MonkeyPatch, forks: str, queues: int
) -> None:
    """A process that a handler had forked held the pipe open: the parent waited for its end, started nothing again and
    heard no signal. A summary that does not fit a pipe was never read."""
    processes = _Processes(argparse.Namespace())
    groups = []

    def command(pipe: int) -> list[str]:
        return [sys.executable, "-c", PROGRAM, str(pipe), forks, str(queues)]

    started = asyncio.create_subprocess_exec

    async def start(*words: str, **options: object) -> asyncio.subprocess.Process:
        process = await started(*words, **options)  # type: ignore[arg-type]
        groups.append(process.pid)
        return process

    monkeypatch.setattr(processes, "_command", command)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    try:
        async with asyncio.timeout(30):
            assert await processes._run_one(1) == 0
    finally:
        if forks != "0":
            os.killpg(groups[0], signal.SIGKILL)
    (summary,) = processes._summaries
    assert len(summary["queues"]) == queues
