"""Polls the ring and the leases for a supervisor whose balancers are separate processes.

Owns the polling. Only a ring with the cluster's signature is accepted.
"""

from __future__ import annotations

import asyncio
from typing import Final

from shoal.balance.balancer_keys import WINDOWS_KEY, decode
from shoal.balance.window_source import WindowRoute
from shoal.coordination.interface import Coordinator
from shoal.errors import CoordinatorError, PlanError, VersionError
from shoal.leader.keeper_shell import LEASES, KeeperView
from shoal.plan import secret_rotation
from shoal.plan.format import require_format
from shoal.plan.keys import KEEPER_LEASE, RING_KEY, ROTATION_KEY
from shoal.plan.signature import Verifier

NO_LEADER: Final = "no balancer is leading"


class RingWatch:
    """Polls a coordinator every `poll_s`."""

    def __init__(self, coordinator: Coordinator, public_key: bytes, poll_s: float) -> None:
        self._coordinator = coordinator
        self._verifier = Verifier(public_key)
        self._poll_s = poll_s
        self._view = KeeperView(False, False, (), None, NO_LEADER)

    @property
    def view(self) -> KeeperView:
        """The last observed state."""
        return self._view

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            try:
                self._view = await self._read()
            except (CoordinatorError, PlanError, VersionError) as error:
                self._view = KeeperView(False, False, (), self._view.ring, str(error))
            await asyncio.sleep(self._poll_s)

    async def _read(self) -> KeeperView:
        await require_format(self._coordinator)
        kept = await self._coordinator.list(RING_KEY)
        stored, rotation = kept.get(RING_KEY), kept.get(ROTATION_KEY)
        leases = await self._coordinator.leases(LEASES)
        led = await self._coordinator.lease_of(KEEPER_LEASE) is not None
        return KeeperView(
            contact=True,
            leader=led,
            leases=tuple(sorted(name.removeprefix(LEASES) for name in leases)),
            ring=self._verifier.ring(stored.value) if stored else None,
            trouble=None if led else NO_LEADER,
            windows=await self._windows() if led else None,
            rotation=secret_rotation.decode(rotation.value) if rotation else None,
        )

    async def _windows(self) -> WindowRoute | None:
        """Return the source of load windows, as recorded by the balancer."""
        stored = await self._coordinator.get(WINDOWS_KEY)
        return decode(stored.value, WindowRoute) if stored else None
