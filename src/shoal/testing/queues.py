"""Queues without a server, and workers on them until nothing is left to do.

Owns the bus of tests. Its queues are the shipped ones: same client, same scripts, same errors. Only the store is a
model (`shoal.testing.memory_store`), and its clock stands still until the test advances it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final, NoReturn

from shoal.coordination.interface import Coordinator
from shoal.errors import ConfigError, QueueError
from shoal.extras import needed
from shoal.limits import DEFAULT_LIMITS
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_settings import QueueSettings, check_settings
from shoal.plan.ring import ServerAddress
from shoal.queues.job import Job
from shoal.queues.queue import Queue, QueueContext
from shoal.queues.script_loader import load_scripts
from shoal.rules import without
from shoal.runtime import Runtime
from shoal.testing.clock import Clock
from shoal.testing.memory_store import MemoryStore
from shoal.workers.app import App
from shoal.workers.worker import CallNext, WorkerStatistics

STORE: Final = ServerAddress("q1", "memory", 1)
ERRORS_MAX: Final = 100
"""Errors of handlers that `run` keeps for `raise_errors`."""


class QueuesBus:
    """A bus that has only queues. A queue is created at its first use, as on a cluster; `create` chooses its limits."""

    def __init__(self, settings: Mapping[str, QueueSettings], seed: int) -> None:
        self.clock = Clock()
        rules = without("clock_clamp")  # this clock jumps on purpose
        self.store = MemoryStore(self.clock, load_scripts(rules))
        self._settings = {name: check_settings(one) for name, one in settings.items()}
        self._queues: dict[str, Queue] = {}
        runtime = Runtime(
            dial=self.store.dial,
            wall=self.clock,
            monotonic=lambda: asyncio.get_running_loop().time(),
            random=Random(seed),
            connect_coordinator=_no_coordinator,
        )
        self._context = QueueContext(DEFAULT_LIMITS, runtime, lambda: (None, None), self._find, rules)

    def queue(self, name: str) -> Queue:
        """The queue of this name, the same object each time."""
        if name not in self._queues:
            self._queues[name] = _MemoryQueue(name, self._context, self.queue, self._settings)
        return self._queues[name]

    async def queues(self) -> list[str]:
        """The names of the queues that there are, sorted."""
        return sorted(self._settings)

    async def create(self, name: str, settings: QueueSettings | None = None, **limits: Any) -> Queue:
        """Create a queue with these limits: `await bus.create("orders", attempts_max=5)`."""
        if name in self._queues:
            raise QueueError(f"queue {name} is in use already", do="create it before its first use")
        if settings is not None and limits:
            raise TypeError("create() takes either settings or limits by name, not both")
        chosen = check_settings(settings or QueueSettings(**limits))
        self._settings[name] = chosen
        queue = self.queue(name)
        await queue.stats()
        return queue

    async def aclose(self) -> None:
        """Close all queues."""
        for queue in self._queues.values():
            await queue.aclose()

    async def _find(self, name: str) -> QueueEntry:
        settings = self._settings.setdefault(name, QueueSettings())
        entry = QueueEntry(name.encode(), 1, 1, settings, (STORE,), (0,) * settings.shards)
        maker = Queue(name, _with_entry(self._context, entry), self.queue)
        await maker.create(settings)
        await maker.aclose()
        return entry


class _MemoryQueue(Queue):
    """A queue of a test. `known` has the settings of all existing queues."""

    def __init__(
        self, name: str, context: QueueContext, sibling: Callable[[str], Queue], known: dict[str, QueueSettings]
    ) -> None:
        super().__init__(name, context, sibling)
        self._known = known

    async def create(self, settings: QueueSettings | None = None) -> bool:
        """As on a cluster, an existing queue keeps its settings."""
        chosen = check_settings(settings)
        made = self._known.setdefault(self.name, chosen) is chosen
        await self.stats()
        return made


@asynccontextmanager
async def queues(settings: Mapping[str, QueueSettings] | None = None, *, seed: int = 0) -> AsyncIterator[QueuesBus]:
    """A bus with queues in this process: `async with shoal.testing.queues() as bus`. `settings` are the limits of
    queues by name; others get the default ones."""
    with needed("shoal.testing"):
        import lupa  # noqa: F401  # fail here, with what to install
    bus = QueuesBus(settings or {}, seed)
    try:
        yield bus
    finally:
        await bus.aclose()


async def run(
    app: App,
    bus: QueuesBus,
    *,
    queues: Collection[str] | None = None,
    raise_errors: bool = False,
) -> dict[str, WorkerStatistics]:
    """Run the app's workers until their queues have nothing to do before the clock advances; return how the jobs ended,
    by queue. Delayed messages and retries stay: advance the clock and run again.

    With `raise_errors`, handlers' errors are raised at the end: one as it is, several in an ExceptionGroup.
    """
    errors: list[Exception] = []

    async def note_errors(job: Job, call_next: CallNext) -> None:
        try:
            await call_next(job)
        except Exception as error:
            if len(errors) < ERRORS_MAX:
                errors.append(error)
            raise

    names = [worker.queue for worker in app.chosen_workers(queues)]
    running = asyncio.create_task(app.run(bus, queues=queues, signals=False, middleware=[note_errors]))
    try:
        while not running.done():
            bus.store.changed.clear()
            if await _all_idle(bus, names):
                break
            changed = asyncio.create_task(bus.store.changed.wait())
            await asyncio.wait([running, changed], return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
        app.stop()
        ended = await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    if raise_errors and len(errors) == 1:
        raise errors[0]
    if raise_errors and errors:
        raise ExceptionGroup("handlers failed", errors)
    return ended


async def _all_idle(bus: QueuesBus, names: list[str]) -> bool:
    for name in names:
        await bus.queue(name).stats()  # it is created at its first use
    return all(bus.store.is_idle(name) for name in names)  # at one moment: a job in one can put into another


def _with_entry(context: QueueContext, entry: QueueEntry) -> QueueContext:
    async def find(name: str) -> QueueEntry:
        return entry

    return QueueContext(context.limits, context.runtime, context.login, find, context.rules)


async def _no_coordinator(url: str, timeout_s: float, runtime: Runtime) -> Coordinator:
    _refuse(url)


def _refuse(url: str) -> NoReturn:
    raise ConfigError(f"a bus of shoal.testing has no coordinator ({url})", do="use shoal.connect()")
