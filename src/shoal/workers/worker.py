"""One worker: takes the jobs of a queue, runs its handler on them and ends each job.

Owns the jobs from the moment they are taken until the store has confirmed their end, and the order in which a worker
stops. Never touches: connections, and which queue has which worker (`shoal.workers.app`).

    taken --handler returns--> done
          --raises, times out--> failed: retry by backoff, or dead letter
          --raises Dead--> dead letter
          --lease lost--> handler cancelled, nothing reported: another consumer has the message
          --worker stops, grace over--> handler cancelled, job given back

A job ends only after its handler has ended. So a key never has two handlers in one process, not even if the process
lost the key to another consumer and got it back while a thread still ran.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from shoal.errors import ConfigError, DeadLettersFullError, JobLostError
from shoal.logs import get_log
from shoal.metrics import counter, gauge, histogram
from shoal.queues.consumer import JobCore
from shoal.queues.consumer_shell import JobStream
from shoal.queues.job import Job
from shoal.queues.queue import Queue
from shoal.queues.settings import IN_FLIGHT_MAX
from shoal.workers.retry import DEFAULT_BACKOFF, Backoff, Dead, Retry
from shoal.workers.threads import HandlerThreads

Handler = Callable[[Job], Any]
"""An async function, or a plain one that runs in a thread."""
CallNext = Callable[[Job], Awaitable[None]]
Middleware = Callable[[Job, CallNext], Awaitable[None]]
"""Wraps handlers: `async def log(job, call_next): ...; await call_next(job); ...`"""

REASON_CHARACTERS_MAX: Final = 1000
"""Length of the reason that is stored with a failed job."""
CANCEL_S: Final = 2.0
"""How long a stopping worker waits for cancelled handlers. Keys of handlers that still run then are not given back:
they go to other consumers when the lease has ended."""
DURATION_BUCKETS_S: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

_log: Final = get_log(__name__)
_JOBS: Final = counter(
    "shoal_worker_jobs_total", "Jobs that workers ended: done, failed, dead, lost or returned", ("queue", "outcome")
)
_TIMEOUTS: Final = counter("shoal_worker_timeouts_total", "Handlers that ran longer than their timeout", ("queue",))
_DURATION: Final = histogram(
    "shoal_worker_job_duration_seconds", "Time that handlers took", ("queue",), buckets=DURATION_BUCKETS_S
)
_RUNNING: Final = gauge("shoal_worker_running_jobs", "Handlers that run now", ("queue",))


class HandlerTimeoutError(Exception):
    """A handler ran longer than its timeout, and was cancelled."""


class WorkerStatistics(msgspec.Struct):
    """How the jobs of one worker ended."""

    done: int = 0
    failed: int = 0
    """Attempts that failed and will be retried."""
    dead: int = 0
    """Jobs that became dead letters."""
    lost: int = 0
    """Jobs whose lease ended while they ran."""
    returned: int = 0
    """Jobs that were cancelled and given back because the worker stopped."""
    timeouts: int = 0


@dataclass(frozen=True, slots=True)
class Worker:
    """A declared worker: the handler of one queue, and how it is run."""

    queue: str
    handler: Handler
    concurrency: int = 16
    """Handlers that run at a time."""
    timeout: float | None = None
    """Seconds after which an async handler is cancelled and its job failed."""
    retry: Backoff = DEFAULT_BACKOFF
    middleware: tuple[Middleware, ...] = ()
    prefetch: int | None = None
    """Jobs that are fetched ahead; None: as many as `concurrency`, and no more than a consumer can hold."""

    def __post_init__(self) -> None:
        if not isinstance(self.retry, Backoff):
            raise ConfigError(
                f"the worker of queue {self.queue} has retry={self.retry!r}", do="give a Backoff: shoal.Backoff(1, 60)"
            )
        if type(self.concurrency) is not int or not 1 <= self.concurrency <= IN_FLIGHT_MAX:
            raise ConfigError(
                f"the worker of queue {self.queue} has concurrency={self.concurrency!r}",
                do=f"give a whole number from 1 to {IN_FLIGHT_MAX}; for more start several processes",
            )
        timeout: object = self.timeout
        if timeout is not None and (not isinstance(timeout, int | float) or not timeout > 0):
            raise ConfigError(
                f"the worker of queue {self.queue} has timeout={timeout!r}", do="give seconds above 0, or None"
            )
        if self.prefetch is not None and (
            type(self.prefetch) is not int or not 0 <= self.prefetch <= IN_FLIGHT_MAX - self.concurrency
        ):
            raise ConfigError(
                f"the worker of queue {self.queue} has prefetch={self.prefetch!r}",
                do=f"give a whole number from 0; with concurrency at most {IN_FLIGHT_MAX} together",
            )
        _check_parameters(self.handler, 1, f"the handler of queue {self.queue}", "async def handle(job)")
        for one in self.middleware:
            check_middleware(one)

    @property
    def is_async(self) -> bool:
        """Whether the handler runs in the event loop."""
        called = getattr(self.handler, "__call__", None)  # noqa: B004  # an object with an async __call__
        return inspect.iscoroutinefunction(self.handler) or inspect.iscoroutinefunction(called)

    @property
    def max_in_flight(self) -> int:
        """Jobs that the consumer holds: running and fetched ahead."""
        if self.prefetch is None:
            return min(2 * self.concurrency, IN_FLIGHT_MAX)
        return self.concurrency + self.prefetch


def check_middleware(middleware: Middleware) -> None:
    """Raises ConfigError if it cannot be called as middleware."""
    if not inspect.iscoroutinefunction(middleware) and not inspect.iscoroutinefunction(
        getattr(middleware, "__call__", None)  # noqa: B004
    ):
        raise ConfigError(
            f"the middleware {_name(middleware)} is not an async function",
            do="write `async def middleware(job, call_next)`",
        )
    _check_parameters(middleware, 2, f"the middleware {_name(middleware)}", "async def middleware(job, call_next)")


class WorkerRun:
    """A running worker of a queue, until it is stopped. `around` is middleware outside of the timeout."""

    def __init__(
        self, worker: Worker, queue: Queue, middleware: Sequence[Middleware] = (), around: Sequence[Middleware] = ()
    ) -> None:
        self.worker = worker
        self.statistics = WorkerStatistics()
        self._queue = queue
        self._threads: HandlerThreads | None = None
        handler: CallNext = worker.handler
        if not worker.is_async:
            handler = self._threads = HandlerThreads(worker.handler, worker.concurrency, f"worker-{worker.queue}")
        self._chain = _wrap(_wrap(handler, (*middleware, *worker.middleware)), (self._limit_time,))
        self._chain = _wrap(self._chain, around)
        self._stream: JobStream | None = None
        self._joining: asyncio.Task[int] | None = None
        self._stopping = False
        self._attempts_max = 1
        self._slots = asyncio.Semaphore(worker.concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self._handlers: dict[JobCore, asyncio.Task[None]] = {}
        self._busy: dict[bytes, asyncio.Future[None]] = {}
        """The last handler of each key that has one."""
        self._returning = False
        self._abandoned = False
        self._log = _log.bind(queue=worker.queue)
        self._running = _RUNNING.labels(worker.queue)
        self._duration = _DURATION.labels(worker.queue)

    # For the app

    async def run(self) -> None:
        """Work until `stop`, and then until the running handlers have ended. If cancelled, cancel the handlers and give
        back their jobs. Raises ShoalError if the store refuses."""
        try:
            if self._stopping:
                return
            self._stream = self._queue.take(max_in_flight=self.worker.max_in_flight)
            self._stream.on_lost = self._lost
            self._joining = asyncio.create_task(self._join(self._stream), name=f"join {self.worker.queue}")
            await asyncio.wait([self._joining])
            if self._joining.cancelled():  # by `stop`: no job was taken
                return
            self._attempts_max = self._joining.result()
            while not self._stopping:
                await self._slots.acquire()
                job = None
                try:
                    job = await anext(self._stream, None)
                finally:
                    if job is None:
                        self._slots.release()
                if job is None:
                    break
                task = asyncio.create_task(self._work(job), name=f"job {job.number} of {self.worker.queue}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            if self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            await self._end()

    async def _join(self, stream: JobStream) -> int:
        """Join the queue, which is created if it does not exist; returns its `attempts_max`."""
        await stream.__aenter__()
        return (await self._queue.stats()).settings.attempts_max

    def stop(self) -> None:
        """Take no more, give back the jobs that were not started."""
        self._stopping = True
        if self._joining is not None:
            self._joining.cancel()
        if self._stream is not None:
            self._stream.drain()

    async def _end(self) -> None:
        """Leave the queue. If `run` was cancelled, or the stream has failed, handlers still run: cancel them."""
        self.stop()
        if self._joining is not None:
            await asyncio.wait([self._joining])
        self._returning = True
        for task in self._handlers.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CANCEL_S)
        self._abandoned = bool(self._tasks)
        if self._threads is not None:
            self._threads.close()
        if self._stream is None:
            return
        if self._abandoned:
            self._log.warning("handlers still run, and their keys wait for the end of the lease", jobs=len(self._tasks))
            await self._stream.abandon()
        else:
            await self._stream.aclose()

    # One job

    async def _work(self, job: Job) -> None:
        """Run the handler and end the job. Raises nothing."""
        loop = asyncio.get_running_loop()
        previous = self._busy.get(job.key)
        ended = self._busy[job.key] = loop.create_future()
        task = asyncio.current_task()
        assert task is not None
        self._handlers[job.core] = task
        try:
            if previous is not None:  # this consumer lost the key and got it back
                self._log.warning("job waits for an earlier handler of its key", job=job.number)
                await asyncio.wait([previous])
            if job.lost:
                self._note("lost")
                return
            self._running.inc()
            started_at = loop.time()
            try:
                error = await self._call(job)
            finally:
                took_s = loop.time() - started_at
                self._running.dec()
                self._duration.observe(took_s)
                self._free(job, ended)
            await self._settle(job, error, took_s)
        except asyncio.CancelledError:
            if job.lost:
                self._note("lost")
            elif not _has_ended(job) and not self._abandoned:
                self._note("returned")
                self._log.info("job given back", job=job.number, attempt=job.attempt)
        except Exception as error:
            self._log.error("job could not be ended, and comes again", job=job.number, why=_reason(error))
        finally:
            self._free(job, ended)
            self._slots.release()

    def _free(self, job: Job, ended: asyncio.Future[None]) -> None:
        """The handler of a job has ended, or will not start."""
        self._handlers.pop(job.core, None)
        if not ended.done():
            ended.set_result(None)
        if self._busy.get(job.key) is ended:
            del self._busy[job.key]

    async def _call(self, job: Job) -> BaseException | None:
        """Run the handler; return what it raised. A cancellation passes if this worker asked for it."""
        try:
            await self._chain(job)
        except asyncio.CancelledError as error:
            if self._returning or job.lost:
                raise
            return error
        except (Dead, Retry, HandlerTimeoutError) as error:
            return error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also SystemExit: it would end the job of every other handler
            self._log.exception("handler raised", job=job.number, attempt=job.attempt)
            return error
        task = asyncio.current_task()
        if self._returning and self._threads is None and task is not None and task.cancelling():
            raise asyncio.CancelledError  # the handler has kept it to itself: its work may be half done
        return None

    async def _limit_time(self, job: Job, call_next: CallNext) -> None:
        """The innermost rule around the middleware and the handler: their timeout."""
        timeout_s = self.worker.timeout
        if timeout_s is None:
            await call_next(job)
        elif self._threads is None:
            try:
                async with asyncio.timeout(timeout_s) as limit:
                    await call_next(job)
            except TimeoutError:
                if not limit.expired():
                    raise
            if limit.expired():  # also if the handler has kept the cancellation to itself: its work may be half done
                self._overdue(job, "cancelled")
                raise HandlerTimeoutError(f"the handler took longer than {timeout_s:g} s")
        else:
            timer = asyncio.get_running_loop().call_later(timeout_s, self._overdue, job, "a thread cannot be stopped")
            try:
                await call_next(job)
            finally:
                timer.cancel()

    def _overdue(self, job: Job, what: str) -> None:
        self.statistics.timeouts += 1
        _TIMEOUTS.labels(self.worker.queue).inc()
        self._log.warning(
            "handler timed out", job=job.number, attempt=job.attempt, timeout_s=self.worker.timeout, handler=what
        )

    async def _settle(self, job: Job, error: BaseException | None, took_s: float) -> None:
        """Tell the store how the job ended, unless the handler has done so."""
        try:
            if _has_ended(job) and not job.lost:
                last = job.ended_as == "failed" and job.attempt >= self._attempts_max
                self._note("dead" if last else job.ended_as)
                return
            if error is None:
                try:
                    await job.done()
                except JobLostError:
                    raise
                except Exception as failed:  # a follow-up was refused, or cannot be encoded
                    error = failed
                else:
                    self._note("done")
                    self._log.debug("job done", job=job.number, attempt=job.attempt, seconds=round(took_s, 6))
                    return
            await self._fail(job, error, took_s)
        except JobLostError as lost:
            self._note("lost")
            self._log.warning("job lost", job=job.number, attempt=job.attempt, why=lost.what)

    async def _fail(self, job: Job, error: BaseException, took_s: float) -> None:
        reason = _reason(error)
        dead = isinstance(error, Dead)
        pause_s = error.after if isinstance(error, Retry) else self.worker.retry.pause_s(job.number, job.attempt)
        job.follow_ups.clear()
        try:
            await job.fail(reason, retry_in=pause_s, dead=dead)
        except DeadLettersFullError as full:
            self._log.error("key halted", job=job.number, why=str(full))
        facts = {"job": job.number, "attempt": job.attempt, "seconds": round(took_s, 6), "reason": reason}
        if dead or job.attempt >= self._attempts_max:
            self._note("dead")
            self._log.error("job is a dead letter", **facts)
        else:
            self._note("failed")
            self._log.warning("job failed", **facts, retry_in_s=round(pause_s, 3))

    def _lost(self, core: JobCore) -> None:
        """The lease of a job has ended: its handler must not continue."""
        task = self._handlers.get(core)
        if task is not None:
            self._log.warning("lease lost, handler cancelled")
            task.cancel()

    def _note(self, outcome: str) -> None:
        setattr(self.statistics, outcome, getattr(self.statistics, outcome) + 1)
        _JOBS.labels(self.worker.queue, outcome).inc()


def _has_ended(job: Job) -> bool:
    """Whether `done` or `fail` was called for this job, or it is lost."""
    return job.core.key.running is not job.core


def _wrap(call: CallNext, middleware: Sequence[Middleware]) -> CallNext:
    """Put middleware around a call, the first one outermost."""
    for one in reversed(middleware):
        call = _link(one, call)
    return call


def _link(middleware: Middleware, call_next: CallNext) -> CallNext:
    async def call(job: Job) -> None:
        await middleware(job, call_next)

    return call


def _reason(error: BaseException) -> str:
    """An error as the store keeps it."""
    try:
        text = str(error)
    except Exception as failed:
        text = f"its text cannot be read: {type(failed).__name__}"
    if not isinstance(error, Dead | Retry | HandlerTimeoutError):
        text = f"{type(error).__name__}: {text}"
    return text[:REASON_CHARACTERS_MAX]


def _name(function: Callable[..., object]) -> str:
    return getattr(function, "__name__", None) or repr(function)


def _check_parameters(function: Callable[..., object], count: int, what: str, write: str) -> None:
    """Raises ConfigError if a function cannot be called with `count` arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except ValueError:  # a builtin without a signature
        return
    except TypeError:
        raise ConfigError(f"{what} does not take {count} argument{'s' * (count > 1)}", do=f"write `{write}`") from None
