"""The shell around a mover: the task with which the agent of a store carries out the moves of one queue.

Owns the links to the own store and to the source of a move, and the repetition of calls. It can be killed at any point:
the next one continues from what both stores have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from shoal.errors import ConnectError, QueueNotFoundError, QueueUnavailableError, ShoalError
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.ring import ServerAddress
from shoal.queues.message_format import check_queue_name
from shoal.queues.script_loader import Scripts
from shoal.queues.shard_mover import ShardMover, ShardStatus, ShipCall
from shoal.queues.store_link import PERMANENT, Login, StoreLink
from shoal.runtime import Runtime

RETRY_S: Final = 1.0
"""Pause after a call that a store refused: a newer entry, or an agent that makes the queue, will come."""

_log: Final = get_log(__name__)


class MoverShell:
    """Carries out the entries of one queue on the store `address`. `report` is called with each new status."""

    def __init__(
        self,
        queue: str,
        address: ServerAddress,
        scripts: Scripts,
        login: Callable[[], Login],
        report: Callable[[ShardStatus], None],
        limits: Limits,
        runtime: Runtime,
    ) -> None:
        self.core = ShardMover(address.id, limits)
        self._queue = queue
        self._prefix = check_queue_name(queue)
        self._address = address
        self._scripts = scripts
        self._login = login
        self._report = report
        self._limits = limits
        self._runtime = runtime
        self._links: dict[ServerAddress, StoreLink] = {}
        self._wake = asyncio.Event()

    def observe(self, entry: QueueEntry) -> None:
        """The entry of the queue has changed."""
        self.core.observe(entry)
        self._wake.set()

    async def run(self) -> None:
        """Carry out entries until cancelled."""
        try:
            while True:
                self._wake.clear()
                call = self.core.next_call()
                if call is None:
                    await self._wake.wait()
                else:
                    await self._carry_out(call)
        finally:
            for link in self._links.values():
                await link.close()

    async def _carry_out(self, call: ShipCall) -> None:
        entry, before = self.core.entry, self.core.status
        try:
            reply: Any = await self._link(call.store).run(self._scripts.ship, self._prefix, call.arguments)
        except PERMANENT as error:
            await self._refused(call, error)
        except ConnectError:
            await asyncio.sleep(self._limits.reconnect_delay_s_min)
        except ShoalError as error:
            await self._refused(call, error)
        else:
            if self.core.entry is entry:  # otherwise a newer entry came, and begins again
                self.core.answered(reply)
        if self.core.status != before:
            self._report(self.core.status)

    async def _refused(self, call: ShipCall, error: ShoalError) -> None:
        """A store refuses. If the entry is not the newest, the next one helps; otherwise the move cannot go on."""
        _log.warning("a step of a move was refused", queue=self._queue, store=call.store, why=str(error))
        if not isinstance(error, QueueNotFoundError | QueueUnavailableError):
            self.core.refuse(str(error))
        if self.core.next_call() is not None:
            try:
                async with asyncio.timeout(RETRY_S):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _link(self, store: str) -> StoreLink:
        entry = self.core.entry
        address = self._address
        if store != address.id and entry is not None:
            address = entry.store(store) or address
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = StoreLink(
                address,
                self._login,
                f"shoal-mover:{self._queue}",
                self._limits,
                self._runtime,
                lambda: None,
                loads=True,  # the script of moves, which clients do not run
            )
        return link
