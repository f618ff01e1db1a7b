"""What goes wrong on Spark's side, in our words.

Owns the translation. Spark wraps what a worker or Java raised into pages of traces; the reader wants the one sentence
that says what is wrong and what to do.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from shoal import errors
from shoal.errors import HeapTooSmallError, PipelineError, ShoalError

_OURS = re.compile(r"shoal\.errors\.(\w+): (.+)")
"""The last line of a worker's traceback, where it raised one of ours."""

_HEAP = ("java.lang.OutOfMemoryError", "must be at least", "Too small maximum heap", "Could not reserve enough space")


@contextlib.contextmanager
def explained(*, heap_mb: int) -> Iterator[None]:
    """Raises one of our errors for what Spark raises in the block, where there is one that says it."""
    try:
        yield
    except ShoalError:
        raise
    except Exception as error:
        told = explain(error, heap_mb=heap_mb)
        if told is None:
            raise
        raise told from error


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
    if hasattr(error, "java_exception"):  # it can be asked for its words only as long as Java runs
        causes = [line.removeprefix("Caused by: ") for line in text.splitlines() if line.startswith("Caused by: ")]
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return PipelineError(f"Spark failed: {(causes or lines or ['no reason given'])[-1 if causes else 0]}")
    return None
