"""Hellos that an agent cannot answer yet, because a resync is not over or there is no ring.

Owns their order and their number.
"""

from __future__ import annotations

from typing import Final

from shoal.wire import control

HELLOS_DEFERRED_MAX: Final = 100_000
"""Hellos that wait. Clients whose Hello does not fit ask again."""


class DeferredHellos:
    """The Hellos of one agent that wait for an answer, in the order of arrival."""

    def __init__(self) -> None:
        self._hellos: list[tuple[int, int, control.Hello]] = []

    def add(self, client: int, number: int, hello: control.Hello) -> None:
        """Keeps a Hello for later, with the client and the number of its head."""
        if len(self._hellos) < HELLOS_DEFERRED_MAX:
            self._hellos.append((client, number, hello))

    def withdraw(self, client: int, number: int, bye: control.Bye) -> None:
        """Drops the Hellos of a subscriber that has left; an answer would register it again. Hellos of publishers stay,
        and those with a higher number than the Bye."""
        left = client, bye.name, bye.pattern
        self._hellos = [
            (asker, sent, hello)
            for asker, sent, hello in self._hellos
            if hello.publisher or (asker, hello.name, hello.pattern) != left or 0 < number < sent
        ]

    def take(self) -> list[tuple[int, int, control.Hello]]:
        """All of them, to be answered now."""
        hellos, self._hellos = self._hellos, []
        return hellos
