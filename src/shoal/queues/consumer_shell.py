"""`Queue.take()`: jobs as an async iterator. The shell around a consumer's core.

Owns the wait of the application for jobs and for confirmations, and one task for each store that runs turns on it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Protocol, Self

from shoal.errors import ConnectError, JobLostError, ProtocolError, QueueError, QueueUnavailableError, ShoalError
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.plan.queue_entry import QueueEntry
from shoal.queues.consumer import ConsumerCore, JobCore
from shoal.queues.job import FollowUp, Job, JobKeeper
from shoal.queues.message_format import check_delay, read_pushed
from shoal.queues.store_link import PERMANENT
from shoal.runtime import TIMER_GRAIN_S

RETRY_S_MIN: Final = 1.0
RETRY_S_MAX: Final = 60.0
"""Pause before a failed message comes again, by default: it doubles with each attempt."""
RETRY_DOUBLINGS_MAX: Final = 64
"""The pause doubles at most this often, so that the power stays a finite number."""

_log: Final = get_log(__name__)


class StoreAccess(Protocol):
    """A consumer's way to one store of its queue."""

    @property
    def core(self) -> ConsumerCore:
        """The consumer's core for this store."""

    async def listen(self) -> None:
        """Receive pushed jobs from now on."""

    async def run_turn(self, arguments: list[bytes]) -> list[Any]:
        """Run the script `turn`; return the reply. Raises ConnectError if it may be lost, QueueError if the store
        refuses."""


class Lane:
    """One store of a consumer, and the task that runs its turns."""

    __slots__ = ("access", "core", "task", "wake")

    def __init__(self, access: StoreAccess) -> None:
        self.access = access
        self.core = access.core
        self.task: asyncio.Task[None] | None = None
        self.wake = asyncio.Event()

    @property
    def runs(self) -> bool:
        """Whether its task runs."""
        return self.task is not None and not self.task.done()


class JobStream:
    """The jobs of one consumer: `async with queue.take() as jobs: async for job in jobs`. Leaving the block gives back
    what was not started. `async for job in queue.take()` without the block gives it back when the loop is left."""

    def __init__(
        self,
        queue: str,
        start: Callable[[JobStream], Awaitable[QueueEntry]],
        reach: Callable[[JobStream, str], StoreAccess],
        stop: Callable[[JobStream], Awaitable[None]],
        put: Callable[[list[FollowUp]], Awaitable[None]],
        ask_places: Callable[[], None],
        limits: Limits,
    ) -> None:
        """`start` returns the entry of the queue; `reach` makes the way to one of its stores; `ask_places` asks for a
        newer entry, which comes with `use`."""
        self._queue = queue
        self._start = start
        self._reach = reach
        self._stop = stop
        self._put = put
        self._ask_places = ask_places
        self._limits = limits
        self._entry: QueueEntry | None = None
        self._lanes: dict[str, Lane] = {}
        self._cores: tuple[ConsumerCore, ...] = ()
        """Those of the lanes."""
        self._next_lane = 0
        self.rehomed = 0
        """Keys that went on at another store, because their shard has moved. Not for applications."""
        self._loop: asyncio.AbstractEventLoop
        self._readers: deque[asyncio.Future[None]] = deque()
        self._ends: dict[JobCore, asyncio.Future[None]] = {}
        """The call that has ended a job, until the store confirms it."""
        self._extensions: dict[JobCore, list[asyncio.Future[None]]] = {}
        """The calls of `extend` that wait."""
        self._error: Exception | None = None
        self._closed = False
        self._draining = False
        self._entered = False
        self._loop_left = False
        """Whether a loop without `async with` was left. The consumer ends with the last job that it handed out."""
        self._closing: asyncio.Task[None] | None = None
        self.on_lost: Callable[[JobCore], None] | None = None
        """Called for each job that this consumer does not hold any more."""

    # For applications

    async def __aenter__(self) -> Self:
        self._entered = True
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[Job]:
        if self._loop_left:
            raise QueueError(
                "the loop over these jobs was left, and the consumer has given them back",
                do="use `async with queue.take() as jobs` to loop several times",
            )
        return self if self._entered else _Loop(self)

    def __anext__(self) -> Coroutine[Any, Any, Job]:
        return self.next_for(self)

    async def next_for(self, keeper: JobKeeper) -> Job:
        """The next job, which is ended through `keeper`. Raises StopAsyncIteration if there will be none."""
        if not self._cores:
            await self._open()
        while True:
            if self._closed or self._draining:
                raise StopAsyncIteration
            cores = self._cores
            for core in cores:
                if core.inactive is not None:
                    raise core.inactive
                if core.repeated:
                    return Job(self._queue, core.repeated.pop(0), keeper)
            if self._error is not None:
                raise self._error
            now, found = self._loop.time(), None
            self._next_lane += 1  # stores take turns
            for at in range(self._next_lane, self._next_lane + len(cores)):
                if (found := cores[at % len(cores)].next_job(now)) is not None:
                    break
            if found is not None:
                self._poke()
                try:
                    return Job(self._queue, found, keeper)
                except ProtocolError as error:  # no consumer can read it, so it must not come again
                    _log.error("message cannot be read", queue=self._queue, key=found.key.key, why=str(error))
                    found.key.core.fail(found, None, error.what, now)
                    self._poke()
                    continue
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
        for core in self.cores:
            core.drain(self._loop.time())
        self._poke()
        self._wake_readers()

    async def abandon(self) -> None:
        """End without telling the store: for jobs that cannot be stopped. Their keys go to others when the lease has
        ended."""
        self._closed = True
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stop(self)

    async def aclose(self) -> None:
        """Give back everything that was not started, tell the store, and end. Jobs that still run are lost: end them
        first."""
        if self._closed:
            if self._closing is not None and self._closing is not asyncio.current_task():
                await asyncio.wait([self._closing])
            return
        self._closed = True
        running = [lane for lane in self._lanes.values() if lane.runs]
        for lane in running:
            lane.core.leave(self._loop.time())
        self._poke()
        if tasks := [lane.task for lane in running if lane.task is not None]:
            _, late = await asyncio.wait(tasks, timeout=self._limits.connect_timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._end()
        await self._stop(self)

    @property
    def started(self) -> bool:
        """Whether the consumer has joined, or tried to."""
        return bool(self._lanes)

    @property
    def cores(self) -> list[ConsumerCore]:
        """The cores of a consumer that has started, one for each store. Not for applications."""
        return [*self._cores]

    @property
    def core(self) -> ConsumerCore:
        """The first of them."""
        if not self._lanes:
            raise QueueError("the consumer has not started", do="enter it, or iterate over it")
        return self.cores[0]

    def statistics(self) -> dict[str, float]:
        """Counters of this consumer."""
        cores = self.cores
        found: dict[str, float] = {name: sum(core.counters[name] for core in cores) for name in self.core.counters}
        for name, field in (("keys", "held"), ("in_flight", "in_flight"), ("running", "running")):
            found[name] = sum(getattr(core, field) for core in cores)
        found["delays"] = sum(core.meter.delays for core in cores)
        found["service_s"] = max(core.meter.service_s for core in cores)
        return found

    # For its jobs

    async def job_done(self, job: Job, confirm: bool) -> None:
        """End a job, after its follow-ups are stored."""
        self._check_held(job.core)
        if job.follow_ups:  # they stay staged: if one is refused, the application may call `done` again
            await self._put(job.follow_ups)
            self._check_held(job.core)
        job.core.key.core.done(job.core, self._loop.time())
        await self._ended(job.core, confirm)

    async def job_failed(self, job: Job, reason: str, retry_in: float | None, dead: bool, confirm: bool) -> None:
        """End an attempt."""
        self._check_held(job.core)
        if not isinstance(reason, str):
            raise TypeError(f"a reason is text, not {type(reason).__name__}: use str(...)")
        if retry_in is None:
            delay_s = min(RETRY_S_MAX, RETRY_S_MIN * 2 ** min(job.attempt - 1, RETRY_DOUBLINGS_MAX))
        else:
            delay_s = retry_in
        if isinstance(delay_s, int | float) and delay_s < 0:
            delay_s = 0.0
        check_delay(delay_s, "retry_in")
        job.core.key.core.fail(job.core, None if dead else delay_s, reason, self._loop.time())
        await self._ended(job.core, confirm)

    async def job_extended(self, job: Job) -> None:
        """Confirm that a job is held."""
        self._check_held(job.core)
        job.core.key.core.extend(job.core, self._loop.time())
        future: asyncio.Future[None] = self._loop.create_future()
        self._extensions.setdefault(job.core, []).append(future)
        await self._confirmed(job.core, future)

    def _check_held(self, job: JobCore) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise QueueError(
                f"a job of queue {self._queue} is ended in another event loop than that of its consumer",
                do="end it in the loop that took it; a worker ends a job when its handler returns",
            )
        if job.error is not None:
            raise job.error
        if job.settled or job.key.running is not job:
            raise JobLostError("the job has already ended", do="end a job once")

    async def _ended(self, job: JobCore, confirm: bool) -> None:
        if confirm:
            future = self._ends[job] = self._loop.create_future()
            await self._confirmed(job, future)
        else:
            self._poke()

    async def _confirmed(self, job: JobCore, future: asyncio.Future[None]) -> None:
        self._poke()
        if not any(lane.runs for lane in self._lanes.values()):
            raise JobLostError("the consumer has ended before the store confirmed")
        await future
        if job.error is not None:
            raise job.error

    # A loop without `async with`

    def leave_loop(self, jobs_dropped: bool) -> None:
        """The loop was left, or all its jobs were dropped too. Called when the interpreter frees them, in any
        thread."""
        self._loop_left = True
        if self.started and not self._closed and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._close_left_loop, jobs_dropped)

    def _close_left_loop(self, jobs_dropped: bool = False) -> None:
        """Give back what was not started, and end as soon as no job runs."""
        if self._closed or self._closing is not None:
            return
        if not self._draining:
            self.drain()
        if jobs_dropped or not any(core.running for core in self.cores):
            self._closing = asyncio.create_task(self.aclose(), name=f"leave {self._queue}")

    # The stores

    async def _open(self) -> None:
        if not self._lanes and not self._closed:
            self._loop = asyncio.get_running_loop()
            entry = await self._start(self)
            if not self._lanes:
                self.use(entry)

    def use(self, entry: QueueEntry) -> None:
        """Take jobs from the stores that this entry names. Keys of shards that have moved go to their new store."""
        if self._closed or (self._entry is not None and entry.newness <= self._entry.newness):
            return
        self._entry = entry
        for place in dict.fromkeys(entry.places):
            self._run_lane(entry.stores[place].id)
        self._rehome()

    def _run_lane(self, store: str) -> Lane:
        lane = self._lanes.get(store)
        if lane is None:
            lane = self._lanes[store] = Lane(self._reach(self, store))
            self._cores += (lane.core,)
            if self._draining:
                lane.core.drain(self._loop.time())
        if not lane.runs and not self._closed:
            lane.core.disconnected(self._loop.time())
            lane.task = asyncio.create_task(self._run(store, lane), name=f"consumer of {self._queue} at {store}")
        return lane

    def _rehome(self) -> None:
        """Give the keys of shards that have moved to the core of their new store."""
        if self._entry is None or len(self._lanes) == 1:
            return
        places = {b"%d" % shard: self._entry.store_of(shard).id for shard in range(len(self._entry.places))}
        now = self._loop.time()
        for store, lane in self._lanes.items():
            for key in lane.core.release_shards([shard for shard, place in places.items() if place != store], now):
                there = self._lanes[places[key.shard]]
                there.core.adopt([key], now)
                self.rehomed += 1
                there.wake.set()

    def _is_needed(self, store: str, lane: Lane) -> bool:
        """Whether a store has shards of the queue, or this consumer has something to settle there."""
        assert self._entry is not None
        return bool(self._closed or lane.core.held or self._entry.shards_at(store))

    def pushed(self, store: str, data: bytes) -> None:
        """A job was pushed by a store."""
        assert self._entry is not None
        try:
            jobs = read_pushed(data, len(self._entry.places))
        except ProtocolError as error:
            _log.warning("pushed job dropped", queue=self._queue, why=str(error))
            return
        lane = self._run_lane(store)
        for parts in jobs:
            lane.core.pushed(parts, self._loop.time())
        self._wake_readers()
        lane.wake.set()

    def connection_lost(self, store: str) -> None:
        """The connection to a store was lost."""
        if (lane := self._lanes.get(store)) is not None:
            lane.core.disconnected(self._loop.time())
            lane.wake.set()

    def _poke(self) -> None:
        for lane in self._lanes.values():
            if not lane.wake.is_set():
                lane.wake.set()

    async def _run(self, store: str, lane: Lane) -> None:
        core = lane.core
        try:
            await lane.access.listen()
            while not core.left and self._is_needed(store, lane):
                now = self._loop.time()
                if core.check_overdue(now):
                    for other in self.cores if core.inactive is not None else ():
                        other.leave(now)
                    self._wake_readers()
                arguments = core.turn(now)
                if arguments is not None:
                    await self._turn(store, lane, arguments)
                    continue
                lane.wake.clear()
                at = core.next_at(now)
                delay_s = None if at is None else max(at - now, 0.0) + TIMER_GRAIN_S
                try:
                    async with asyncio.timeout(delay_s):
                        await lane.wake.wait()
                except TimeoutError:
                    self._wake_readers()
        except Exception as error:
            self._error = error
            self._end()
            if not isinstance(error, ShoalError):
                raise

    async def _turn(self, store: str, lane: Lane, arguments: list[bytes]) -> None:
        core = lane.core
        try:
            reply = await lane.access.run_turn(arguments)
        except PERMANENT:
            raise
        except ConnectError as error:
            core.turn_lost(self._loop.time())
            if self._closed:
                raise QueueUnavailableError(f"the store of queue {self._queue} does not answer ({error})") from error
            self._ask_places()
            self._rehome()
            await asyncio.sleep(self._limits.reconnect_delay_s_min)
            return
        core.reply(reply, self._loop.time())
        assert self._entry is not None
        if core.shut and any(b"%d" % shard in core.shut for shard in self._entry.shards_at(store)):
            self._ask_places()
        self._rehome()
        self._settle()
        self._wake_readers()
        if self._loop_left:
            self._close_left_loop()
        await asyncio.sleep(0)  # what the application ends at once is told in the next turn, and not in one more

    def _settle(self) -> None:
        for core in self.cores:
            settled, core.settled = core.settled, []
            for job in settled:
                waiting = self._extensions.pop(job, [])
                if job.settled and (end := self._ends.pop(job, None)) is not None:
                    waiting.append(end)
                for future in waiting:
                    if not future.done():
                        future.set_result(None)
                if self.on_lost is not None and isinstance(job.error, JobLostError):
                    self.on_lost(job)

    def _end(self) -> None:
        """The tasks have ended: nothing waits any longer."""
        waiting = [*self._ends.items(), *((job, one) for job, found in self._extensions.items() for one in found)]
        for job, future in waiting:
            if not future.done():
                job.error = job.error or JobLostError("the consumer has ended before the store confirmed")
                future.set_result(None)
        self._ends.clear()
        self._extensions.clear()
        self._wake_readers()

    def _wake_readers(self) -> None:
        for reader in self._readers:
            if not reader.done():
                reader.set_result(None)


class _Loop:
    """`async for job in queue.take()`. Python does not tell an iterator that `break` or an error has ended its loop,
    but it frees the iterator."""

    __slots__ = ("_jobs", "_stream")

    def __init__(self, stream: JobStream) -> None:
        self._stream = stream
        self._jobs = _LoopJobs(stream)

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Coroutine[Any, Any, Job]:
        return self._stream.next_for(self._jobs)

    def __del__(self) -> None:
        self._stream.leave_loop(jobs_dropped=False)


class _LoopJobs:
    """What the jobs of such a loop hold. It is freed with the last one of them: those that did not end are given
    back."""

    __slots__ = ("_stream",)

    def __init__(self, stream: JobStream) -> None:
        self._stream = stream

    async def job_done(self, job: Job, confirm: bool) -> None:
        """End a job."""
        await self._stream.job_done(job, confirm)

    async def job_failed(self, job: Job, reason: str, retry_in: float | None, dead: bool, confirm: bool) -> None:
        """End an attempt."""
        await self._stream.job_failed(job, reason, retry_in, dead, confirm)

    async def job_extended(self, job: Job) -> None:
        """Confirm that a job is held."""
        await self._stream.job_extended(job)

    def __del__(self) -> None:
        self._stream.leave_loop(jobs_dropped=True)
