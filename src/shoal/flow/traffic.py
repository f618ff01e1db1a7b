"""Traffic: what all channels do in one step, in columns of rates.

Owns the record, and the interface of a workload. Servers are not part of it: traffic does not depend on placements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from shoal.balance.columns import Floats, Ints


@dataclass(frozen=True, slots=True)
class Traffic:
    """One step. Row `i` is channel `i` of the workload's names."""

    publications: Floats
    """A second. Each is counted once, however many servers it goes to."""
    publishers: Ints
    subscribers: Ints
    message_bytes: float | Floats
    """Size of one delivery: of all channels, or by channel."""
    responses: Floats
    """Response times measured a second, by channel: the weights of the average."""
    latency_ms: float
    """Latency of the network in each of them: the mean of the samples that were drawn for this step."""
    clients: int

    @property
    def messages_out(self) -> Floats:
        """Deliveries a second."""
        return self.publications * self.subscribers

    def bytes_of(self, rows: Ints) -> float | Floats:
        """Size of one delivery in the channels of some rows."""
        return self.message_bytes[rows] if isinstance(self.message_bytes, np.ndarray) else self.message_bytes


class Workload(Protocol):
    """A source of traffic over time, the same for every policy. Its seed determines everything random."""

    @property
    def names(self) -> pa.Array:
        """The names of the channels (binary). They contain the seed, so that each seed has other homes in the ring."""

    @property
    def seconds(self) -> int:
        """How long it lasts."""

    def at(self, second: int) -> Traffic:
        """The traffic of the second that begins at `second`."""
