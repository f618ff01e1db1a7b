"""What callers of a bus wait for, and what they must be told later: subscriptions on their way, refused
messages.

Owns the small objects between the adapter and the coroutines of the application.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from shoal.channels.client.context import Refused
from shoal.channels.client.subscription import Subscription as CoreSubscription
from shoal.errors import BusClosedError, PublishError

REFUSALS_MAX: Final = 100
"""Refused messages that are remembered one by one; of more, only the number is."""


class Listener(Protocol):
    """Who is told about a subscription."""

    def wake(self) -> None:
        """The inbox has something new, or the subscription has come into force."""

    def end(self) -> None:
        """The bus is closed; nothing more will come."""


class Forming:
    """The listener of a subscription until it is in force."""

    def __init__(self, core: CoreSubscription, done: asyncio.Future[None]) -> None:
        self._core = core
        self.done = done

    def wake(self) -> None:
        """See `Listener`."""
        if self._core.in_force:
            resolve(self.done)

    def end(self) -> None:
        """See `Listener`."""
        fail(self.done, BusClosedError())


class Refusals:
    """Messages that servers have refused and that no caller has been told about yet."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[Refused] = []

    def remember(self, refused: Refused) -> None:
        """Keeps a refusal for the next call."""
        self.count += 1
        if len(self._first) < REFUSALS_MAX:
            self._first.append(refused)

    def raise_all(self) -> None:
        """Raises what was refused since the last time, if anything was."""
        if self.count:
            error = refusal(self._first, self.count)
            self.count, self._first = 0, []
            raise error


def refusal(refused: list[Refused], count: int = 1) -> PublishError:
    """The error for messages that servers refused."""
    channels = sorted({effect.channel.decode("utf-8", "backslashreplace") for effect in refused})
    named = ", ".join(channels[:5]) + (" ..." if len(channels) > 5 else "")
    messages = "a message" if count == 1 else f"{count} messages"
    return PublishError(
        f"a server refused {messages} on {named} ({refused[0].error}); nobody received what was refused",
        do="check the rights of the user, and the server's memory",
    )


def resolve(waiter: asyncio.Future[None]) -> None:
    """Ends a wait, unless it has ended."""
    if not waiter.done():
        waiter.set_result(None)


def fail(waiter: asyncio.Future[None] | asyncio.Future[int], error: Exception) -> None:
    """Ends a wait with an error, unless it has ended."""
    if not waiter.done():
        waiter.set_exception(error)
