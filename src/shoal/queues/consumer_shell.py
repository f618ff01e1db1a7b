"""`Queue.take()`: jobs as an async iterator. The shell around a consumer's core.

Owns the wait of the application for jobs and for confirmations, and the one task that runs turns on the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Protocol, Self

from shoal.errors import ConnectError, JobLostError, ProtocolError, QueueError, QueueUnavailableError, ShoalError
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.queues.consumer import ConsumerCore, JobCore
from shoal.queues.job import FollowUp, Job
from shoal.queues.message_format import read_parts
from shoal.queues.store_link import PERMANENT
from shoal.runtime import TIMER_GRAIN_S

RETRY_S_MIN: Final = 1.0
RETRY_S_MAX: Final = 60.0
"""Pause before a failed message comes again, by default: it doubles with each attempt."""

_log: Final = get_log(__name__)


class TurnRunner(Protocol):
    """Runs the script `turn` on the store."""

    def __call__(self, arguments: list[bytes]) -> Awaitable[list[Any]]:
        """Return the reply. Raises ConnectError if it may be lost, QueueError if the store refuses."""


class JobStream:
    """The jobs of one consumer: `async with queue.take() as jobs: async for job in jobs`. Leaving the block gives back
    what was not started."""

    def __init__(
        self,
        queue: str,
        start: Callable[[JobStream], Awaitable[tuple[ConsumerCore, TurnRunner]]],
        stop: Callable[[JobStream], Awaitable[None]],
        put: Callable[[list[FollowUp]], Awaitable[None]],
        limits: Limits,
    ) -> None:
        self._queue = queue
        self._start = start
        self._stop = stop
        self._put = put
        self._limits = limits
        self._core: ConsumerCore | None = None
        self._run_turn: TurnRunner | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._wake = asyncio.Event()
        self._readers: deque[asyncio.Future[None]] = deque()
        self._futures: dict[JobCore, asyncio.Future[None]] = {}
        self._error: ShoalError | None = None
        self._closed = False
        self._draining = False
        self.on_lost: Callable[[JobCore], None] | None = None
        """Called for each job that this consumer does not hold any more."""

    # For applications

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Job:
        await self._open()
        core = self.core
        while True:
            if self._closed or self._draining:
                raise StopAsyncIteration
            if core.inactive is not None:
                raise core.inactive
            if self._error is not None:
                raise self._error
            if core.repeated:
                return Job(self._queue, core.repeated.pop(0), self)
            found = core.next_job(self._loop.time())
            if found is not None:
                self._poke()
                return Job(self._queue, found, self)
            reader: asyncio.Future[None] = self._loop.create_future()
            self._readers.append(reader)
            try:
                await reader
            finally:
                if reader in self._readers:
                    self._readers.remove(reader)

    def drain(self) -> None:
        """End the iteration and give back everything that was not started. Jobs that run can still be ended; then
        `aclose`."""
        self._draining = True
        if self._core is not None:
            self._core.drain(self._loop.time())
            self._poke()
        self._wake_readers()

    async def abandon(self) -> None:
        """End without telling the store: for jobs that cannot be stopped. Their keys go to others when the lease has
        ended."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._stop(self)

    async def aclose(self) -> None:
        """Give back everything that was not started, tell the store, and end. Jobs that still run are lost: end them
        first."""
        if self._closed:
            return
        self._closed = True
        if self._core is not None and self._task is not None:
            self._core.leave(self._loop.time())
            self._poke()
            done, _ = await asyncio.wait([self._task], timeout=self._limits.connect_timeout_s)
            if not done:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
        self._wake_readers()
        await self._stop(self)

    @property
    def started(self) -> bool:
        """Whether the consumer has joined, or tried to."""
        return self._core is not None

    @property
    def core(self) -> ConsumerCore:
        """The core of a consumer that has started. Not for applications."""
        if self._core is None:
            raise QueueError("the consumer has not started", do="enter it, or iterate over it")
        return self._core

    def statistics(self) -> dict[str, float]:
        """Counters of this consumer."""
        core = self.core
        now = {"keys": core.held, "in_flight": core.in_flight, "running": core.running}
        return {**core.counters, **now, "delays": core.meter.delays, "service_s": core.meter.service_s}

    # For its jobs

    async def job_done(self, job: Job, confirm: bool) -> None:
        """End a job, after its follow-ups are stored."""
        self._check_held(job.core)
        if job.follow_ups:
            staged, job.follow_ups = job.follow_ups, []
            await self._put(staged)
            self._check_held(job.core)
        self.core.done(job.core, self._loop.time())
        await self._confirmed(job.core, confirm)

    async def job_failed(self, job: Job, reason: str, retry_in: float | None, dead: bool, confirm: bool) -> None:
        """End an attempt."""
        self._check_held(job.core)
        delay_s: float | None = retry_in
        if delay_s is None:
            delay_s = min(RETRY_S_MAX, RETRY_S_MIN * 2 ** (job.attempt - 1))
        self.core.fail(job.core, None if dead else max(delay_s, 0.0), reason, self._loop.time())
        await self._confirmed(job.core, confirm)

    async def job_extended(self, job: Job) -> None:
        """Confirm that a job is held."""
        self._check_held(job.core)
        self.core.extend(job.core, self._loop.time())
        await self._confirmed(job.core, True)

    def _check_held(self, job: JobCore) -> None:
        if job.error is not None:
            raise job.error
        if job.settled or job.key.running is not job:
            raise JobLostError("the job has already ended", do="end a job once")

    async def _confirmed(self, job: JobCore, confirm: bool) -> None:
        self._poke()
        if not confirm:
            return
        if self._task is None or self._task.done():
            raise JobLostError("the consumer has ended before the store confirmed")
        future = self._futures[job] = self._loop.create_future()
        await future
        if job.error is not None:
            raise job.error

    # The task

    async def _open(self) -> None:
        if self._task is None and not self._closed:
            self._loop = asyncio.get_running_loop()
            self._core, self._run_turn = await self._start(self)
            self._task = asyncio.create_task(self._run(), name=f"consumer of {self._queue}")

    def pushed(self, data: bytes) -> None:
        """A job was pushed by the store."""
        try:
            parts = read_parts(data)
        except ProtocolError as error:
            _log.warning("pushed job dropped", queue=self._queue, why=str(error))
            return
        self.core.pushed(parts, self._loop.time())
        self._wake_readers()
        self._poke()

    def connection_lost(self) -> None:
        """The connection to the store was lost."""
        if self._core is not None:
            self._core.disconnected(self._loop.time())
            self._poke()

    def _poke(self) -> None:
        self._wake.set()

    async def _run(self) -> None:
        core = self.core
        try:
            while not core.left:
                now = self._loop.time()
                self._overdue(now)
                arguments = core.turn(now)
                if arguments is not None:
                    await self._turn(arguments)
                    continue
                self._wake.clear()
                at = core.next_at(now)
                delay_s = None if at is None else max(at - now, 0.0) + TIMER_GRAIN_S
                try:
                    async with asyncio.timeout(delay_s):
                        await self._wake.wait()
                except TimeoutError:
                    self._wake_readers()
        except ShoalError as error:
            self._error = error
        finally:
            self._end()

    async def _turn(self, arguments: list[bytes]) -> None:
        assert self._run_turn is not None
        core = self.core
        try:
            reply = await self._run_turn(arguments)
        except PERMANENT:
            raise
        except ConnectError as error:
            core.turn_lost(self._loop.time())
            if self._closed:
                raise QueueUnavailableError(f"the store of queue {self._queue} does not answer ({error})") from error
            await asyncio.sleep(self._limits.reconnect_delay_s_min)
            return
        core.reply(reply, self._loop.time())
        self._settle()
        self._wake_readers()

    def _overdue(self, now: float) -> None:
        if self.core.check_overdue(now):
            self._wake_readers()

    def _settle(self) -> None:
        settled, self.core.settled = self.core.settled, []
        for job in settled:
            future = self._futures.pop(job, None)
            if future is not None and not future.done():
                future.set_result(None)
            if self.on_lost is not None and isinstance(job.error, JobLostError):
                self.on_lost(job)

    def _end(self) -> None:
        """The task has ended: nothing waits any longer."""
        for job, future in self._futures.items():
            if not future.done():
                job.error = job.error or JobLostError("the consumer has ended before the store confirmed")
                future.set_result(None)
        self._futures.clear()
        self._wake_readers()

    def _wake_readers(self) -> None:
        for reader in self._readers:
            if not reader.done():
                reader.set_result(None)
