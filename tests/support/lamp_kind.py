"""A second kind of unit, for tests only: lamps, which stand on shelves and are carried from one to another.

Owns all that a kind brings: its entry, request and report, its table of two steps, its change and its planner. Nothing
outside this file and its tests knows of lamps.

    carry   until the new shelf reports the lamp; given up after `CARRY_TIMEOUT_S`
    let_go  until the old shelf reports that it has let go
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from shoal.balance.change import UnitMove, Units, registered
from shoal.errors import PlanError, ProtocolError
from shoal.plan.conductor import Case, Step
from shoal.plan.move_request import decode_body

LAMP: Final = "lamp"
SHELF: Final = "shelf"
CARRY_TIMEOUT_S: Final = 10.0

Shelves = frozenset[str]


class LampEntry(msgspec.Struct, frozen=True, array_like=True, tag=LAMP):
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
LampCase = Case[LampEntry, Shelves, LampReport]


class LampSteps:
    """The table of steps of lamps (`shoal.plan.conductor.Steps`)."""

    kind: Final = LAMP
    entry_type: Final = LampEntry

    def read_request(self, data: bytes) -> LampRequest:
        try:
            return decode_body(data, LAMP, _requests)
        except ValueError as error:
            raise PlanError(str(error)) from error

    def read_report(self, data: bytes) -> LampReport:
        try:
            return decode_body(data, LAMP, _reports)
        except ValueError as error:
            raise ProtocolError(str(error)) from error

    def facts(self, entry: LampEntry) -> Mapping[str, object]:
        return {"lamp": entry.unit, "shelf": entry.shelf, "phase": entry.phase}

    def answer(self, request: LampRequest, case: LampCase | None, hosts: Shelves) -> Step[LampEntry]:
        entry = case.entry if case else None
        if entry is not None and entry.shelf == request.shelf:
            return Step() if entry.is_moving else Step(dropped="")
        if request.shelf not in hosts:
            return Step(dropped=f"there is no shelf {request.shelf}")
        if entry is None:
            return Step(LampEntry(request.unit, request.shelf, 1, "carry", request.shelf))
        return Step(LampEntry(entry.unit, request.shelf, entry.revision + 1, "carry", entry.shelf))

    def go_on(self, case: LampCase) -> Step[LampEntry]:
        return {"carry": self._carry, "let_go": self._let_go}[case.entry.phase](case)

    def is_settled(self, case: LampCase) -> bool:
        return False

    def _carry(self, case: LampCase) -> Step[LampEntry]:
        entry = case.entry
        if _knows(case, entry.shelf):
            return Step(replace(entry, phase="let_go", revision=entry.revision + 1))
        if case.over(CARRY_TIMEOUT_S):
            back = LampEntry(entry.unit, entry.before, entry.revision + 1)
            return Step(back, given_up=f"{entry.shelf} has no room")
        return Step()

    def _let_go(self, case: LampCase) -> Step[LampEntry]:
        entry = case.entry
        return Step(LampEntry(entry.unit, entry.shelf, entry.revision + 1)) if _knows(case, entry.before) else Step()


def _knows(case: LampCase, shelf: str) -> bool:
    report = case.reports.get(shelf)
    return report is not None and report.revisions.get(case.entry.unit, 0) >= case.entry.revision


@registered
class LampMove(UnitMove, frozen=True, tag=LAMP):
    after: str
    reason: str
    figures: dict[str, float]


class LampPlanner(LampSteps):
    """Wants every lamp on one shelf (`shoal.balance.change.Planner`)."""

    def __init__(self, shelf: str) -> None:
        self._shelf = shelf

    def plan(self, units: Units, now_s: float) -> Iterable[LampMove]:
        for unit, entry in sorted(units.entries.items()):
            if entry.shelf != self._shelf and unit not in units.requests:
                yield LampMove(unit, entry.newness, self._shelf, "spread", {"lamps": float(len(units.entries))})

    def request(self, move: LampMove, id: str) -> LampRequest:
        return LampRequest(move.unit, move.after, id)

    def is_at(self, entry: LampEntry | None, request: LampRequest) -> bool:
        return entry is not None and entry.shelf == request.shelf
