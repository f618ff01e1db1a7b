"""`App`: the workers of an application, and running them until they are told to stop.

    app = shoal.App()

    @app.worker("orders", concurrency=32, timeout=30, retry=shoal.Backoff(1, 60))
    async def handle(job): ...

Owns the table of workers, the bus that they share, signals, and the order of a graceful stop. Each worker's own work is
in `shoal.workers.worker`.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final, Literal, Protocol, Self, TypeVar, cast

from shoal.bus.client import connect as connect_bus
from shoal.errors import ConfigError, ShoalError
from shoal.logs import get_log
from shoal.message import GivenAttributes
from shoal.queues.message_format import check_queue_name
from shoal.queues.queue import NewMessage, PutResult, Queue
from shoal.workers.retry import DEFAULT_BACKOFF, Backoff
from shoal.workers.worker import Handler, Middleware, Worker, WorkerRun, WorkerStatistics, check_middleware

GRACE_S: Final = 30.0
"""How long running handlers may continue after a stop."""
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_log: Final = get_log(__name__)
DecoratedHandler = TypeVar("DecoratedHandler", bound=Handler)
DecoratedMiddleware = TypeVar("DecoratedMiddleware", bound=Middleware)


class QueueSource(Protocol):
    """Anything with queues: a bus, or one of `shoal.testing`."""

    def queue(self, name: str) -> Queue:
        """Return the queue of this name."""


Connect = Callable[[], AbstractAsyncContextManager[QueueSource]]


class _OwnBus:
    """The bus that `queue(...).put` has opened in one event loop."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()
        self.source: QueueSource | None = None

    async def open(self) -> QueueSource:
        """Connect, unless that is done."""
        async with self._opening:
            if self.source is None:
                self.source = await self._stack.enter_async_context(self._connect())
            return self.source

    async def close(self) -> None:
        """End the connection."""
        self.source = None
        await self._stack.aclose()


class App:
    """The workers of an application. `address` is that of the cluster, as for `shoal.connect`; None is the local one.

    `connect` replaces the bus: it returns an async context manager that gives an object with `queue(name)`.
    """

    def __init__(self, address: str | None = None, *, connect: Connect | None = None) -> None:
        if address is not None and connect is not None:
            raise TypeError("App() takes either an address or connect=..., not both")
        self.workers: dict[str, Worker] = {}
        """The declared workers by queue."""
        self._connect: Connect = connect or cast(Connect, lambda: connect_bus(address))
        self._middleware: list[Middleware] = []
        self._source: QueueSource | None = None
        self._own: dict[asyncio.AbstractEventLoop, _OwnBus] = {}
        """By event loop: a connection cannot be used in another one."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._stop: asyncio.Event | None = None
        self._stop_now: asyncio.Event | None = None

    # Declaring

    def worker(
        self,
        queue: str,
        *,
        concurrency: int = 16,
        timeout: float | None = None,
        retry: Backoff = DEFAULT_BACKOFF,
        middleware: Iterable[Middleware] = (),
        prefetch: int | None = None,
    ) -> Callable[[DecoratedHandler], DecoratedHandler]:
        """Declare the worker of a queue: the function below handles its jobs, up to `concurrency` at a time.

        The job is done when the handler returns. If it raises, the job fails and comes again after a pause (`retry`);
        after the queue's `attempts_max` attempts it is a dead letter. `shoal.Dead` and `shoal.Retry` decide otherwise.
        An async handler is cancelled after `timeout` seconds, and its job fails; a plain function runs in a thread,
        which cannot be cancelled: its job continues until it returns. `prefetch` jobs are fetched ahead.
        """
        check_queue_name(queue)
        if queue in self.workers:
            raise ConfigError(f"queue {queue} has a worker already", do="declare one worker for each queue")

        def declare(handler: DecoratedHandler) -> DecoratedHandler:
            if not callable(handler):
                raise ConfigError(f"the handler of queue {queue} is not a function", do="decorate a function")
            self.workers[queue] = Worker(queue, handler, concurrency, timeout, retry, tuple(middleware), prefetch)
            return handler

        return declare

    def middleware(self, function: DecoratedMiddleware) -> DecoratedMiddleware:
        """Declare middleware around the handlers of all workers: `async def log(job, call_next)`. The first one that is
        declared is the outermost."""
        check_middleware(function)
        self._middleware.append(function)
        return function

    # Putting

    def queue(self, name: str) -> AppQueue:
        """The queue of this name, for putting messages: in handlers, and in other programs that import the app."""
        check_queue_name(name)
        return AppQueue(self, name)

    @contextmanager
    def using(self, source: QueueSource) -> Iterator[Self]:
        """Use the queues of `source` inside the block, for tests."""
        before, self._source = self._source, source
        try:
            yield self
        finally:
            self._source = before

    async def aclose(self) -> None:
        """End the connection that `queue(...).put` has opened in this event loop."""
        own = self._own.pop(asyncio.get_running_loop(), None)
        if own is not None:
            await own.close()

    async def __aenter__(self) -> Self:
        await self._connected()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def _connected(self) -> QueueSource:
        """The queues of the run or of the test; in other programs a bus for each event loop."""
        loop = asyncio.get_running_loop()
        if self._source is not None and self._loop in (None, loop):
            return self._source
        own = self._own.get(loop)
        if own is None:
            self._own = {other: bus for other, bus in self._own.items() if not other.is_closed()}
            own = self._own[loop] = _OwnBus(self._connect)
        return await own.open()

    # Running

    async def run(
        self,
        source: QueueSource | None = None,
        *,
        queues: Collection[str] | None = None,
        concurrency: int | None = None,
        grace: float = GRACE_S,
        signals: bool = True,
        middleware: Sequence[Middleware] = (),
    ) -> dict[str, WorkerStatistics]:
        """Run the workers until `stop()`, SIGTERM or SIGINT; return how their jobs ended, by queue.

        Then take no more jobs, give back those that were not started, and let running handlers continue for `grace`
        seconds; cancel them after that, or at a second signal, and give back their jobs. `queues` chooses workers,
        `concurrency` replaces theirs, and `middleware` goes around everything else, also around timeouts. Raises
        ShoalError if there is no cluster, or if a store refuses.
        """
        chosen = self.chosen_workers(queues, concurrency)
        if not grace >= 0:  # also true for NaN
            raise ConfigError(f"grace is {grace!r}", do="give a number of seconds from 0")
        if self._stop is not None:
            raise ConfigError("the app runs already", do="call run() once at a time")
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._stop, self._stop_now = asyncio.Event(), asyncio.Event()
        try:
            async with AsyncExitStack() as stack:
                if signals:
                    stack.enter_context(self._signals())
                if source is None and self._source is None:
                    own = self._own.get(self._loop)
                    source = own.source if own is not None else None
                    source = source or await stack.enter_async_context(self._connect())
                if source is not None:
                    stack.enter_context(self.using(source))
                used = self._source
                assert used is not None
                runs = [WorkerRun(worker, used.queue(worker.queue), self._middleware, middleware) for worker in chosen]
                await self._run(runs, grace)
                return {run.worker.queue: run.statistics for run in runs}
        finally:
            self._stop = self._stop_now = self._loop = None

    def stop(self, *, now: bool = False) -> None:
        """End `run`: gracefully, or `now`. Can be called from any thread; does nothing if the app does not run."""
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._set_stop, now)

    def chosen_workers(self, queues: Collection[str] | None = None, concurrency: int | None = None) -> list[Worker]:
        """The declared workers of these queues. Raises ConfigError if there are none."""
        if not self.workers:
            raise ConfigError("the app has no workers", do='declare one: @app.worker("orders")')
        for name in queues or ():
            if name not in self.workers:
                known = ", ".join(self.workers)
                raise ConfigError(f"the app has no worker for queue {name}", do=f"choose from {known}")
        chosen = [worker for name, worker in self.workers.items() if queues is None or name in queues]
        if concurrency is None:
            return chosen
        return [replace(worker, concurrency=concurrency) for worker in chosen]

    def _set_stop(self, now: bool) -> None:
        if self._stop is not None and self._stop_now is not None:
            self._stop.set()
            if now:
                self._stop_now.set()

    async def _run(self, runs: list[WorkerRun], grace: float) -> None:
        assert self._stop is not None
        assert self._stop_now is not None
        tasks = [asyncio.create_task(run.run(), name=f"worker of {run.worker.queue}") for run in runs]
        stop = asyncio.create_task(self._stop.wait())
        stop_now = asyncio.create_task(self._stop_now.wait())
        try:
            await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
            for run in runs:
                run.stop()
            left: set[asyncio.Task[Any]] = {task for task in tasks if not task.done()}
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    while left and not stop_now.done():
                        await asyncio.wait([*left, stop_now], return_when=asyncio.FIRST_COMPLETED)
                        left = {task for task in left if not task.done()}
            if left:
                _log.warning("handlers did not end in time and are cancelled", grace_s=grace)
        finally:
            for task in (*tasks, stop, stop_now):
                task.cancel()
            await asyncio.gather(*tasks, stop, stop_now, return_exceptions=True)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop at a signal; at the second one, at once. Only the main thread gets signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def _signalled(self, number: int) -> None:
        assert self._stop is not None
        again = self._stop.is_set()
        _log.info("stopping", signal=signal.Signals(number).name, at_once=again)
        self._set_stop(again)


class AppQueue:
    """A queue of an app, for putting. It connects at the first put, unless the app runs."""

    def __init__(self, app: App, name: str) -> None:
        self.name = name
        self._app = app

    async def open(self) -> Queue:
        """The queue itself, with all its methods."""
        return (await self._app._connected()).queue(self.name)

    async def put(
        self,
        payload: bytes | str,
        *,
        key: str | bytes | None = None,
        id: str | bytes | None = None,
        delay: float = 0.0,
        at: float | None = None,
        attributes: GivenAttributes | None = None,
        full: Literal["raise", "wait"] = "raise",
    ) -> None:
        """Store a message, as `Queue.put` does."""
        queue = await self.open()
        await queue.put(payload, key=key, id=id, delay=delay, at=at, attributes=attributes, full=full)

    async def put_many(
        self, messages: Iterable[NewMessage | bytes | str], *, full: Literal["raise", "wait"] = "raise"
    ) -> PutResult:
        """Store messages in order, as `Queue.put_many` does."""
        return await (await self.open()).put_many(messages, full=full)

    def put_from_thread(self, payload: bytes | str, **options: Any) -> None:
        """`put` for handlers that are plain functions: waits until the message is safe. Only while the app runs, and
        not in the thread of the event loop."""
        loop = self._app._loop
        if loop is None:
            raise ShoalError("the app does not run", do="use `await app.queue(...).put(...)`")
        if threading.get_ident() == self._app._thread:
            raise TypeError("put_from_thread() would block the event loop: use `await app.queue(...).put(...)`")
        asyncio.run_coroutine_threadsafe(self.put(payload, **options), loop).result()
