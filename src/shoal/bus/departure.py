"""How long a closing bus lingers so that subscribers can still request missing messages.

A publisher can resend lost messages only while it is connected. A closing bus therefore waits after a lost connection,
an answered resend request, a new ring or a stale link: at most `linger_s`, because subscribers may not have followed
yet, and those that skipped a ring need the publisher to greet again.

Owns the times of these events. It never sends anything.
"""

from __future__ import annotations

import asyncio
from typing import Final

from shoal.channels.client.router import Router
from shoal.limits import Limits

QUIET_S: Final = 1.0
"""How long a bus lingers after a lost connection or an answered resend request."""

_POLL_S: Final = 0.1
_FIRST_RING: Final = 1


class Departure:
    """Decides how long one bus lingers. After a change of servers it is `server_lease_s`, because others may use the
    old ring for that long.
    """

    def __init__(self, router: Router, limits: Limits) -> None:
        self._router = router
        self._limits = limits
        self._linger_until = float("-inf")
        self.waits = 0
        """Number of times that the closing bus has waited."""
        self.gave_up = False
        """Whether `linger_s` was over before subscribers could be expected to have everything."""
        self._changes = _FIRST_RING
        self._heals = 0

    def note_loss(self, now: float) -> None:
        """Record a lost connection."""
        self._linger_until = max(self._linger_until, now + QUIET_S)

    def update(self, now: float) -> None:
        """Update the state from the router's counters."""
        counters = self._router.counters
        if counters.heals_answered != self._heals:
            self._heals = counters.heals_answered
            self.note_loss(now)
        changes = counters.ring_changes + counters.stale_links
        if changes != self._changes:
            self._changes = changes
            self._linger_until = max(self._linger_until, now + self._limits.server_lease_s)

    async def linger(self) -> None:
        """Wait as long as necessary."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._limits.linger_s
        while self._router.resend_bytes:
            now = loop.time()
            self.update(now)
            if now >= self._linger_until and self._router.streams_live:
                return
            if now >= give_up:
                self.gave_up = True
                return
            self.waits += 1
            await asyncio.sleep(min(_POLL_S, give_up - now))
