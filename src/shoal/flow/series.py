"""The result of a run of the flow simulator, second by second.

Owns the record; judges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.balance.columns import Floats, Ints


@dataclass(slots=True)
class FlowSecond:
    """One second of a run."""

    clients: int
    servers: int
    """Present servers; all of them are paid for."""
    response_ms: float
    """Average over all responses of the second; infinite if a message was not delivered."""
    messages_out: float
    ratio_mean: float
    """Load ratio of the present servers: offered traffic divided by capacity."""
    ratio_max: float
    utilisation_max: float
    """Of the busiest link or core; it is full at 1."""
    undelivered: float
    """Messages that were not delivered."""
    decided: int
    """Channels that a decision of this second moves."""
    rebalanced: bool
    """Whether a decision changed anything, channels or servers."""


@dataclass(frozen=True, slots=True)
class Series:
    """All seconds of a run, in order."""

    seconds: list[FlowSecond]

    def __len__(self) -> int:
        return len(self.seconds)

    def column(self, name: str) -> Floats:
        """One figure over time."""
        return np.array([getattr(second, name) for second in self.seconds], np.float64)

    def sampled(self, columns: Sequence[str], every_s: int) -> dict[str, list[float]]:
        """Some figures at intervals of `every_s`, with the seconds themselves and those of all decisions."""
        return {
            "second": list(range(0, len(self), every_s)),
            **{name: [round(value, 3) for value in self.column(name)[::every_s].tolist()] for name in columns},
            "rebalanced_at": self.rebalanced_at.tolist(),
        }

    @property
    def moves(self) -> int:
        """Number of channel moves in the whole run."""
        return sum(second.decided for second in self.seconds)

    @property
    def server_hours(self) -> float:
        """Hours of all servers together."""
        return sum(second.servers for second in self.seconds) / 3600

    @property
    def rebalanced_at(self) -> Ints:
        """The seconds in which a decision changed something."""
        return np.flatnonzero(self.column("rebalanced")).astype(np.int64)
