"""A simulated process that runs shipped code on a node.

Owns: the event loop of the process, its `shoal.runtime.Runtime` and its main task. Never touches: what the code does.
A crash of the node ends the process; after a restart the node has a new one.
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
from shoal.lab.sim.world.background import SimBackground
from shoal.lab.sim.world.loop import SimLoop
from shoal.lab.sim.world.network import Network
from shoal.lab.sim.world.node import Node
from shoal.lab.sim.world.transport import SimDial, Tap
from shoal.runtime import Runtime

FIRST_SECOND: Final = 1_700_000_000
"""Reading of a wall clock at the start of a run."""

COORDINATOR_URL: Final = "shoal://coordinator:1"


class WallClock:
    """A node's time of day, wrong by `skew_s`."""

    def __init__(self, node: Node, skew_s: float = 0.0) -> None:
        self._node = node
        self._skew_s = skew_s

    def __call__(self) -> float:
        """The time in seconds."""
        return FIRST_SECOND + self._node.world.now + self._skew_s


class Processes:
    """All simulated processes of a run. `failures` are exceptions of shipped code that no code handled."""

    def __init__(self, network: Network, coordinator: ModelCoordinator) -> None:
        self.network = network
        self.coordinator = coordinator
        self.failures: list[str] = []
        self._loops: list[SimLoop] = []

    def new(self, node: Node, *, wall: Callable[[], float] | None = None, tap: Tap | None = None) -> Process:
        """A new process on a node; `Process.begin` starts it."""
        process = Process(self, node, wall or WallClock(node), tap)
        self._loops.append(process.loop)
        return process

    def note_failures(self) -> None:
        """Records the exceptions of finished tasks that no code can await any more."""
        for loop in self._loops:
            _forget_ended_tasks(loop)

    def close(self) -> None:
        """Ends all processes at the end of a run."""
        self.note_failures()
        loops, self._loops = self._loops, []
        with _silence():
            for loop in loops:
                loop.discard()


class Process:
    """One process, from its start to its end."""

    def __init__(self, processes: Processes, node: Node, wall: Callable[[], float], tap: Tap | None) -> None:
        self.node = node
        self.loop = SimLoop(node, processes.failures)  # type: ignore[abstract]
        self.background = SimBackground(self.loop)
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
        """Starts the main task; an exception of it is a failure of the run."""

        def start() -> None:
            self.main = self.loop.create_task(main, name="main")
            self.main.add_done_callback(self._ended)

        self.call(start)

    def after(self, delay_s: float, fn: Callable[..., object], *args: Any) -> None:
        """Runs `fn(*args)` in a turn of this process, `delay_s` seconds of its clock from now."""
        self.node.after(delay_s, self.loop.run, fn, *args)

    def stop(self) -> None:
        """Asks the main task to end in good order, as SIGTERM does."""
        if self.main is not None:
            self.call(self.main.cancel)

    def call(self, fn: Callable[..., object], *args: Any) -> None:
        """Runs `fn(*args)` in a turn of this process, now or when it resumes. Callers outside of `World.run` find the
        running loop unchanged afterwards."""
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
    """Drops finished tasks, so that asyncio reports the exceptions that no code has seen."""
    loop._tasks[:] = [task for task in loop._tasks if not task.done()]


class FailureLog(logging.Handler):
    """Counts log records with a traceback as failures: shipped code caught an unexpected exception."""

    def __init__(self, failures: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._failures = failures

    def emit(self, record: logging.LogRecord) -> None:
        """Records the exception."""
        if record.exc_info and record.exc_info[1] is not None:
            self._failures.append(f"{record.name}: {record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def failures_logged(failures: list[str]) -> Iterator[None]:
    """Discards the logs of shipped code, and counts exceptions in them as failures."""
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
    """Suppresses warnings about discarded coroutines."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook
