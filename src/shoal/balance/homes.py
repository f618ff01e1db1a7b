"""Homes: where the ring puts channels without an entry, remembered because hashing a million names takes seconds.

Owns the memory, and nothing else: what it remembers is what the ring says. The caller keeps it from window to
window.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Final

import numpy as np

from shoal.balance.columns import Hosts32
from shoal.plan.ring import Ring

HOMES_MAX: Final = 4_000_000
"""Names that are remembered. Beyond, all are forgotten but those that are asked for."""


class Homes:
    """The homes of channels by one ring, the last that was asked about. Guests come and go without any change."""

    def __init__(self, names_max: int = HOMES_MAX) -> None:
        self._names_max = names_max
        self._homes: tuple[str, ...] = ()
        self._known: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, ring: Ring, names: Sequence[bytes]) -> Hosts32:
        """The home of each channel, as its place in `ring.homes`."""
        if ring.homes != self._homes:
            self._homes, self._known = ring.homes, {}
        found = np.fromiter(map(self._known.get, names, repeat(-1)), np.int32, len(names))
        missing = np.flatnonzero(found < 0)
        if len(missing):
            if len(self._known) + len(missing) > self._names_max:
                self._known = dict(zip(names, found.tolist(), strict=True))
            places = {server: place for place, server in enumerate(self._homes)}
            unknown = [names[index] for index in missing.tolist()]
            news = [places[home] for home in ring.homes_of(unknown)]
            self._known.update(zip(unknown, news, strict=True))
            found[missing] = news
        return found
