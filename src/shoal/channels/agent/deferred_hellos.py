"""Hellos that an agent cannot answer yet: a resync is not over, or there is no ring.

Owns their order and their number.
"""

from __future__ import annotations

from typing import Final

from shoal.wire import control

HELLOS_DEFERRED_MAX: Final = 100_000
"""Hellos that wait. Who does not fit asks again."""


class DeferredHellos:
    """The hellos of one agent that wait for an answer, in the order in which they came."""

    def __init__(self) -> None:
        self._hellos: list[control.Hello] = []

    def add(self, hello: control.Hello) -> None:
        """Keeps a hello for later."""
        if len(self._hellos) < HELLOS_DEFERRED_MAX:
            self._hellos.append(hello)

    def withdraw(self, bye: control.Bye) -> None:
        """A subscriber has left: an answer to what it asked before would register it again, and for good. Those who
        publish have nothing to do with it."""
        left = bye.client, bye.name, bye.pattern
        self._hellos = [
            hello
            for hello in self._hellos
            if hello.publisher or (hello.client, hello.name, hello.pattern) != left or 0 < bye.nonce < hello.nonce
        ]

    def take(self) -> list[control.Hello]:
        """All of them, to be answered now."""
        hellos, self._hellos = self._hellos, []
        return hellos
