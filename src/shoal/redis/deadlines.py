"""How long a call may take: `socket_timeout` and `socket_connect_timeout`.

Owns their meaning on a cluster. In redis-py they limit one read and one connection attempt; here they limit a whole
call, because the bus retries by itself: a call ends after `socket_timeout`, a call that has to open the cluster first
gets `socket_connect_timeout` in addition. None means no limit but those of the bus.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Final

from redis import exceptions

from shoal.errors import ShoalError
from shoal.redis.conversion import redis_error

DEFAULT_S: Final = 5.0
"""redis-py's default of both settings."""


class Deadlines:
    """The limits of one client's calls."""

    def __init__(self, answer_s: float | None, connect_s: float) -> None:
        self.connect_s = connect_s
        """`socket_connect_timeout`: how long no server of a subscription may be reachable before its reader is told."""
        self.answer = TimeLimit(answer_s)
        """`socket_timeout`: the limit of a call on an open cluster, and of `aclose`."""
        self.opening = TimeLimit(None if answer_s is None else connect_s + answer_s)
        """The limit of opening the cluster: connecting, and an agent's answer."""


class TimeLimit:
    """A time limit of many calls, which share one timer.

    All calls have the same limit, so they reach it in the order in which they began. The timer is set for the oldest
    call; a call that ends in time only leaves the table. (A timer of its own for each call costs 4 us of CPU.)
    """

    __slots__ = ("_calls", "_loop", "_timer", "seconds")

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._calls: dict[Deadline, float] = {}  # the time at which each ends, oldest first
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: Deadline, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the limit of a call."""
        assert self.seconds is not None
        if loop is not self._loop:  # of an earlier asyncio.run: its calls and its timer ended with it
            self._loop, self._timer, self._calls = loop, None, {}
        ends_at = loop.time() + self.seconds
        self._calls[call] = ends_at
        if self._timer is None:
            self._timer = loop.call_at(ends_at, self._expire)

    def remove(self, call: Deadline) -> None:
        """Ends the limit of a call."""
        self._calls.pop(call, None)

    def _expire(self) -> None:
        assert self._loop is not None
        self._timer = None
        now = self._loop.time()
        for call, ends_at in list(self._calls.items()):
            if ends_at > now:
                self._timer = self._loop.call_at(ends_at, self._expire)
                return
            del self._calls[call]
            call.expire()


class Deadline:
    """Raises redis-py's TimeoutError if a block reaches a time limit, and redis-py's errors instead of Shoal's."""

    __slots__ = ("_cancelling", "_consequence", "_expired", "_limit", "_task")

    def __init__(self, limit: TimeLimit, consequence: str) -> None:
        """The consequence is what the caller should know about a call that was not answered in time."""
        self._limit = limit
        self._consequence = consequence
        self._expired = False

    def __enter__(self) -> None:
        if self._limit.seconds is not None:
            task = asyncio.current_task()
            assert task is not None, "calls run in a task"
            self._task: asyncio.Task[Any] = task
            self._cancelling = task.cancelling()
            self._limit.add(self, task.get_loop())

    def expire(self) -> None:
        """Called at the deadline: interrupts the task that is in the block."""
        self._expired = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._expired:
            # as in asyncio.timeout: a task that was also cancelled from elsewhere stays cancelled
            if self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
                raise exceptions.TimeoutError(
                    f"no answer within {self._limit.seconds:g} s: {self._consequence} (check `shoal status`)"
                ) from error
        else:
            self._limit.remove(self)
        if isinstance(error, ShoalError):
            raise redis_error(error) from error
