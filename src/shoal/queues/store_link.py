"""The connection of a client to one store: scripts, pushed jobs, reconnecting.

Owns one connection at a time and the delay between attempts. It repeats nothing: a caller whose request was cut off
gets `ConnectError` and decides. A store that has come back has no scripts until its agent has opened it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

import hiredis

from shoal.errors import (
    AuthenticationError,
    ConnectError,
    ProtocolError,
    QueueError,
    QueueFullError,
    QueueNotFoundError,
    QueueUnavailableError,
    ServerTooOldError,
    StoreFullError,
    TlsError,
)
from shoal.limits import Limits
from shoal.plan.ring import ServerAddress
from shoal.queues.message_format import KEY_PREFIX
from shoal.queues.script_loader import Script
from shoal.runtime import Runtime
from shoal.wire.backoff import Backoff
from shoal.wire.connection import Connection

Login = tuple[str | None, str | None]
PERMANENT: Final = (AuthenticationError, TlsError, ServerTooOldError)
"""Kinds of ConnectError after which trying again does not help."""
_NOT_YET: Final = ("LOADING", "BUSY", "MASTERDOWN", "READONLY", "MOVING")
"""Errors of a store that will answer later."""
_FULL: Final = ("OOM", "MISCONF")


class StoreLink:
    """A client's way to one store. `opened` is called with each new connection, before it is used, and returns whether
    the client still uses this link; `lost` is called after each end of a connection. `loads`: a store without an agent
    gets the scripts from this link."""

    def __init__(
        self,
        address: ServerAddress,
        login: Callable[[], Login],
        name: str,
        limits: Limits,
        runtime: Runtime,
        lost: Callable[[], None],
        opened: Callable[[], Awaitable[bool]] | None = None,
        loads: bool = False,
    ) -> None:
        self.address = address
        self._login = login
        self._name = name
        self._limits = limits
        self._runtime = runtime
        self._lost = lost
        self._opened = opened
        self._loads = loads
        self._inboxes: dict[bytes, Callable[[bytes], None]] = {}
        self._connection: Connection | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._closed = False
        self._backoff = Backoff(
            reconnect_delay_s_min=limits.reconnect_delay_s_min,
            reconnect_delay_s_max=limits.reconnect_delay_s_max,
            random=runtime.random,
        )
        self._failed = False

    async def listen(self, channel: bytes, handler: Callable[[bytes], None]) -> None:
        """Receive what is published on a channel, on this connection and on later ones."""
        self._inboxes[channel] = handler
        connection = self._connection
        if connection is not None and connection.usable:
            with contextlib.suppress(ConnectError):  # the next connection begins with all inboxes
                await connection.ask((b"SUBSCRIBE", channel))

    async def unlisten(self, channel: bytes) -> None:
        """End `listen`."""
        self._inboxes.pop(channel, None)
        connection = self._connection
        if connection is not None and connection.usable:
            await connection.ask((b"UNSUBSCRIBE", channel))

    async def run(self, script: Script, prefix: bytes, arguments: list[bytes]) -> Any:
        """Run a script on the store. Raises ConnectError if there is no connection, or if it is lost before the reply
        arrives; QueueError if the store refuses."""
        connection = await self._connected()
        request = (b"EVALSHA", script.sha, b"1", prefix, *arguments)
        try:
            try:
                (reply,) = await connection.ask(request)
            except hiredis.ReplyError as error:
                if not self._loads or not str(error).startswith("NOSCRIPT"):
                    raise
                _, reply = await connection.ask((b"SCRIPT", b"LOAD", script.text), request)
        except hiredis.ReplyError as error:
            queue = prefix[len(KEY_PREFIX) : -1].decode()
            raise self._explain(str(error), queue) from error
        return reply

    async def close(self) -> None:
        """End the connection."""
        self._closed = True
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)

    async def _connected(self) -> Connection:
        if self._closed:
            raise ConnectError("the link is closed")
        if self._connection is not None and self._connection.usable:
            return self._connection
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name=f"connect to {self.address.id}")
        opening = self._opening
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if opening.cancelled() and caller is not None and not caller.cancelling():
                raise ConnectError("the link is closed") from None
            raise

    async def _open(self) -> Connection:
        try:
            if self._failed:
                await asyncio.sleep(self._backoff.next_delay_s())
            endpoint = self._runtime.address_book.reach(self.address)
            username, password = self._login()
            connection = Connection(
                endpoint.host,
                endpoint.port,
                username=username,
                password=password,
                name=self._name,
                dial=endpoint.dial,
                pushed=self._pushed,
                connect_timeout_s=self._limits.connect_timeout_s,
                answer_timeout_s=self._limits.connect_timeout_s,
                frame_bytes_max=self._limits.command_reply_bytes_max,
            )
            self._failed = True
            await connection.open()
            try:
                if self._opened is not None and not await self._opened():
                    raise ConnectError(f"{self.address.id} is not used any more")
                if self._inboxes:
                    await connection.ask(*((b"SUBSCRIBE", channel) for channel in self._inboxes))
            except BaseException:
                connection.abort()
                raise
            self._failed = False
            self._backoff.reset()
            self._connection = connection
            self._watch = asyncio.create_task(self._watch_end(connection), name=f"watch {self.address.id}")
            return connection
        except hiredis.ReplyError as error:
            raise ConnectError(f"{self.address.id} refuses the inbox of this client: {error}") from error
        finally:
            self._opening = None

    async def _watch_end(self, connection: Connection) -> None:
        await connection.ended.wait()
        if not self._closed:
            self._lost()

    def _pushed(self, frame: list[Any]) -> None:
        if len(frame) == 3 and frame[0] == b"message" and (handler := self._inboxes.get(frame[1])) is not None:
            handler(frame[2])

    def _explain(self, text: str, queue: str) -> QueueError | ConnectError | ProtocolError:
        """The error of a store as one of ours."""
        word = text.partition(" ")[0]
        where = f"store {self.address.id}"
        if word == "NOQUEUE":
            return QueueNotFoundError(
                f"there is no queue {queue} on {where}: it was dropped, or never created",
                do=f"put something into it, or run `shoal queue create {queue}`",
            )
        if word == "FULL":
            return QueueFullError(f"queue {queue} has no room", do="wait for consumers, or raise messages_max")
        if word in _FULL:
            return StoreFullError(f"{where} has no memory or disk left ({text})", do="free some, or move queues away")
        if word in _NOT_YET:
            return ConnectError(f"{where} does not answer yet ({text})")
        if word == "NOSCRIPT":
            return ConnectError(f"{where} is not open yet: its agent has not read the plan since it came back")
        if word == "CROWDED":
            return QueueUnavailableError(
                f"{where} refuses another client of queue {queue} ({text}); nothing was stored",
                do="let one bus of a process put and take for all its tasks, and try again in some minutes",
            )
        if word == "DAMAGED":
            return QueueError(f"queue {queue} on {where}: {text}", do="restore the directory of the store from a copy")
        if word == "MALFORMED":
            return ProtocolError(f"{where} refuses a request: {text}", do="use one version of Shoal everywhere")
        if word == "STALE":
            return QueueUnavailableError(f"{where} has seen a newer plan ({text})", do="wait for the newest plan entry")
        if word == "OTHERVERSION":
            return QueueNotFoundError(
                f"queue {queue} was dropped and created again on {where}", do="try again; nothing was stored"
            )
        if word in ("NOPERM", "NOAUTH"):
            return AuthenticationError(f"{where} refuses this user: {text}", do="use a user that may use queues")
        return ProtocolError(f"{where} failed: {text}", do="check its log")
