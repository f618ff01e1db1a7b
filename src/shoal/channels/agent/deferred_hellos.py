"""Hellos that an agent cannot answer yet, because a resync is not over or there is no ring.

Owns their order and their number. A client's next Hello for the same channel replaces the one before.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, TypeAlias

from shoal.wire import control

HELLOS_DEFERRED_MAX: Final = 100_000
"""Hellos that wait. Clients whose Hello does not fit ask again."""

_Key: TypeAlias = tuple[int, bytes, bool, int]


class DeferredHellos:
    """The Hellos of one agent that wait for an answer, in the order of arrival."""

    def __init__(self) -> None:
        self._hellos: dict[_Key, tuple[int, control.Hello]] = {}

    def __len__(self) -> int:
        return len(self._hellos)

    def add(self, client: int, number: int, hello: control.Hello) -> None:
        """Keeps a Hello for later, with the client and the number of its head."""
        key = client, hello.name, hello.pattern, hello.stream
        if len(self._hellos) < HELLOS_DEFERRED_MAX or key in self._hellos:
            self._hellos[key] = number, hello

    def withdraw(self, client: int, number: int, bye: control.Bye) -> None:
        """Drops the Hello of a subscriber that has left; an answer would register it again. Hellos of publishers stay,
        and one with a higher number than the Bye."""
        key = client, bye.name, bye.pattern, 0
        waiting = self._hellos.get(key)
        if waiting is not None and not 0 < number < waiting[0]:
            del self._hellos[key]

    def take(self, count_max: int) -> list[tuple[int, int, control.Hello]]:
        """The oldest ones, to be answered now."""
        keys = list(islice(self._hellos, count_max))
        return [(key[0], *self._hellos.pop(key)) for key in keys]

    def clear(self) -> None:
        """Drops all of them."""
        self._hellos.clear()
