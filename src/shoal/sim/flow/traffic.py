"""Traffic: what all channels do in one step, as columns of rates.

Owns the record, and what a workload must offer. Never touches servers: where a channel lives changes nothing here.
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
    """A second; each counted once, however many servers it goes to."""
    publishers: Ints
    subscribers: Ints
    message_bytes: float | Floats
    """What one delivery of one message weighs: in all channels, or by channel."""
    responses: Floats
    """Response times that are taken a second, by channel: they weigh the average."""
    latency_ms: float
    """What the network adds to each of them: the mean of the samples that were drawn for this step."""
    clients: int

    @property
    def messages_out(self) -> Floats:
        """Deliveries a second."""
        return self.publications * self.subscribers

    def bytes_of(self, rows: Ints) -> float | Floats:
        """What one delivery weighs in the channels of some rows."""
        return self.message_bytes[rows] if isinstance(self.message_bytes, np.ndarray) else self.message_bytes


class Workload(Protocol):
    """A source of traffic over time, the same for every policy. All randomness is drawn by its seed."""

    @property
    def names(self) -> pa.Array:
        """The names of the channels (binary): fixed, and by seed, so that every seed meets the ring elsewhere."""

    @property
    def seconds(self) -> int:
        """How long it lasts."""

    def at(self, second: int) -> Traffic:
        """What happens in the second that begins at `second`."""
