"""Dialers open connections: over TCP, with TLS, through a delay proxy, or on the simulator's network.

Owns the type of a dialer, the TCP dialer, and the one place where TLS is put on a connection. It never reads or writes;
the protocol does.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from shoal.errors import TlsError
from shoal.wire.tls import NOT_TLS, TlsSettings, client_context, expects_tls, explain, lacks_tls

Dial: TypeAlias = Callable[[Callable[[], asyncio.BaseProtocol], str, int], Awaitable[asyncio.Transport]]
"""Opens a connection to a host and port for a new protocol and returns its transport; raises OSError on failure, or
TlsError.

A transport that offers a plain `socket` (`get_extra_info`) and no `ssl_object` must allow writing to that socket
directly while its own write buffer is empty. A transport that delays or transforms bytes offers no socket.
"""

MISMATCH_WAIT_S: Final = 5.0
"""How long a server may take to show whether it uses TLS."""
ALERT_WAIT_S: Final = 1.0
"""How long to wait for the alert of a server that refused a certificate."""
TLS_SHUTDOWN_S: Final = 1.0
"""How long a closing connection waits for the server's last TLS record."""


async def tcp(protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.Transport:
    """Open a TCP connection without Nagle's delay and with keep-alive probes."""
    transport, _ = await asyncio.get_running_loop().create_connection(protocol_factory, host, port)
    _set_options(transport)
    return transport


def over_tls(settings: TlsSettings, *, ignore_expiry: bool = False) -> Dial:
    """A dialer that opens TCP connections with TLS. With `ignore_expiry`, to a server whose certificate may have
    expired."""

    async def dial(protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.Transport:
        try:
            transport, _ = await asyncio.get_running_loop().create_connection(
                protocol_factory,
                host,
                port,
                ssl=client_context(settings, ignore_expiry=ignore_expiry),
                server_hostname=settings.server_name or host,
                ssl_shutdown_timeout=TLS_SHUTDOWN_S,
            )
        except ssl.SSLError as error:
            raise explain(error, f"{host}:{port}") from error
        _set_options(transport)
        return transport

    return dial


async def find_mismatch(host: str, port: int, tls: TlsSettings | None) -> TlsError | None:
    """The error if a server that does not answer uses TLS and this process does not, or the reverse; None if it cannot
    be told. Redis waits silently for the rest of what it takes for a command, or closes the connection."""
    try:
        return await asyncio.wait_for(_mismatch(host, port, tls), MISMATCH_WAIT_S)
    except TimeoutError:
        return None


async def _mismatch(host: str, port: int, tls: TlsSettings | None) -> TlsError | None:
    loop = asyncio.get_running_loop()
    first: asyncio.Future[bytes] = loop.create_future()
    transport: asyncio.Transport | None = None
    try:
        if tls is None:
            transport, _ = await loop.create_connection(
                lambda: _FirstBytes(first), host, port, ssl=client_context(TlsSettings(verify=False))
            )
            return expects_tls(f"{host}:{port}")
        transport, _ = await loop.create_connection(lambda: _FirstBytes(first), host, port)
        transport.write(b"PING\r\n")
        return lacks_tls(f"{host}:{port}") if (await first)[:1] in (b"+", b"-") else None
    except ssl.SSLError as error:
        return expects_tls(f"{host}:{port}") if tls is None and error.reason not in NOT_TLS else None
    except OSError:
        return None
    finally:
        first.cancel()
        if transport is not None:
            transport.abort()


async def find_alert(dial: Dial, host: str, port: int) -> TlsError | None:
    """The error if a server ends a TLS connection with an alert on which nothing is sent; None if it does not.

    From TLS 1.3 on, a client may send before the server has judged its certificate. The server's refusal then resets
    the connection, and the alert that gives the reason may be lost.
    """
    first: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    try:
        async with asyncio.timeout(ALERT_WAIT_S):
            transport = await dial(lambda: _FirstBytes(first), host, port)
            try:
                await first
            finally:
                transport.abort()
    except ssl.SSLError as error:
        return explain(error, f"{host}:{port}")
    except TlsError as error:
        return error
    except OSError:
        return None
    finally:
        first.cancel()
    return None


class _FirstBytes(asyncio.Protocol):
    """Hands over the first bytes of a connection; none, or the error, if it ends without any."""

    def __init__(self, first: asyncio.Future[bytes]) -> None:
        self._first = first

    def data_received(self, data: bytes) -> None:
        if not self._first.done():
            self._first.set_result(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self._first.done():
            self._first.set_exception(exc)
        self.data_received(b"")


def _set_options(transport: asyncio.BaseTransport) -> None:
    connected = transport.get_extra_info("socket")
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
