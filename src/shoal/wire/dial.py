"""How a connection is opened: the one place for TCP, and later for TLS, a delay proxy or the simulator's network.

Owns the type of a dialer and the plain TCP one. Never reads or writes: that is the protocol's business.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TypeAlias

Dial: TypeAlias = Callable[[Callable[[], asyncio.BaseProtocol], str, int], Awaitable[asyncio.Transport]]
"""Opens a connection to a host and port for a new protocol and returns its transport; raises OSError if it cannot.

A transport that offers a plain `socket` (`get_extra_info`) and no `ssl_object` must allow writing to that socket
directly while its own write buffer is empty. One that delays or transforms bytes offers no socket.
"""


async def tcp(protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.Transport:
    """A TCP connection that sends small writes at once and probes a peer that has been silent for long."""
    transport, _ = await asyncio.get_running_loop().create_connection(protocol_factory, host, port)
    connected = transport.get_extra_info("socket")
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return transport
