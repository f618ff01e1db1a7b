"""The engines of a cluster, as the balancer sees and changes them.

Owns the copy of what engines report and of what is wanted of them, and turns both into entries and requests of the kind
`engine` (`shoal.balance.engine_entry`). An engine has no signed entry: it follows what is wanted of it by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from shoal.balance.change import Units
from shoal.balance.engine_entry import EngineEntry, EngineRequest, Layers
from shoal.coordination.acl import ENGINES_AREA
from shoal.coordination.interface import Coordinator, KeyWrite, Versioned
from shoal.engine.director import Wanted
from shoal.engine.engine_report import EngineReport, decode_report, decode_wanted, encode_wanted, wanted_key
from shoal.errors import ProtocolError
from shoal.leader.mirror import Mirror
from shoal.logs import get_log
from shoal.plan.ring import ServerAddress

SILENT_S: Final = 5.0
"""How long after its last report an engine counts as gone. Reports come every second."""
BY_HAND: Final = "by hand"
"""The id of a request of an operator."""

_log: Final = get_log(__name__)


class EngineUnits:
    """The engines. `now` is the time of the event loop, `processes_max` how many processes the provider runs."""

    hosts: tuple[ServerAddress, ...] = ()
    """Engines are not in the ring, and write no telemetry."""

    def __init__(
        self,
        coordinator: Coordinator,
        changed: asyncio.Event,
        now: Callable[[], float],
        processes_max: Callable[[], int] = lambda: 0,
    ) -> None:
        self._now = now
        self._processes_max = processes_max
        self._mirror: Mirror[tuple[str, str], Any] = Mirror(coordinator, ENGINES_AREA, self._read, changed)
        self.mirrors: list[Any] = [self._mirror]

    def _read(self, key: str, stored: Versioned) -> tuple[tuple[str, str], Any] | None:
        name, _, what = key.removeprefix(ENGINES_AREA).rpartition("/")
        try:
            if what == "report":
                return (name, what), (decode_report(stored.value), self._now())
            if what == "wanted":
                return (name, what), (decode_wanted(stored.value), stored.version)
        except ProtocolError as error:
            _log.warning("a record of an engine is ignored", key=key, why=str(error))
        return None

    @property
    def units(self) -> Units:
        """The engines that serve, the changes in progress, and their processes."""
        values = self._mirror.values
        entries: dict[bytes, EngineEntry] = {}
        requests: dict[bytes, EngineRequest] = {}
        hosts: set[str] = set()
        for name in [name for name, what in values if what == "report"]:
            report, at = values[name, "report"]
            if self._now() - at > SILENT_S:
                continue
            wanted, version = values.get((name, "wanted"), (None, 0))
            entry = engine_entry(name, report, wanted, version, self._processes_max())
            entries[entry.unit] = entry
            hosts.update(host_of(member.name) for member in report.members)
            if entry.awaits is not None:
                requests[entry.unit] = EngineRequest(entry.unit, entry.by or BY_HAND, entry.awaits, entry.revision)
        return Units(entries, requests, frozenset(hosts))

    def write(self, request: EngineRequest) -> KeyWrite:
        """What makes an engine follow a request, unless something else was wanted meanwhile."""
        name = request.unit.decode()
        before, _ = self._mirror.values.get((name, "wanted"), (Wanted(), 0))
        points, matchers, exits = request.layers
        wanted = Wanted(matchers, exits, before.without, points, request.id)
        return KeyWrite(wanted_key(name), encode_wanted(wanted), request.revision)


def engine_entry(
    name: str, report: EngineReport, wanted: Wanted | None, version: int, processes_max: int
) -> EngineEntry:
    """The entry of an engine, from its report and the wanted configuration."""
    return EngineEntry(
        unit=name.encode(),
        revision=version,
        layers=Layers(len(report.access_points), len(report.matchers), len(report.exits)),
        phase=report.phase,
        wanted=None if wanted is None else Layers(wanted.access_points, wanted.matchers, wanted.exits),
        by="" if wanted is None else wanted.by,
        without=() if wanted is None else wanted.without,
        startable=max(0, processes_max - len(report.members)),
        load=report.load,
    )


def host_of(member: str) -> str:
    """The process of a member, without what tells its incarnations apart: `engine-4711-9f1c2a33` is `engine-4711`."""
    return member.rpartition("-")[0] or member
