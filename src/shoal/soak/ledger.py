"""The ledger of a round's moves: what was asked for, how far it came, and when anything was in motion.

Owns what became of each move. It is fed with the lines of the log of moves, by the run while they are written and by
the checking process when it reads them. Pure.

A move ends as one of these: `ended` (the channel's entry came to `narrow` or `end` with the placement asked for),
`replaced` (another one was asked for before that), `aborted` (the request is gone, and the placement is another), or
it is still `open`.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_right
from typing import Final, TypeAlias

import msgspec

from shoal.plan.entry import Phase
from shoal.plan.placement import Mode
from shoal.soak.records import Asked, Dropped, Phased

NARROW_S: Final = 2.0
"""A channel at `narrow` for this long is no more in motion, though somebody idle may not have left its old servers."""

Target: TypeAlias = tuple[Mode, frozenset[str]]
_ARRIVED: Final = (Phase.NARROW, Phase.END)


class Fate(enum.StrEnum):
    """What became of a move."""

    OPEN = "open"
    ENDED = "ended"
    REPLACED = "replaced"
    ABORTED = "aborted"


class Move(msgspec.Struct):
    """One move that was asked for."""

    channel: str
    target: Target
    eager: bool
    asked_at: float
    before: Phased | None
    """The channel's entry when it was asked for."""
    version: int = 0
    """The version of the new placement, once it is there; it stays 0 if the move before was only undone."""
    arrived_at: float | None = None
    ended_at: float | None = None
    dropped_at: float | None = None
    replaced_at: float | None = None

    @property
    def fate(self) -> Fate:
        """What became of it, as far as is known."""
        if self.arrived_at is not None:
            return Fate.ENDED
        if self.replaced_at is not None:
            return Fate.REPLACED
        return Fate.OPEN if self.dropped_at is None else Fate.ABORTED

    @property
    def still_at(self) -> float | None:
        """When it was no more in motion; None if it still is."""
        times = [at for at in (self.ended_at, self.dropped_at, self.replaced_at) if at is not None]
        if self.arrived_at is not None:
            times.append(self.arrived_at + NARROW_S)
        return max(min(times), self.arrived_at or 0.0) if times else None

    @property
    def pair(self) -> str:
        """From which kind of placement to which."""
        return f"{self.before.mode if self.before else Mode.SINGLE} to {self.target[0]}"


class Ledger:
    """All moves of a round."""

    def __init__(self) -> None:
        self.moves: list[Move] = []
        self.entries: dict[str, Phased] = {}
        """The newest entry of each channel that has one."""
        self._of: dict[str, list[Move]] = {}

    def take(self, record: Asked | Phased | Dropped) -> None:
        """The next line of the log."""
        if isinstance(record, Asked):
            self._asked(record)
        elif isinstance(record, Phased):
            self._phased(record)
        else:
            self._dropped(record)

    def _asked(self, record: Asked) -> None:
        last = self.last(record.channel)
        if last is not None and last.fate is Fate.OPEN:
            last.replaced_at = record.at
        entry = self.entries.get(record.channel)
        move = Move(record.channel, (record.mode, frozenset(record.servers)), record.eager, record.at, entry)
        self.moves.append(move)
        self._of.setdefault(record.channel, []).append(move)

    def _phased(self, record: Phased) -> None:
        self.entries[record.channel] = record
        move = self.last(record.channel)
        if move is None or target_of(record) != move.target:
            return
        if move.before is not None and record.revision <= move.before.revision:
            return  # an entry of before that looks the same
        if move.before is None or record.version > move.before.version:
            move.version = record.version
        if record.phase in _ARRIVED and move.arrived_at is None:
            move.arrived_at = record.at
        if record.phase is Phase.END:
            move.ended_at = move.ended_at or record.at

    def _dropped(self, record: Dropped) -> None:
        move = self.last(record.channel)
        if move is None:
            return
        move.dropped_at = record.at
        entry = self.entries.get(record.channel)
        there = entry is not None and entry.phase in _ARRIVED and target_of(entry) == move.target
        if there and move.arrived_at is None:  # it was there already
            move.arrived_at = record.at

    def last(self, channel: str) -> Move | None:
        """The last move that was asked for."""
        moves = self._of.get(channel)
        return moves[-1] if moves else None

    @property
    def open(self) -> list[Move]:
        """Moves that have not come to an end."""
        return [moves[-1] for moves in self._of.values() if moves[-1].fate is Fate.OPEN]

    def behind(self, channel: str, revision: int) -> Move | None:
        """The move that a revision of a channel's entry belongs to."""
        moves = [move for move in self._of.get(channel, ()) if move.version]
        index = bisect_right([move.version for move in moves], revision)
        return moves[index - 1] if index else None

    def motions(self, channel: str | None = None) -> list[tuple[float, float]]:
        """The times in which a channel, or any at all, was in motion, in order and without overlaps."""
        found: list[tuple[float, float]] = []
        moves = self.moves if channel is None else self._of.get(channel, ())
        for begin, end in sorted((move.asked_at, move.still_at or math.inf) for move in moves):
            if found and begin <= found[-1][1]:
                found[-1] = found[-1][0], max(end, found[-1][1])
            else:
                found.append((begin, end))
        return found

    @property
    def settle_s(self) -> float | None:
        """How long it took from the first request until the last move had arrived; None if one has not."""
        arrived = [move.arrived_at for move in self.moves if move.fate is not Fate.REPLACED]
        times = [at for at in arrived if at is not None]
        if not times or len(times) < len(arrived):
            return None
        return max(times) - min(move.asked_at for move in self.moves)


def target_of(entry: Phased) -> Target:
    """The placement that an entry leads to."""
    return entry.mode, frozenset(entry.servers)
