"""The agent's lease: how long its heartbeats may still extend the use of its server.

Owns the agent's half of the lease rule (the client's half is in `client.server_link`, the keeper's in
`shoal.leader.keeper`).

The coordinator grants the lease from the moment at which the agent *sent* its request, by the agent's own clock. While
the coordinator is down no lease can be granted, and no channel can be placed elsewhere. Then an agent may continue
(the orphan rule), but it must not mistake being cut off for the coordinator being down. It continues only if

- more than half of the ring's servers, its own included, are without a grant, by heartbeats since its own ran out,
- no heartbeat names a newer ring,
- and it has asked the coordinator without an answer. If its grant ran out because it did not ask (its server was
  silent), it knows nothing of the coordinator.

The keeper takes no server out of the ring while more than half of the ring is without a fresh grant, and for a whole
lease after that. So agent and keeper never act on contradicting beliefs.

Other agents may have had a grant when the keeper decided, after ours had run out, and have lost the coordinator later.
So their grants count as lapsed only if they ran out when ours did, within the time between two renewals: a grant that
was fresh when a ring without us was written ran out at least half a lease after ours. An agent that has restarted and
was never granted anything does not count.

An agent whose lease had lapsed grants nothing for a while after it has the lease again: the keeper may be about to take
its server out of the ring. An agent that continued by the orphan rule until then continues without a break, because the
keeper waits for a whole lease after such a time.
"""

from __future__ import annotations

from shoal.limits import Limits
from shoal.plan.ring import Ring
from shoal.wire.control import Heartbeat


class AgentLease:
    """The lease of one agent's server, as the agent knows it."""

    def __init__(self, server: str, limits: Limits) -> None:
        self._server = server
        self._limits = limits
        self._until = 0.0
        self._silent_until = 0.0
        self._silent_ring = 0
        self._continues_until = 0.0
        self._outlived = False
        self._asked_at: float | None = None
        self._leeway_s = min(2 * limits.heartbeat_interval_s, limits.server_lease_s / 3)
        """How far apart grants can end that ended because of the same silence of the coordinator."""
        self._peers: dict[str, tuple[Heartbeat, float]] = {}

    def asked(self, now: float) -> None:
        """A request for the lease was sent to the coordinator."""
        if self._asked_at is None:
            self._asked_at = now

    def answered(self) -> None:
        """The coordinator has granted or refused the lease, or the request was given up."""
        self._asked_at = None

    def granted(self, sent_at: float, lapsed_at: int | None = None) -> None:
        """The coordinator has granted or renewed the lease; the request was sent at `sent_at`.

        `lapsed_at` is the ring version that the agent knows, given if the lease had run out before. The keeper may be
        about to take the server out of the ring, so the agent grants nothing until it sees a newer ring, or a whole
        lease has passed without one. That is not so if the agent continued without the coordinator until now.
        """
        if lapsed_at is not None and sent_at >= self._continues_until:
            self._silent_until, self._silent_ring = sent_at + self._limits.server_lease_s, lapsed_at
        self._outlived = False
        self._until = max(self._until, sent_at + self._limits.server_lease_s * (1 - self._limits.clock_drift_max))

    def refused(self) -> None:
        """The coordinator answers, but another agent holds the lease."""
        self._until = 0.0

    def heard(self, heartbeat: Heartbeat, now: float) -> None:
        """A heartbeat of another agent, heard on its server.

        If its grant outlives ours by more than the time between two renewals, the coordinator was up when ours was not
        renewed: we are cut off, and may have left the ring without knowing it.
        """
        self._peers[heartbeat.server] = heartbeat, now
        if heartbeat.granted and now + heartbeat.lease_ms / 1000 > self._until + self._leeway_s:
            self._outlived = True

    def is_granted(self, now: float) -> bool:
        """Whether the coordinator's grant has not run out."""
        return now < self._until

    def lapsed_ms(self, now: float) -> int | None:
        """How long ago the coordinator's grant ran out; None if it has not, or if there was none."""
        return None if self.is_granted(now) or not self._until else int(1000 * (now - self._until))

    def remaining_s(self, ring: Ring | None, now: float) -> float:
        """How long from now on clients may use the server; 0 if they may not."""
        if ring is None or ring.address(self._server) is None:
            return 0.0
        if now < self._silent_until and ring.version <= self._silent_ring:
            return 0.0
        if self.is_granted(now):
            return self._until - now
        if self._coordinator_is_down(ring, now):
            self._continues_until = now + self._limits.server_lease_s / 2
            return self._limits.server_lease_s / 2
        return 0.0

    def _coordinator_is_down(self, ring: Ring, now: float) -> bool:
        if self._asked_at is None or now < self._asked_at + self._limits.server_lease_s / 2:
            return False
        recent = max(self._until, now - self._limits.server_lease_s / 2)
        heartbeats = [
            (heartbeat, at) for heartbeat, at in self._peers.values() if at >= recent and ring.address(heartbeat.server)
        ]
        if self._outlived or any(heartbeat.ring_version > ring.version for heartbeat, _ in heartbeats):
            return False
        lapsed = 1 + sum(self._lapsed_with_us(heartbeat, at) for heartbeat, at in heartbeats)
        return 2 * lapsed > len(ring.servers)

    def _lapsed_with_us(self, heartbeat: Heartbeat, at: float) -> bool:
        """Whether another agent's grant, by a heartbeat heard at `at`, ran out when ours did, or before."""
        return heartbeat.lapsed_ms is not None and at - heartbeat.lapsed_ms / 1000 <= self._until + self._leeway_s
