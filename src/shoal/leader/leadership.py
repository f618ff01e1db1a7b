"""The leader: ring keeper and conductors in one process and under one lease.

Owns what they share: the lease of the plan, and the shutdown. The process that holds the lease may write the plan; the
others are standbys, which take over as soon as the lease is free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from random import Random
from typing import Any

from shoal.balance.registry import Registry
from shoal.coordination.interface import Coordinator
from shoal.leader.conductor_shell import ConductorShell, Leadership
from shoal.leader.keeper import Keeper
from shoal.leader.keeper_shell import KeeperShell, KeeperView
from shoal.leader.leader_timeouts import LeaderTiming
from shoal.leader.secret_rotation import SecretRotation
from shoal.limits import Limits
from shoal.load_kinds import REGISTRY
from shoal.plan.signature import Signer
from shoal.rules import ALL_RULES, Rules


class Leader:
    """Keeps the ring and moves units while it leads. `holder` identifies this run of the process as lease holder. The
    first ring waits for the servers `expected`; `random` is the source of secrets; `registry` has the kinds of units
    that move; `wall` is the time of day."""

    def __init__(
        self,
        coordinator: Coordinator,
        signer: Signer,
        limits: Limits,
        timing: LeaderTiming,
        expected: Iterable[str],
        holder: str,
        random: Random,
        rules: Rules = ALL_RULES,
        registry: Registry = REGISTRY,
        *,
        wall: Callable[[], float],
    ) -> None:
        keeper = Keeper(signer, limits, expected, timing.first_ring_wait_s)
        self._keeping = KeeperShell(
            coordinator, signer, keeper, timing, holder, random, rules, SecretRotation(limits, rules), wall=wall
        )
        self._conductors = [
            ConductorShell(
                coordinator,
                kind.steps(limits, rules),
                signer,
                lambda: self._keeping.leading,
                kind.group,
                timing.keeper_poll_s,
            )
            for kind in registry.units
            if kind.steps is not None
        ]

    @property
    def view(self) -> KeeperView:
        """The keeper's last view of the cluster."""
        return self._keeping.view

    @property
    def leading(self) -> Leadership | None:
        """The right of other tasks of this process to write the plan; None while another process leads."""
        return self._keeping.leading

    async def run(self, *others: Coroutine[Any, Any, None]) -> None:
        """Leads, or waits to lead, and runs `others` concurrently, until it is cancelled; then releases the lease."""
        works = (self._keeping.run(), *(conductor.run() for conductor in self._conductors), *others)
        tasks = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._keeping.release()
