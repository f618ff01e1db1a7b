"""Builds a decision from the placements before and after: the changed rows, and the figures behind each move.

Owns the figures that these policies give as reasons. It makes no decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from shoal.balance.columns import Bools, Floats, Hosts32, Ints, Placements
from shoal.balance.decision import Decision, Reason, positions
from shoal.balance.policies.server_state import dead, draining, estimated_loads, silent
from shoal.balance.situation import Situation

FIGURE_NAMES: Final = (
    "left_before",
    "left_after",
    "chosen_before",
    "chosen_after",
    "bytes_out",
    "publications",
    "subscribers",
)
"""Load ratios of the busiest server that the channel leaves and of the busiest that it gets (of all its servers if
there is none), as measured before and as expected after; then the channel's activity per second. A dead server has
ratio 0.
"""

REASONS: Final = tuple(Reason)
Reasons = npt.NDArray[np.int8]
"""The reason for each channel, as its index in `REASONS`."""


@dataclass(frozen=True, slots=True)
class Servers:
    """The changes of servers."""

    add: int = 0
    drain: Hosts32 = field(default_factory=lambda: np.zeros(0, np.int32))
    keep: Hosts32 = field(default_factory=lambda: np.zeros(0, np.int32))
    reason: Reason | None = None
    figures: dict[str, float] = field(default_factory=dict)


NO_CHANGE: Final = Servers()


def differing(old: Placements, new: Placements) -> Ints:
    """Return the rows with other servers or another mode; the order of the servers does not matter."""
    differs: Bools = (old.mode != new.mode) | (old.degree != new.degree)
    rows = np.flatnonzero(~differs)
    degree = old.degree
    before = old.servers[positions(old.offsets, rows, degree)]
    after = new.servers[positions(new.offsets, rows, degree)]
    unequal = before != after
    of = np.repeat(rows, degree[rows])
    if unequal.any():
        touched = np.zeros(len(old), np.bool_)
        touched[of[unequal]] = True
        here = touched[of]
        of, before, after = of[here], before[here], after[here]
        width = int(max(before.max(), after.max())) + 1
        same_set = np.sort(of * width + before) == np.sort(of * width + after)
        differs[of[~same_set]] = True
    return np.flatnonzero(differs)


def decide_for(situation: Situation, new: Placements, reasons: Reasons, servers: Servers = NO_CHANGE) -> Decision:
    """Return the decision that changes the current placements to `new`, except for channels on silent servers.

    `reasons` has one reason per channel.
    """
    rows = differing(situation.placements, new)
    rows = rows[~on_silent(situation)[rows]]
    return Decision(
        rows,
        only(new, rows),
        tuple(REASONS[number] for number in reasons[rows].tolist()),
        FIGURE_NAMES,
        _figures(situation, new, rows),
        servers.add,
        servers.drain,
        servers.keep,
        servers.reason,
        servers.figures,
    )


def all_for(reason: Reason, channels: int) -> Reasons:
    """Return the same reason for every channel."""
    return np.full(channels, REASONS.index(reason), np.int8)


def on_silent(situation: Situation) -> Bools:
    """Return which channels have a server that did not report."""
    placements = situation.placements
    found = np.zeros(len(placements), np.bool_)
    found[placements.rows[silent(situation)[placements.servers]]] = True
    return found


def hash_reasons(situation: Situation, usual: Reason) -> Reasons:
    """Return the reason for moving each channel: its server is dead or draining, or else the policy's usual reason."""
    placements, hosts = situation.placements, situation.hosts
    reasons = all_for(usual, len(placements))
    rows = placements.rows
    reasons[rows[draining(situation)[placements.servers]]] = REASONS.index(Reason.DRAIN)
    reasons[rows[dead(hosts)[placements.servers]]] = REASONS.index(Reason.LOST)
    return reasons


def only(placements: Placements, rows: Ints) -> Placements:
    """Return the placements of some rows."""
    degree = placements.degree
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(degree[rows], out=offsets[1:])
    return Placements(placements.mode[rows], offsets, placements.servers[positions(placements.offsets, rows, degree)])


def _figures(situation: Situation, new: Placements, rows: Ints) -> Floats:
    channels = situation.channels
    if not len(rows):
        return np.zeros((0, len(FIGURE_NAMES)))
    before, after = _finite_ratios(situation, situation.placements), _finite_ratios(situation, new)
    old, new = only(situation.placements, rows), only(new, rows)
    left, chosen = _apart(old, new, len(before)), _apart(new, old, len(before))
    columns = (
        _highest(before, old, left),
        _highest(after, old, left),
        _highest(before, new, chosen),
        _highest(after, new, chosen),
        channels.bytes_out[rows],
        channels.publications[rows],
        channels.subscribers[rows].astype(np.float64),
    )
    return np.column_stack(columns)


def _finite_ratios(situation: Situation, placements: Placements) -> Floats:
    loads = estimated_loads(situation, placements)
    capacity = situation.hosts.capacity
    return np.divide(loads, capacity, out=np.zeros_like(loads), where=capacity > 0)


def _apart(placements: Placements, others: Placements, hosts: int) -> Bools:
    """Return which servers of each row are not in that row of `others`; all of them if every one is."""
    if len(placements.servers) == len(others.servers) == len(placements):
        return np.ones(len(placements), np.bool_)
    apart = ~np.isin(placements.rows * hosts + placements.servers, others.rows * hosts + others.servers)
    any_apart: Bools = np.maximum.reduceat(apart, placements.offsets[:-1])
    return apart | ~any_apart[placements.rows]


def _highest(ratios: Floats, placements: Placements, counted: Bools) -> Floats:
    """Return the highest ratio among the counted servers of each row."""
    shown = np.where(counted, ratios[placements.servers], -np.inf)
    highest: Floats = np.maximum.reduceat(shown, placements.offsets[:-1])
    return highest
