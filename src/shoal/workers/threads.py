"""Plain functions as handlers: they run in threads while the event loop keeps the leases of their jobs.

Owns the threads of one worker. A thread cannot be stopped from outside, so a call ends when its function has returned,
with the function's outcome, also if the caller was cancelled meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shoal.queues.job import Job

Outcome = BaseException | None


class HandlerThreads:
    """Up to `count` threads that run one function."""

    def __init__(self, function: Callable[[Job], object], count: int, name: str) -> None:
        self._function = function
        self._closed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def __call__(self, job: Job) -> None:
        """Run the function; raises what it raises."""
        context = contextvars.copy_context()
        running: asyncio.Future[Any] = asyncio.get_running_loop().run_in_executor(
            self._pool, context.run, self._call, job
        )
        while not running.done():
            if self._closed.done():
                raise asyncio.CancelledError
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([running, self._closed], return_when=asyncio.FIRST_COMPLETED)
        outcome: Outcome = running.result()
        if outcome is not None:
            raise outcome

    def close(self) -> None:
        """Take no more calls, and cancel the callers of threads that still run. The threads are left alone."""
        if not self._closed.done():
            self._closed.set_result(None)
        self._pool.shutdown(wait=False)

    def _call(self, job: Job) -> Outcome:
        """The error is returned, not raised: a future takes no StopIteration."""
        try:
            returned = self._function(job)
            if isinstance(returned, Coroutine | Generator | AsyncGenerator):  # nothing of the handler has run
                if isinstance(returned, Coroutine):
                    returned.close()
                raise TypeError(f"the handler returned a {type(returned).__name__}: write `async def handle(job)`")
        except StopIteration as error:
            changed = RuntimeError("the handler raised StopIteration")
            changed.__cause__ = error
            return changed
        except BaseException as error:
            return error
        return None
