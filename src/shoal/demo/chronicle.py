"""What the balancer decides, and what comes of it, as the demo tells it.

Owns the words and the counts. `Chronicle` is pure: it is handed proposals and outcomes. `AuditFollower` reads them from
the balancer's audit log; the balancer itself is not asked anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from shoal.balance.proposal import Move, Proposal, ServerChange
from shoal.balance.recording import Outcome, proposal_of
from shoal.cluster.audit_log import AuditLog
from shoal.demo.script import Kind
from shoal.plan.placement import Mode

MOVES_TOLD: Final = 3
"""Moves of one plan that are told one by one."""
DIGEST_CHARACTERS: Final = 6
"""So much of a plan's digest is shown."""

News: TypeAlias = Proposal | Outcome


class Chronicle:
    """Tells what the balancer does, by `tell`, and counts."""

    def __init__(self, tell: Callable[[float, Kind, str], None]) -> None:
        self.proposals = 0
        self.moves_asked = 0
        self.moves_ended = 0
        self.moves_given_up = 0
        self.replicated: set[bytes] = set()
        """Channels that were given several servers at some time."""
        self.draining: set[str] = set()
        """Servers that the balancer wants emptied, or did."""
        self._tell = tell

    @property
    def moves_under_way(self) -> int:
        """Moves that were asked for and of which nothing is known yet."""
        return self.moves_asked - self.moves_ended - self.moves_given_up

    def take(self, news: Sequence[News], now: float) -> None:
        """Takes in what is new, oldest first."""
        for one in news:
            if isinstance(one, Proposal):
                self._decided(one, now)
            elif one.state == "ended":
                self._ended(one, now)

    def _decided(self, proposal: Proposal, now: float) -> None:
        self.proposals += 1
        self.moves_asked += len(proposal.moves)
        for change in proposal.servers:
            if change.what == "drain":
                self.draining.add(change.server)
            elif change.what == "keep":
                self.draining.discard(change.server)
        wants = [_count(len(proposal.moves), "channel") + " to move"] * bool(proposal.moves)
        wants += map(_change_words, proposal.servers)
        ratios = f"busiest server {proposal.max_ratio_before:.0%}"
        if proposal.moves:
            ratios += f" -> {proposal.max_ratio_after:.0%}"
        self._tell(now, "plan", f"plan {_short(proposal.digest)}, {ratios}: {', '.join(wants)}")
        spread = [move for move in proposal.moves if move.after.mode is not Mode.SINGLE]
        self.replicated.update(move.channel for move in spread)
        told = [*spread, *(move for move in proposal.moves if move.after.mode is Mode.SINGLE)]
        for move in told[:MOVES_TOLD]:
            self._tell(now, "move", _move_words(move))
        if len(told) > MOVES_TOLD:
            self._tell(now, "move", f"and {len(told) - MOVES_TOLD} more")

    def _ended(self, outcome: Outcome, now: float) -> None:
        moved, given_up, late = (int(outcome.facts.get(name, 0)) for name in ("moved", "given_up", "late"))
        self.moves_ended += moved
        self.moves_given_up += given_up + late
        if moved or given_up or late:
            left = f", {given_up + late} stay where they were" if given_up or late else ""
            after = f"{float(outcome.facts.get('seconds', 0.0)):.1f} s"
            words = f"plan {_short(outcome.digest)}: {_count(moved, 'channel')} moved within {after}{left}"
            self._tell(now, "seen" if left else "good", words)


class AuditFollower:
    """Reads what is new in an audit log. Blocks."""

    def __init__(self, directory: Path) -> None:
        self._log = AuditLog(directory)
        self._files: set[Path] = set()
        self._outcomes: set[tuple[float, str, str]] = set()

    def news(self) -> list[News]:
        """Proposals to change something, and what became of them, oldest first."""
        found: list[tuple[float, News]] = []
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
        return [news for _, news in sorted(found, key=lambda item: item[0])]


def _move_words(move: Move) -> str:
    way = f"{', '.join(move.before.servers)} -> {', '.join(move.after.servers)}"
    how = "" if move.after.mode is Mode.SINGLE else f", {move.after.mode}"
    left = move.figures.get("left_before")
    why = move.reason if left is None else f"{move.reason}, {move.before.servers[0]} at {left:.0%}"
    if len(move.before.servers) > 1 and left is not None:
        why = f"{move.reason}, busiest at {left:.0%}"
    return f"{move.channel.decode('utf-8', 'backslashreplace')}: {way} ({why}{how})"


def _change_words(change: ServerChange) -> str:
    if change.what == "add":
        return f"{_count(change.count, 'server')} to add ({change.reason})"
    return f"{change.server} to {change.what} ({change.reason})"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _short(digest: str) -> str:
    return digest[:DIGEST_CHARACTERS]
