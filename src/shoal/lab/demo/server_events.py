"""Events about servers: the one that the demo kills, its recovery, and servers that join and leave.

Owns the time of the kill and the texts of these events. Pure: it is given the cluster's status, how far the players'
updates have come back, and the time; it returns the servers to kill now.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from shoal.cluster.local import ClusterStatus

HEALED_AFTER_S: Final = 0.5
"""An outage is over for all players when updates published this long after the restart have come back."""

EventKind: TypeAlias = Literal["plan", "move", "bad", "seen", "good"]


class DemoEvent(msgspec.Struct, frozen=True):
    """An event that is shown: seconds since the start, its kind and its text."""

    at_s: float
    kind: EventKind
    text: str


class Outage(msgspec.Struct):
    """A killed server until its players have recovered."""

    server: str
    killed_at: float
    noticed: bool = False
    restarted_at: float | None = None
    is_without_lease: bool = False


class ServerEvents:
    """All events so far. `start` is when the players began, `kill_at` is when a server will be killed."""

    def __init__(self, servers: list[str], kill_at: float, start: float) -> None:
        self.events: list[DemoEvent] = []
        self.kills = 0
        self.servers_max = len(servers)
        """The most servers that were in the ring at one time."""
        self._start = start
        self._due: list[tuple[float, str]] = [(kill_at, servers[1 % len(servers)])]
        self._outages: list[Outage] = []
        self._present = frozenset(servers)
        self._first = frozenset(servers)
        self._joined: set[str] = set()
        self._removed: set[str] = set()
        self._ring: frozenset[str] | None = None

    @property
    def servers_added(self) -> int:
        """Number of servers that joined the ring after the start."""
        return len(self._joined)

    @property
    def servers_removed(self) -> int:
        """Number of servers that were removed."""
        return len(self._removed)

    def add(self, now: float, kind: EventKind, text: str) -> None:
        """Adds an event."""
        self.events.append(DemoEvent(now - self._start, kind, text))

    def due(self, now: float) -> list[str]:
        """The servers to kill now."""
        killed = [server for at, server in self._due if at <= now and server in self._present]
        self._due = [(at, server) for at, server in self._due if at > now]
        for server in killed:
            self.kills += 1
            self._outages.append(Outage(server, now))
            self.add(now, "bad", f"{server} killed (kill -9)")
        return killed

    def finish(self) -> None:
        """Cancels the kill if it has not happened yet."""
        self._due = []

    def look(self, status: ClusterStatus, back_until: float, now: float) -> None:
        """Adds an event for every difference since the last call."""
        self._look_at_outages(status, now)
        self._look_at_ring(status, now)
        self._look_at_servers(status, now)
        for outage in [outage for outage in self._outages if outage.restarted_at is not None]:
            assert outage.restarted_at is not None
            if back_until > outage.restarted_at + HEALED_AFTER_S:
                self._outages.remove(outage)
                after_s = now - outage.killed_at
                self.add(now, "good", f"healed: all updates are back, {after_s:.1f} s after {outage.server} was killed")

    def _look_at_outages(self, status: ClusterStatus, now: float) -> None:
        states = {process.name: process for process in status.processes}
        leases = {server.id for server in status.servers if server.lease}
        for outage in self._outages:
            process = states.get(outage.server)
            if process is None:  # the balancer has removed it meanwhile
                outage.restarted_at = now
                continue
            after_s = now - outage.killed_at
            runs = process.state == "running" and process.pid is not None
            restarted = runs and process.uptime_s < after_s
            if not outage.noticed and (process.state != "running" or restarted):
                outage.noticed = True
                self.add(now, "seen", f"noticed: {outage.server} ended ({process.last_exit})")
            if not outage.is_without_lease and outage.server not in leases:
                outage.is_without_lease = True
                self.add(now, "seen", f"{outage.server}'s lease expired: players no longer use it")
            if restarted and outage.restarted_at is None:
                outage.restarted_at = now
                self.add(now, "good", f"restarted: {outage.server} runs again, {after_s:.1f} s after it was killed")

    def _look_at_ring(self, status: ClusterStatus, now: float) -> None:
        members = frozenset(server.id for server in status.servers if server.in_ring)
        before, self._ring = self._ring, members
        self.servers_max = max(self.servers_max, len(members))
        self._joined |= members - self._first
        if before is None or before == members:
            return
        left, joined = sorted(before - members), sorted(members - before)
        changes = [f"without {', '.join(left)}"] * bool(left) + [f"with {', '.join(joined)}"] * bool(joined)
        self.add(now, "seen" if left else "good", f"ring {status.ring_version}: {' and '.join(changes)}")
        for outage in self._outages:
            if outage.server in left:
                outage.restarted_at = now

    def _look_at_servers(self, status: ClusterStatus, now: float) -> None:
        present = frozenset(server.id for server in status.servers)
        for server in sorted(present - self._present):
            self.add(now, "plan", f"{server} starts")
        for server in sorted(self._present - present):
            self.add(now, "good", f"{server} is empty and removed")
        self._removed |= self._present - present
        self._present = present
