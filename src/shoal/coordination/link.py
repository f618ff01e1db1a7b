"""Connections to the one Redis that keeps the coordinator's state: requests, transactions, retries, errors.

Owns a bounded set of connections, the rule how long an operation is tried, and the translation of Redis's
errors into Shoal's. It never touches the meaning of a key. It works on redis-py's connections without its
client: a transaction here is two pipelined round trips (watch and read, then MULTI ... EXEC), and a
connection that saw any failure is thrown away, so no half-done state is ever reused. No scripting is needed,
so no user needs that right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

from redis import exceptions as redis_errors
from redis.asyncio import Connection

from shoal.errors import (
    AuthenticationError,
    ConfigError,
    CoordinatorError,
    CoordinatorUnavailableError,
    ServerTooOldError,
    ShoalError,
)
from shoal.wire.backoff import Backoff

CONNECTIONS_MAX: Final = 4
"""Connections for requests of one coordinator client; one more request waits for a free one."""

SERVER_VERSION_MIN: Final = (6, 2)
"""First version whose transactions notice that a watched key expired, and whose users are limited by channel.
"""

RETRY_DELAY_S_MIN: Final = 0.02
RETRY_DELAY_S_MAX: Final = 0.5
ATTEMPTS_PER_TIMEOUT: Final = 3
"""A silent connection is given up after this part of `timeout_s`, so that there is time for another."""

T = TypeVar("T")
Command: TypeAlias = tuple[str | bytes | int, ...]


@dataclass(frozen=True, slots=True)
class Address:
    """Where the coordinator is and who we are there; the password is not shown."""

    host: str
    port: int
    username: str | None
    password: str | None = field(repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_address(text: str, username: str | None, password: str | None) -> Address:
    """Read `host:port`, `shoal://host:port` or `redis://user:password@host:port`; the arguments win."""
    advice = "write it as shoal://host:port, like shoal://127.0.0.1:7400"
    try:
        parts = urlsplit(text if "://" in text else f"shoal://{text}")
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"the coordinator's address cannot be read ({error})", do=advice) from error
    if parts.scheme not in ("shoal", "redis") or not parts.hostname or port is None:
        raise ConfigError(f"the coordinator's address has no host, port or known scheme ({parts.scheme}://)", do=advice)
    if username is None and parts.username:
        username = unquote(parts.username)
    if password is None and parts.password:
        password = unquote(parts.password)
    return Address(parts.hostname, port, username, password)


class Collision(Exception):  # noqa: N818 - not an error: the transaction is simply tried again
    """A watched key changed before the transaction was carried out; nothing was done."""


class Session:
    """One connection, lent out for one attempt."""

    def __init__(self, connection: Connection, wait_s: float) -> None:
        self.connection = connection
        self.watching = False
        self._wait_s = wait_s

    async def ask(self, *commands: Command) -> list[Any]:
        """Send commands together and return their answers; the first error among them is raised."""
        connection = self.connection
        answers: list[Any] = []
        failure: redis_errors.ResponseError | None = None
        async with asyncio.timeout(self._wait_s):
            await connection.send_packed_command(connection.pack_commands(commands))
            for _ in commands:
                try:
                    answers.append(await connection.read_response())
                except redis_errors.ResponseError as error:
                    failure = failure or error
        if failure is not None:
            raise failure
        return answers

    async def watch(self, keys: list[str], *reads: Command) -> list[Any]:
        """Watch keys and read, in one round trip; what `commit` then does happens only if no key changed."""
        self.watching = True
        return (await self.ask(("WATCH", *keys), *reads))[1:]

    async def commit(self, *commands: Command) -> list[Any]:
        """Carry commands out as one; Collision when a watched key changed or expired since `watch`."""
        if self.watching and not self.connection.is_connected:
            raise redis_errors.ConnectionError("the connection that watched is gone, a new one would not")
        answers = await self.ask(("MULTI",), *commands, ("EXEC",))
        self.watching = False
        results: list[Any] | None = answers[-1]
        if results is None:
            raise Collision
        for result in results:
            if isinstance(result, redis_errors.ResponseError):
                raise result
        return results


class Link:
    """All connections of one coordinator client.

    `timeout_s` bounds every operation, retries and collisions included. After it:
    CoordinatorUnavailableError.
    """

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.wait_s = timeout_s / ATTEMPTS_PER_TIMEOUT
        """How long one connection may take to answer."""
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)
        self._random = Random()
        self._closed = False

    async def run(self, what: str, attempt: Callable[[Session], Awaitable[T]]) -> T:
        """Try until it succeeds, `timeout_s` is over, or the error is one that trying again does not mend."""
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
                reason = "others kept changing the same keys"
                delay_s = 0.0
            except (redis_errors.RedisError, OSError) as error:
                failure = self.translate(what, error)
                if failure is not None:
                    raise failure from error
                reason = str(error) or reason
                delay_s = backoff.next_delay_s()
                await self._drop_idle()
            if loop.time() + delay_s >= give_up:
                raise CoordinatorUnavailableError(
                    f"cannot {what} at {self.address} within {self.timeout_s:g} s ({reason})",
                    do="check that the coordinator runs and that its address is right (shoal status)",
                )
            await asyncio.sleep(delay_s)

    async def _attempt(self, attempt: Callable[[Session], Awaitable[T]]) -> T:
        async with self._slots:
            session = Session(self._idle.pop() if self._idle else self.new_connection(), self.wait_s)
            try:
                result = await attempt(session)
                if session.watching:
                    await session.ask(("UNWATCH",))
            except (Collision, ShoalError):
                await self._give_back(session)
                raise
            except BaseException:
                await session.connection.disconnect(nowait=True)
                raise
            await self._give_back(session)
            return result

    async def _give_back(self, session: Session) -> None:
        """Keep a connection that is clean; one that still watches keys is replaced."""
        if self._closed or session.watching:
            await session.connection.disconnect(nowait=True)
        else:
            self._idle.append(session.connection)

    def new_connection(self) -> Connection:
        """A connection that connects and logs in with its first command."""
        settings: dict[str, Any] = {
            "host": self.address.host,
            "port": self.address.port,
            "username": self.address.username,
            "password": self.address.password,
            "socket_timeout": None,  # redis-py's own waits in a way that can swallow a cancellation
            "socket_connect_timeout": self.wait_s,
            "socket_keepalive": True,
            "protocol": 2,
        }
        return Connection(**settings)

    def backoff(self) -> Backoff:
        """Fresh delays between attempts."""
        return Backoff(
            reconnect_delay_s_min=RETRY_DELAY_S_MIN,
            reconnect_delay_s_max=RETRY_DELAY_S_MAX,
            random=self._random,
        )

    def translate(self, what: str, error: Exception) -> ShoalError | None:
        """What an error of Redis means to the caller; None when trying again may help."""
        who = f"user {self.address.username or 'default'!r}"
        if isinstance(error, redis_errors.AuthenticationError | redis_errors.AuthorizationError):
            return AuthenticationError(
                f"the coordinator at {self.address} refused {who} ({error})",
                do="check user name and password",
            )
        if isinstance(error, redis_errors.NoPermissionError):
            return CoordinatorError(
                f"cannot {what}: {who} has no right to it ({error})", do="use a user whose role may do this"
            )
        if isinstance(error, redis_errors.ResponseError):
            return self._translate_response(what, error)
        if isinstance(error, redis_errors.InvalidResponse):
            return CoordinatorError(
                f"cannot {what}: what answers at {self.address} is no Redis ({error})",
                do="check host and port",
            )
        return None

    def _translate_response(self, what: str, error: redis_errors.ResponseError) -> ShoalError:
        text = str(error)
        if isinstance(error, redis_errors.ReadOnlyError) or text.startswith("MISCONF") or "maxmemory" in text:
            return CoordinatorUnavailableError(
                f"cannot {what}: the coordinator at {self.address} takes no writes ({text})",
                do="mend its disk or memory; its log says more",
            )
        if text.startswith("WRONGTYPE"):
            return CoordinatorError(
                f"cannot {what}: the stored value is not Shoal's ({text})",
                do="delete the key or write it anew",
            )
        return CoordinatorError(f"cannot {what}: the coordinator at {self.address} answered: {text}")

    async def check_version(self) -> None:
        """Raise ServerTooOldError unless the server has what transactions and users here rely on."""
        needed = ".".join(map(str, SERVER_VERSION_MIN))
        advice = f"run Redis {needed} or newer, or any Valkey"

        async def hello(session: Session) -> list[Any]:
            try:
                answer: list[Any] = (await session.ask(("HELLO",)))[0]
            except redis_errors.ResponseError as error:
                if "unknown command" not in str(error):
                    raise
                raise ServerTooOldError(
                    f"the coordinator at {self.address} is older than Redis 6 (it does not know HELLO)",
                    do=advice,
                ) from error
            return answer

        answer = await self.run("greet the coordinator", hello)
        facts = dict(zip(answer[::2], answer[1::2], strict=False))
        version = bytes(facts.get(b"version", b"0")).decode(errors="replace")
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
        if numbers < SERVER_VERSION_MIN:
            raise ServerTooOldError(f"the coordinator at {self.address} is Redis {version}", do=advice)

    async def close(self) -> None:
        """Close idle connections; those in use close when their attempt ends."""
        self._closed = True
        await self._drop_idle()

    async def _drop_idle(self) -> None:
        """After one connection failed the others have most likely failed too."""
        while self._idle:
            await self._idle.pop().disconnect(nowait=True)
