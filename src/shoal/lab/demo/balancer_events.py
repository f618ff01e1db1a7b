"""Events about the balancer: its decisions and their outcomes.

Owns the texts and the counts. `BalancerEvents` is pure: it is given proposals and outcomes. `AuditLogReader` reads them
from the balancer's audit log; nothing here talks to the balancer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from shoal.balance.change import ChannelMove, ServerChange
from shoal.balance.decision_record import Outcome, proposal_of
from shoal.balance.proposal import Proposal
from shoal.lab.demo.server_events import EventKind
from shoal.leader.audit_log import AuditLog
from shoal.plan.placement import Mode

MOVES_SHOWN_MAX: Final = 3
"""Moves of one plan that have an event each."""
DIGEST_CHARACTERS: Final = 6
"""How much of a plan's digest is shown."""

AuditEntry: TypeAlias = Proposal | Outcome


class BalancerEvents:
    """Adds events about the balancer with `add`, and counts."""

    def __init__(self, add: Callable[[float, EventKind, str], None]) -> None:
        self.proposals = 0
        self.moves_asked = 0
        self.moves_ended = 0
        self.moves_given_up = 0
        self.replicated: set[bytes] = set()
        """Channels that were on several servers at some time."""
        self.draining: set[str] = set()
        """Servers that the balancer drains, or has drained."""
        self._add = add

    @property
    def moves_under_way(self) -> int:
        """Moves that were proposed and have not ended."""
        return self.moves_asked - self.moves_ended - self.moves_given_up

    def take(self, entries: Sequence[AuditEntry], now: float) -> None:
        """Takes new entries of the audit log, oldest first."""
        for entry in entries:
            if isinstance(entry, Proposal):
                self._decided(entry, now)
            elif entry.state == "ended":
                self._ended(entry, now)

    def _decided(self, proposal: Proposal, now: float) -> None:
        self.proposals += 1
        self.moves_asked += len(proposal.moves)
        for change in proposal.servers:
            if change.what == "drain":
                self.draining.add(change.server)
            elif change.what == "keep":
                self.draining.discard(change.server)
        wants = [_count(len(proposal.moves), "channel") + " to move"] * bool(proposal.moves)
        wants += map(_change_text, proposal.servers)
        ratios = f"busiest server {proposal.max_ratio_before:.0%}"
        if proposal.moves:
            ratios += f" -> {proposal.max_ratio_after:.0%}"
        self._add(now, "plan", f"plan {_short(proposal.digest)}, {ratios}: {', '.join(wants)}")
        spread = [move for move in proposal.moves if move.after.mode is not Mode.SINGLE]
        self.replicated.update(move.unit for move in spread)
        moves = [*spread, *(move for move in proposal.moves if move.after.mode is Mode.SINGLE)]
        for move in moves[:MOVES_SHOWN_MAX]:
            self._add(now, "move", _move_text(move))
        if len(moves) > MOVES_SHOWN_MAX:
            self._add(now, "move", f"and {len(moves) - MOVES_SHOWN_MAX} more")

    def _ended(self, outcome: Outcome, now: float) -> None:
        moved, given_up, late = (int(outcome.facts.get(name, 0)) for name in ("moved", "given_up", "late"))
        self.moves_ended += moved
        self.moves_given_up += given_up + late
        if moved or given_up or late:
            left = f", {given_up + late} stay where they were" if given_up or late else ""
            after = f"{float(outcome.facts.get('seconds', 0.0)):.1f} s"
            text = f"plan {_short(outcome.digest)}: {_count(moved, 'channel')} moved within {after}{left}"
            self._add(now, "seen" if left else "good", text)


class AuditLogReader:
    """Reads new entries of an audit log. Blocks."""

    def __init__(self, directory: Path) -> None:
        self._log = AuditLog(directory)
        self._files: set[Path] = set()
        self._outcomes: set[tuple[float, str, str]] = set()

    def read_new(self) -> list[AuditEntry]:
        """Proposals and outcomes since the last call, oldest first."""
        found: list[tuple[float, AuditEntry]] = []
        for file in self._log.files("decision"):
            if file.path not in self._files:
                self._files.add(file.path)
                record = self._log.read(file.path)
                found.append((record.at_s, proposal_of(record)))
        for outcome in self._log.outcomes():
            name = (outcome.at_s, outcome.digest, outcome.state)
            if name not in self._outcomes:
                self._outcomes.add(name)
                found.append((outcome.at_s, outcome))
        return [entry for _, entry in sorted(found, key=lambda item: item[0])]


def _move_text(move: ChannelMove) -> str:
    way = f"{', '.join(move.before.servers)} -> {', '.join(move.after.servers)}"
    how = "" if move.after.mode is Mode.SINGLE else f", {move.after.mode}"
    left = move.figures.get("left_before")
    why = move.reason if left is None else f"{move.reason}, {move.before.servers[0]} at {left:.0%}"
    if len(move.before.servers) > 1 and left is not None:
        why = f"{move.reason}, busiest at {left:.0%}"
    return f"{move.unit.decode('utf-8', 'backslashreplace')}: {way} ({why}{how})"


def _change_text(change: ServerChange) -> str:
    if change.what == "add":
        return f"{_count(change.count, 'server')} to add ({change.reason})"
    return f"{change.server} to {change.what} ({change.reason})"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _short(digest: str) -> str:
    return digest[:DIGEST_CHARACTERS]
