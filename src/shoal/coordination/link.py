"""Connections to the coordinator's Redis: requests, transactions, retries, errors.

Owns a bounded set of connections, the retry policy, and the translation of Redis errors into Shoal's. It never
interprets a key. A transaction is two pipelined round trips (watch and read, then MULTI ... EXEC). After any failure a
connection is discarded, so no half-finished state is reused. No scripts are used, so no user needs that permission.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote, unquote, urlsplit

import hiredis

from shoal.errors import (
    AuthenticationError,
    ConfigError,
    ConnectError,
    CoordinatorError,
    CoordinatorUnavailableError,
    ProtocolError,
    ServerTooOldError,
    ShoalError,
    TlsError,
)
from shoal.wire.backoff import Backoff
from shoal.wire.commands import Request
from shoal.wire.connection import Connection
from shoal.wire.dial import Dial
from shoal.wire.tls import TlsSettings, read_query

CONNECTIONS_MAX: Final = 4
"""Request connections of one coordinator client; further requests wait for a free one."""

REPLY_BYTES_MAX: Final = 1 << 29
"""The largest accepted reply. A listing of all keys is one reply."""

RETRY_DELAY_S_MIN: Final = 0.02
RETRY_DELAY_S_MAX: Final = 0.5
ATTEMPTS_PER_TIMEOUT: Final = 3
"""A connection that does not answer is dropped after this fraction of `timeout_s`, to leave time for another
attempt. With TLS it gets all of `timeout_s`: another attempt would cost the server another handshake.
"""

TLS_CONNECT_S: Final = 5.0
"""Shortest limit for opening a connection with TLS. After a restart of the coordinator all clients connect at once, and
a handshake costs ten times as much as a connection without TLS."""

SCHEMES: Final = {"shoal": False, "redis": False, "shoals": True, "rediss": True}
"""The schemes of an address, and whether they ask for TLS."""

CLIENT_NAME: Final = "shoal-coordinator-client"

FAILURES: Final = (ConnectError, ProtocolError, hiredis.ReplyError, OSError)
"""Errors raised by a connection; `Link.translate` interprets them."""

_TOO_MANY_CLIENTS: Final = "ERR max number of clients reached"

T = TypeVar("T")

Diagnose: TypeAlias = Callable[[str, int, TlsSettings | None], Awaitable[TlsError | None]]
"""Finds out why a server at a host and port does not answer, with TLS or without; None if it cannot tell."""


@dataclass(frozen=True, slots=True)
class Address:
    """Address and user of the coordinator, and the TLS of all connections to its cluster; the password is not shown."""

    host: str
    port: int
    username: str | None
    password: str | None = field(repr=False)
    tls: TlsSettings | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The address as `parse_address` reads it."""
        user, password = quote(self.username or "", safe=""), quote(self.password or "", safe="")
        login = f"{user}:{password}@" if self.username is not None or self.password is not None else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.tls is None:
            return f"shoal://{login}{host}:{self.port}"
        query = self.tls.query()
        return f"shoals://{login}{host}:{self.port}" + (f"?{query}" if query else "")


def parse_address(
    text: str, username: str | None, password: str | None, environ: Mapping[str, str] = os.environ
) -> Address:
    """Parse `host:port`, `shoal://user:password@host:port` or, with TLS, `shoals://...?ca=FILE&cert=FILE`; explicit
    arguments win. `redis://` and `rediss://` mean the same."""
    advice = "write it as shoal://host:port, like shoal://127.0.0.1:7400"
    try:
        parts = urlsplit(text if "://" in text else f"shoal://{text}")
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"invalid coordinator address ({error})", do=advice) from error
    if parts.scheme not in SCHEMES or not parts.hostname or port is None:
        raise ConfigError(f"the coordinator address has no host, port or known scheme ({parts.scheme}://)", do=advice)
    if username is None and parts.username:
        username = unquote(parts.username)
    if password is None and parts.password:
        password = unquote(parts.password)
    tls = read_query(parts.query, secure=SCHEMES[parts.scheme], environ=environ)
    return Address(parts.hostname, port, username, password, tls)


class Collision(Exception):  # noqa: N818 - not an error: the transaction is simply tried again
    """A watched key changed before EXEC; nothing was written."""


class Session:
    """One connection, borrowed for one attempt."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.watching = False

    async def ask(self, *commands: Request) -> list[Any]:
        """Send commands in one round trip and return their replies; raises the first error among them."""
        return await self.connection.ask(*commands)

    async def watch(self, keys: list[str], *reads: Request) -> list[Any]:
        """Watch keys and read, in one round trip. A later `commit` succeeds only if none of the keys changed."""
        self.watching = True
        return (await self.ask(("WATCH", *keys), *reads))[1:]

    async def commit(self, *commands: Request) -> list[Any]:
        """Run commands in one transaction. Raises Collision if a watched key changed or expired since `watch`."""
        answers = await self.ask(("MULTI",), *commands, ("EXEC",))
        self.watching = False
        results: list[Any] | None = answers[-1]
        if results is None:
            raise Collision
        for result in results:
            if isinstance(result, hiredis.ReplyError):
                raise result
        return results


class Link:
    """All connections of one coordinator client.

    `timeout_s` bounds every operation, including retries and collisions. After it: CoordinatorUnavailableError.
    """

    def __init__(
        self, address: Address, timeout_s: float, *, dial: Dial, random: Random, diagnose: Diagnose | None = None
    ) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.wait_s = timeout_s if address.tls else timeout_s / ATTEMPTS_PER_TIMEOUT
        """How long one connection may take to answer."""
        self._connect_s = max(timeout_s, TLS_CONNECT_S) if address.tls else self.wait_s
        self._openings: dict[Connection, asyncio.Future[None]] = {}
        """Connections with TLS that were still opening when their attempt ran out of time."""
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)
        self._random = random
        self._dial = dial
        self._closed = False
        self._reached = False
        self._diagnose = diagnose

    async def run(self, what: str, attempt: Callable[[Session], Awaitable[T]]) -> T:
        """Retry until success, until `timeout_s` has passed, or until an error that a retry does not fix."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self.timeout_s
        backoff = self.backoff()
        reason = "it did not answer"
        while True:
            if self._closed:
                raise CoordinatorError(f"cannot {what}: the coordinator was closed", do="connect again")
            try:
                async with asyncio.timeout_at(give_up):
                    return await self._attempt(attempt)
            except Collision:
                reason = "other clients kept changing the same keys"
                delay_s = 0.0
            except FAILURES as error:
                failure = self.translate(what, error)
                if failure is None and not isinstance(error.__cause__, ConnectionRefusedError):
                    mismatch = await self._find_mismatch()
                    failure = None if mismatch is None else self.translate(what, mismatch)
                if failure is not None:
                    raise failure from error
                reason = str(error) or reason
                delay_s = backoff.next_delay_s()
                self._drop_idle()
            if loop.time() + delay_s >= give_up:
                raise CoordinatorUnavailableError(
                    f"cannot {what} at {self.address} within {self.timeout_s:g} s ({reason})",
                    do="check that the coordinator runs and that its address is right (shoal status)",
                )
            await asyncio.sleep(delay_s)

    async def _attempt(self, attempt: Callable[[Session], Awaitable[T]]) -> T:
        async with self._slots:
            connection = self._take_idle() or self._take_opening() or self.new_connection()
            session = Session(connection)
            try:
                if not connection.usable or connection in self._openings:
                    await self._open(connection)
                    self._reached = True
                result = await attempt(session)
                if session.watching:
                    await session.ask(("UNWATCH",))
            except (Collision, CoordinatorError):
                self._give_back(session)
                raise
            except BaseException:
                if connection not in self._openings:
                    connection.abort()
                raise
            self._give_back(session)
            return result

    async def _open(self, connection: Connection) -> None:
        """Open a connection. With TLS, one that takes longer than this attempt continues opening, for the next attempt:
        when many clients connect at once, a server that is busy with handshakes must not do the same one twice.
        """
        if self.address.tls is None:
            await connection.open()
            return
        opening = self._openings.pop(connection, None) or asyncio.ensure_future(connection.open())
        try:
            await asyncio.wait({opening}, timeout=self.timeout_s / ATTEMPTS_PER_TIMEOUT)
            if not opening.done() and (mismatch := await self._find_mismatch()) is not None:
                opening.cancel()
                raise mismatch
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            if self._closed or opening.cancelled() or len(self._openings) >= CONNECTIONS_MAX:
                opening.cancel()
            else:
                self._openings[connection] = opening
            raise

    def _take_opening(self) -> Connection | None:
        """Return a connection that an earlier attempt began to open, or None. `_open` gets its result."""
        return next(iter(self._openings), None)

    def _take_idle(self) -> Connection | None:
        """Return an idle connection that is still open, or None."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    def _give_back(self, session: Session) -> None:
        """Keep a clean connection; discard one that still watches keys."""
        if self._closed or session.watching:
            session.connection.abort()
        else:
            self._idle.append(session.connection)

    def new_connection(self, pushed: Callable[[list[Any]], None] | None = None) -> Connection:
        """Create an unopened connection with a timeout of `wait_s`."""
        address = self.address
        return Connection(
            address.host,
            address.port,
            username=address.username,
            password=address.password,
            name=CLIENT_NAME,
            pushed=pushed,
            dial=self._dial,
            connect_timeout_s=self._connect_s,
            answer_timeout_s=self.wait_s,
            frame_bytes_max=REPLY_BYTES_MAX,
        )

    def backoff(self) -> Backoff:
        """Create the delays between attempts."""
        return Backoff(
            reconnect_delay_s_min=RETRY_DELAY_S_MIN,
            reconnect_delay_s_max=RETRY_DELAY_S_MAX,
            random=self._random,
        )

    def translate(self, what: str, error: Exception) -> ShoalError | None:
        """Translate a connection error for the caller; None if a retry may help. After a first success, a retry may
        also help against TLS errors: certificates are renewed while clients run."""
        if isinstance(error, TlsError):
            return None if self._reached else TlsError(f"cannot {what}: {error.what}", do=error.do)
        if isinstance(error, ServerTooOldError):
            return ServerTooOldError(f"the coordinator at {error.what}", do=error.do)
        if isinstance(error, ProtocolError):
            return CoordinatorError(
                f"cannot {what}: the server at {self.address} is not Redis ({error.what})",
                do="check the host and port",
            )
        refusal = error if isinstance(error, hiredis.ReplyError) else error.__cause__
        return self._translate_refusal(what, str(refusal)) if isinstance(refusal, hiredis.ReplyError) else None

    async def _find_mismatch(self) -> TlsError | None:
        """Find out, once and only before the first success, whether the server is there but only one side uses TLS."""
        diagnose, self._diagnose = self._diagnose, None
        if self._reached or diagnose is None:
            return None
        return await diagnose(self.address.host, self.address.port, self.address.tls)

    def _translate_refusal(self, what: str, text: str) -> ShoalError | None:
        code = text.partition(" ")[0]
        who = f"user {self.address.username or 'default'!r}"
        if code == "LOADING" or text == _TOO_MANY_CLIENTS:
            return None
        if code in ("WRONGPASS", "NOAUTH"):
            return AuthenticationError(
                f"the coordinator at {self.address} refused {who} ({text})",
                do="check the user name and password",
            )
        if code == "NOPERM":
            return CoordinatorError(
                f"cannot {what}: {who} has no permission ({text})", do="use a user whose role allows this"
            )
        if code in ("READONLY", "MISCONF", "NOREPLICAS") or "maxmemory" in text:
            return CoordinatorUnavailableError(
                f"cannot {what}: the coordinator at {self.address} does not accept writes ({text})",
                do="check its disk and memory; see its log",
            )
        if code == "WRONGTYPE":
            return CoordinatorError(
                f"cannot {what}: the stored value is not Shoal's ({text})",
                do="delete the key or write it again",
            )
        return CoordinatorError(f"cannot {what}: the coordinator at {self.address} answered: {text}")

    async def check_connection(self) -> None:
        """Connect and log in once. Raises errors such as ServerTooOldError."""

        async def connect_only(session: Session) -> None:
            """Do nothing: an open session already proves that the server is reachable and new enough."""

        await self.run("connect to the coordinator", connect_only)

    async def close(self) -> None:
        """Close idle connections; connections in use close when their attempt ends."""
        self._closed = True
        self._drop_idle()
        openings, self._openings = self._openings, {}
        for opening in openings.values():
            opening.cancel()
        await asyncio.gather(*openings.values(), return_exceptions=True)

    def _drop_idle(self) -> None:
        """Drop idle connections: after one failed, the others have probably failed too."""
        while self._idle:
            self._idle.pop().abort()
