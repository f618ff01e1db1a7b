"""A simulated process: one life of shipped code on a node.

Owns: the event loop of that life, its surroundings (`shoal.runtime.Runtime`) and its main task. Never touches: what the
code does. A crash of the node ends the life; a restart begins another one.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import warnings
from asyncio import events
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final

from shoal.coordination.interface import Coordinator
from shoal.lab.sim.models.coordinator import ModelCoordinator
from shoal.lab.sim.world.loop import SimLoop
from shoal.lab.sim.world.network import Network
from shoal.lab.sim.world.node import Node
from shoal.lab.sim.world.transport import SimDial, Tap
from shoal.runtime import Runtime

FIRST_SECOND: Final = 1_700_000_000
"""What a wall clock shows when a run begins."""

COORDINATOR_URL: Final = "shoal://coordinator:1"


class WallClock:
    """The time of day as a node has it: nearly the true one, or not at all."""

    def __init__(self, node: Node, skew_s: float = 0.0) -> None:
        self._node = node
        self._skew_s = skew_s

    def __call__(self) -> float:
        """The time in seconds."""
        return FIRST_SECOND + self._node.world.now + self._skew_s


class Processes:
    """All simulated processes of a run. `failures` are what shipped code raised and no code handled."""

    def __init__(self, network: Network, coordinator: ModelCoordinator) -> None:
        self.network = network
        self.coordinator = coordinator
        self.failures: list[str] = []
        self._loops: list[SimLoop] = []

    def new(self, node: Node, *, wall: Callable[[], float] | None = None, tap: Tap | None = None) -> Process:
        """A life of shipped code on a node, to be begun."""
        process = Process(self, node, wall or WallClock(node), tap)
        self._loops.append(process.loop)
        return process

    def note_failures(self) -> None:
        """Counts exceptions of tasks that have ended and that no code can await any more."""
        for loop in self._loops:
            _forget_ended_tasks(loop)

    def close(self) -> None:
        """The seed is over: ends all lives."""
        self.note_failures()
        loops, self._loops = self._loops, []
        with _silence():
            for loop in loops:
                loop.bury()


class Process:
    """One life of a process."""

    def __init__(self, processes: Processes, node: Node, wall: Callable[[], float], tap: Tap | None) -> None:
        self.node = node
        self.loop = SimLoop(node, processes.failures)  # type: ignore[abstract]
        self.main: asyncio.Task[object] | None = None
        self._processes = processes
        node.kill, node.wake = self._kill, self.loop.wake
        rng: Random = node.world.rng(f"process/{node.name}/{node.incarnation}")
        self.runtime = Runtime(
            dial=SimDial(processes.network, self.loop, tap),
            wall=wall,
            monotonic=node.clock,
            random=rng,
            connect_coordinator=self._connect_coordinator,
        )

    def begin(self, main: Coroutine[Any, Any, object]) -> None:
        """Starts the main task; what it raises is a failure of the run."""

        def start() -> None:
            self.main = self.loop.create_task(main, name="main")
            self.main.add_done_callback(self._ended)

        self.call(start)

    def after(self, delay_s: float, fn: Callable[..., object], *args: Any) -> None:
        """Runs `fn(*args)` in a turn of this life, `delay_s` seconds of its clock from now."""
        self.node.after(delay_s, self.loop.run, fn, *args)

    def stop(self) -> None:
        """Asks the main task to end in good order, as SIGTERM does."""
        if self.main is not None:
            self.call(self.main.cancel)

    def call(self, fn: Callable[..., object], *args: Any) -> None:
        """Runs `fn(*args)` in a turn of this life, at once or when it goes on. The caller may be outside of the world's
        run, where no simulated loop may stay behind as the running one."""
        outer = events._get_running_loop()
        try:
            self.node.call(self.loop.run, fn, *args)
        finally:
            events._set_running_loop(outer)

    def _kill(self) -> None:
        _forget_ended_tasks(self.loop)
        self.loop.kill()

    def _ended(self, main: asyncio.Task[object]) -> None:
        if not main.cancelled() and (error := main.exception()) is not None:
            self._processes.failures.append(f"{self.node.name}: the process ended with {error!r}")

    async def _connect_coordinator(self, url: str, timeout_s: float, runtime: Runtime) -> Coordinator:
        return self._processes.coordinator.client(self.loop, timeout_s)


def _forget_ended_tasks(loop: SimLoop) -> None:
    """The loop holds its tasks; asyncio reports an exception that no code has seen when its task is let go."""
    loop._tasks[:] = [task for task in loop._tasks if not task.done()]


class FailureLog(logging.Handler):
    """Takes log records with a traceback for failures: shipped code caught an exception that it did not expect."""

    def __init__(self, failures: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._failures = failures

    def emit(self, record: logging.LogRecord) -> None:
        """Notes what was caught."""
        if record.exc_info and record.exc_info[1] is not None:
            self._failures.append(f"{record.name}: {record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def failures_logged(failures: list[str]) -> Iterator[None]:
    """While this lasts, logs of shipped code go nowhere, but exceptions in them count as failures."""
    logger = logging.getLogger("shoal")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    logger.handlers, logger.propagate = [FailureLog(failures)], False
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@contextmanager
def _silence() -> Iterator[None]:
    """While this lasts, coroutines that are thrown away say nothing about it."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook
