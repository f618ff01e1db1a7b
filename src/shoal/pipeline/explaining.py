"""What goes wrong on Spark's side, in our words.

Owns the translation. Spark wraps what a worker or Java raised into pages of traces; the reader wants the one sentence
that says what is wrong and what to do. The words of Spark's errors are asked for at once: they can be had only as long
as Java runs, and whoever prints an error does so later.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from shoal import errors
from shoal.errors import HeapTooSmallError, PipelineError, ShoalError
from shoal.pipeline.interrupts import was_interrupted

_OURS = re.compile(r"shoal\.errors\.(\w+): (.+)")
"""The last line of a worker's traceback, where it raised one of ours."""

_TRACEBACK = "Traceback (most recent call last):"

_STOPPED = "on a stopped SparkContext"
"""What is said to whoever comes too late."""

_HEAP = ("java.lang.OutOfMemoryError", "must be at least", "Too small maximum heap", "Could not reserve enough space")


@contextlib.contextmanager
def explained(*, heap_mb: int) -> Iterator[None]:
    """Raises one of our errors for what Spark raises in the block, where there is one that says it. What comes of an
    interrupt, as that a job was cancelled, is one."""
    try:
        yield
    except ShoalError:
        raise
    except Exception as error:
        if was_interrupted(error):
            raise KeyboardInterrupt from None
        told = explain(error, heap_mb=heap_mb)
        if told is None:
            raise
        raise told from _kept(error)


def explain(error: BaseException, *, heap_mb: int) -> ShoalError | None:
    """Our error for one of Spark's; None if there is none."""
    text = str(error)
    found = _OURS.findall(text)
    if found:
        name, what = found[-1]
        kind = getattr(errors, name, PipelineError)
        told: ShoalError = kind(what) if issubclass(kind, ShoalError) else PipelineError(what)
        return told
    if any(sign in text for sign in _HEAP):
        return HeapTooSmallError(
            f"a heap of {heap_mb} MB is too small for this job", do="give it more, as --heap-mb 2048"
        )
    if _STOPPED in text:
        return PipelineError(
            "Spark has ended by itself", do="see what it said before; a master that does not answer is given up"
        )
    if _is_of_java(error):
        return PipelineError(f"Spark failed: {_reason(text)}")
    return None


def _is_of_java(error: BaseException) -> bool:
    """Whether an error has its words from Java: one of py4j's, or of those that PySpark makes of them."""
    return hasattr(error, "java_exception") or hasattr(error, "_stackTrace")


def _kept(error: Exception) -> Exception:
    """An error that can be printed when Java is gone."""
    if not _is_of_java(error):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)


def _reason(text: str) -> str:
    """The line of a page of traces that says what is wrong: what the worker's Python said last, else what Java gives as
    the first cause, else how the page begins."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    for place in reversed([place for place, line in enumerate(lines) if line.endswith(_TRACEBACK)]):
        for line in lines[place + 1 :]:
            if not line[0].isspace():
                return line
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    causes = causes or [line.removeprefix(": ") for line in lines[1:2] if line.startswith(": ")]  # below py4j's words
    return causes[-1] if causes else lines[0].strip() if lines else "no reason given"
