"""An agent's access to the coordinator: connecting, watching keys, and running its tasks until one ends.

Owns the retries. An agent outlives its coordinator: connections and watches are retried without limit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Final

from shoal.coordination.interface import Change, Coordinator
from shoal.errors import CoordinatorError, CoordinatorUnavailableError, DataLostError
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.runtime import Runtime
from shoal.wire.backoff import Backoff

_log: Final = get_log(__name__)


def reconnect_backoff(limits: Limits, runtime: Runtime) -> Backoff:
    """The delays between attempts to connect."""
    return Backoff(
        reconnect_delay_s_min=limits.reconnect_delay_s_min,
        reconnect_delay_s_max=limits.reconnect_delay_s_max,
        random=runtime.random,
    )


async def reach_coordinator(runtime: Runtime, url: str, limits: Limits) -> Coordinator:
    """Connects to the coordinator, as soon as it answers."""
    backoff = reconnect_backoff(limits, runtime)
    complained = False
    while True:
        try:
            return await runtime.coordinator(url, limits.server_lease_s / 3)
        except CoordinatorUnavailableError as error:
            if not complained:
                _log.warning("coordinator not reachable", why=str(error))
            complained = True
            await asyncio.sleep(backoff.next_delay_s())


async def watch_keys(coordinator: Coordinator, prefix: str, changed: Callable[[Change], None], retry_s: float) -> None:
    """Calls `changed` for all keys with a prefix and for their changes, until it is cancelled. What a coordinator has
    lost is not reported as deleted."""
    while True:
        try:
            async with contextlib.aclosing(coordinator.watch(prefix)) as changes:
                async for change in changes:
                    changed(change)
        except DataLostError as error:
            _log.error("coordinator data lost; recording marks and entries stay in use", why=error.what, do=error.do)
        except CoordinatorError as error:
            _log.warning("watch failed", keys=prefix, why=str(error))
        await asyncio.sleep(retry_s)


async def first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Runs all coroutines until one ends or fails; the others are cancelled and awaited."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
