"""Ctrl-C while Spark starts, runs and ends: a quiet `KeyboardInterrupt`, and no process that stays.

Owns the handling of SIGINT around a session. PySpark installs a handler of its own that talks to Java in the middle of
whatever the main thread is saying to it; py4j then prints pages of traces. Ours cancels jobs from a thread of its own,
and a handler that somebody has set before the session stays in force. Nothing here is done outside the main thread,
where signals are not handled.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark import SparkContext

HELD_S_MAX: Final = 60.0
"""How long an interrupt may be held back: a Java that does not come up shall not keep anybody."""

CANCEL_TIMEOUT_S: Final = 3.0
"""How long Java may take to cancel what runs, until the interrupt goes on without."""

CANCEL_EVERY_S: Final = 0.5
CANCEL_FOR_S: Final = 2.0
"""How often, and for how long, jobs are cancelled after an interrupt: one may begin while another is cancelled. Whoever
has caught the interrupt and goes on can start jobs again after that."""


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Holds SIGINT back until the block is done: what the block starts is then known, and can be ended."""
    if not _in_main_thread():
        yield
        return
    began, came = time.monotonic(), False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        if time.monotonic() - began > HELD_S_MAX:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def handler_kept() -> Iterator[None]:
    """Takes away whatever handler of SIGINT the block installs."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if _in_main_thread():
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def cancelling(context: SparkContext) -> Iterator[None]:
    """An interrupt in the block cancels the jobs of a context first, and those that begin all the same: what waits for
    them would wait for their end. A handler that is not Python's own is left as it is."""
    if not _in_main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    cancelled, left = threading.Event(), threading.Event()

    def cancel() -> None:
        until = time.monotonic() + CANCEL_FOR_S
        while not left.is_set() and time.monotonic() < until:
            with contextlib.suppress(Exception):  # a Java that is gone has no jobs
                context.cancelAllJobs()
            cancelled.set()
            left.wait(CANCEL_EVERY_S)

    def interrupt(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=cancel, name="cancel", daemon=True).start()
        cancelled.wait(CANCEL_TIMEOUT_S)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        left.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def quiet_py4j() -> Iterator[None]:
    """Keeps py4j from logging: it reports what it raises a second time, with traces and under the root logger's name.
    Its errors are said by whoever catches them."""
    root, own = logging.getLogger(), logging.getLogger("py4j")
    level = own.level
    own.setLevel(logging.CRITICAL)
    root.addFilter(_is_not_of_py4j)
    try:
        yield
    finally:
        root.removeFilter(_is_not_of_py4j)
        own.setLevel(level)


def was_interrupted(error: BaseException) -> bool:
    """Whether an error came of an interrupt: that a job was cancelled, or that its connection broke off."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, KeyboardInterrupt):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
