"""Control messages that wait for a turn of the agent.

Owns their order and their size: each client's messages in the server's order, and one message of each client in turn,
so that no client waits behind the flood of another. A queued message has been metered, but not decoded.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from shoal.limits import MIB

QUEUE_BYTES_MAX: Final = 32 * MIB
"""Size of all messages that wait. Above it, one message of each client may wait, up to twice this size; others are
dropped."""
MESSAGE_BYTES: Final = 100
"""Memory of a message besides its bytes, roughly."""


class ControlQueue:
    """The queue of one agent."""

    def __init__(self) -> None:
        self._clients: dict[int, deque[bytes]] = {}
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._clients)

    def __contains__(self, client: int) -> bool:
        """Whether a message of a client waits."""
        return client in self._clients

    def has_room(self, client: int) -> bool:
        """Whether a message of a client can wait: no client takes the room of others."""
        return self._bytes < (QUEUE_BYTES_MAX if client in self._clients else 2 * QUEUE_BYTES_MAX)

    def put(self, client: int, data: bytes) -> None:
        """Adds a message of a client. The caller has checked `has_room`."""
        self._clients.setdefault(client, deque()).append(data)
        self._bytes += len(data) + MESSAGE_BYTES

    def take(self) -> tuple[int, bytes]:
        """The next client and its oldest message; StopIteration if there is none."""
        client = next(iter(self._clients))
        waiting = self._clients.pop(client)
        data = waiting.popleft()
        if waiting:
            self._clients[client] = waiting
        self._bytes -= len(data) + MESSAGE_BYTES
        return client, data

    def clear(self) -> None:
        """The connection is lost, and the messages with it."""
        self._clients.clear()
        self._bytes = 0
