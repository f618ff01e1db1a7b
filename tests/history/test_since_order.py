"""`subscribe(since=...)` reads the ends of streams before the records, not after."""

from __future__ import annotations

from typing import cast

from shoal.bus.since import _read
from shoal.history.channel_history import ChannelHistory


class _Growing:
    """A record that grows with every read."""

    def __init__(self) -> None:
        self.written = self.was_read = 3

    def read(self) -> None:
        self.was_read = self.written
        self.written += 1

    def ends(self) -> dict[int, int]:
        ends = {1: self.written}
        self.written += 1
        return ends


def test_reached_numbers_were_read() -> None:
    history = _Growing()
    assert _read(cast(ChannelHistory, history))[1] <= history.was_read
