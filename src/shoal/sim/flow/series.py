"""Series: what a run of the flow simulator leaves, second by second, as columns.

Owns the record. Judging it is for those who ran it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.balance.columns import Floats, Ints


@dataclass(slots=True)
class Second:
    """One second of a run."""

    clients: int
    servers: int
    """Those that are there; each of them is paid for."""
    response_ms: float
    """Average over all responses of the second; infinite if a message was not delivered."""
    messages_out: float
    ratio_mean: float
    """Load ratio of the servers that are there: what they were given to send, by their capacity."""
    ratio_max: float
    utilisation_max: float
    """Of the busiest link or core: at 1 it can do no more."""
    undelivered: float
    """Messages that were not delivered."""
    decided: int
    """Channels that a decision of this second places anew."""
    rebalanced: bool
    """Whether a decision changed anything, channels or servers."""


@dataclass(frozen=True, slots=True)
class Series:
    """All seconds of a run, in order."""

    seconds: list[Second]

    def __len__(self) -> int:
        return len(self.seconds)

    def column(self, name: str) -> Floats:
        """One figure over time."""
        return np.array([getattr(second, name) for second in self.seconds], np.float64)

    @property
    def moves(self) -> int:
        """Channels that were placed anew, over the whole run."""
        return sum(second.decided for second in self.seconds)

    @property
    def server_hours(self) -> float:
        """What was paid for."""
        return sum(second.servers for second in self.seconds) / 3600

    @property
    def rebalanced_at(self) -> Ints:
        """The seconds in which a decision changed something."""
        return np.flatnonzero(self.column("rebalanced")).astype(np.int64)
