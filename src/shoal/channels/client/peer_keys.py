"""The keys that a subscriber shares with publishers, so that it can ask them for missing messages.

Owns the keys and the questions to agents about them. A publisher derives the key from its own; a subscriber gets it
from any agent, once per publisher.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from shoal.wire import control
from shoal.wire.identity import KEY_BYTES, ClientKey

PEER_KEYS_MAX: Final = 4096
"""Publishers whose keys are remembered. Beyond it the oldest key is dropped, and asked for again when it is needed."""


class PeerKeys:
    """The peer keys of one client; `own` is None with scheme 0, which needs none."""

    def __init__(self, own: ClientKey | None) -> None:
        self._own = own
        self._keys: dict[int, tuple[int, bytes]] = {}
        self._asked: dict[int, int] = {}
        self._waiting: dict[int, dict[Hashable, None]] = {}

    def key(self, publisher: int) -> bytes | None:
        """The key shared with a publisher; None if it is not known."""
        known = self._keys.get(publisher)
        return known[1] if known is not None else None

    def seal(self, publisher: int) -> control.Seal | None:
        """Authenticates requests to a publisher whose key is known; None with scheme 0."""
        known = self._keys.get(publisher)
        return control.asking(known[1], known[0]) if known is not None else None

    def lacks(self, publisher: int) -> bool:
        """Whether a publisher cannot be asked before an agent has told its key."""
        return self._own is not None and publisher not in self._keys

    def asked(self, nonce: int, publisher: int, timer: Hashable) -> None:
        """An agent is asked for a key; `timer` is set when it has come."""
        self._asked[nonce] = publisher
        if len(self._asked) > PEER_KEYS_MAX:
            del self._asked[next(iter(self._asked))]
        self._waiting.setdefault(publisher, {})[timer] = None
        if len(self._waiting) > PEER_KEYS_MAX:
            del self._waiting[next(iter(self._waiting))]

    def introduced(self, nonce: int, introduced: control.Introduced) -> list[Hashable]:
        """Takes an agent's answer; returns the timers that waited for it."""
        if self._own is None or self._asked.get(nonce) != introduced.peer:
            return []
        generation, sealed = max(introduced.keys, default=(0, b""))
        if len(sealed) != KEY_BYTES:
            return []
        del self._asked[nonce]
        self._keys[introduced.peer] = generation, self._own.sealed(sealed, nonce, introduced.peer, generation)
        if len(self._keys) > PEER_KEYS_MAX:
            del self._keys[next(iter(self._keys))]
        return list(self._waiting.pop(introduced.peer, ()))
