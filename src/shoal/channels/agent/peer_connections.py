"""An agent's connections to the servers of the ring: opened, used, and replaced when they are lost.

Owns the reconnects and the delay between them. What a connection is for is the business of `peers` and
`forward_links`: each passes a receiver of the frames and a coroutine that uses an open connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, Generic, TypeVar

from shoal.channels.agent.server_tasks import ServerTasks
from shoal.errors import ConnectError, ProtocolError
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.plan.ring import Ring, ServerAddress
from shoal.wire.address_book import AddressBook
from shoal.wire.backoff import Backoff
from shoal.wire.connection import Connection, Receiver

FRAME_BYTES_MAX: Final = 1 << 20
"""The largest frame that another server may send: replies to PUBLISH, and heartbeats."""

_log: Final = get_log(__name__)

R = TypeVar("R", bound=Receiver)


class PeerConnections(Generic[R]):
    """Keeps one connection to each server of the ring; not to the agent's own, unless `with_own`.

    `receiver` makes the receiver of a new connection to a server. `use` runs on every connection that has opened; when
    it returns or raises ConnectError or ProtocolError, the connection is replaced.
    """

    def __init__(
        self,
        own: str,
        purpose: str,
        username: str | None,
        password: str | None,
        limits: Limits,
        random: Random,
        book: AddressBook,
        receiver: Callable[[str], R],
        use: Callable[[str, Connection, R], Awaitable[None]],
        with_own: bool = False,
    ) -> None:
        self._own = own
        self._skipped = None if with_own else own
        self._purpose = purpose
        self._username = username
        self._password = password
        self._limits = limits
        self._random = random
        self._book = book
        self._receiver = receiver
        self._use = use
        self._tasks = ServerTasks(self._keep, purpose)

    def follow(self, ring: Ring) -> None:
        """Connects to the servers of this ring, and to no others."""
        self._tasks.follow(address for address in ring.servers if address.id != self._skipped)

    async def close(self) -> None:
        """Ends all connections."""
        await self._tasks.close()

    async def _keep(self, address: ServerAddress) -> None:
        limits = self._limits
        backoff = Backoff(
            reconnect_delay_s_min=limits.reconnect_delay_s_min,
            reconnect_delay_s_max=limits.reconnect_delay_s_max,
            random=self._random,
        )
        while True:
            receiver = self._receiver(address.id)
            endpoint = self._book.reach(address)
            connection = Connection(
                endpoint.host,
                endpoint.port,
                username=self._username,
                password=self._password,
                name=f"shoal-{self._purpose}-{self._own}",
                receiver=receiver,
                dial=endpoint.dial,
                connect_timeout_s=limits.connect_timeout_s,
                frame_bytes_max=FRAME_BYTES_MAX,
            )
            try:
                await connection.open()
                backoff.reset()
                await self._use(address.id, connection, receiver)
            except (ConnectError, ProtocolError) as error:
                _log.debug("other server not reachable", purpose=self._purpose, server=address.id, why=str(error))
            finally:
                connection.abort()
            await asyncio.sleep(backoff.next_delay_s())
