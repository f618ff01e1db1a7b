"""The pauses of deliveries in a round with freezes: how long a failover took, and what a coordinator's return cost.

Owns the measurement. Its probes are channels on which a message is published every 20 ms, one on each server, each with
a publisher and a subscriber of its own: a client that uses other servers too learns of a new ring from them.

    failover   the longest pause on any probe that began before the server was thawed and ended after it was frozen
    return     the longest pause on any probe at the return of the coordinator, minus the longest pause in quiet time
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import msgspec

from shoal.lab.soak import round_log
from shoal.lab.soak.round_log import Record

RETURN_S: Final = 1.0
"""A pause counts for a return of the coordinator if it began at most this long after it, or before."""
UNREST_S: Final = 4.0
"""How long after a fault pauses are not those of quiet time."""
PAUSE_S_MIN: Final = 0.03
"""Shorter pauses are the pace of the probes."""


class Pauses(msgspec.Struct):
    """The pauses of one round or of several, in seconds."""

    failovers: list[float] = []
    returns: list[float] = []
    """Above the longest pause in quiet time of the same round; 0 if it was not longer."""
    quiet: float = 0.0
    """The longest pause in quiet time."""

    def add(self, other: Pauses) -> None:
        """Adds another round."""
        self.failovers = self.failovers + other.failovers
        self.returns = self.returns + other.returns
        self.quiet = max(self.quiet, other.quiet)


class PauseMeter:
    """Measures the pauses of one round from its logs."""

    def __init__(self) -> None:
        self._frozen: list[tuple[float, float]] = []
        self._away: list[tuple[float, float]] = []
        self._since: dict[str, float] = {}
        self._pauses: list[tuple[float, float]] = []

    def take_fault(self, record: Record) -> None:
        """Takes a line of the log of faults."""
        match record:
            case round_log.ServerFrozen(server, at):
                self._since[server] = at
            case round_log.ServerThawed(server, at):
                self._frozen.append((self._since.pop(server), at))
            case round_log.CoordinatorKilled(at):
                self._since[""] = at
            case round_log.CoordinatorBack(at):
                self._away.append((self._since.pop(""), at))

    def take_deliveries(self, times: list[float]) -> None:
        """Takes the times at which one subscription to a probe received messages."""
        self._pauses += [(began, ended) for began, ended in pairwise(times) if ended - began >= PAUSE_S_MIN]

    def sum_up(self) -> Pauses:
        """The pauses of the round."""
        quiet = max((ended - began for began, ended in self._pauses if self._is_quiet(began, ended)), default=0.0)
        returns = [self._longest(back, back + RETURN_S) - quiet for _, back in self._away]
        failovers = [self._longest(frozen, thawed) for frozen, thawed in self._frozen]
        return Pauses(failovers, [max(0.0, one) for one in returns], quiet)

    def _longest(self, since: float, until: float) -> float:
        """The longest pause that overlaps an interval."""
        return max((ended - began for began, ended in self._pauses if ended > since and began < until), default=0.0)

    def _is_quiet(self, began: float, ended: float) -> bool:
        faults = (*self._frozen, *self._away)
        return all(ended <= since or began >= until + UNREST_S for since, until in faults)
