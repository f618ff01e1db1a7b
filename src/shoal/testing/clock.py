"""The clock of queues under test. It stands still until a test advances it."""

from __future__ import annotations

from typing import Final

START: Final = 1_767_225_600.0
"""2026-01-01 00:00 UTC: where the clock of a test begins."""


class Clock:
    """The time of day of the store and of its clients. Event loops keep their own time: timeouts of handlers and
    `asyncio.sleep` are real."""

    def __init__(self, now: float = START) -> None:
        self._now = now

    def __call__(self) -> float:
        """Seconds since 1970."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass at once: delayed messages and retries become due, remembered ids are forgotten, leases end."""
        if not seconds >= 0:
            raise ValueError(f"a clock advances by 0 or more seconds, not {seconds}")
        self._now += seconds
