"""Follows a stream of a server from its end.

Owns the connection, reconnecting, and the poll interval. The caller supplies the commands and handles the entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final, Never

import hiredis

from shoal.errors import ProtocolError, ShoalError
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.wire.backoff import Backoff
from shoal.wire.connection import Connection

POLL_S: Final = 0.2
"""Interval between reads of a stream; agents write once a second."""

_log: Final = get_log(__name__)

Newest = Callable[[Connection], Awaitable[bytes]]
"""Returns the current end of a stream."""

Read = Callable[[Connection, bytes], Awaitable[bytes]]
"""Reads entries after a position; returns the new position."""


async def follow_stream(
    connect: Callable[[], Connection],
    limits: Limits,
    newest: Newest,
    read: Read,
    *,
    what: str,
    random: Random,
    lost: Callable[[], None] = lambda: None,
) -> Never:
    """Reads until it is cancelled; logs each error once, with `what`, and reconnects. `lost` is called whenever the
    connection is lost."""
    backoff = Backoff(
        reconnect_delay_s_min=limits.reconnect_delay_s_min,
        reconnect_delay_s_max=limits.reconnect_delay_s_max,
        random=random,
    )
    position = b""
    trouble = ""
    while True:
        connection = connect()
        try:
            await connection.open()
            position = position or await newest(connection)
            while True:
                position = await read(connection, position)
                trouble = ""
                backoff.reset()
                await asyncio.sleep(POLL_S)
        except (ShoalError, hiredis.ReplyError, OSError) as error:
            if str(error) != trouble:
                trouble = str(error)
                _log.warning(f"{what} cannot be read", why=trouble)
        finally:
            lost()
            connection.abort()
        await asyncio.sleep(backoff.next_delay_s())


def stream_entries(found: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The ids and fields of stream entries in a reply; ProtocolError if it is invalid."""
    try:
        return [(id, dict(zip(fields[::2], fields[1::2], strict=True))) for id, fields in found]
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"a reply with stream entries is invalid: {error}") from error
