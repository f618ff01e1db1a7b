"""The keeper: keeps the ring in step with the servers that hold their lease.

Owns the rule by which servers enter and leave the ring. A core without I/O: its inputs are the state of the coordinator
and the time, its result is the ring to write. `shoal.leader.keeper_shell` is its shell.

    outside --member and lease--> in the ring --lease absent, and the wait is over--> outside

A member with a mark in the pool (`shoal.plan.keys`, `pool/<server>`) is in the ring as a guest, or not at all. A member
marked `out` leaves after the same wait as one whose lease disappeared early.

The wait keeps a server that is wrongly considered dead from splitting a channel. Clients rely on a server's heartbeat
for `server_lease_s`, so its channels may be placed elsewhere only after that time has certainly passed:

- a lease that expired was last renewed a full `server_lease_s` ago: the wait is the drift between clocks;
- a lease that disappeared early (released, or lost with the coordinator's memory) may have been renewed a moment ago:
  the wait is a full `server_lease_s` and the drift;
- after a loss of contact to the coordinator no server leaves before the same full wait, because live agents could not
  renew either and need time to return;
- the same after a time in which more than half of the ring's servers had no fresh lease: then the likely cause is the
  path to the coordinator, and the agents continue without it (`shoal.channels.agent.lease`). Only after
  `MASS_DEATH_LEASES` leases do these servers count as dead. Agents that have not received the newest ring count the
  members of the ring that they know, so half of that ring must have fresh leases too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Final

import msgspec
from msgspec.structs import replace

from shoal.limits import Limits
from shoal.plan.ring import AgentKey, Ring, ServerAddress
from shoal.plan.signature import Signer, Verifier

GAP_SHARE: Final = 0.25
RETURN_SHARE: Final = 0.5
"""Shortest time that a server stays out of the ring after it left, as a share of a lease: see
`shoal.balance.pool_keeper`."""
RENEWED_SHARE: Final = 0.1
"""By how much the end of a lease must move between two reads to count as a renewal, as a share of the lease. Smaller
differences come from the delay of replies."""


MASS_DEATH_LEASES: Final = 10
"""After how many lease times without fresh leases of half of the ring its servers count as dead."""


class Snapshot(msgspec.Struct, frozen=True):
    """The state of the coordinator as the keeper last read it; only `contact` is valid when that is false."""

    contact: bool
    members: Mapping[str, ServerAddress] = {}
    leases: Mapping[str, float] = {}
    """By server id: the remaining seconds of each lease."""
    ring: bytes = b""
    """The signed ring; empty if there is none."""
    ring_key_version: int = 0
    """The coordinator's version of the key that holds the ring; 0 if there is none."""
    guests: Set[str] = frozenset()
    """Servers that must not be homes."""
    outside: Set[str] = frozenset()
    """Servers that must not be in the ring. Their leases count as absent, but not towards a mass death."""


class PutRing(msgspec.Struct, frozen=True):
    """The ring to write, if the coordinator's key still has the version `expect`."""

    ring: Ring
    data: bytes
    expect: int


class Keeper:
    """Decides the next ring. The first ring waits for the servers `expected`, at most `first_ring_wait_s`."""

    def __init__(self, signer: Signer, limits: Limits, expected: Iterable[str], first_ring_wait_s: float) -> None:
        self._signer = signer
        self._verifier = Verifier(signer.public)
        self._lease_s = limits.server_lease_s
        self._margin_s = limits.server_lease_s * limits.clock_drift_max
        self._expected = frozenset(expected)
        self._first_ring_wait_s = first_ring_wait_s
        self._first_contact: float | None = None
        self._contact_since: float | None = None
        self._quorum_lost_at: float | None = None
        self._seen_at = 0.0
        self._lapses_at: dict[str, float] = {}
        self._leaves_at: dict[str, float] = {}
        self._left_at: dict[str, float] = {}
        self._known_by: dict[str, list[frozenset[str]]] = {}
        self._ring: Ring | None = None
        self._agent_keys: tuple[AgentKey, ...] = ()
        self._wakes_at: list[float] = []
        self._now = 0.0

    @property
    def lease_ms(self) -> int:
        """The server lease that rings announce."""
        return round(1000 * self._lease_s)

    def use_keys(self, agent_keys: tuple[AgentKey, ...]) -> None:
        """The public keys of the agents, which rings announce. A cluster that begins with them authenticates messages
        (scheme 1); one that began without continues without."""
        self._agent_keys = agent_keys

    @property
    def ring(self) -> Ring | None:
        """The newest ring known to be stored."""
        return self._ring

    @property
    def next_check_s(self) -> float | None:
        """After how long to call `observe` again without a change; None if only a change can matter."""
        return min((at - self._now for at in self._wakes_at), default=None)

    def written(self, ring: Ring) -> None:
        """Notes a ring that is stored in the coordinator."""
        if self._ring is None or ring.version > self._ring.version:
            before = self._ring.members if self._ring else next(iter(ring.earlier), ring.members)
            self._left_at.update(dict.fromkeys({*before.ids} - {*ring.ids}, self._now))
            self._ring = ring

    def observe(self, snapshot: Snapshot, now: float) -> PutRing | None:
        """Takes the state of the coordinator; returns the ring to write, if it must change.

        ForgedEntryError if the ring in the coordinator is not signed by this keeper's key.
        """
        self._now = now
        self._wakes_at = []
        if not snapshot.contact:
            self._contact_since = None
            return None
        if self._contact_since is None or now - self._seen_at > self._lease_s * GAP_SHARE:
            self._contact_since = now
        self._seen_at = now
        if self._first_contact is None:
            self._first_contact = now
        stored = self._verifier.ring(snapshot.ring) if snapshot.ring else None
        if stored is not None:
            self.written(stored)
        leases = {server: left_s for server, left_s in snapshot.leases.items() if server not in snapshot.outside}
        self._note_leases(leases, now)
        self._note_quorum(leases, snapshot.outside, now)
        servers = self._next_servers(snapshot.members, leases, now)
        if not servers:
            return None
        guests = _guests(servers, snapshot.guests, snapshot.outside)
        known = self._ring
        if known is None:
            scheme = 1 if self._agent_keys else 0
            ring = Ring(1, servers, (), guests, scheme, self.lease_ms, self._agent_keys)
        elif self._must_change(known, servers, guests) or stored is None or stored.version < known.version:
            ring = replace(known.next(servers, guests), lease_ms=self.lease_ms, agent_keys=self._keys_for(known))
        else:
            return None
        return PutRing(ring, self._signer.ring(ring), snapshot.ring_key_version)

    def _must_change(self, known: Ring, servers: tuple[ServerAddress, ...], guests: tuple[str, ...]) -> bool:
        return (servers, guests, self._keys_for(known)) != (known.servers, known.guests, known.agent_keys)

    def _keys_for(self, known: Ring) -> tuple[AgentKey, ...]:
        return self._agent_keys if known.scheme and self._agent_keys else known.agent_keys

    def _note_quorum(self, leases: Mapping[str, float], outside: Set[str], now: float) -> None:
        """Treats a ring with fewer than half fresh leases as a loss of contact, for `MASS_DEATH_LEASES` leases."""
        if self._ring is None:
            return
        fresh = {server for server, left_s in leases.items() if left_s > self._lease_s / 2}
        rings = self._rings_in_use([server for server in self._ring.ids if server not in fresh])
        if all(2 * len(fresh & wanted) >= len(wanted) for wanted in (ring - outside for ring in rings)):
            self._quorum_lost_at = None
            return
        if self._quorum_lost_at is None:
            self._quorum_lost_at = now
        judges_at = self._quorum_lost_at + MASS_DEATH_LEASES * self._lease_s
        if now < judges_at:
            self._contact_since = now
            self._wakes_at.append(judges_at)

    def _rings_in_use(self, servers: Iterable[str]) -> set[frozenset[str]]:
        """The current ring, and the older ones that the agents of `servers` may still use, because they have not
        renewed since. Agents decide by their ring whether the coordinator is down."""
        assert self._ring is not None
        newest = [frozenset(self._ring.ids), *(frozenset(members.ids) for members in self._ring.earlier[:1])]
        rings = {newest[0]}
        for server in servers:
            rings.update(ring for ring in self._known_by.get(server, newest) if server in ring)
        return rings

    def _note_renewal(self, server: str, lapses_at: float) -> None:
        """Notes the ring that a renewing agent knows: it has received it by its next renewal at the latest."""
        if self._ring is not None and lapses_at > self._lapses_at.get(server, 0.0) + self._lease_s * RENEWED_SHARE:
            *_, before = self._known_by.get(server, [frozenset(self._ring.ids)])
            self._known_by[server] = [before, frozenset(self._ring.ids)]

    def _note_leases(self, leases: Mapping[str, float], now: float) -> None:
        """Notes when each lease expires, and for each missing lease when its server may leave."""
        for server, remaining_s in leases.items():
            self._note_renewal(server, now + remaining_s)
            self._lapses_at[server] = now + remaining_s
            self._leaves_at.pop(server, None)
        for server in self._ring.ids if self._ring else ():
            if server in leases or server in self._leaves_at:
                continue
            lapsed = self._lapses_at.pop(server, now + self._lease_s) <= now
            self._leaves_at[server] = now + self._margin_s + (0.0 if lapsed else self._lease_s)

    def _next_servers(
        self, members: Mapping[str, ServerAddress], leases: Mapping[str, float], now: float
    ) -> tuple[ServerAddress, ...]:
        """The servers of the next ring; empty while there can be no ring."""
        eligible = {
            server: members[server] for server in sorted(leases) if server in members and self._may_enter(server, now)
        }
        if self._ring is None:
            return self._first_servers(eligible, now)
        stay = [
            eligible.pop(member.id, member) for member in self._ring.servers if not self._must_leave(member.id, now)
        ]
        servers = (*stay, *eligible.values())
        return servers or self._ring.servers

    def _first_servers(self, eligible: Mapping[str, ServerAddress], now: float) -> tuple[ServerAddress, ...]:
        """All expected servers, or those that have joined when the wait is over."""
        assert self._first_contact is not None
        if not self._expected <= eligible.keys():
            over_at = self._first_contact + self._first_ring_wait_s
            if now < over_at:
                self._wakes_at.append(over_at)
                return ()
        return tuple(eligible.values())

    def _may_enter(self, server: str, now: float) -> bool:
        """Whether a server may join. One that has just left must wait, so that the balancer can mark it first."""
        enters_at = self._left_at.get(server, -self._lease_s) + self._lease_s * RETURN_SHARE
        if now < enters_at and self._ring is not None and server not in self._ring.ids:
            self._wakes_at.append(enters_at)
            return False
        return True

    def _must_leave(self, server: str, now: float) -> bool:
        """Whether a server's lease is missing and no client can still rely on its last heartbeat."""
        leaves_at = self._leaves_at.get(server)
        if leaves_at is None:
            return False
        assert self._contact_since is not None
        leaves_at = max(leaves_at, self._contact_since + self._lease_s + self._margin_s)
        if now < leaves_at:
            self._wakes_at.append(leaves_at)
            return False
        return True


def _guests(servers: tuple[ServerAddress, ...], wanted: Set[str], outside: Set[str]) -> tuple[str, ...]:
    """The members that are not homes: the guests of the pool. If no home would be left, only those that must leave; if
    these are all members, none."""
    for unwanted in (wanted, outside):
        guests = tuple(server.id for server in servers if server.id in unwanted)
        if len(guests) < len(servers):
            return guests
    return ()
