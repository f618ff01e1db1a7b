"""Matches replies with the requests that wait for them.

Owns the queue of requests of one connection. `shoal.wire.connection` sends them and limits the wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import hiredis

from shoal.errors import ConnectError, ProtocolError
from shoal.wire.handshake import NO_REDIS

_CONFIRMATIONS: Final = (b"subscribe", b"unsubscribe", b"psubscribe", b"punsubscribe", b"ssubscribe", b"sunsubscribe")
"""Pushes that answer a command. Redis sends one push per channel, so a request here names one channel."""


class _Waiting:
    """A request in flight: the number of replies that it needs, and the replies so far."""

    __slots__ = ("answered", "count", "replies")

    def __init__(self, count: int, answered: asyncio.Future[list[Any]]) -> None:
        self.count = count
        self.answered = answered
        self.replies: list[Any] = []


class Answers:
    """The receiver of a connection in request mode. Replies go to requests, other pushes to `pushed`."""

    def __init__(self, where: str, pushed: Callable[[list[Any]], None] | None) -> None:
        self._where = where
        self._pushed = pushed
        self._waiting: deque[_Waiting] = deque()

    def expect(self, count: int, answered: asyncio.Future[list[Any]]) -> None:
        """Assign the next `count` unassigned replies to `answered`."""
        self._waiting.append(_Waiting(count, answered))

    def received(self, frames: list[Any]) -> None:
        """Assign frames to requests. A request whose caller was cancelled still consumes its replies."""
        for frame in frames:
            if isinstance(frame, hiredis.PushNotification) and not (frame and frame[0] in _CONFIRMATIONS):
                if self._pushed is not None:
                    self._pushed(frame)
                continue
            if not self._waiting:
                raise ProtocolError(f"{self._where} sent an unexpected reply", do=NO_REDIS)
            waiting = self._waiting[0]
            waiting.replies.append(frame)
            if len(waiting.replies) == waiting.count:
                self._waiting.popleft()
                if not waiting.answered.done():
                    waiting.answered.set_result(waiting.replies)

    def lost(self, error: Exception | None) -> None:
        """Fail all waiting requests."""
        for waiting in self._waiting:
            if not waiting.answered.done():
                waiting.answered.set_exception(
                    error or ConnectError(f"the connection to {self._where} was closed before the reply arrived")
                )
        self._waiting.clear()

    def can_send(self) -> None:
        """Do nothing: no sender waits here."""
