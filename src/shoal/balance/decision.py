"""A decision: the changes that a policy wants, in columns.

Owns the record, the reasons, and how a decision changes placements. `shoal.balance.proposal` turns it into a proposal
with names.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np

from shoal.balance.columns import Floats, Hosts32, Ints, Modes, Placements


class Reason(enum.StrEnum):
    """Why a channel moves, or servers are added or removed."""

    OVERLOAD = "overload"
    """Its server is above the high ratio."""
    REPLICATE = "replicate"
    """It needs more servers than it has."""
    MERGE = "merge"
    """It needs fewer servers than it has."""
    DRAIN = "drain"
    """Its server is being drained."""
    LOST = "lost"
    """Its server is dead."""
    SPREAD = "spread"
    """A better balance, although no server is above the high ratio."""
    HASH = "hash"
    """The hash of its name decides (baselines)."""
    GROW = "grow"
    """There are too few servers for the present or expected load."""
    SHRINK = "shrink"
    """Fewer servers are enough."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Channels to move, and servers to add, to drain, or to keep although they were being drained.

    `moves` are rows of channels of the situation, each at most once; `placements` has one row for each of them, with
    servers that are hosts of the situation. `reasons` has one element for each move. `figures` has one row for each
    move and a column for each of `figure_names`: the measurements behind the move (load ratio of the old and of the new
    server before and after, the channel's own load, ...).
    """

    moves: Ints
    placements: Placements
    reasons: tuple[Reason, ...]
    figure_names: tuple[str, ...]
    figures: Floats
    add: int = 0
    drain: Hosts32 = field(default_factory=lambda: np.zeros(0, np.int32))
    """Hosts to drain: they take no more channels, and their channels leave with this plan or the next ones."""
    keep: Hosts32 = field(default_factory=lambda: np.zeros(0, np.int32))
    """Hosts that were being drained and are kept."""
    server_reason: Reason | None = None
    server_figures: dict[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.moves)

    @property
    def is_empty(self) -> bool:
        """Whether the decision changes nothing."""
        return not len(self.moves) and not self.add and not len(self.drain) and not len(self.keep)

    @classmethod
    def nothing(cls) -> Decision:
        """A decision that changes nothing."""
        empty = Placements(np.zeros(0, np.int8), np.zeros(1, np.int64), np.zeros(0, np.int32))
        return cls(np.zeros(0, np.int64), empty, (), (), np.zeros((0, 0)))


def changed(placements: Placements, moves: Ints, new: Placements) -> Placements:
    """The placements after the moves. A channel that keeps its mode and its number of servers keeps its measured parts,
    position by position, because its clients keep their positions."""
    degree = placements.degree.copy()
    degree[moves] = new.degree
    offsets = np.zeros(len(placements) + 1, np.int64)
    np.cumsum(degree, out=offsets[1:])
    mode: Modes = placements.mode.copy()
    mode[moves] = new.mode
    servers = np.empty(offsets[-1], np.int32)
    stays = np.ones(len(placements), np.bool_)
    stays[moves] = False
    kept = np.flatnonzero(stays)
    after, before = positions(offsets, kept, degree), positions(placements.offsets, kept, degree)
    servers[after] = placements.servers[before]
    servers[positions(offsets, moves, degree)] = new.servers
    if placements.parts is None:
        return Placements(mode, offsets, servers)
    alike = np.flatnonzero((degree == placements.degree) & (mode == placements.mode))
    parts = 1.0 / np.repeat(degree, degree)
    parts[positions(offsets, alike, degree)] = placements.parts[positions(placements.offsets, alike, degree)]
    return Placements(mode, offsets, servers, parts)


def positions(offsets: Ints, rows: Ints, degree: Ints) -> Ints:
    """The positions of all servers of some rows, row by row."""
    counts = degree[rows]
    ends = np.cumsum(counts)
    within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
    return np.repeat(offsets[rows], counts) + within
