"""One verifier for a whole simulated run: each signature is checked once, whoever is shown it.

Owns nothing but the memory. What is forged is refused each time.
"""

from __future__ import annotations

from shoal.plan.entry import Entry
from shoal.plan.ring import Ring
from shoal.plan.signing import Verifier


class RunVerifier(Verifier):
    """Opens what was signed, and remembers it."""

    def __init__(self, public: bytes) -> None:
        super().__init__(public)
        self._rings: dict[bytes, Ring] = {}
        self._entries: dict[bytes, Entry] = {}

    def ring(self, data: bytes) -> Ring:
        """The ring in `data`; ForgedEntryError if the cluster did not sign it."""
        ring = self._rings.get(data)
        if ring is None:
            ring = self._rings[data] = super().ring(data)
        return ring

    def entry(self, data: bytes) -> Entry:
        """The plan entry in `data`; ForgedEntryError if the cluster did not sign it."""
        entry = self._entries.get(data)
        if entry is None:
            entry = self._entries[data] = super().entry(data)
        return entry
