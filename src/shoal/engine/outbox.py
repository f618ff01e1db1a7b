"""What a process of an engine posts: letters to clients, and messages to other processes, in order.

Owns what waits for room in the publish buffer, and who is told of a confirmation.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from shoal.engine.exit_point import Post
from shoal.engine.links import Batch, ToHead, ToMember, encode, fan_channel, head_channel, member_channel
from shoal.engine.measures import POSTING, Meter
from shoal.engine.messages import seat_channel
from shoal.errors import NotConfirmedError, ShoalError
from shoal.message import Item


class Listening(Protocol):
    """A subscription to one of Shoal's own channels."""

    def get_nowait(self) -> Item | None:
        """Return the next item if there is one."""

    async def aclose(self) -> None:
        """End it."""


class Wire(Protocol):
    """The bus, as an engine uses it."""

    def post(self, channel: bytes, payload: bytes) -> asyncio.Future[int] | None:
        """Publish; return a future for the confirmation, or None while the buffer is full."""

    async def listen(self, channel: bytes, heard: Callable[[], None]) -> Listening:
        """Subscribe; `heard` is called when there are new items."""


class Outbox:
    """Messages of one process in one instance. `failed` is set when one is refused: then the instance cannot go on,
    because what it carries is not delivered. `changed` is called after each confirmation."""

    def __init__(
        self,
        engine: str,
        wire: Wire,
        confirmed: Callable[[int], None],
        changed: Callable[[], None],
        meter: Meter | None = None,
    ) -> None:
        self._meter = meter or Meter()
        self._engine = engine
        self._wire = wire
        self._confirmed = confirmed
        self._changed = changed
        self._waiting: deque[tuple[bytes, bytes, int]] = deque()
        """Channel, payload, and the group that is told back; 0 for messages to processes."""
        self.failed = ""

    def __len__(self) -> int:
        return len(self._waiting)

    def letters(self, posts: Iterable[Post]) -> None:
        """Letters to clients."""
        for post in posts:
            self._waiting.append((seat_channel(self._engine, post.client), post.payload, post.group))

    def links(self, messages: Iterable[tuple[str, ToMember]]) -> None:
        """Messages to members."""
        for name, message in messages:
            self._waiting.append((member_channel(self._engine, name), encode(message), 0))

    def fan(self, batches: Iterable[Batch]) -> None:
        """Batches to all members."""
        for batch in batches:
            self._waiting.append((fan_channel(self._engine, batch.source), encode(batch), 0))

    def head(self, message: ToHead) -> None:
        """A message to the head and to access points."""
        self._waiting.append((head_channel(self._engine), encode(message), 0))

    def post(self) -> None:
        """Posts as much as there is room for."""
        if self._waiting:
            self._meter.begin()
            self._post()
            self._meter.lap(POSTING)

    def _post(self) -> None:
        waiting = self._waiting
        while waiting:
            channel, payload, group = waiting[0]
            done = self._wire.post(channel, payload)
            if done is None:
                return
            done.add_done_callback(lambda done, group=group: self._answered(group, done))  # type: ignore[misc]
            waiting.popleft()

    def _answered(self, group: int, done: asyncio.Future[int]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            if group:
                self._confirmed(group)
                self._changed()
        elif isinstance(error, ShoalError):
            self.failed = str(error) if isinstance(error, NotConfirmedError) else f"a letter was refused: {error}"
            self._changed()
