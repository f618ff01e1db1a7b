"""What befalls the servers, when, and what is seen of it: the demo's plot and its events.

Owns the times of the two faults and the words of every event. Pure: it is handed the cluster's status, how
far the players' updates have come back, and the time; it hands back what to do now.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from shoal.cluster.local import ClusterStatus

KILL_SHARE: Final = 0.4
"""When a server is killed, as a share of the time. The supervisor starts it again."""

HOLD_SHARE: Final = 0.6
"""When another server is killed and held down until the ring has left it."""

HOLD_SECONDS_MIN: Final = 15.0
"""A demo shorter than this has no time for the second fault: a lease must run out in it."""

HOLD_SERVERS_MIN: Final = 3
"""Nor has one with fewer servers: when half of a ring is silent, nobody believes that it is dead."""

AWAY_SHARE: Final = 0.1
"""How long the ring is shown without the server that is held down."""

HEALED_AFTER_S: Final = 0.5
"""Updates from this long after the repair have come back: then the fault is over for everybody."""

Kind: TypeAlias = Literal["plan", "bad", "seen", "good"]
Deed: TypeAlias = tuple[Literal["kill", "hold", "release"], str]
"""What to do, to which server. To hold a server is to kill it, too."""


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


class Script:
    """The plot. `start` is when the players began."""

    def __init__(self, servers: list[str], seconds: float, start: float) -> None:
        self.events: list[Event] = []
        self.kills = 0
        self._start = start
        self._seconds = seconds
        self._killed = servers[1 % len(servers)]
        can_hold = seconds >= HOLD_SECONDS_MIN and len(servers) >= HOLD_SERVERS_MIN
        self._held = servers[2] if can_hold else None
        self._due: list[tuple[float, Deed]] = [(start + KILL_SHARE * seconds, ("kill", self._killed))]
        if self._held is not None:
            self._due.append((start + HOLD_SHARE * seconds, ("hold", self._held)))
        self._release_at: float | None = None
        self._wounds: list[Wound] = []
        self._leases: set[str] = set(servers)
        self._ring: tuple[int, frozenset[str]] | None = None

    def tell(self, now: float, kind: Kind, text: str) -> None:
        """Adds an event."""
        self.events.append(Event(now - self._start, kind, text))

    def due(self, now: float) -> list[Deed]:
        """What to do now."""
        deeds = [deed for at, deed in self._due if at <= now]
        self._due = [(at, deed) for at, deed in self._due if at > now]
        for deed, server in deeds:
            self.kills += 1
            self._wounds.append(Wound(server, now))
            fate = "and held down" if deed == "hold" else "(kill -9)"
            self.tell(now, "bad", f"{server} killed {fate}")
        if self._release_at is not None and now >= self._release_at:
            deeds.append(self._release(now))
        return deeds

    def finish(self, now: float) -> list[Deed]:
        """The time is over: nothing more befalls anybody, and who is held down is released."""
        self._due = []
        held = self._held is not None and any(
            wound.server == self._held and wound.mended_at is None for wound in self._wounds
        )
        return [self._release(now)] if held or self._release_at is not None else []

    def _release(self, now: float) -> Deed:
        assert self._held is not None
        self._release_at = None
        self.tell(now, "plan", f"{self._held} released")
        return "release", self._held

    def look(self, status: ClusterStatus, back_until: float, now: float) -> None:
        """Compares what is with what was, and tells the difference."""
        self._look_at_processes(status, now)
        self._look_at_leases(status, now)
        self._look_at_ring(status, now)
        for wound in [wound for wound in self._wounds if wound.mended_at is not None]:
            assert wound.mended_at is not None
            if back_until > wound.mended_at + HEALED_AFTER_S:
                self._wounds.remove(wound)
                after_s = now - wound.killed_at
                self.tell(now, "good", f"healed: every update is back, {after_s:.1f} s after {wound.server}'s end")

    def _look_at_processes(self, status: ClusterStatus, now: float) -> None:
        states = {process.name: process for process in status.processes}
        for wound in self._wounds:
            process = states[wound.server]
            after_s = now - wound.killed_at
            runs = process.state == "running" and process.pid is not None
            reborn = runs and process.uptime_s < after_s
            if not wound.noticed and (process.state != "running" or reborn):
                wound.noticed = True
                self.tell(now, "seen", f"noticed: {wound.server} ended ({process.last_exit})")
            if reborn and wound.mended_at is None:
                wound.mended_at = now
                self.tell(now, "good", f"mended: {wound.server} runs again, {after_s:.1f} s after its end")

    def _look_at_leases(self, status: ClusterStatus, now: float) -> None:
        leases = {server.id for server in status.servers if server.lease}
        for server in sorted(self._leases - leases):
            self.tell(now, "seen", f"{server}'s lease has run out: players use it no more")
        for server in sorted(leases - self._leases):
            self.tell(now, "good", f"{server} holds its lease again")
        self._leases = leases

    def _look_at_ring(self, status: ClusterStatus, now: float) -> None:
        members = frozenset(server.id for server in status.servers if server.in_ring)
        before = self._ring
        self._ring = status.ring_version, members
        if before is None or before == self._ring:
            return
        left, joined = sorted(before[1] - members), sorted(members - before[1])
        changes = [f"without {', '.join(left)}"] * bool(left) + [f"with {', '.join(joined)} again"] * bool(joined)
        self.tell(now, "seen" if left else "good", f"ring {status.ring_version}: {' and '.join(changes)}")
        for wound in self._wounds:
            if wound.server in left:
                wound.mended_at = now
        if self._held in left:
            self._release_at = now + AWAY_SHARE * self._seconds
