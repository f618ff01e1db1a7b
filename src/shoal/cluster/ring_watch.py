"""A look at ring and leases for those who do not keep them: the supervisor whose balancers are processes of their own.

Owns the looks, and nothing else. Believes only a ring that carries the cluster's signature.
"""

from __future__ import annotations

import asyncio
from typing import Final

from shoal.balance.records import WINDOWS_KEY, decode
from shoal.balance.window_source import Standing
from shoal.coordination.interface import Coordinator
from shoal.errors import CoordinatorError, PlanError
from shoal.leader.keeper_shell import LEASES, KeeperView
from shoal.plan.keys import KEEPER_LEASE, RING_KEY
from shoal.plan.signing import Verifier

NO_LEADER: Final = "no balancer leads"


class Watching:
    """Looks at a coordinator every `poll_s`."""

    def __init__(self, coordinator: Coordinator, public_key: bytes, poll_s: float) -> None:
        self._coordinator = coordinator
        self._verifier = Verifier(public_key)
        self._poll_s = poll_s
        self._view = KeeperView(False, False, (), None, NO_LEADER)

    @property
    def view(self) -> KeeperView:
        """What was seen last."""
        return self._view

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            try:
                self._view = await self._look()
            except (CoordinatorError, PlanError) as error:
                self._view = KeeperView(False, False, (), self._view.ring, str(error))
            await asyncio.sleep(self._poll_s)

    async def _look(self) -> KeeperView:
        stored = await self._coordinator.get(RING_KEY)
        leases = await self._coordinator.leases(LEASES)
        led = await self._coordinator.lease_of(KEEPER_LEASE) is not None
        return KeeperView(
            contact=True,
            leader=led,
            leases=tuple(sorted(name.removeprefix(LEASES) for name in leases)),
            ring=self._verifier.ring(stored.value) if stored else None,
            trouble=None if led else NO_LEADER,
            windows=await self._windows() if led else None,
        )

    async def _windows(self) -> Standing | None:
        """Where load windows come from, as the balancer says."""
        stored = await self._coordinator.get(WINDOWS_KEY)
        return decode(stored.value, Standing) if stored else None
