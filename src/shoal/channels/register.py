"""The agent's register: which client subscribes to what on its server.

Owns what Redis does not tell: the names behind the numbers. It is filled by hellos and answers to roll-calls, and
emptied by byes and by connections that are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


class Register:
    """Clients by channel and by pattern, and the other way round."""

    def __init__(self) -> None:
        self._channels: dict[bytes, set[int]] = {}
        self._patterns: dict[bytes, set[int]] = {}
        self._clients: dict[int, set[tuple[bool, bytes]]] = {}

    @property
    def channels(self) -> Mapping[bytes, Collection[int]]:
        """The subscribers of each channel."""
        return self._channels

    @property
    def patterns(self) -> Mapping[bytes, Collection[int]]:
        """The subscribers of each pattern."""
        return self._patterns

    @property
    def clients(self) -> Collection[int]:
        """Everyone who subscribes to anything."""
        return self._clients.keys()

    def add(self, client: int, name: bytes, pattern: bool) -> None:
        """A client subscribes; once more is no change."""
        (self._patterns if pattern else self._channels).setdefault(name, set()).add(client)
        self._clients.setdefault(client, set()).add((pattern, name))

    def remove(self, client: int, name: bytes, pattern: bool) -> None:
        """A client has left a channel or pattern; never having been there is no error."""
        self._remove(self._patterns if pattern else self._channels, name, client)
        names = self._clients.get(client)
        if names is not None:
            names.discard((pattern, name))
            if not names:
                del self._clients[client]

    def remove_client(self, client: int) -> None:
        """A client is gone altogether."""
        for pattern, name in self._clients.pop(client, ()):
            self._remove(self._patterns if pattern else self._channels, name, client)

    def clear(self) -> None:
        """The server has restarted: nobody subscribes to anything until they say so again."""
        self._channels.clear()
        self._patterns.clear()
        self._clients.clear()

    @staticmethod
    def _remove(table: dict[bytes, set[int]], name: bytes, client: int) -> None:
        clients = table.get(name)
        if clients is not None:
            clients.discard(client)
            if not clients:
                del table[name]
