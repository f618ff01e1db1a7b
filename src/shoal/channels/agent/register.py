"""The agent's register: which client subscribes to which channels and patterns on its server.

Owns what Redis does not report: the clients behind the counts, and the revision of the channel's entry that each has
acknowledged. Hello and Present add to it, Bye and lost connections remove from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shoal.limits import DEFAULT_LIMITS, Limits


class Register:
    """Clients by channel and by pattern, and names by client, within `registered_max` and `registered_per_client_max`.
    A subscription takes about 540 bytes."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._total_max = limits.registered_max
        self._client_max = limits.registered_per_client_max
        self._channels: dict[bytes, set[int]] = {}
        self._patterns: dict[bytes, set[int]] = {}
        self._clients: dict[int, dict[tuple[bool, bytes], int]] = {}
        self._acknowledged: dict[bytes, dict[int, int]] = {}
        self._total = 0

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
        """All clients with a subscription."""
        return self._clients.keys()

    def add(self, client: int, name: bytes, pattern: bool, number: int = 0) -> bool:
        """A client subscribes, with a Hello of this number; a repetition changes nothing. Returns False and does
        nothing if there is no room."""
        known = self._clients.get(client, ())
        if (pattern, name) not in known:
            if self._total >= self._total_max or len(known) >= self._client_max:
                return False
            self._total += 1
        (self._patterns if pattern else self._channels).setdefault(name, set()).add(client)
        names = self._clients.setdefault(client, {})
        names[pattern, name] = max(number, names.get((pattern, name), 0))
        return True

    def remove(self, client: int, name: bytes, pattern: bool, number: int = 0) -> bool:
        """A client has left a channel or pattern; an unknown one is no error. Returns False and does nothing if the Bye
        has a lower number than the client's last Hello (0 is never lower)."""
        names = self._clients.get(client)
        if names is not None and 0 < number < names.get((pattern, name), 0):
            return False
        self._remove(name, pattern, client)
        if names is not None:
            if names.pop((pattern, name), None) is not None:
                self._total -= 1
            if not names:
                del self._clients[client]
        return True

    def remove_client(self, client: int) -> None:
        """A client has left; removes all of its subscriptions."""
        for pattern, name in self._clients.pop(client, ()):
            self._total -= 1
            self._remove(name, pattern, client)

    def acknowledge(self, client: int, name: bytes, revision: int) -> None:
        """A subscriber follows the channel's entry of this revision; ignored if it is not registered."""
        if client in self._channels.get(name, ()):
            acknowledged = self._acknowledged.setdefault(name, {})
            acknowledged[client] = max(revision, acknowledged.get(client, 0))

    def acknowledged(self, client: int, name: bytes) -> int:
        """The newest revision that a subscriber has acknowledged, 0 at first: a Hello alone acknowledges nothing."""
        acknowledged = self._acknowledged.get(name)
        return acknowledged.get(client, 0) if acknowledged else 0

    def clear(self) -> None:
        """The server has restarted: all subscriptions have to be registered again."""
        self._channels.clear()
        self._patterns.clear()
        self._clients.clear()
        self._acknowledged.clear()
        self._total = 0

    def _remove(self, name: bytes, pattern: bool, client: int) -> None:
        table = self._patterns if pattern else self._channels
        if not pattern and name in self._acknowledged:
            self._acknowledged[name].pop(client, None)
            if not self._acknowledged[name]:
                del self._acknowledged[name]
        clients = table.get(name)
        if clients is not None:
            clients.discard(client)
            if not clients:
                del table[name]
