"""Translates Spark's errors into Shoal's.

Owns the translation. Spark wraps an error of a worker or of Java into pages of traces; a user needs the sentence that
says what is wrong and what to do. The text of a Java error is fetched at once, because it is only available while Java
runs.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from shoal import errors
from shoal.errors import HeapTooSmallError, PipelineError, ShoalError

_OURS = re.compile(r"shoal\.errors\.(\w+): (.+)")
"""The last line of a worker's traceback if the worker raised one of Shoal's errors."""

_TRACEBACK = "Traceback (most recent call last):"

_STOPPED = "on a stopped SparkContext"
"""Part of Spark's error for a call after its context has stopped."""

_HEAP = ("java.lang.OutOfMemoryError", "must be at least", "Too small maximum heap", "Could not reserve enough space")


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raises Spark's errors in the block as Shoal's, where there is a translation, and errors that an interrupt caused
    as KeyboardInterrupt."""
    try:
        yield
    except ShoalError:
        raise
    except Exception as error:
        if _was_interrupted(error):
            raise KeyboardInterrupt from None
        translated = explain(error)
        if translated is None:
            raise
        raise translated from _kept(error)


def explain(error: BaseException) -> ShoalError | None:
    """Shoal's error for one of Spark's; None if there is no translation."""
    text = str(error)
    found = _OURS.findall(text)
    if found:
        name, what = found[-1]
        kind = getattr(errors, name, PipelineError)
        translated: ShoalError = kind(what) if issubclass(kind, ShoalError) else PipelineError(what)
        return translated
    if any(sign in text for sign in _HEAP):
        return HeapTooSmallError(
            "the heap of Spark is too small for this job",
            do="give it more: --heap-mb 2048, or spark.driver.memory and spark.executor.memory",
        )
    if _STOPPED in text:
        return PipelineError(
            "Spark has stopped by itself", do="see its output above; it gives up a master that does not answer"
        )
    if _is_of_java(error):
        return PipelineError(f"Spark failed: {_reason(text)}")
    return None


def _was_interrupted(error: BaseException) -> bool:
    """Whether an interrupt caused an error, such as that of a cancelled job."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt):
        seen = seen.__cause__ or seen.__context__
    return seen is not None


def _is_of_java(error: BaseException) -> bool:
    """Whether an error's text comes from Java: one of py4j's errors, or PySpark's version of it."""
    return hasattr(error, "java_exception") or hasattr(error, "_stackTrace")


def _kept(error: Exception) -> Exception:
    """A copy of an error that can be printed after Java has ended."""
    if not _is_of_java(error):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)


def _reason(text: str) -> str:
    """The line of a trace that says what is wrong: the last error line of the worker's Python, else Java's innermost
    cause, else the first line."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    for place in reversed([place for place, line in enumerate(lines) if line.endswith(_TRACEBACK)]):
        for line in lines[place + 1 :]:
            if not line[0].isspace():
                return line
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    causes = causes or [line.removeprefix(": ") for line in lines[1:2] if line.startswith(": ")]  # below py4j's line
    return causes[-1] if causes else lines[0].strip() if lines else "no reason given"
