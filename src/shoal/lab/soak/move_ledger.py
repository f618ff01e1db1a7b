"""The ledger of a round's moves: what was requested, how far it got, and when channels were moving.

Owns the fate of each move. It takes the lines of the log of moves, from the soak while they are written and from the
checking process when it reads them. Pure.

The fate of a move is one of: `ended` (the channel's entry reached `narrow` or `end` with the requested placement),
`replaced` (another move of the channel was requested before that), `aborted` (the request was removed, and the
placement is another), or `open`.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_right
from typing import Final, TypeAlias

import msgspec

from shoal.lab.soak.round_log import EntryChanged, MoveRequested, RequestRemoved
from shoal.plan.entry import Phase
from shoal.plan.placement import Mode

NARROW_S: Final = 2.0
"""A channel that has been at `narrow` for this long counts as at rest, though idle clients may still be on its old
servers."""

Target: TypeAlias = tuple[Mode, frozenset[str]]
_ARRIVED: Final = (Phase.NARROW, Phase.END)


class Fate(enum.StrEnum):
    """The fate of a move."""

    OPEN = "open"
    ENDED = "ended"
    REPLACED = "replaced"
    ABORTED = "aborted"


class RequestedMove(msgspec.Struct):
    """One move that was requested."""

    channel: str
    target: Target
    eager: bool
    asked_at: float
    before: EntryChanged | None
    """The channel's entry at the time of the request."""
    version: int = 0
    """The version of the new placement, once it exists; 0 if this move only undid the one before."""
    arrived_at: float | None = None
    ended_at: float | None = None
    dropped_at: float | None = None
    replaced_at: float | None = None

    @property
    def fate(self) -> Fate:
        """The fate of the move, as far as it is known."""
        if self.arrived_at is not None:
            return Fate.ENDED
        if self.replaced_at is not None:
            return Fate.REPLACED
        return Fate.OPEN if self.dropped_at is None else Fate.ABORTED

    @property
    def rested_at(self) -> float | None:
        """When the channel stopped moving; None if it still moves."""
        times = [at for at in (self.ended_at, self.dropped_at, self.replaced_at) if at is not None]
        if self.arrived_at is not None:
            times.append(self.arrived_at + NARROW_S)
        return max(min(times), self.arrived_at or 0.0) if times else None

    @property
    def pair(self) -> str:
        """The modes of the placements before and after."""
        return f"{self.before.mode if self.before else Mode.SINGLE} to {self.target[0]}"


class Ledger:
    """All moves of a round."""

    def __init__(self) -> None:
        self.moves: list[RequestedMove] = []
        self.entries: dict[str, EntryChanged] = {}
        """The newest entry of each channel that has one."""
        self._of: dict[str, list[RequestedMove]] = {}

    def take(self, record: MoveRequested | EntryChanged | RequestRemoved) -> None:
        """The next line of the log."""
        if isinstance(record, MoveRequested):
            self._asked(record)
        elif isinstance(record, EntryChanged):
            self._phased(record)
        else:
            self._dropped(record)

    def _asked(self, record: MoveRequested) -> None:
        last = self.last(record.channel)
        if last is not None and last.fate is Fate.OPEN:
            last.replaced_at = record.at
        entry = self.entries.get(record.channel)
        target = record.mode, frozenset(record.servers)
        move = RequestedMove(record.channel, target, record.eager, record.at, entry)
        self.moves.append(move)
        self._of.setdefault(record.channel, []).append(move)

    def _phased(self, record: EntryChanged) -> None:
        self.entries[record.channel] = record
        move = self.last(record.channel)
        if move is None or target_of(record) != move.target:
            return
        if move.before is not None and record.revision <= move.before.revision:
            return  # an older entry that looks the same
        if move.before is None or record.version > move.before.version:
            move.version = record.version
        if record.phase in _ARRIVED and move.arrived_at is None:
            move.arrived_at = record.at
        if record.phase is Phase.END:
            move.ended_at = move.ended_at or record.at

    def _dropped(self, record: RequestRemoved) -> None:
        move = self.last(record.channel)
        if move is None:
            return
        move.dropped_at = record.at
        entry = self.entries.get(record.channel)
        there = entry is not None and entry.phase in _ARRIVED and target_of(entry) == move.target
        if there and move.arrived_at is None:  # the channel already had this placement
            move.arrived_at = record.at

    def last(self, channel: str) -> RequestedMove | None:
        """The last requested move of a channel."""
        moves = self._of.get(channel)
        return moves[-1] if moves else None

    @property
    def open(self) -> list[RequestedMove]:
        """Moves that have not ended."""
        return [moves[-1] for moves in self._of.values() if moves[-1].fate is Fate.OPEN]

    def behind(self, channel: str, revision: int) -> RequestedMove | None:
        """The move that a revision of a channel's entry belongs to."""
        moves = [move for move in self._of.get(channel, ()) if move.version]
        index = bisect_right([move.version for move in moves], revision)
        return moves[index - 1] if index else None

    def moving_times(self, channel: str | None = None) -> list[tuple[float, float]]:
        """The intervals in which a channel, or any channel, was moving, in order and without overlaps."""
        found: list[tuple[float, float]] = []
        moves = self.moves if channel is None else self._of.get(channel, ())
        for begin, end in sorted((move.asked_at, move.rested_at or math.inf) for move in moves):
            if found and begin <= found[-1][1]:
                found[-1] = found[-1][0], max(end, found[-1][1])
            else:
                found.append((begin, end))
        return found

    @property
    def settle_s(self) -> float | None:
        """Time from the first request until the last channel arrived; None if one has not arrived."""
        arrived = [move.arrived_at for move in self.moves if move.fate is not Fate.REPLACED]
        times = [at for at in arrived if at is not None]
        if not times or len(times) < len(arrived):
            return None
        return max(times) - min(move.asked_at for move in self.moves)


def target_of(entry: EntryChanged) -> Target:
    """The placement that an entry leads to."""
    return entry.mode, frozenset(entry.servers)
