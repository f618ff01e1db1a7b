"""The address book: a server is reached where it announces itself, unless an override says otherwise."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

import pytest

from shoal.errors import ConnectError
from shoal.plan.ring import Ring, ServerAddress
from shoal.runtime import PRODUCTION
from shoal.wire.address_book import AddressBook, Endpoint
from shoal.wire.connection import Connection
from shoal.wire.dial import tcp

NEAR, FAR = ServerAddress("s1", "10.0.0.1", 7001), ServerAddress("s2", "10.0.0.2", 7002, site="oslo")


async def proxied(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.Transport:
    raise ConnectionRefusedError(f"{host}:{port}")


def test_a_server_is_reached_where_it_announces_itself() -> None:
    assert AddressBook(tcp).reach(NEAR) == Endpoint("10.0.0.1", 7001, tcp)


def test_an_override_holds_for_one_server() -> None:
    behind_nat = Endpoint("192.0.2.7", 40002, proxied)
    book = AddressBook(tcp, {"s2": behind_nat})
    assert book.reach(FAR) is behind_nat
    assert book.reach(NEAR) == Endpoint("10.0.0.1", 7001, tcp)


def test_a_runtime_has_one_book_for_all_its_connections() -> None:
    runtime = dataclasses.replace(PRODUCTION, dial=proxied, routes={"s2": Endpoint("127.0.0.1", 1, tcp)})
    ring = Ring(1, (NEAR, FAR))
    assert [runtime.address_book.reach(server) for server in ring.servers] == [
        Endpoint("10.0.0.1", 7001, proxied),
        Endpoint("127.0.0.1", 1, tcp),
    ]


async def test_a_server_that_announces_tls_is_not_dialled() -> None:
    """Its password would travel in the clear."""
    dialled = []

    async def dial(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.Transport:
        dialled.append((host, port))
        raise ConnectionRefusedError

    def to(server: ServerAddress) -> Connection:
        endpoint = AddressBook(dial).reach(server)
        where = endpoint.host, endpoint.port
        return Connection(*where, username="client", password="secret", name="test", dial=endpoint.dial)

    with pytest.raises(ConnectError, match=r"10\.0\.0\.1:7001 expects TLS.*: upgrade Shoal here"):
        await to(ServerAddress("s1", "10.0.0.1", 7001, tls=True)).open()
    assert dialled == []
    with pytest.raises(ConnectError, match="cannot connect"):
        await to(NEAR).open()
    assert dialled == [("10.0.0.1", 7001)]
