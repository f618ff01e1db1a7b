"""Objects that the callers of a bus wait for: pending subscriptions and refused messages.

Owns the small objects between the shell and the coroutines of the application.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from shoal.channels.client.context import AgentRefused, PublishRefused
from shoal.channels.client.subscription import SubscriptionCore
from shoal.errors import BusClosedError, IdentityExpiredError, PublishError, ShoalError, VersionError
from shoal.wire import control

REFUSALS_MAX: Final = 100
"""Refused messages that are kept; beyond that only their number."""


class Listener(Protocol):
    """Is notified about a subscription."""

    def wake(self) -> None:
        """The inbox has a new item, or the subscription is in force."""

    def fail(self, error: ShoalError) -> None:
        """No server of the subscription can be used; the bus keeps trying."""

    def end(self) -> None:
        """The bus is closed; nothing more will arrive."""


class ItemNotice:
    """A listener that only hears of new items."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    def fail(self, error: ShoalError) -> None:
        """The bus keeps trying."""

    def end(self) -> None:
        """Nothing more will arrive."""


class PendingSubscription:
    """The listener of a subscription until it is in force."""

    def __init__(self, core: SubscriptionCore, done: asyncio.Future[None]) -> None:
        self._core = core
        self.done = done

    def wake(self) -> None:
        """See `Listener`."""
        if self._core.in_force:
            resolve(self.done)

    def fail(self, error: ShoalError) -> None:
        """See `Listener`."""
        fail(self.done, error)

    def end(self) -> None:
        """See `Listener`."""
        fail(self.done, BusClosedError())


class Refusals:
    """Refused messages that have not been raised to a caller yet."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[PublishRefused] = []
        self._abandoned: PublishError | None = None

    def remember(self, refused: PublishRefused) -> None:
        """Keep a refusal for the next call."""
        self.count += 1
        if len(self._first) < REFUSALS_MAX:
            self._first.append(refused)

    def abandon(self, count: int, error: PublishError) -> None:
        """Keep for the next call that messages may be lost."""
        self.count += count
        self._abandoned = error

    def raise_all(self) -> None:
        """Raise the refusals since the last call, if any."""
        if self.count:
            error = self._abandoned or refusal(self._first, self.count)
            self.count, self._first, self._abandoned = 0, [], None
            raise error


def refusal(refused: list[PublishRefused], count: int = 1) -> PublishError:
    """Return the error for refused messages."""
    channels = sorted({effect.channel.decode("utf-8", "backslashreplace") for effect in refused})
    named = ", ".join(channels[:5]) + (" ..." if len(channels) > 5 else "")
    messages = "a message" if count == 1 else f"{count} messages"
    return PublishError(
        f"a server refused {messages} on {named} ({refused[0].error}); refused messages were not delivered",
        do="check the user's permissions and the server's memory",
    )


def agent_refusal(refused: AgentRefused) -> VersionError | IdentityExpiredError | None:
    """Return the error for calls that need a server whose agent refuses this client; None if waiting may help."""
    if refused.code == control.REFUSED_VERSION:
        return _version_error(refused)
    if refused.code in (control.REFUSED_IDENTITY, control.REFUSED_SCHEME):
        return IdentityExpiredError(
            f"the agent of server {refused.server} does not accept the identity of this bus: {refused.text}",
            do="close this bus and open another one, which gets a new identity",
        )
    return None


def _version_error(refused: AgentRefused) -> VersionError:
    newer = refused.version_min > control.VERSION
    return VersionError(
        f"the agent of server {refused.server} speaks control messages of versions {refused.version_min} to "
        f"{refused.version_max}, this process speaks version {control.VERSION}",
        do="upgrade this process"
        if newer
        else "upgrade the agents of the cluster, or install the version that they run",
    )


def resolve(waiter: asyncio.Future[None]) -> None:
    """Resolve a waiter, unless it is done."""
    if not waiter.done():
        waiter.set_result(None)


def fail(waiter: asyncio.Future[None] | asyncio.Future[int], error: Exception) -> None:
    """Fail a waiter, unless it is done."""
    if not waiter.done():
        waiter.set_exception(error)
