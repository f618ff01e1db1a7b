"""The link to a store: closing it ends a request that waits for the connection."""

from __future__ import annotations

import asyncio

import pytest

from shoal.errors import ConnectError
from shoal.limits import DEFAULT_LIMITS
from shoal.plan.ring import ServerAddress
from shoal.queues.script_loader import load_scripts
from shoal.queues.store_link import StoreLink
from shoal.runtime import PRODUCTION


async def test_a_request_that_waits_for_the_connection_fails_when_the_link_is_closed() -> None:
    """It is not cancelled: its caller did not ask for that."""
    accepted = asyncio.Event()
    silent = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        await silent.wait()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        link = StoreLink(
            ServerAddress("q1", "127.0.0.1", port), lambda: (None, None), "t", DEFAULT_LIMITS, PRODUCTION, lambda: None
        )
        asking = asyncio.create_task(link.run(load_scripts().look, b"p", [b"stats"]))
        await accepted.wait()
        await link.close()
        with pytest.raises(ConnectError, match="the link is closed"):
            await asking
        silent.set()
