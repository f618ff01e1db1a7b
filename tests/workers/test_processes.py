"""Which ends of a process `shoal worker --processes` answers with a new start."""

from __future__ import annotations

import argparse
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
