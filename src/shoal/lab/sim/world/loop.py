"""An asyncio event loop on virtual time: one for each simulated process.

Owns: when the callbacks, timers and tasks of one process run. Never touches: what they do, and any socket, thread or
real clock. Connections are opened by `shoal.lab.sim.world.transport`.

The loop behaves like uvloop, which runs agents and leaders in production:
- `time()` has a grain of one millisecond and stands still during a turn. A timer's delay is rounded to milliseconds, so
  a timer can fire up to half a millisecond early, as `time()` shows it.
- Callbacks that a turn adds run in the next turn.

Invariants:
- Every turn costs `TURN_S` of virtual time, so time passes while a task spins on `sleep(0)`.
- A paused process runs nothing; callbacks that became due meanwhile run when it resumes.
- A crashed process runs nothing again, not even a `finally`. Its tasks stay referenced until the end of the run,
  because a garbage-collected task would run its `finally` blocks.
- Work for a thread runs immediately, in the calling turn; its result arrives after a delay drawn by seed.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from random import Random
from typing import Any, Final, TypeVar, cast

from shoal.lab.sim.world.node import WAKE_JITTER_S, Node
from shoal.lab.sim.world.world import Event

TURN_S: Final = 0.000_02
"""Duration of one turn of a loop."""

THREAD_S: Final = (0.000_2, 0.02)
"""Duration of work in a thread."""

SLEEP_S_MAX: Final = 86_400.0
"""The longest timer, as in uvloop."""

TASKS_KEPT_MIN: Final = 256
"""Finished tasks are removed when there are this many."""

TIMERS_CANCELLED_MIN: Final = 64
"""Cancelled timers are removed when there are more than this many and they outnumber the others."""

NEVER: Final = float("inf")

CLOSE_TRIES_MAX: Final = 20
"""How often a coroutine is interrupted at the end of a run."""

T = TypeVar("T")
Awaited = Generator[Any, None, T] | Coroutine[Any, Any, T]


class Handle:
    """A scheduled callback, with the methods that asyncio uses of its own handles."""

    __slots__ = ("args", "callback", "context", "loop", "timer_ms")

    def __init__(
        self, loop: SimLoop, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None, ms: int
    ) -> None:
        self.loop = loop
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self.timer_ms = ms
        """When the timer is due, in milliseconds of the loop's clock; 0 for other callbacks."""

    def cancel(self) -> None:
        """Cancels the callback."""
        if self.callback is not None:
            self.callback = None
            self.args = ()
            if self.timer_ms:
                self.loop.timer_cancelled()

    def cancelled(self) -> bool:
        """Whether it was cancelled or has run."""
        return self.callback is None

    def when(self) -> float:
        """When the timer is due, by the loop's clock."""
        return self.timer_ms / 1000


class SimLoop(asyncio.AbstractEventLoop):
    """The event loop of one process on a node. `failures` collects the exceptions of tasks and callbacks."""

    def __init__(self, node: Node, failures: list[str]) -> None:
        self.node = node
        self.dead = False
        self._failures = failures
        self._world = node.world
        self._random: Random = node.world.rng(f"threads/{node.name}")
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[int, int, Handle]] = []
        self._timer_count = 0
        self._cancelled = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._tasks_max = TASKS_KEPT_MIN
        self._turning = False
        self._due: Event | None = None
        self._due_at = NEVER
        """When the next turn is scheduled."""
        self._alarm_ms: float = NEVER
        """The timer for which that turn is scheduled, if any."""
        self._missed = False
        """Whether a turn fell due while the process was paused."""
        self._busy_until = 0.0
        self._clock = node.clock
        self._now_ms = int(node.clock() * 1000)

    # -- what asyncio calls ------------------------------------------------------------------------------------------

    def time(self) -> float:
        """The loop's clock in seconds: whole milliseconds, as of the beginning of this turn."""
        return self._now_ms / 1000

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        """Runs a callback in the next turn."""
        handle = Handle(self, callback, args, context, 0)
        if not self.dead:
            self._ready.append(handle)
            if not self._turning:
                self._schedule(max(self._world.now, self._busy_until))
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """As `call_soon`: there are no threads."""
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """Runs a callback after a delay, rounded to milliseconds."""
        delay_ms = int(min(max(delay, 0.0), SLEEP_S_MAX) * 1000 + 0.5)
        if not delay_ms:
            return self.call_soon(callback, *args, context=context)
        due_ms = self._now_ms + delay_ms
        handle = Handle(self, callback, args, context, due_ms)
        if not self.dead:
            self._timer_count += 1
            heapq.heappush(self._timers, (due_ms, self._timer_count, handle))
            if not self._turning and due_ms < self._alarm_ms:
                self._set_alarm()
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """Runs a callback at a time of the loop's clock."""
        return self.call_later(when - self._now_ms / 1000, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Awaited[T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        """A task of this loop; it stays referenced until it is done or the run ends."""
        task: asyncio.Task[T] = asyncio.Task(cast(Coroutine[Any, Any, T], coro), loop=self, name=name, context=context)
        tasks = self._tasks
        tasks.append(task)
        if len(tasks) > self._tasks_max:
            tasks[:] = [task for task in tasks if not task.done()]
            self._tasks_max = max(TASKS_KEPT_MIN, 2 * len(tasks))
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Runs the function now; the future gets its result after a delay."""
        done: asyncio.Future[T] = self.create_future()
        result: T | None = None
        failure: Exception | None = None
        try:
            result = func(*args)
        except Exception as error:
            failure = error

        def finish() -> None:
            if done.cancelled():
                return
            if failure is not None:
                done.set_exception(failure)
            else:
                done.set_result(cast(T, result))

        self.call_later(self.thread_s(), finish)
        return done

    def thread_s(self) -> float:
        """How long the next work in a thread takes."""
        return self._random.uniform(*THREAD_S)

    def get_debug(self) -> bool:
        """Always False: runs are debugged with the trace."""
        return False

    def is_running(self) -> bool:
        """Whether the process is alive."""
        return not self.dead

    def is_closed(self) -> bool:
        """Whether the process has ended."""
        return self.dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Records an exception that no code awaits."""
        error = context.get("exception")
        if error is not None and not self.dead:
            self._failures.append(f"{self.node.name}: {context.get('message', '')}: {error!r}")

    async def shutdown_asyncgens(self) -> None:
        """Does nothing: the code that uses a generator closes it."""

    async def shutdown_default_executor(self) -> None:
        """Nothing to do: there are no threads."""

    # -- what the simulator calls ------------------------------------------------------------------------------------

    def run(self, callback: Callable[..., object], *args: Any) -> None:
        """Runs a callback in its own turn, for example because data has arrived.

        The node must be running.
        """
        if self.dead:
            return
        if self._turning:
            raise RuntimeError("a turn of this loop is under way")
        outer = None if self._world.running else events._get_running_loop()
        self._turning = True
        self._now_ms = int(self._clock() * 1000)
        events._set_running_loop(self)
        try:
            callback(*args)
        except Exception as error:
            self._failed(error)
        self._end_turn()
        if not self._world.running:
            events._set_running_loop(outer)

    def kill(self) -> None:
        """Ends the process: nothing of it runs again. Tasks, timers and callbacks stay referenced."""
        self.dead = True

    def wake(self) -> None:
        """Resumes after a pause: runs what became due meanwhile."""
        if self._missed and not self.dead:
            self._missed = False
            self._schedule(self._world.now + self._random.random() * WAKE_JITTER_S)

    def discard(self) -> None:
        """Ends all tasks at the end of the run, without warnings about pending ones. Their `finally` blocks find a
        running loop: otherwise `wait_for` and `gather` there would leave coroutines that are never awaited. The tasks
        that they begin end here too."""
        self.dead = True
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            while self._tasks:
                tasks, self._tasks = self._tasks, []
                for task in tasks:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    if not task.done():
                        _end(task.get_coro())
        finally:
            events._set_running_loop(outer)
        self._ready.clear()
        self._timers.clear()

    def timer_cancelled(self) -> None:
        """Counts a cancelled timer. For `Handle`."""
        self._cancelled += 1
        if self._cancelled > TIMERS_CANCELLED_MIN and self._cancelled * 2 > len(self._timers):
            self._timers[:] = [entry for entry in self._timers if entry[2].callback is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0

    # -- turns -------------------------------------------------------------------------------------------------------

    def _end_turn(self) -> None:
        """Runs further turns right away, as long as no other event of the world comes first."""
        world = self._world
        busy_until = world.now + TURN_S
        while self._ready and not self.dead and not self.node.paused and world.advance(busy_until):
            self._turn()
            busy_until = world.now + TURN_S
        self._turning = False
        self._busy_until = busy_until
        if self.dead:
            return
        if self._ready:
            self._schedule(busy_until)
        elif self._timers and self._timers[0][0] < self._alarm_ms:
            self._set_alarm()

    def _schedule(self, time: float) -> None:
        """Schedules the next turn, unless an earlier one is scheduled."""
        if time < self._due_at:
            if self._due is not None:
                self._due.cancel()
            self._due_at = time
            self._due = self._world.at(time, self._fall_due)

    def _fall_due(self) -> None:
        self._due, self._due_at, self._alarm_ms = None, NEVER, NEVER
        if self.dead:
            return
        if self.node.paused:
            self._missed = True
            return
        if not self._ready and not self._first_timer_due():
            if self._timers:
                self._set_alarm()
            return
        self._turning = True
        events._set_running_loop(self)
        self._turn()
        self._end_turn()

    def _first_timer_due(self) -> bool:
        """Whether a timer is due now; drops cancelled ones before it."""
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
            self._cancelled -= 1
        return bool(timers) and timers[0][0] <= int(self._clock() * 1000)

    def _turn(self) -> None:
        """Runs the timers that are due, and the callbacks that were ready when the turn began."""
        self._now_ms = now_ms = int(self._clock() * 1000)
        ready, timers = self._ready, self._timers
        while timers and timers[0][0] <= now_ms:
            handle = heapq.heappop(timers)[2]
            if handle.callback is None:
                self._cancelled -= 1
            else:
                handle.timer_ms = 0
                ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            callback = handle.callback
            if callback is None:
                continue
            handle.callback = None
            try:
                if handle.context is None:
                    callback(*handle.args)
                else:
                    handle.context.run(callback, *handle.args)
            except Exception as error:
                self._failed(error)
            if self.dead:
                return

    def _set_alarm(self) -> None:
        """Schedules a turn for the first timer."""
        self._alarm_ms = first_ms = self._timers[0][0]
        time = self.node.true_time((first_ms + 0.001) / 1000)
        self._schedule(time if time > self._busy_until else self._busy_until)

    def _failed(self, error: Exception) -> None:
        self._failures.append(f"{self.node.name}: a callback raised {error!r}")


def _end(coroutine: Any) -> None:
    """Interrupts a coroutine until it ends; it may await something in a `finally`."""
    for _ in range(CLOSE_TRIES_MAX):
        try:
            coroutine.close()
        except RuntimeError:
            continue
        return
