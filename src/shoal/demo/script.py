"""What befalls a server, when, and what is seen of the servers: the demo's fault and its events.

Owns the time of the fault and the words of the events about servers. Pure: it is handed the cluster's status, how far
the players' updates have come back, and the time; it hands back whom to kill now.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from shoal.cluster.local import ClusterStatus

HEALED_AFTER_S: Final = 0.5
"""Updates from this long after the repair have come back: then the fault is over for everybody."""

Kind: TypeAlias = Literal["plan", "move", "bad", "seen", "good"]


class Event(msgspec.Struct, frozen=True):
    """Something to tell: when (seconds since the start), of what kind, in words."""

    at_s: float
    kind: Kind
    text: str


class Wound(msgspec.Struct):
    """A killed server on its way back to health."""

    server: str
    killed_at: float
    noticed: bool = False
    mended_at: float | None = None
    is_without_lease: bool = False


class Script:
    """The fault and the events. `start` is when the players began, `kill_at` when a server is killed."""

    def __init__(self, servers: list[str], kill_at: float, start: float) -> None:
        self.events: list[Event] = []
        self.kills = 0
        self.servers_max = len(servers)
        """The most servers that were in the ring at one time."""
        self._start = start
        self._due: list[tuple[float, str]] = [(kill_at, servers[1 % len(servers)])]
        self._wounds: list[Wound] = []
        self._here = frozenset(servers)
        self._first = frozenset(servers)
        self._joined: set[str] = set()
        self._removed: set[str] = set()
        self._ring: frozenset[str] | None = None

    @property
    def servers_added(self) -> int:
        """Servers that have come to the ring."""
        return len(self._joined)

    @property
    def servers_removed(self) -> int:
        """Servers that are gone for good."""
        return len(self._removed)

    def tell(self, now: float, kind: Kind, text: str) -> None:
        """Adds an event."""
        self.events.append(Event(now - self._start, kind, text))

    def due(self, now: float) -> list[str]:
        """Whom to kill now."""
        killed = [server for at, server in self._due if at <= now and server in self._here]
        self._due = [(at, server) for at, server in self._due if at > now]
        for server in killed:
            self.kills += 1
            self._wounds.append(Wound(server, now))
            self.tell(now, "bad", f"{server} killed (kill -9)")
        return killed

    def finish(self) -> None:
        """The time is over: nothing more befalls anybody."""
        self._due = []

    def look(self, status: ClusterStatus, back_until: float, now: float) -> None:
        """Compares what is with what was, and tells the difference."""
        self._look_at_wounds(status, now)
        self._look_at_ring(status, now)
        self._look_at_servers(status, now)
        for wound in [wound for wound in self._wounds if wound.mended_at is not None]:
            assert wound.mended_at is not None
            if back_until > wound.mended_at + HEALED_AFTER_S:
                self._wounds.remove(wound)
                after_s = now - wound.killed_at
                self.tell(now, "good", f"healed: every update is back, {after_s:.1f} s after {wound.server}'s end")

    def _look_at_wounds(self, status: ClusterStatus, now: float) -> None:
        states = {process.name: process for process in status.processes}
        leases = {server.id for server in status.servers if server.lease}
        for wound in self._wounds:
            process = states.get(wound.server)
            if process is None:  # the balancer has removed it meanwhile
                wound.mended_at = now
                continue
            after_s = now - wound.killed_at
            runs = process.state == "running" and process.pid is not None
            reborn = runs and process.uptime_s < after_s
            if not wound.noticed and (process.state != "running" or reborn):
                wound.noticed = True
                self.tell(now, "seen", f"noticed: {wound.server} ended ({process.last_exit})")
            if not wound.is_without_lease and wound.server not in leases:
                wound.is_without_lease = True
                self.tell(now, "seen", f"{wound.server}'s lease has run out: players use it no more")
            if reborn and wound.mended_at is None:
                wound.mended_at = now
                self.tell(now, "good", f"mended: {wound.server} runs again, {after_s:.1f} s after its end")

    def _look_at_ring(self, status: ClusterStatus, now: float) -> None:
        members = frozenset(server.id for server in status.servers if server.in_ring)
        before, self._ring = self._ring, members
        self.servers_max = max(self.servers_max, len(members))
        self._joined |= members - self._first
        if before is None or before == members:
            return
        left, joined = sorted(before - members), sorted(members - before)
        changes = [f"without {', '.join(left)}"] * bool(left) + [f"with {', '.join(joined)}"] * bool(joined)
        self.tell(now, "seen" if left else "good", f"ring {status.ring_version}: {' and '.join(changes)}")
        for wound in self._wounds:
            if wound.server in left:
                wound.mended_at = now

    def _look_at_servers(self, status: ClusterStatus, now: float) -> None:
        here = frozenset(server.id for server in status.servers)
        for server in sorted(here - self._here):
            self.tell(now, "plan", f"{server} starts")
        for server in sorted(self._here - here):
            self.tell(now, "good", f"{server} is empty and removed")
        self._removed |= self._here - here
        self._here = here
