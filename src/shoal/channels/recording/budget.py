"""The room for records on one server, divided among them.

Owns the share of each record. Every record on the server counts, even one that is not written any more. Shares
are equal, and change only when the number of records passes a power of two, so that records are rarely trimmed because
of others. Together they hold at most `recorded_total_bytes_max`, by the mean size of their entries.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.limits import Limits


class RecordBudget:
    """The records of one server, and how large each may be."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._channels: set[bytes] = set()
        self.share_bytes = self._share_bytes()
        """How large each record may be."""

    @property
    def records(self) -> int:
        """The number of records on the server, as far as the agent knows."""
        return len(self._channels)

    def _share_bytes(self) -> int:
        parts = 1 << max(0, len(self._channels) - 1).bit_length()
        return max(1, min(self._limits.recorded_bytes_max, self._limits.recorded_total_bytes_max // parts))

    def add(self, channels: Iterable[bytes]) -> bool:
        """Takes channels that have a record; returns whether each share is smaller than before."""
        before = self.share_bytes
        self._channels.update(channels)
        self.share_bytes = self._share_bytes()
        return self.share_bytes < before

    def others(self, written: Iterable[bytes]) -> list[bytes]:
        """The records that are not among those being written."""
        return sorted(self._channels.difference(written))

    def reset(self) -> None:
        """The server may have lost its records: they are counted again."""
        self._channels.clear()
        self.share_bytes = self._share_bytes()
