"""Queues of messages that an agent publishes on other servers, one queue for each server.

Owns the order, the bound and the repetition of forwarded messages. `forward_links` owns the connections.

    add -> queue --take, link open, window not full--> sent --replied--> done
                      ^------- link lost: everything without a reply is sent again --+

Messages that are sent again after a lost connection may arrive twice; subscribers drop duplicates. Above
`forward_buffer_bytes_max` the oldest messages that are not in flight are dropped and counted; subscribers see the hole
and ask the publisher.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final, NamedTuple

from shoal.wire.commands import Command

WINDOW_BYTES: Final = 1 << 20
"""Bytes in flight, without a reply, to one server; at least one command is always allowed."""

COMMAND_BYTES: Final = 64
"""Memory of a queued command beside its channel and its payload."""


class ForwardMark(NamedTuple):
    """A piece of the queue to one server: from one position up to another."""

    start: int
    end: int


class _Queue:
    """Commands for one server, numbered from 0 without end."""

    def __init__(self) -> None:
        self.waiting: deque[Command] = deque()
        self.sent: deque[Command] = deque()
        self.waiting_bytes = 0
        self.sent_bytes = 0
        self.added = 0
        self.lost_before = 0
        self.open = False

    @property
    def done(self) -> int:
        return self.added - len(self.sent) - len(self.waiting)

    def add(self, command: Command) -> None:
        self.added += 1
        self.waiting.append(command)
        self.waiting_bytes += _size(command)

    def bound(self, bytes_max: int) -> int:
        """Drops the oldest commands that are not in flight; returns their number."""
        dropped = 0
        while self.sent_bytes + self.waiting_bytes > bytes_max and len(self.waiting) > 1:
            self.waiting_bytes -= _size(self.waiting.popleft())
            dropped += 1
        if dropped:
            self.lost_before = self.added - len(self.waiting)
        return dropped

    def clear(self) -> None:
        """Drops all commands that are not in flight."""
        self.waiting.clear()
        self.waiting_bytes = 0
        self.lost_before = self.added

    def take(self) -> list[Command]:
        """The commands that may be sent now."""
        commands: list[Command] = []
        while self.waiting and (not self.sent or self.sent_bytes + _size(self.waiting[0]) <= WINDOW_BYTES):
            command = self.waiting.popleft()
            size = _size(command)
            self.waiting_bytes -= size
            self.sent_bytes += size
            self.sent.append(command)
            commands.append(command)
        return commands

    def take_replies(self, count: int) -> None:
        for _ in range(min(count, len(self.sent))):
            self.sent_bytes -= _size(self.sent.popleft())

    def take_back(self) -> None:
        """Queues the commands in flight again: they may not have arrived."""
        self.waiting.extendleft(reversed(self.sent))
        self.waiting_bytes += self.sent_bytes
        self.sent.clear()
        self.sent_bytes = 0


def _size(command: Command) -> int:
    return COMMAND_BYTES + len(command[1]) + len(command[2])


class Forwards:
    """The queues to all other servers. `dropped` counts commands that did not fit."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._queues: dict[str, _Queue] = {}
        self._ready: set[str] = set()
        self.dropped = 0

    @property
    def held_bytes(self) -> int:
        """Bytes in all queues."""
        return sum(queue.waiting_bytes + queue.sent_bytes for queue in self._queues.values())

    def add(self, server: str, channel: bytes, blob: bytes) -> None:
        """Publishes a blob on a channel of another server, behind everything that goes there already."""
        queue = self._queue(server)
        queue.add((b"PUBLISH", channel, blob))
        if queue.sent_bytes + queue.waiting_bytes > self._bytes_max:
            self.dropped += queue.bound(self._bytes_max)
        if queue.open:
            self._ready.add(server)

    def _queue(self, server: str) -> _Queue:
        queue = self._queues.get(server)
        if queue is None:
            queue = self._queues[server] = _Queue()
        return queue

    def take(self) -> dict[str, list[Command]]:
        """The commands to be sent now, by server."""
        if not self._ready:
            return {}
        ready, self._ready = self._ready, set()
        return {server: commands for server in sorted(ready) if (commands := self._queues[server].take())}

    def opened(self, server: str) -> None:
        """A connection to the server is open."""
        queue = self._queue(server)
        queue.take_back()
        queue.open = True
        self._ready.add(server)

    def lost(self, server: str) -> None:
        """The connection to the server is lost."""
        queue = self._queue(server)
        queue.take_back()
        queue.open = False
        self._ready.discard(server)
        self.dropped += queue.bound(self._bytes_max)

    def replied(self, server: str, count: int) -> None:
        """The server has answered the `count` oldest commands that were sent."""
        queue = self._queue(server)
        queue.take_replies(count)
        if queue.open and queue.waiting:
            self._ready.add(server)

    def keep(self, servers: Collection[str]) -> None:
        """Drops the commands for servers that have left the ring."""
        for server in [server for server in self._queues if server not in servers]:
            self._queues[server].clear()
            if not self._queues[server].open:
                del self._queues[server]

    # Marks, to ask whether something has arrived

    def position(self, server: str) -> int:
        """The position of the next command to the server."""
        return self._queue(server).added

    def arrived(self, server: str, mark: ForwardMark) -> bool | None:
        """Whether the server has replied to a piece of the queue; None if some of it was dropped."""
        queue = self._queues.get(server)
        if queue is None:
            return True
        if queue.lost_before > mark.start:
            return None
        return queue.done >= mark.end
