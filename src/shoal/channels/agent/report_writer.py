"""Writes an agent's report to the coordinator.

Owns when it is written: when it has changed, and at most every `INTERVAL_S`. `report` decides what it says. While
the coordinator cannot be reached, the newest report waits. While no channel moves, the writer sleeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from shoal.coordination.interface import Coordinator
from shoal.errors import CoordinatorError
from shoal.logs import get_log
from shoal.plan.keys import report_key
from shoal.plan.move_request import MoveReport, encode_report

INTERVAL_S: Final = 0.1

_log: Final = get_log(__name__)


async def write_reports(
    coordinator: Coordinator,
    server: str,
    take_report: Callable[[], MoveReport | None],
    changed: asyncio.Event,
    retry_s: float,
) -> None:
    """Writes the reports of a server's agent until it is cancelled. `changed`: the report may have changed."""
    unwritten: MoveReport | None = None
    complained = False
    while True:
        if unwritten is None:
            await changed.wait()
        changed.clear()
        unwritten = take_report() or unwritten
        wait_s = INTERVAL_S
        if unwritten is not None:
            try:
                await coordinator.put(report_key(server), encode_report(unwritten))
                unwritten = None
                complained = False
            except CoordinatorError as error:
                if not complained:
                    _log.warning("move report not written", server=server, why=str(error))
                complained = True
                wait_s = retry_s
        await asyncio.sleep(wait_s)
