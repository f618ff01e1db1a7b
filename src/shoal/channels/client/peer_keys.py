"""The keys that a subscriber shares with publishers, so that it can ask them for missing messages.

Owns the keys and the questions to agents about them. A publisher derives the key from its own; a subscriber gets it
from any agent, once per publisher. While two generations of the agents' secret are in force there are two keys: a new
publisher has only the newer one, one that was away only the older one. A question is asked with the key that the
publisher answered with last, or the newer one; if it is repeated, with both.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Final

from shoal.wire import control
from shoal.wire.identity import KEY_BYTES, ClientKey

PEER_KEYS_MAX: Final = 4096
"""Publishers whose keys are remembered. Beyond it the oldest key is dropped, and asked for again when it is needed."""


class PeerKeys:
    """The peer keys of one client. `own` are its own keys by generation; there are none with scheme 0, which needs
    none."""

    def __init__(self, own: dict[int, ClientKey]) -> None:
        self._own = own
        self._keys: dict[int, dict[int, bytes]] = {}
        """By publisher and generation; the one to ask with first comes first."""
        self._asked: dict[int, int] = {}
        self._waiting: dict[int, dict[Hashable, None]] = {}

    def key(self, publisher: int, generation: int) -> bytes | None:
        """The key shared with a publisher; None if it is not known."""
        return self._keys.get(publisher, {}).get(generation)

    def seals(self, publisher: int, repeated: bool) -> list[control.Seal | None]:
        """Authenticate one request to a publisher, each a copy of it: one, or of a `repeated` request as many as there
        are keys. None with scheme 0, or if no key is known."""
        known = list(self._keys.get(publisher, {}).items())
        return [control.asking(key, generation) for generation, key in known[: None if repeated else 1]] or [None]

    def answered(self, publisher: int, generation: int) -> None:
        """A publisher has answered with its key of a generation: it is asked with that one first."""
        known = self._keys.get(publisher)
        if known is not None and generation in known:
            self._keys[publisher] = {generation: known.pop(generation)} | known

    def retain(self, generations: Collection[int]) -> None:
        """Forgets the keys of all other generations."""
        kept = {
            peer: {gen: key for gen, key in keys.items() if gen in generations} for peer, keys in self._keys.items()
        }
        self._keys = {peer: keys for peer, keys in kept.items() if keys}

    def lacks(self, publisher: int) -> bool:
        """Whether a publisher cannot be asked before an agent has told its key."""
        return bool(self._own) and publisher not in self._keys

    def asked(self, nonce: int, publisher: int, timer: Hashable) -> None:
        """An agent is asked for a key; `timer` is set when it has come."""
        self._asked[nonce] = publisher
        if len(self._asked) > PEER_KEYS_MAX:
            del self._asked[next(iter(self._asked))]
        self._waiting.setdefault(publisher, {})[timer] = None
        if len(self._waiting) > PEER_KEYS_MAX:
            del self._waiting[next(iter(self._waiting))]

    def introduced(self, nonce: int, introduced: control.Introduced, generation: int) -> list[Hashable]:
        """Takes an agent's answer, which is sealed with this client's key of a generation; returns the timers that
        waited for it."""
        own, peer = self._own.get(generation), introduced.peer
        if own is None or self._asked.get(nonce) != peer:
            return []
        keys = sorted((gen, sealed) for gen, sealed in introduced.keys if len(sealed) == KEY_BYTES)
        if not keys:
            return []
        del self._asked[nonce]
        self._keys[peer] = {gen: own.sealed(sealed, nonce, peer, gen) for gen, sealed in reversed(keys)}
        if len(self._keys) > PEER_KEYS_MAX:
            del self._keys[next(iter(self._keys))]
        return list(self._waiting.pop(introduced.peer, ()))
