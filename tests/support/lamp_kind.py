"""A second kind of unit, for tests only: lamps, which stand on shelves, use up watts and are carried elsewhere.

Owns all that a kind brings: what is measured of lamps and shelves, the planner and its changes, the entry, the request
and the report, the table of steps, and the registry with lamps beside the kinds that ship.

    carry   until the new shelf reports the lamp; given up after `CARRY_TIMEOUT_S`
    let_go  until the old shelf reports that it has let go
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from shoal.balance.change import HostsWanted, PlannerInput, UnitMove, registered
from shoal.balance.registry import ManagedKind, Registry
from shoal.errors import PlanError, ProtocolError
from shoal.limits import DEFAULT_LIMITS, Limits
from shoal.load.costs import used_by_units
from shoal.load.kinds import Column, Cost, Folding, HostColumn, HostKind, Kinds, Type, UnitKind
from shoal.load.record import RecordId, TelemetryRecord
from shoal.load.table import UnitTable
from shoal.load_kinds import KINDS
from shoal.load_kinds import REGISTRY as SHIPPED
from shoal.plan.conductor import Around, Case, Step
from shoal.plan.move_request import decode_body
from shoal.plan.ring import Ring
from shoal.rules import ALL_RULES, Rule, Rules

CARRY_TIMEOUT_S: Final = 1.5
SHELVES_MAX: Final = 4
FUSE_WATTS: Final = 100.0
CARRY_FIRST: Final = Rule("carry_first")
"""The old shelf lets go only after the new one has the lamp. Not declared with `rule`: no command can break it."""

# -- measured ------------------------------------------------------------------------------------------------

LAMP: Final = UnitKind(
    "lamp",
    columns=(
        Column("lit_s", Type.FLOAT, Folding.RATE),
        Column("flashes", folding=Folding.RATE),
        Column("brightest", folding=Folding.PEAK),
        Column("hottest", Type.FLOAT, Folding.PEAK),
        Column("watchers", Type.IDS),
        Column("screws"),
    ),
    costs=(Cost("watts", (("lit_s", 60.0), ("flashes", 2.0))),),
)
SHELF: Final = HostKind(
    "shelf",
    columns=(
        HostColumn("watts", nullable=True, figure="watts"),
        HostColumn("fuse_watts", figure="watts_max", folding=Folding.LAST),
        HostColumn("plugs", Type.INT, figure="plugs", folding=Folding.PEAK),
        HostColumn("dust_g", Type.FLOAT),
    ),
)
BOTH: Final = Kinds(units=(*KINDS.units, LAMP), hosts=(*KINDS.hosts, SHELF))


def shelf_record(
    shelf: str,
    second: int,
    lamps: Mapping[bytes, Mapping[str, Any]],
    *,
    watts: float | None = 100.0,
    fuse_watts: float = 500.0,
    site: str = "attic",
    instance: str = "a",
    sequence: int | None = None,
) -> TelemetryRecord:
    """One second of one shelf."""
    host = {"interval_s": None if watts is None else 1.0, "uncounted": 0, "watts": watts}
    return TelemetryRecord(
        RecordId(shelf, instance, second, second if sequence is None else sequence),
        SHELF,
        {**host, "fuse_watts": fuse_watts, "plugs": 3, "dust_g": 0.5},
        {LAMP.name: UnitTable.of_rows(LAMP, lamps)},
        site,
    )


# -- moved ---------------------------------------------------------------------------------------------------


class LampEntry(msgspec.Struct, frozen=True, array_like=True, tag=LAMP.name):
    unit: bytes
    shelf: str
    revision: int
    phase: str = "end"
    before: str = ""

    @property
    def newness(self) -> int:
        return self.revision

    @property
    def is_moving(self) -> bool:
        return self.phase != "end"

    @property
    def stage(self) -> object:
        return self.phase, self.shelf

    def check(self) -> None:
        if self.phase not in ("carry", "let_go", "end") or not self.shelf:
            raise ValueError("a lamp stands on a shelf, or is on its way")


class LampRequest(msgspec.Struct, frozen=True):
    unit: bytes
    shelf: str
    id: str


class LampReport(msgspec.Struct, frozen=True):
    host: str
    revisions: dict[bytes, int]


_requests: Final = msgspec.msgpack.Decoder(LampRequest)
_reports: Final = msgspec.msgpack.Decoder(LampReport)
LampCase = Case[LampEntry, Ring, LampReport]


class LampSteps:
    """The table of steps of lamps (`shoal.plan.conductor.Steps`). Shelves that report exist."""

    kind: Final = LAMP.name
    group: Final = ""
    entry_type: Final = LampEntry

    def __init__(self, limits: Limits = DEFAULT_LIMITS, rules: Rules = ALL_RULES) -> None:
        self._rules = rules

    def read_request(self, data: bytes) -> LampRequest:
        try:
            return decode_body(data, self.kind, _requests)
        except ValueError as error:
            raise PlanError(str(error)) from error

    def read_report(self, data: bytes) -> LampReport:
        try:
            return decode_body(data, self.kind, _reports)
        except ValueError as error:
            raise ProtocolError(str(error)) from error

    def facts(self, entry: LampEntry) -> Mapping[str, object]:
        return {"lamp": entry.unit, "shelf": entry.shelf, "phase": entry.phase}

    def answer(self, request: LampRequest, case: LampCase | None, around: Around[LampEntry, Ring]) -> Step[LampEntry]:
        if case is None or request.shelf not in case.reports:
            return Step(dropped="there is no such lamp or shelf")
        entry = case.entry
        if entry.is_moving:
            return Step()
        if entry.shelf == request.shelf:
            return Step(dropped="")
        return Step(LampEntry(entry.unit, request.shelf, entry.revision + 1, "carry", entry.shelf))

    def go_on(self, case: LampCase) -> Step[LampEntry]:
        return {"carry": self._carry, "let_go": self._let_go}[case.entry.phase](case)

    def is_settled(self, case: LampCase) -> bool:
        return False

    def _carry(self, case: LampCase) -> Step[LampEntry]:
        entry = case.entry
        if _knows(case, entry.shelf) or CARRY_FIRST not in self._rules:
            return Step(replace(entry, phase="let_go", revision=entry.revision + 1))
        if case.over(CARRY_TIMEOUT_S):
            back = LampEntry(entry.unit, entry.before, entry.revision + 1)
            return Step(back, given_up=f"{entry.shelf} does not take it")
        return Step()

    def _let_go(self, case: LampCase) -> Step[LampEntry]:
        entry = case.entry
        return Step(LampEntry(entry.unit, entry.shelf, entry.revision + 1)) if _knows(case, entry.before) else Step()


def _knows(case: LampCase, shelf: str) -> bool:
    report = case.reports.get(shelf)
    return report is not None and report.revisions.get(case.entry.unit, 0) >= case.entry.revision


# -- planned -------------------------------------------------------------------------------------------------


@registered
class LampMove(UnitMove, frozen=True, tag=LAMP.name):
    after: str
    reason: str
    figures: dict[str, float]


class LampPlanner(LampSteps):
    """Relieves the fullest shelf whose fuse would blow (`shoal.balance.change.Planner`): its brightest lamp goes to the
    emptiest shelf; if that has no room, one more shelf is wanted."""

    def plan(self, given: PlannerInput) -> Iterator[LampMove | HostsWanted]:
        window, units = given.window, given.units
        shelves = {row["host"]: (row["watts"] or 0.0, row["watts_max"]) for row in _rows(window.hosts_of(SHELF.name))}
        if not shelves or units.requests or any(entry.is_moving for entry in units.entries.values()):
            return
        watts, fullest = max((watts, shelf) for shelf, (watts, _) in shelves.items())
        used, emptiest = min((watts, shelf) for shelf, (watts, _) in shelves.items())
        fuse = shelves[fullest][1]
        if watts <= fuse:
            return
        costs = used_by_units(window, LAMP.name, BOTH)["watts"].tolist()
        there = [
            (cost, row["unit"])
            for cost, row in zip(costs, _rows(window.units_of(LAMP.name)), strict=True)
            if row["host"] == fullest and row["unit"] in units.entries and units.entries[row["unit"]].shelf == fullest
        ]
        figures = {"watts": watts, "fuse_watts": fuse}
        for cost, unit in sorted(there, reverse=True):
            if used + cost <= shelves[emptiest][1]:
                yield LampMove(unit, units.revision(unit), emptiest, "overload", {**figures, "lamp_watts": cost})
                return
        if len(shelves) < SHELVES_MAX and not given.adding.get(SHELF.name):
            yield HostsWanted(SHELF.name, 1, "attic", "overload", figures)

    def request(self, move: LampMove, id: str) -> LampRequest:
        return LampRequest(move.unit, move.after, id)

    def is_at(self, entry: LampEntry | None, request: LampRequest) -> bool:
        return entry is not None and entry.shelf == request.shelf


def _rows(table: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


REGISTRY: Final = Registry(BOTH, (*SHIPPED.units, ManagedKind(LampSteps, LampPlanner())))
