"""A subscription from the application's view: messages and gaps, in order, for one reader at a time.

Owns the reader's wait. The router fills the inbox.

    async with bus.subscribe("tile.3.4") as messages:      # in force when the block begins
        async for item in messages:                        # Message, Gap or Retraction
            ...
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from shoal.bus.waiters import Listener, resolve
from shoal.channels.client.inbox import InboxStatistics
from shoal.channels.client.subscription import SubscriptionCore
from shoal.errors import BusClosedError, ConnectError, ShoalError, SubscribeError, UnreachableError
from shoal.filters.filter import Filter
from shoal.message import Gap, Item, Message

if TYPE_CHECKING:
    from shoal.bus.client import Bus
    from shoal.bus.shell import BusShell

BURST_ITEMS: Final = 64
"""Number of items after which a reader that never waited checks the clock. The inbox does not grow while the reader
continues, so the check is made whenever the number of items left is a multiple of this.
"""

BURST_S_MAX: Final = 0.005
"""How long a reader may continue without yielding to other tasks. It is longer than the network needs for one read, so
that a fast reader keeps up.
"""


class Subscription:
    """Messages of one channel, or of all channels that a pattern matches.

    Iteration ends when the subscription is closed and empty. It raises BusClosedError if the bus was closed. While no
    server of the subscription can be used, it raises UnreachableError after each `unreachable_s`; if servers refuse the
    login or the subscription, it raises AuthenticationError or SubscribeError at once. The subscription stays open:
    iterate again to wait for more.
    """

    def __init__(
        self,
        bus: Bus,
        name: bytes,
        pattern: bool,
        where: Filter | None = None,
        since_us: int | None = None,
        listener: Listener | None = None,
    ) -> None:
        """See `Bus.subscribe`. A `listener` hears of new items, which it takes with `get_nowait`, and of the end."""
        self.name = name.decode("utf-8", "surrogateescape")
        """The channel or the pattern."""
        self.is_pattern = pattern
        self.where = where
        """Only messages whose attributes match are delivered; None for all."""
        self.since_us = since_us
        """Recorded messages since this time (microseconds since 1970) come first; None for live messages only."""
        self.gaps = 0
        """Number of gaps the reader has received."""
        self._bus = bus
        self._listener = listener
        self._raw = name
        self._shell: BusShell | None = None
        self._core: SubscriptionCore | None = None
        self._history: Iterator[Item] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._burst_until = 0.0
        self._closed = False
        self._bus_closed = False
        self._error: ShoalError | None = None

    # Opening and closing

    async def open(self) -> Self:
        """Subscribe; return when the subscription is in force. `async with` does this for you."""
        if self._core is not None or self._closed:
            raise SubscribeError(
                f"the subscription to {self.name!r} was already opened",
                do="call subscribe() again for a new one",
            )
        shell = self._shell = self._bus.shell
        wanted = self.where.matches if self.where is not None else None
        if self.since_us is None:
            self._core = await shell.subscribe(self._raw, self.is_pattern, wanted, self)
        else:
            from shoal.bus.since import join_history

            core = await shell.subscribe(self._raw, False, None, self)
            try:
                self._history = await join_history(self._bus, core, self.since_us, self.where)
            except BaseException:
                shell.unsubscribe(core)
                raise
            self._core = core
        return self

    async def aclose(self) -> None:
        """End the subscription; items that have arrived can still be taken."""
        self._closed = True
        if self._core is not None and self._shell is not None:
            self._shell.unsubscribe(self._core)
        self._wake_reader()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def core(self) -> SubscriptionCore | None:
        """The router's subscription, once it is in force. Not for applications."""
        return self._core

    # Reading

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        core = self._core
        if core is None:
            raise self._not_open()
        if self._history is not None and (recorded := self._recorded(1)):
            await self._pause()
            return recorded[0]
        inbox = core.inbox
        items = inbox.items
        if not len(items) % BURST_ITEMS:
            if items:
                await self._pause()
            while not items:
                if self._closed:
                    raise StopAsyncIteration
                await self._wait()
        item = items.popleft()  # as `Inbox.take`, inline: a call for each message is measurable
        if type(item) is Message:
            inbox.bytes -= len(item.payload)
        else:
            self.gaps += 1
        if core.overflowed:
            self._made_room(core)
        return item

    async def get(self, timeout: float | None = None) -> Item:  # noqa: ASYNC109
        """Return the next item. Raises TimeoutError after `timeout` seconds, SubscribeError after `aclose`."""
        try:
            if timeout is None or self._history is not None or (self._core is not None and self._core.inbox.items):
                return await self.__anext__()
            async with asyncio.timeout(timeout):
                return await self.__anext__()
        except StopAsyncIteration:
            raise SubscribeError(f"the subscription to {self.name!r} is closed and empty") from None

    def get_nowait(self) -> Item | None:
        """Return the next item if there is one, else None."""
        core = self._core
        if core is None:
            raise self._not_open()
        if self._history is not None and (recorded := self._recorded(1)):
            return recorded[0]
        if not core.inbox.items:
            return None
        item = core.inbox.take()
        self.gaps += type(item) is Gap
        if core.overflowed:
            self._made_room(core)
        return item

    @property
    def waiting(self) -> int:
        """Number of live items that have arrived and were not taken."""
        return len(self._core.inbox.items) if self._core is not None else 0

    @property
    def settled(self) -> bool:
        """Whether the subscription is in force on every server where it belongs now."""
        return self._core is not None and self._core.settled

    def cut_off(self, seconds: float) -> UnreachableError | None:
        """Return the error if none of its servers could be used for this long."""
        return self._shell.cut_off(self._core, seconds) if self._shell and self._core else None

    async def take(self, n_max: int) -> list[Item]:
        """Wait for at least one item and return all available ones, at most `n_max`; empty only after `aclose`."""
        core = self._core
        if core is None:
            raise self._not_open()
        if self._history is not None and (recorded := self._recorded(n_max)):
            await self._pause()
            return recorded
        if core.inbox.items:
            await self._pause()
        while not core.inbox.items:
            if self._closed:
                return []
            await self._wait()
        taken = core.inbox.take_many(n_max)
        self.gaps += sum(type(item) is Gap for item in taken)
        if core.overflowed:
            self._made_room(core)
        return taken

    def _recorded(self, n_max: int) -> list[Item]:
        """Return the next items of the history; an empty result ends it."""
        taken = list(islice(self._history, n_max)) if self._history is not None else []
        if not taken:
            self._history = None
        self.gaps += sum(type(item) is Gap for item in taken)
        return taken

    def _made_room(self, core: SubscriptionCore) -> None:
        if self._shell is not None:
            self._shell.made_room(core)

    async def _pause(self) -> None:
        """Let other tasks run from time to time: taking available items never suspends, so they could starve."""
        clock = self._bus.clock
        if clock() > self._burst_until:
            await asyncio.sleep(0)
            self._burst_until = clock() + BURST_S_MAX

    async def _wait(self) -> None:
        if self._bus_closed:
            raise BusClosedError(f"the bus was closed; the subscription to {self.name!r} ended with it")
        if self._waiter is not None:
            raise SubscribeError(
                f"two tasks read the subscription to {self.name!r} at the same time",
                do="read in one task and pass items on, or subscribe once per task",
            )
        if self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if (error := self._error) is not None and not self.waiting:
            self._error = None
            raise error
        self._burst_until = self._bus.clock() + BURST_S_MAX

    def _not_open(self) -> SubscribeError:
        return SubscribeError(
            f"the subscription to {self.name!r} is not open",
            do="enter it: async with bus.subscribe(...) as messages",
        )

    # Called by the shell

    def wake(self) -> None:
        """Wake the reader: an item has arrived."""
        self._wake_reader()
        if self._listener is not None:
            self._listener.wake()

    def fail(self, error: ShoalError) -> None:
        """Raise an error to the reader when it waits. Errors of connections are repeated while they last, so a reader
        that does not wait now need not be told later.
        """
        if self._waiter is not None or not isinstance(error, ConnectError):
            self._error = error
        self._wake_reader()
        if self._listener is not None:
            self._listener.fail(error)

    def end(self) -> None:
        """End the subscription: the bus is closed."""
        self._bus_closed = True
        self._wake_reader()
        if self._listener is not None:
            self._listener.end()

    def _wake_reader(self) -> None:
        if self._waiter is not None:
            resolve(self._waiter)

    def statistics(self) -> InboxStatistics:
        """Return the fill level of the inbox and how often it was full."""
        if self._core is None:
            raise self._not_open()
        return self._core.inbox.statistics()
