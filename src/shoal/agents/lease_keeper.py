"""Keeps the lease of an agent's host and its membership of the group of its kind of hosts, at the coordinator.

Owns when the lease is taken, renewed and given up. A host is a server (group `servers`) or a store (group `stores`).
What the lease of a server means for its agent's heartbeats is in `shoal.channels.agent.lease`; the ring keeper decides
when a server without a lease leaves the ring.

    none --host answers, agent serves (or a predecessor's lease still runs)--> held --renewed--> held
    held --host silent, coordinator away, or taken by another agent--> it runs out

A restarted agent takes its predecessor's lease over at once, before it has loaded its modules: the host itself has
not stopped, and a server should keep its place in the ring. Later it takes only a free lease, so that of two agents for
one host the newer one keeps it.

If the lease of a server had lapsed, the server may have left the ring without this agent knowing it. So the agent reads
the ring after it has taken the lease: a ring that the keeper wrote before it saw the new lease is the one read, or
newer. Stores are in no ring.

A renewal without an answer may have taken effect all the same; then the keeper sees a valid lease while the agent takes
itself for cut off. So after an unanswered renewal the agent first reads the lease, and renews again when it has been
answered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from shoal.coordination.acl import SERVERS, STORES
from shoal.coordination.interface import Coordinator, Lease, Membership, Versioned
from shoal.errors import CoordinatorError, CoordinatorUnavailableError
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.plan.keys import RING_KEY
from shoal.plan.ring import ServerAddress

_log: Final = get_log(__name__)


class Verdicts(Protocol):
    """Receives the coordinator's answers; `AgentLease` has methods of the same names."""

    def granted(self, sent_at: float, lapsed: bool) -> None:
        """The lease is held; it was asked for at `sent_at`. `lapsed`: it was free before."""

    def ring_read(self, ring: Versioned) -> None:
        """The ring as read after a lapsed lease was taken."""

    def refused(self) -> None:
        """The lease is another agent's."""

    def asked(self) -> None:
        """The coordinator is asked."""

    def answered(self) -> None:
        """The coordinator has answered, or is not asked any more."""


class LeaseKeeper:
    """Keeps one host's lease. `answers` says whether the host answers, `connected` whether the agent's core has a
    connection to it; `group` is that of its kind of hosts."""

    def __init__(
        self,
        coordinator: Coordinator,
        address: ServerAddress,
        holder: str,
        limits: Limits,
        verdicts: Verdicts,
        answers: Callable[[], bool],
        connected: Callable[[], bool],
        group: str = SERVERS,
    ) -> None:
        self._coordinator = coordinator
        self._address = address
        self._holder = holder
        self._ttl_s = limits.server_lease_s
        self._interval_s = limits.heartbeat_interval_s
        self._verdicts = verdicts
        self._answers = answers
        self._connected = connected
        self._group = group
        self._what = "store" if group == STORES else "server"
        self._first = True
        self._lease: Lease | None = None
        self._membership: Membership | None = None
        self._trouble = ""
        self._unanswered = False
        self._lapsed = False
        self._wake = asyncio.Event()

    def hurry(self) -> None:
        """Checks the lease again now: the host has answered, or the agent serves."""
        self._wake.set()

    async def run(self) -> None:
        """Keeps the lease until it is cancelled."""
        while True:
            self._wake.clear()
            if self._answers():
                await self._look()
            else:
                self._verdicts.answered()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._wake.wait()

    async def leave(self) -> None:
        """Releases lease and membership, so that others need not wait until they expire."""
        with contextlib.suppress(CoordinatorError):
            if self._lease is not None:
                await self._coordinator.release(self._lease)
            if self._membership is not None:
                await self._membership.leave()

    async def _look(self) -> None:
        self._verdicts.asked()
        try:
            held = await (self._take() if self._lease is None else self._renew(self._lease))
        except CoordinatorUnavailableError as error:
            self._report(str(error))
        except CoordinatorError as error:
            self._verdicts.answered()
            self._report(str(error))
        else:
            self._verdicts.answered()
            if held:
                self._report("")

    async def _take(self) -> bool:
        name = f"{self._group}/{self._address.id}"
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        before = await self._coordinator.lease_of(name)
        runs_until = asked_at + (before.remaining_s if before is not None else 0.0)
        if before is None and not self._connected():
            return True
        data = msgspec.msgpack.encode(self._address)
        self._membership = await self._coordinator.join(self._group, self._address.id, data, self._ttl_s)
        sent_at = clock()
        try:
            self._lease = await self._coordinator.acquire(name, self._holder, self._ttl_s, takeover=self._first)
        finally:
            self._lapsed = self._lapsed or clock() >= runs_until
        if self._lease is None:
            self._lapsed = False
            self._verdicts.refused()
            self._report(f"another agent holds the lease of this {self._what}")
            return False
        self._first = False
        _log.info(f"{self._what} lease taken", host=self._address.id, token=self._lease.token)
        await self._grant(sent_at)
        return True

    async def _renew(self, lease: Lease) -> bool:
        if self._unanswered:
            await self._coordinator.lease_of(lease.name)
        self._unanswered = True
        sent_at = asyncio.get_running_loop().time()
        renewed = await self._coordinator.renew(lease)
        self._unanswered = False
        if not renewed:
            self._lease = None
            _log.warning(f"{self._what} lease lost", host=self._address.id, token=lease.token)
            return await self._take()
        await self._grant(sent_at)
        if self._membership is not None and not await self._membership.renew():
            data = msgspec.msgpack.encode(self._address)
            self._membership = await self._coordinator.join(self._group, self._address.id, data, self._ttl_s)
        return True

    async def _grant(self, sent_at: float) -> None:
        """The lease counts as held, unless it had lapsed and the ring could not be read since."""
        lapsed = self._lapsed
        if lapsed:
            if not self._connected():
                return
            ring = await self._coordinator.get(RING_KEY) if self._group == SERVERS else None
            if ring is not None:
                self._verdicts.ring_read(ring)
            self._lapsed = False
        self._verdicts.granted(sent_at, lapsed)

    def _report(self, trouble: str) -> None:
        """Logs trouble once, and its end."""
        if trouble and not self._trouble:
            _log.warning(f"{self._what} lease not renewed", host=self._address.id, why=trouble)
        elif self._trouble and not trouble:
            _log.info(f"{self._what} lease renewed again", host=self._address.id)
        self._trouble = trouble
