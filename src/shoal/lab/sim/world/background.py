"""Work that a simulated process does beside its event loop.

Owns when it runs: in a turn of its own, after a delay drawn by seed, as if a thread had taken that long; or at once, if
the process waits for it. Threads themselves are forbidden: what they do would depend on the real time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shoal.lab.sim.world.loop import SimLoop


class SimBackground:
    """The work of one process."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._waiting: list[Callable[[], None]] = []

    def start(self, work: Callable[[], None]) -> None:
        """Begin work. It changes nothing before its turn."""
        self._waiting.append(work)
        self._loop.call_later(self._loop.thread_s(), self._run, work)

    def wait(self, done: threading.Condition) -> None:
        """Do the oldest work now: the caller looks again whether it waits for more."""
        if not self._waiting:
            raise RuntimeError("a simulated process waits for work that no process does")
        self._run(self._waiting[0])

    def _run(self, work: Callable[[], None]) -> None:
        if work in self._waiting:
            self._waiting.remove(work)
            work()


@contextmanager
def no_threads() -> Iterator[None]:
    """What runs here starts no thread."""
    start, simulator = threading.Thread.start, threading.get_ident()

    def refuse(thread: threading.Thread) -> None:
        if threading.get_ident() == simulator:
            raise RuntimeError(f"a simulated process starts the thread {thread.name}: a seed would not replay")
        start(thread)

    threading.Thread.start = refuse  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
