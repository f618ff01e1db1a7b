"""The queues of one bus: where they live, and creating those that do not exist.

Owns the queues by name, the entries that were read, and the wait for a new queue. An entry comes from the coordinator;
while that is away, from the copy on a store that an earlier entry named, or from memory. Its signature is always
verified. A queue is created by the leader: a client asks an agent, which passes the request on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

import hiredis
import msgspec

from shoal.bus.plan_source import PlanSource
from shoal.channels.client.context import QueueAnswered
from shoal.errors import (
    AuthenticationError,
    BusClosedError,
    ConfigError,
    ConnectError,
    CoordinatorError,
    ForgedEntryError,
    QueueError,
    QueueNotFoundError,
    QueueUnavailableError,
    ShoalError,
)
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_settings import QueueSettings, check_settings
from shoal.plan.ring import ServerAddress
from shoal.plan.signature import Verifier
from shoal.queues.message_format import check_queue_name
from shoal.queues.queue import Queue, QueueContext
from shoal.rules import Rules
from shoal.runtime import Runtime
from shoal.wire import control
from shoal.wire.backoff import Backoff
from shoal.wire.connection import Connection

FIND_DELAY_S: Final = 0.02
FIND_DELAY_S_MAX: Final = 0.5
"""First and longest pause between two looks for an entry."""
ASK_AGAIN_S: Final = 3.0
"""An accepted request that has led to no queue after this time is repeated."""
STORES_MAX: Final = 64
"""Stores that are remembered, for the copies of entries there."""

_log: Final = get_log(__name__)


class BusQueues:
    """The queues of one open bus. `request` asks agents for a queue."""

    def __init__(
        self,
        source: PlanSource,
        verifier: Verifier,
        limits: Limits,
        runtime: Runtime,
        rules: Rules,
        request: Callable[[bytes, bytes], Awaitable[QueueAnswered]],
    ) -> None:
        self._source = source
        self._verifier = verifier
        self._limits = limits
        self._runtime = runtime
        self._request = request
        self._queues: dict[str, Queue] = {}
        self._entries: dict[str, QueueEntry] = {}
        self._stores: dict[str, ServerAddress] = {}
        self._context = QueueContext(limits, runtime, lambda: source.login, self.find, rules, self.create)
        self._closed = False

    def queue(self, name: str) -> Queue:
        """Return the queue of this name, the same one each time."""
        if self._closed:
            raise BusClosedError()
        found = self._queues.get(name)
        if found is None:
            found = self._queues[name] = Queue(name, self._context, self.queue)
        return found

    async def names(self) -> list[str]:
        """Return the names of the cluster's queues, sorted."""
        try:
            signed = await self._source.queue_entries()
        except CoordinatorError as error:
            raise QueueUnavailableError(
                f"the queues cannot be listed: {error.what}", do="check `shoal status`"
            ) from error
        entries = []
        for data in signed:
            try:
                entries.append(self._verifier.line(data, QueueEntry))
            except ForgedEntryError as error:
                _log.error("entry of a queue not listed", why=str(error))
        return sorted(entry.unit.decode() for entry in entries if not entry.dropped)

    # Where a queue lives

    async def find(self, name: str) -> QueueEntry:
        """Return the entry of a queue. Raises QueueNotFoundError if there is none, and QueueUnavailableError if it
        cannot be read within `connect_timeout_s`."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._limits.connect_timeout_s
        backoff = self._backoff()
        while True:
            try:
                entry = await self._read(name)
            except (CoordinatorError, AuthenticationError) as error:
                if isinstance(error, AuthenticationError):
                    self._source.refresh_login()
                if (kept := await self._kept(name)) is not None:
                    return kept
                if loop.time() >= give_up_at:
                    raise QueueUnavailableError(
                        f"the coordinator does not tell where queue {name} is ({error.what})",
                        do="check `shoal status`; nothing was stored",
                    ) from error
                await asyncio.sleep(backoff.next_delay_s())
                continue
            if entry is None or entry.dropped:
                self._entries.pop(name, None)
                raise QueueNotFoundError(
                    f"there is no queue {name}", do=f"put something into it, or run `shoal queue create {name}`"
                )
            return entry

    async def _read(self, name: str) -> QueueEntry | None:
        data = await self._source.queue_entry(name.encode())
        return None if data is None else self._accept(name, data)

    def _accept(self, name: str, data: bytes) -> QueueEntry:
        entry = self._verifier.line(data, QueueEntry)
        if entry.unit != name.encode():
            raise ForgedEntryError(f"the entry of queue {name} is that of another queue; it is rejected")
        self._entries[name] = entry
        for store in entry.stores:
            self._stores[store.id] = store
            if len(self._stores) > STORES_MAX:
                del self._stores[next(iter(self._stores))]
        return entry

    async def _kept(self, name: str) -> QueueEntry | None:
        """The newest entry that is known without the coordinator: from memory, or from a known store."""
        known = self._entries.get(name)
        stores = known.stores if known is not None else tuple(self._stores.values())
        for store in stores:
            with contextlib.suppress(ConnectError, ForgedEntryError):
                data = await self._copy_on(store, name)
                if data is not None and (
                    known is None or self._verifier.line(data, QueueEntry).newness > known.newness
                ):
                    known = self._accept(name, data)
                    _log.info("entry of a queue read from a store", queue=name, store=store.id)
                    break
        return known

    async def _copy_on(self, store: ServerAddress, name: str) -> bytes | None:
        username, password = self._source.login
        endpoint = self._runtime.address_book.reach(store)
        connection = Connection(
            endpoint.host,
            endpoint.port,
            username=username,
            password=password,
            name="shoal-entry",
            dial=endpoint.dial,
            connect_timeout_s=self._limits.connect_timeout_s,
            answer_timeout_s=self._limits.connect_timeout_s,
        )
        try:
            async with connection:
                (data,) = await connection.ask((b"GET", check_queue_name(name) + b"entry"))
        except hiredis.ReplyError as error:
            _log.info("store does not tell an entry", store=store.id, why=str(error))
            return None
        return data if isinstance(data, bytes) else None

    # Creating

    async def create(self, name: str, settings: QueueSettings | None) -> QueueEntry:
        """Have a queue created, and return its entry. An existing queue is not changed."""
        chosen = check_settings(settings)
        limit_s = self._limits.queue_put_timeout_s
        reason = "no agent has answered"
        try:
            async with asyncio.timeout(limit_s):
                backoff = self._backoff()
                loop = asyncio.get_running_loop()
                ask_at = loop.time()
                while True:
                    try:
                        return await self.find(name)
                    except QueueNotFoundError:
                        pass
                    except QueueUnavailableError as error:
                        reason = error.what
                    if loop.time() >= ask_at:
                        self._check(name, await self._request(name.encode(), _settings_sent(chosen)))
                        reason = "no leader has placed it on a store yet"
                        ask_at = loop.time() + ASK_AGAIN_S
                    await asyncio.sleep(backoff.next_delay_s())
        except TimeoutError:
            raise QueueUnavailableError(
                f"queue {name} was not created within {limit_s:g} s: {reason}",
                do="check `shoal status`: a cluster needs an agent, a leader and a store to create queues; "
                "nothing was stored",
            ) from None

    def _check(self, name: str, answer: QueueAnswered) -> None:
        """Raise the error of a refused request."""
        if answer.code == control.QUEUE_ACCEPTED or answer.code == control.QUEUE_BUSY:
            return
        if answer.code == control.QUEUE_INVALID:
            raise ConfigError(f"queue {name} was refused: {answer.text}")
        if answer.code == control.QUEUE_TOO_MANY:
            raise QueueError(
                f"queue {name} was not created: {answer.text}",
                do="drop queues that are not used (`shoal queue drop NAME`), or raise limits.queues_max of the agents",
            )
        raise QueueError(f"queue {name} was refused: {answer.text or answer.code}")

    def _backoff(self) -> Backoff:
        return Backoff(
            reconnect_delay_s_min=FIND_DELAY_S, reconnect_delay_s_max=FIND_DELAY_S_MAX, random=self._runtime.random
        )

    # Closing

    async def drain(self) -> None:
        """Wait until the stores have answered every `put`."""
        await asyncio.gather(*(queue.drain() for queue in list(self._queues.values())))

    async def aclose(self) -> None:
        """Close all queues."""
        self._closed = True
        closed = await asyncio.gather(
            *(queue.aclose() for queue in list(self._queues.values())), return_exceptions=True
        )
        for error in closed:
            if isinstance(error, ShoalError):
                _log.info("queue not closed cleanly", why=str(error))
            elif isinstance(error, BaseException):
                raise error


def _settings_sent(settings: QueueSettings) -> bytes:
    """The settings that differ from the defaults, for a request."""
    usual = msgspec.to_builtins(QueueSettings())
    chosen = {name: value for name, value in msgspec.to_builtins(settings).items() if value != usual[name]}
    return msgspec.msgpack.encode(chosen) if chosen else b""
