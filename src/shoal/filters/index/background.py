"""Where an index merges its segments: beside its caller.

Owns the threads. The simulator has a `Background` of its own, so that a seed replays exactly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol


class Background(Protocol):
    """Runs work beside its caller."""

    def start(self, work: Callable[[], None]) -> None:
        """Start work; returns at once."""

    def wait(self, done: threading.Condition) -> None:
        """Wait until `done`, which the caller holds, is notified. Something was started that notifies it."""


class Threads:
    """A thread for each piece of work."""

    def start(self, work: Callable[[], None]) -> None:
        """Start a thread."""
        threading.Thread(target=work, name="shoal-merge").start()

    def wait(self, done: threading.Condition) -> None:
        """Wait for a thread."""
        done.wait()


THREADS: Final[Background] = Threads()
