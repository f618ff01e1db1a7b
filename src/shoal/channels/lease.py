"""The agent's lease: for how long it may still give its word that its server can be used.

Owns the agent's half of the lease rule (the client's half is in `link.py`, the keeper's in `cluster/keeper.py`).

The lease is granted by the coordinator from the moment at which the agent *sent* its request, by the agent's own
clock. While the coordinator is down nobody can be granted anything, and nobody can place channels elsewhere either. An
agent may then go on, but it must not mistake being cut off for the coordinator being down: it goes on only while
more than half of the ring's servers, itself included, say that they have no contact, none says the opposite, and
nobody has seen a newer ring.
"""

from __future__ import annotations

from shoal.limits import Limits
from shoal.plan.ring import Ring
from shoal.wire.control import Word


class AgentLease:
    """What one agent knows of its right to speak for its server."""

    def __init__(self, server: str, limits: Limits) -> None:
        self._server = server
        self._limits = limits
        self._until = 0.0
        self._contact = False
        self._peers: dict[str, tuple[Word, float]] = {}

    @property
    def contact(self) -> bool:
        """Whether the coordinator answered the last time."""
        return self._contact

    def granted(self, sent_at: float) -> None:
        """The coordinator has granted or renewed the lease; the request was sent at `sent_at`."""
        self._contact = True
        self._until = max(self._until, sent_at + self._limits.server_lease_s * (1 - self._limits.clock_drift_max))

    def refused(self) -> None:
        """The coordinator answers, but the lease is not ours (any more)."""
        self._contact = True
        self._until = 0.0

    def unanswered(self) -> None:
        """The coordinator does not answer."""
        self._contact = False

    def heard(self, word: Word, now: float) -> None:
        """Another agent has given its word on its own server."""
        self._peers[word.server] = word, now

    def remaining_s(self, ring: Ring | None, now: float) -> float:
        """For how long from now on this agent can vouch for its server; 0 if it cannot."""
        granted = max(0.0, self._until - now)
        if self._contact or ring is None:
            return granted
        return max(granted, self._limits.server_lease_s / 2) if self._coordinator_is_down(ring, now) else granted

    def _coordinator_is_down(self, ring: Ring, now: float) -> bool:
        if ring.address(self._server) is None:
            return False
        recent = now - 3 * self._limits.word_interval_s
        words = [word for word, at in self._peers.values() if at >= recent and ring.address(word.server)]
        if any(word.contact or word.ring_version > ring.version for word in words):
            return False
        return 2 * (len(words) + 1) > len(ring.servers)
