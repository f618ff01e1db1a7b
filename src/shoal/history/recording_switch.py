"""Starts and stops the recording of channels, and waits until the agents act on it.

Owns the wait. The mark itself is in `shoal.plan.recording_marks`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import hiredis

from shoal.coordination.link import Address, parse_address
from shoal.errors import ConnectError
from shoal.plan.format import require_format
from shoal.plan.keys import PUBLIC_KEY, RING_KEY
from shoal.plan.recording_marks import set_recorded
from shoal.plan.ring import ServerAddress
from shoal.plan.signature import Verifier
from shoal.runtime import PRODUCTION
from shoal.wire.blocking_connection import ask
from shoal.wire.record_entry import MARKS_KEY, read_marks

WAIT_S: Final = 5.0
"""How long agents may take to apply a mark. After that the servers whose agents have not are returned."""

_POLL_S: Final = 0.05
_TIMEOUT_S: Final = 5.0


async def switch_recording(url: str, pattern: bytes, on: bool) -> tuple[bool, list[str]]:
    """Sets or removes a mark; returns whether it changed, and the servers whose agents have not applied it after
    `WAIT_S`. The login of `url` must be that of an administrator."""
    async with await PRODUCTION.coordinator(url, _TIMEOUT_S) as coordinator:
        await require_format(coordinator)
        news = await set_recorded(coordinator, pattern, on)
        key, ring = await coordinator.get(PUBLIC_KEY), await coordinator.get(RING_KEY)
    servers = Verifier(key.value).ring(ring.value).servers if key is not None and ring is not None else ()
    login = parse_address(url, None, None)
    waiting = {server.id: server for server in servers}
    deadline = time.monotonic() + WAIT_S
    while waiting:
        for server in list(waiting.values()):
            if await asyncio.to_thread(_is_applied, server, login, pattern) == on:
                del waiting[server.id]
        if not waiting or time.monotonic() >= deadline:
            break
        await asyncio.sleep(_POLL_S)
    return news, sorted(waiting)


def _is_applied(server: ServerAddress, login: Address, pattern: bytes) -> bool | None:
    """Whether the agent of a server records a pattern; None if the server is unreachable."""
    try:
        to = PRODUCTION.with_tls(login.tls).address_book.reach(server)
        value = ask(to.host, to.port, login.username, login.password, b"GET", MARKS_KEY, dial=to.dial)
    except (ConnectError, hiredis.ReplyError):
        return None
    return pattern in read_marks(value)
