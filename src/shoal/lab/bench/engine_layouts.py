"""The engine of a local cluster in a chosen layout, for measurements.

Owns the processes of the engine, and the wait until its report says that a layout is in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

from shoal.cluster.acl import ADMIN
from shoal.cluster.local import LocalCluster
from shoal.coordination.interface import Coordinator
from shoal.engine.director import Wanted
from shoal.engine.engine_report import EngineReport, encode_wanted, read_report, wanted_key
from shoal.engine.messages import MAIN
from shoal.errors import CoordinatorError
from shoal.lab.harness import LoadError
from shoal.runtime import PRODUCTION

CALL_S_MAX: Final = 900.0
CHANGE_S_MAX: Final = 400.0
POLL_S: Final = 0.1


class Layout(NamedTuple):
    """A configuration, and whether one process has a matcher alone."""

    name: str
    matchers: int
    exits: int
    alone: bool = False

    def without(self, report: EngineReport) -> tuple[str, ...]:
        """The processes that are to have no operator: the head, or, if all operators fit into one process, the
        others."""
        if self.alone:
            return (report.head,)
        others = tuple(sorted(member.name for member in report.members if member.name != report.head))
        return others if self.matchers == 1 else ()


class EngineLayouts:
    """The engine of a cluster, with a number of processes."""

    def __init__(self, cluster: LocalCluster, coordinator: Coordinator, processes: int) -> None:
        self._cluster = cluster
        self._coordinator = coordinator
        self._processes = processes

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, cluster: LocalCluster, processes: int) -> AsyncIterator[EngineLayouts]:
        """Starts the processes that are missing."""
        for number in range(1, processes + 1):
            await cluster.fleet.start_engine(number)
        async with await PRODUCTION.coordinator(cluster.url_for(ADMIN), CALL_S_MAX) as coordinator:
            layouts = cls(cluster, coordinator, processes)
            await layouts._all_there()
            yield layouts

    async def report(self, holds: Callable[[EngineReport], bool], what: str) -> EngineReport:
        """Waits until the report of the engine says something."""
        deadline = time.monotonic() + CHANGE_S_MAX
        while time.monotonic() < deadline:
            with contextlib.suppress(CoordinatorError):
                report = await read_report(self._coordinator, MAIN)
                if report is not None and holds(report):
                    return report
            await asyncio.sleep(POLL_S)
        raise LoadError(f"the engine does not have {what} after {CHANGE_S_MAX:g} s")

    async def _all_there(self) -> EngineReport:
        return await self.report(lambda report: len(report.members) == self._processes, "all processes")

    async def arrange(self, layout: Layout, filters: int) -> EngineReport:
        """Brings the engine into a layout, with all filters in force."""
        deadline = time.monotonic() + CHANGE_S_MAX
        wanted: Wanted | None = None
        while time.monotonic() < deadline:
            report = await self._all_there()
            following = Wanted(layout.matchers, layout.exits, layout.without(report))
            if wanted != following:  # a change of exit points may bring the access point to another process
                wanted = following
                await self._coordinator.put(wanted_key(MAIN), encode_wanted(wanted))
            counts = len(report.matchers), len(report.exits)
            placed = not set(following.without) & {*report.matchers, *report.exits}
            is_layout = counts == (layout.matchers, layout.exits) and placed
            if is_layout and report.phase == "idle" and report.filters == filters:
                return report
            await asyncio.sleep(POLL_S)
        raise LoadError(f"the engine is not {layout.name} with {filters} filters after {CHANGE_S_MAX:g} s")
