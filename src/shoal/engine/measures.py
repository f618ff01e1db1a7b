"""What a process of an engine measures of itself: the CPU of its operators, and what they did.

Owns the counters and the clock that they need: the CPU is read a few times in a turn, once for each batch, never for an
event. The counters only grow while the process lives.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

ACCESS: Final = "access_cpu_s"
MATCHING: Final = "matching_cpu_s"
MERGING: Final = "merging_cpu_s"
POSTING: Final = "posting_cpu_s"
"""The parts of a turn."""


class Measures(msgspec.Struct, frozen=True, array_like=True):
    """The counters of a process."""

    taken: int = 0
    """Events that its access point has put into the fan."""
    batches: int = 0
    """Batches of events that its access point has put into the fan."""
    access_cpu_s: float = 0.0
    matched: int = 0
    """Events that its matcher has matched."""
    changed: int = 0
    """Filters that came and went at its matcher."""
    matching_cpu_s: float = 0.0
    delivered: int = 0
    """Deliveries of its exit point."""
    merging_cpu_s: float = 0.0
    posting_cpu_s: float = 0.0
    """Posting letters to clients and messages to other processes."""
    turn_s: float = 0.0
    turn_cpu_s: float = 0.0
    """Time and CPU of all turns."""


class Meter:
    """Counts. `cpu_s` is the CPU of the thread in which the engine runs. It is read when a turn begins, and where one
    part of it ends and the next one begins (`lap`)."""

    __slots__ = (
        *("access_cpu_s", "batches", "changed", "cpu_s", "delivered", "matched", "matching_cpu_s", "merging_cpu_s"),
        *("_began", "_last", "posting_cpu_s", "taken", "turn_cpu_s", "turn_s"),
    )

    def __init__(self, cpu_s: Callable[[], float] = time.thread_time) -> None:
        self.cpu_s = cpu_s
        self.taken = self.batches = self.matched = self.changed = self.delivered = 0
        self.access_cpu_s = self.matching_cpu_s = self.merging_cpu_s = self.posting_cpu_s = 0.0
        self.turn_s = self.turn_cpu_s = 0.0
        self._began = self._last = 0.0

    def begin(self) -> None:
        """A turn begins: what was before belongs to no operator."""
        self._began = self._last = self.cpu_s()

    def lap(self, part: str) -> None:
        """What was since the last reading belongs to a part."""
        now = self.cpu_s()
        setattr(self, part, getattr(self, part) + now - self._last)
        self._last = now

    def end(self, turn_s: float) -> None:
        """A turn has ended."""
        self._last = self.cpu_s()
        self.turn_s += turn_s
        self.turn_cpu_s += self._last - self._began

    def read(self) -> Measures:
        """The counters now."""
        return Measures(**{name: getattr(self, name) for name in Measures.__struct_fields__})
