"""Ctrl-C while Spark starts, runs and ends: a quiet `KeyboardInterrupt`, and no process left behind.

Owns the handling of SIGINT around a session. PySpark's own handler calls Java while the main thread may be in the
middle of a call, and py4j then prints pages of traces. Ours cancels jobs from a separate thread. A handler that the
application installed before the session stays in force. Outside the main thread nothing is done, because signals are
not handled there.
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
"""How long an interrupt may be held back, in case Java never comes up."""

CANCEL_TIMEOUT_S: Final = 3.0
"""How long the interrupt waits for Java to cancel the running jobs."""

CANCEL_EVERY_S: Final = 0.5
CANCEL_FOR_S: Final = 2.0
"""How often, and for how long, jobs are cancelled after an interrupt, since one may start while another is cancelled.
After that, a program that caught the interrupt can start jobs again."""


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Delays SIGINT until the block is done, so that a process that the block starts is known and can be ended."""
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
    """Restores the SIGINT handler after the block, in case the block installs another one."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if _in_main_thread():
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def cancelling(context: SparkContext) -> Iterator[None]:
    """On an interrupt in the block, first cancels the jobs of a context, so that the main thread stops waiting for
    them. Does nothing if the application installed its own handler."""
    if not _in_main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    cancelled, left = threading.Event(), threading.Event()

    def cancel() -> None:
        until = time.monotonic() + CANCEL_FOR_S
        while not left.is_set() and time.monotonic() < until:
            with contextlib.suppress(Exception):  # Java may be gone already
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
    """Silences py4j's logging: it logs, with traces and as the root logger, errors that it also raises."""
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
    """Whether an interrupt caused an error, such as that of a cancelled job or a broken connection."""
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
