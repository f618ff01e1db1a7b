"""Dialers open connections: over TCP, through a delay proxy, or on the simulator's network.

Owns the type of a dialer and the TCP dialer. It never reads or writes; the protocol does.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TypeAlias

Dial: TypeAlias = Callable[[Callable[[], asyncio.BaseProtocol], str, int], Awaitable[asyncio.Transport]]
"""Opens a connection to a host and port for a new protocol and returns its transport; raises OSError on failure.

A transport that offers a plain `socket` (`get_extra_info`) and no `ssl_object` must allow writing to that socket
directly while its own write buffer is empty. A transport that delays or transforms bytes offers no socket.
"""


async def tcp(protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.Transport:
    """Open a TCP connection without Nagle's delay and with keep-alive probes."""
    transport, _ = await asyncio.get_running_loop().create_connection(protocol_factory, host, port)
    connected = transport.get_extra_info("socket")
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return transport
