"""What the head of an engine writes down for `shoal engine status` and `scale`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shoal.coordination.interface import Lease
from shoal.engine import head_shell
from shoal.engine.director import Director
from shoal.engine.head_shell import HeadShell
from shoal.limits import DEFAULT_LIMITS

LEASE = Lease("engines/main", "head", 1, 1.2)


class Writes:
    """A coordinator; something changes while the first report is written."""

    def __init__(self) -> None:
        self.head: HeadShell
        self.phases: asyncio.Queue[bytes] = asyncio.Queue()

    async def put(self, _key: str, value: bytes, fence: Lease | None = None) -> int:
        assert fence == LEASE
        await asyncio.sleep(0)
        if self.phases.empty():
            self.head._changed.set()
        await self.phases.put(value)
        return 1


async def test_a_change_during_a_write_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_shell, "REPORT_EVERY_S", 3600.0)
    writes: Any = Writes()
    nothing: Any = None
    head = HeadShell("main", "head", nothing, writes, LEASE, 0.0, nothing, DEFAULT_LIMITS)
    writes.head = head
    task = asyncio.create_task(head._report(Director("head", 1, 0, DEFAULT_LIMITS)))
    async with asyncio.timeout(60):
        for _ in range(2):
            await writes.phases.get()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
