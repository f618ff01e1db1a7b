"""Following a stream of a server from its end, as it grows.

Owns the connection, when it is made again, and how often the stream is asked for news. What is read, and what becomes
of it, is up to whoever follows.
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
"""How often a stream is asked for news; agents write once a second."""

_log: Final = get_log(__name__)

Newest = Callable[[Connection], Awaitable[bytes]]
"""Where a stream ends now."""

Read = Callable[[Connection, bytes], Awaitable[bytes]]
"""Reads what is behind a position; how far it came."""


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
    """Reads until it is cancelled; trouble with `what` is reported once, and waited out. `lost` is called whenever the
    connection is gone."""
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
    """Entries of a stream as a server tells them: their ids and fields; ProtocolError if they are none."""
    try:
        return [(id, dict(zip(fields[::2], fields[1::2], strict=True))) for id, fields in found]
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"entries of a stream that are none: {error}") from error
