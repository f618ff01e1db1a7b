"""A process of an engine: it holds the lease and serves, or it is a member of the instance that serves, or stands by.

Owns which of these it is. All processes of an engine are equal; the one that gets the lease leads the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from shoal.coordination.interface import Coordinator, Lease
from shoal.engine.engine_report import lease_name
from shoal.engine.head_shell import RENEWALS, HeadShell
from shoal.engine.links import Status
from shoal.engine.measures import Meter
from shoal.engine.member_shell import MemberShell
from shoal.engine.operators import Operators
from shoal.engine.outbox import Wire
from shoal.engine.subscription_table import SubscriptionTable
from shoal.errors import CoordinatorError, ShoalError
from shoal.filters.index.background import THREADS, Background
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.rules import ALL_RULES, Rules

_log: Final = get_log(__name__)


class EngineShell:
    """One process of an engine. `name` must be unique for each incarnation of a process."""

    def __init__(
        self,
        engine: str,
        wire: Wire,
        coordinator: Coordinator,
        name: str,
        limits: Limits,
        rules: Rules = ALL_RULES,
        *,
        cpu_s: Callable[[], float],
        thread_s: Callable[[], float],
        background: Background = THREADS,
    ) -> None:
        """`cpu_s` is the CPU of the process, `thread_s` that of the thread in which it runs; `background` merges the
        index of filters."""
        self._engine = engine
        self._wire = wire
        self._coordinator = coordinator
        self._name = name
        self._limits = limits
        self._rules = rules
        self._cpu_s = cpu_s
        self._lease: Lease | None = None
        self._last_token = 0
        self.head: HeadShell | None = None
        self.meter = Meter(thread_s)
        self.member = MemberShell(engine, name, wire, limits, rules, cpu_s, self.meter, background)

    @property
    def status(self) -> Status | None:
        """The counts of the operators that run here; None if none do."""
        operators = self.operators
        return None if operators is None else operators.status(0, 0.0, self._cpu_s())

    @property
    def operators(self) -> Operators | None:
        """The operators that run here."""
        return self.member.operators

    @property
    def table(self) -> SubscriptionTable | None:
        """The filters of the matcher that runs here."""
        operators = self.operators
        return None if operators is None or operators.matcher is None else operators.matcher.table

    @property
    def is_busy(self) -> bool:
        """Whether filters are being sent or dropped."""
        return self.operators is not None and self.operators.is_busy

    def abandon_lease(self) -> None:
        """The end of `run` does not release the lease, as if the process had been killed. For tests."""
        self._lease = None

    async def run(self) -> None:
        """Serves, helps or stands by until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.member.run())
            group.create_task(self._lead())

    async def _lead(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                asked_at = loop.time()
                with contextlib.suppress(CoordinatorError):
                    await self._take_lease()
                if self._lease is None:
                    await asyncio.sleep(self._limits.engine_lease_s / (2 * RENEWALS))
                    continue
                head = self.head = HeadShell(
                    *(self._engine, self._name, self._wire, self._coordinator, self._lease, asked_at),
                    *(self.member, self._limits, self._rules),
                )
                try:
                    await head.run()
                except* ShoalError as errors:
                    why = "; ".join(str(error) for error in errors.exceptions)
                    _log.warning("engine stops serving", engine=self._engine, why=why)
                finally:
                    self.head = None
                await self._release()
        finally:
            await self._release()

    async def _take_lease(self) -> None:
        lease = await self._coordinator.acquire(lease_name(self._engine), self._name, self._limits.engine_lease_s)
        if lease is not None and lease.token == self._last_token:  # each instance has a token of its own
            await self._coordinator.release(lease)
        elif lease is not None:
            self._lease, self._last_token = lease, lease.token

    async def _release(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(CoordinatorError):
                await self._coordinator.release(lease)
