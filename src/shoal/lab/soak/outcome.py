"""The options of a soak and its outcome: the sum over its rounds, and the facts that the command prints.

Owns the names of the facts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from shoal.lab.soak.checker import RoundReport, Severity
from shoal.lab.soak.corners import wanted_corners
from shoal.lab.soak.faults import FaultPlan
from shoal.lab.soak.histogram import Histogram
from shoal.limits import Limits

OPEN_TOLD_MAX: Final = 20
"""Open moves that the facts list with their reasons; the rest are only counted."""
_SUMS: Final = (
    *("messages", "deliveries", "lost", "duplicated", "reordered", "gaps_reported", "gaps_false"),
    "violation_count",
)


class SoakOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a soak. `moves` are spread over the soak; with `burst`, that many channels move at once instead."""

    servers: int
    subscribers: int
    seconds: float
    faults: FaultPlan
    seed: int
    limits: Limits
    moves: int = 0
    burst: int = 0
    tls: bool = False
    """Whether all connections use TLS, with certificates that are renewed during the soak."""

    @property
    def protocol(self) -> str:
        """The protocol that is checked."""
        return "moves" if self.moves or self.burst else "channels"

    @property
    def severity(self) -> Severity:
        """The worst faults of the soak."""
        if self.faults.kill_servers:
            return Severity.SERVERS
        if self.faults.freeze:
            return Severity.FREEZES
        return Severity.AGENTS if self.faults.any else Severity.CALM

    @property
    def corners(self) -> list[str]:
        """Corner cases that the soak must meet."""
        return list(wanted_corners(self.faults, self.seconds, self.moves, self.burst))


class BaseOutcome(ABC):
    """The sum over rounds of any kind. `kept` are the directories of rounds with violations."""

    def __init__(self, protocol: str, corners: list[str]) -> None:
        self.protocol = protocol
        self.corners = corners
        self.rounds = 0
        self.faults = 0
        self.forwarded = 0
        self.report = RoundReport()
        self.exercised: Counter[str] = Counter()
        self.kept: list[Path] = []
        self.seconds = 0.0

    def add(self, report: RoundReport, faults: int, forwarded: int = 0) -> None:
        """Adds a round."""
        total = self.report
        self.rounds += 1
        self.faults += faults
        self.forwarded += forwarded
        for name in _SUMS:
            setattr(total, name, getattr(total, name) + getattr(report, name))
        total.violations = total.violations + report.violations
        for name in ("quiet", "beside", "moved", "free_quiet", "free_moving", "harmless", "hostile"):
            getattr(total, name).merge(getattr(report, name))
        for attack, latencies in report.attacks.items():
            total.attacks.setdefault(attack, Histogram()).merge(latencies)
        total.movements.add(report.movements)
        total.pauses.add(report.pauses)
        self.exercised.update(report.exercised)

    @property
    def corners_missed(self) -> list[str]:
        """Corner cases that the soak should have met, and has not."""
        return [corner for corner in self.corners if not self.exercised[corner]]

    @property
    def holds(self) -> bool:
        """Whether there are no violations, and every corner case was met."""
        return not self.report.violation_count and not self.corners_missed

    @property
    @abstractmethod
    def moves(self) -> int:
        """Number of moves."""

    @abstractmethod
    def more_facts(self) -> dict[str, Any]:
        """Facts of this kind of soak only."""

    def facts(self) -> dict[str, Any]:
        """The facts that `shoal soak --json` prints."""
        report = self.report
        missed = [f"never exercised: {corner}" for corner in self.corners_missed]
        return {
            "protocol": self.protocol,
            "seeds": self.rounds,
            "messages": report.messages,
            "deliveries": report.deliveries,
            "moves": self.moves,
            "faults": self.faults,
            "lost": report.lost,
            "duplicated": report.duplicated,
            "reordered": report.reordered,
            "gaps_reported": report.gaps_reported,
            "violations": report.violations + missed,
            "violation_count": report.violation_count + len(missed),
            "exercised": dict(sorted({**dict.fromkeys(self.corners, 0), **self.exercised}.items())),
            **self.more_facts(),
            "kept": [str(path) for path in self.kept],
            "seconds": round(self.seconds, 1),
        }

    def move_facts(self) -> dict[str, Any]:
        """The fates of moves, and their cost in latency.

        There are three differences of the 99.9th percentile: all channels while any channel moved, minus quiet times;
        the same without messages during which processors were the limit; and channels that moved, minus others at the
        same time, for which processors were as busy.
        """
        report = self.report
        moved = report.movements
        moving = Histogram()
        moving.merge(report.beside)
        moving.merge(report.moved)
        latencies = {
            "quiet": report.quiet,
            "moving": moving,
            "moved": report.moved,
            "beside": report.beside,
            "free_quiet": report.free_quiet,
            "free_moving": report.free_moving,
        }
        return {
            "moves_ended": moved.ended,
            "moves_replaced": moved.replaced,
            "moves_aborted": moved.aborted,
            "moves_open": len(moved.open),
            "moves_open_why": moved.open[:OPEN_TOLD_MAX],
            "subscriptions_closed": moved.subscriptions_closed,
            "latency_ms": {name: {"deliveries": one.count, **one.summary_ms()} for name, one in latencies.items()},
            "latency_p999_difference_ms": _difference_ms(report.quiet, moving),
            "latency_p999_free_difference_ms": _difference_ms(report.free_quiet, report.free_moving),
            "latency_p999_moved_difference_ms": _difference_ms(report.beside, report.moved),
            "cpu_share": {"quiet": _mean(moved.busy_quiet), "moving": _mean(moved.busy_moving)},
        }


class SoakOutcome(BaseOutcome):
    """The sum over rounds with faults, or with requested moves."""

    def __init__(self, options: SoakOptions) -> None:
        super().__init__(options.protocol, options.corners)
        self.options = options

    @property
    def moves(self) -> int:
        """Requested moves; in a soak without moves, how often a server left or joined the ring."""
        if self.protocol == "moves":
            return self.report.movements.asked
        return self.exercised["server left ring"] + self.exercised["server joined ring"]

    def _freeze_facts(self) -> dict[str, Any]:
        faults = self.options.faults
        return _freeze_facts_of(self.report, faults.kill_coordinator) if faults.freeze else {}

    def more_facts(self) -> dict[str, Any]:
        """Latency; in a soak with moves also everything about them."""
        if self.protocol != "moves":
            return {"latency_ms": self.report.quiet.summary_ms(), **self._freeze_facts()}
        moved = self.report.movements
        burst = {"burst_settle_s": moved.settle_s and round(moved.settle_s, 3)} if self.options.burst else {}
        return {
            **self.move_facts(),
            **burst,
            "control_per_move_and_client": {
                "lazy": moved.lazy.per_move_and_client,
                "eager": moved.eager.per_move_and_client,
            },
            "control": {
                name: {"moves": cost.moves, "clients": cost.clients, "messages": cost.messages, **cost.by_message}
                for name, cost in (("lazy", moved.lazy), ("eager", moved.eager))
            },
            "idle_notices": moved.idle_notices,
            "forwarded": self.forwarded,
            **{f"foreign_{name}": value for name, value in msgspec.structs.asdict(moved.foreign).items()},
            **{f"plain_{name}": value for name, value in msgspec.structs.asdict(moved.plain).items()},
        }


def _freeze_facts_of(report: RoundReport, returns: bool) -> dict[str, Any]:
    """How long deliveries paused: see `shoal.lab.soak.pauses`."""
    pauses = report.pauses
    stall = {"coordinator_return_stall_ms": _round_ms(median(pauses.returns))} if pauses.returns else {}
    return {
        "gaps_false": report.gaps_false,
        **({"coordinator_return_stall_ms": None} if returns else {}),
        **stall,
        "failover_s_max": round(max(pauses.failovers), 3) if pauses.failovers else None,
        "failover_s": [round(one, 3) for one in pauses.failovers],
        "coordinator_returns": len(pauses.returns),
        "longest_quiet_ms": _round_ms(pauses.quiet),
    }


def _round_ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _difference_ms(less: Histogram, more: Histogram) -> float | None:
    """Difference of the 99.9th percentiles; None if a histogram is empty."""
    before, after = less.percentile_s(0.999), more.percentile_s(0.999)
    return None if before is None or after is None else round((after - before) * 1000, 3)


def _mean(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 2) if values else None
