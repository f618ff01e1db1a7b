"""What a run is to be, and what came of it: the sum over its rounds, and the facts that the command prints.

Owns the names of the facts.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec

from shoal.limits import Limits
from shoal.soak.checker import Report, Severity
from shoal.soak.corners import wanted_corners
from shoal.soak.faults import FaultPlan

OPEN_TOLD_MAX: Final = 20
"""Moves that did not end of which the facts say why; the rest is counted."""
_SUMS: Final = ("messages", "deliveries", "lost", "duplicated", "reordered", "gaps_reported", "violation_count")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is to be. `moves` are spread over the run; with `burst`, so many channels move at once instead."""

    servers: int
    subscribers: int
    seconds: float
    faults: FaultPlan
    seed: int
    limits: Limits
    moves: int = 0
    burst: int = 0

    @property
    def protocol(self) -> str:
        """Whose checks these are."""
        return "moves" if self.moves or self.burst else "channels"

    @property
    def severity(self) -> Severity:
        """What the run suffers at the worst."""
        if self.faults.kill_servers:
            return Severity.SERVERS
        return Severity.AGENTS if self.faults.any else Severity.CALM

    @property
    def corners(self) -> list[str]:
        """What the run must meet."""
        return list(wanted_corners(self.faults, self.seconds, self.moves, self.burst))


class Outcome:
    """The sum over rounds. `kept` are the directories of rounds that were not right."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.rounds = 0
        self.faults = 0
        self.forwarded = 0
        self.report = Report()
        self.exercised: Counter[str] = Counter()
        self.kept: list[Path] = []
        self.seconds = 0.0

    def add(self, report: Report, faults: int, forwarded: int = 0) -> None:
        """Adds a round."""
        total = self.report
        self.rounds += 1
        self.faults += faults
        self.forwarded += forwarded
        for name in _SUMS:
            setattr(total, name, getattr(total, name) + getattr(report, name))
        total.violations = total.violations + report.violations
        total.quiet.merge(report.quiet)
        total.moving.merge(report.moving)
        total.movements.add(report.movements)
        self.exercised.update(report.exercised)

    @property
    def corners_missed(self) -> list[str]:
        """Corners that such a run should have met, and has not."""
        return [corner for corner in self.options.corners if not self.exercised[corner]]

    @property
    def holds(self) -> bool:
        """Whether every promise was kept, and was really put to the test."""
        return not self.report.violation_count and not self.corners_missed

    def facts(self) -> dict[str, Any]:
        """The facts that `shoal soak --json` prints."""
        report, options = self.report, self.options
        missed = [f"never exercised: {corner}" for corner in self.corners_missed]
        re_homed = self.exercised["server left ring"] + self.exercised["server joined ring"]
        moved = options.protocol == "moves"
        return {
            "protocol": options.protocol,
            "seeds": self.rounds,
            "messages": report.messages,
            "deliveries": report.deliveries,
            "moves": report.movements.asked if moved else re_homed,
            "faults": self.faults,
            "lost": report.lost,
            "duplicated": report.duplicated,
            "reordered": report.reordered,
            "gaps_reported": report.gaps_reported,
            "violations": report.violations + missed,
            "violation_count": report.violation_count + len(missed),
            "exercised": dict(sorted({**dict.fromkeys(options.corners, 0), **self.exercised}.items())),
            **(self._move_facts() if moved else {"latency_ms": report.quiet.summary_ms()}),
            "kept": [str(path) for path in self.kept],
            "seconds": round(self.seconds, 1),
        }

    def _move_facts(self) -> dict[str, Any]:
        moved, quiet, moving = self.report.movements, self.report.quiet, self.report.moving
        before, during = quiet.percentile_s(0.999), moving.percentile_s(0.999)
        difference = None if before is None or during is None else round((during - before) * 1000, 3)
        burst = {"burst_settle_s": moved.settle_s and round(moved.settle_s, 3)} if self.options.burst else {}
        return {
            "moves_ended": moved.ended,
            "moves_replaced": moved.replaced,
            "moves_aborted": moved.aborted,
            "moves_open": len(moved.open),
            "moves_open_why": moved.open[:OPEN_TOLD_MAX],
            **burst,
            "subscriptions_closed": moved.subscriptions_closed,
            "latency_ms": {
                "quiet": {"deliveries": quiet.count, **quiet.summary_ms()},
                "moving": {"deliveries": moving.count, **moving.summary_ms()},
            },
            "latency_p999_difference_ms": difference,
            "cpu_share": {"quiet": _mean(moved.busy_quiet), "moving": _mean(moved.busy_moving)},
            "control_per_move_and_client": {
                "lazy": moved.lazy.per_move_and_client,
                "eager": moved.eager.per_move_and_client,
            },
            "control": {
                name: {"moves": cost.moves, "clients": cost.clients, "messages": cost.messages, **cost.words}
                for name, cost in (("lazy", moved.lazy), ("eager", moved.eager))
            },
            "idle_notices": moved.idle_notices,
            "forwarded": self.forwarded,
            **{f"foreign_{name}": value for name, value in msgspec.structs.asdict(moved.foreign).items()},
            **{f"plain_{name}": value for name, value in msgspec.structs.asdict(moved.plain).items()},
        }


def _mean(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 2) if values else None
