"""A cache of homes: where the ring places channels without an entry. Hashing a million names takes seconds.

Owns the cache only; the ring decides the homes. The caller keeps the cache from window to window.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Final

import numpy as np

from shoal.balance.columns import Hosts32
from shoal.plan.ring import Ring

HOMES_MAX: Final = 4_000_000
"""Names in the cache. Above it all are dropped except those of the current call."""


class Homes:
    """The homes of channels in the ring of the last call. Changes of the ring's guests do not invalidate it."""

    def __init__(self, names_max: int = HOMES_MAX) -> None:
        self._names_max = names_max
        self._homes: tuple[str, ...] = ()
        self._known: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, ring: Ring, names: Sequence[bytes]) -> Hosts32:
        """The home of each channel, as an index into `ring.homes`."""
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
