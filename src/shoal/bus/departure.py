"""When a bus may leave: not while subscribers may still have to ask it for something.

Owns the memory of trouble. What a publisher has sent can be healed only while it is there. So after a lost
connection, a hole that was healed, a new ring or a server that may not be used, a closing bus stays for a while,
at most `linger_s`: subscribers may not have followed yet, and to those who skip a ring it must speak again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from shoal.channels import states
from shoal.channels.client.router import Router
from shoal.limits import Limits

QUIET_S: Final = 1.0
"""How long a bus stays after a lost connection or a hole that it has healed."""

_POLL_S: Final = 0.1
_FIRST_RING: Final = 1


class Leaving:
    """What one bus knows of trouble. After a change of servers it stays for `server_lease_s`: so long may others go
    on by the old ring.
    """

    def __init__(self, router: Router, limits: Limits) -> None:
        self._router = router
        self._limits = limits
        self._uneasy_until = float("-inf")
        self._changes = _FIRST_RING
        self._heals = 0

    def trouble(self, now: float) -> None:
        """A connection was lost."""
        self._uneasy_until = max(self._uneasy_until, now + QUIET_S)

    def look(self, now: float) -> None:
        """Notices what the router has met since the last look."""
        counters = self._router.counters
        if counters.heals_answered != self._heals:
            self._heals = counters.heals_answered
            self.trouble(now)
        changes = counters.ring_changes + counters.stale_links
        if changes != self._changes:
            self._changes = changes
            self._uneasy_until = max(self._uneasy_until, now + self._limits.server_lease_s)

    async def linger(self) -> None:
        """Stays as long as it should."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._limits.linger_s
        while self._router.publishing.resend_bytes:
            now = loop.time()
            self.look(now)
            if now >= give_up or (now >= self._uneasy_until and self._can_say_farewell()):
                return
            await asyncio.sleep(min(_POLL_S, give_up - now))

    def _can_say_farewell(self) -> bool:
        """Whether every server that carries a stream of ours will hear that it has ended."""
        links = self._router.context.links.values()
        return all(lane.state is states.Lane.LIVE for link in links for lane in link.lanes)
