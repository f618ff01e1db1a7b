"""An agent's tenure: its membership of the group of servers and the lease of its server, kept at the
coordinator.

Owns when the lease is taken, renewed and given up. What the lease means for the agent's word is in `lease`;
when a server without a lease loses its place in the ring is the keeper's business.

    none --server answers, agent can speak (or a predecessor's lease still runs)--> held --renewed--> held
    held --server silent, coordinator away, or taken by another agent--> it runs out

A restarted agent takes its predecessor's lease over at once, before it has loaded what it needs to serve:
the server is as good as before, and its place in the ring should not lapse meanwhile. Later it takes only
what is free, so that of two agents for one server the newer one stays.

Whoever takes a lease that had lapsed may have left the ring without having heard of it. It reads the ring after the
lease is its own: any ring that a keeper wrote before knowing of that is then known, or newer than the one read.

A renewal without an answer may have taken effect all the same, and the keeper would see a living agent that takes
itself for cut off. So after one the agent only asks, and renews again when it has been answered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from shoal.coordination.acl import SERVERS
from shoal.coordination.interface import Coordinator, Lease, Membership, Versioned
from shoal.errors import CoordinatorError, CoordinatorUnavailableError
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.plan.keys import RING_KEY
from shoal.plan.ring import ServerAddress

_log: Final = get_log(__name__)


class Verdicts(Protocol):
    """Who is told what the coordinator said; `AgentLease` understands the same words."""

    def granted(self, sent_at: float, lapsed: bool) -> None:
        """The lease is held; it was asked for at `sent_at`. `lapsed`: nobody held it before."""

    def ring_read(self, ring: Versioned) -> None:
        """The ring as it was after a lapsed lease was taken."""

    def refused(self) -> None:
        """The lease is another agent's."""

    def asked(self) -> None:
        """The coordinator is asked."""

    def answered(self) -> None:
        """It has answered, or is not asked any more."""


class LeaseKeeper:
    """Keeps one server's lease. `answers` says whether the server does, `speaks` whether the agent can
    serve yet."""

    def __init__(
        self,
        coordinator: Coordinator,
        address: ServerAddress,
        holder: str,
        limits: Limits,
        verdicts: Verdicts,
        answers: Callable[[], bool],
        speaks: Callable[[], bool],
    ) -> None:
        self._coordinator = coordinator
        self._address = address
        self._holder = holder
        self._ttl_s = limits.server_lease_s
        self._interval_s = limits.heartbeat_interval_s
        self._verdicts = verdicts
        self._answers = answers
        self._speaks = speaks
        self._first = True
        self._lease: Lease | None = None
        self._membership: Membership | None = None
        self._trouble = ""
        self._unanswered = False
        self._lapsed = False
        self._wake = asyncio.Event()

    def hurry(self) -> None:
        """Something that was waited for has come: look again at once."""
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
        """Gives up lease and membership, so that nobody has to wait for their end."""
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
        name = f"{SERVERS}/{self._address.id}"
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        before = await self._coordinator.lease_of(name)
        runs_until = asked_at + (before.remaining_s if before is not None else 0.0)
        if before is None and not self._speaks():
            return True
        data = msgspec.msgpack.encode(self._address)
        self._membership = await self._coordinator.join(SERVERS, self._address.id, data, self._ttl_s)
        sent_at = clock()
        try:
            self._lease = await self._coordinator.acquire(name, self._holder, self._ttl_s, takeover=self._first)
        finally:
            self._lapsed = self._lapsed or clock() >= runs_until
        if self._lease is None:
            self._lapsed = False
            self._verdicts.refused()
            self._report("another agent holds the lease of this server")
            return False
        self._first = False
        _log.info("holds the lease", server=self._address.id, token=self._lease.token)
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
            _log.warning("lost the lease", server=self._address.id, token=lease.token)
            return await self._take()
        await self._grant(sent_at)
        if self._membership is not None and not await self._membership.renew():
            data = msgspec.msgpack.encode(self._address)
            self._membership = await self._coordinator.join(SERVERS, self._address.id, data, self._ttl_s)
        return True

    async def _grant(self, sent_at: float) -> None:
        """The lease counts as held, unless it had lapsed and the ring could not be read since."""
        lapsed = self._lapsed
        if lapsed:
            if not self._speaks():
                return
            ring = await self._coordinator.get(RING_KEY)
            if ring is not None:
                self._verdicts.ring_read(ring)
            self._lapsed = False
        self._verdicts.granted(sent_at, lapsed)

    def _report(self, trouble: str) -> None:
        """Logs trouble once, and its end."""
        if trouble and not self._trouble:
            _log.warning("the lease is not renewed", server=self._address.id, why=trouble)
        elif self._trouble and not trouble:
            _log.info("the lease is renewed again", server=self._address.id)
        self._trouble = trouble
