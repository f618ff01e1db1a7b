"""Writes an agent's report to the coordinator.

Owns when it is written: when it has changed, and at most every `INTERVAL_S`. The agent's core decides what it says.
While the coordinator cannot be reached, the newest report waits. While nothing changes, the writer sleeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from shoal.coordination.interface import Coordinator
from shoal.errors import CoordinatorError
from shoal.logs import get_log

INTERVAL_S: Final = 0.1

_log: Final = get_log(__name__)


async def write_reports(
    coordinator: Coordinator,
    key: str,
    take_report: Callable[[], bytes | None],
    changed: asyncio.Event,
    retry_s: float,
) -> None:
    """Writes the reports of an agent to a key until it is cancelled. `changed`: the report may have changed."""
    unwritten: bytes | None = None
    complained = False
    while True:
        if unwritten is None:
            await changed.wait()
        changed.clear()
        unwritten = take_report() or unwritten
        wait_s = INTERVAL_S
        if unwritten is not None:
            try:
                await coordinator.put(key, unwritten)
                unwritten = None
                complained = False
            except CoordinatorError as error:
                if not complained:
                    _log.warning("report not written", key=key, why=str(error))
                complained = True
                wait_s = retry_s
        await asyncio.sleep(wait_s)
