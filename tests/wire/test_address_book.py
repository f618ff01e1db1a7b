"""The address book: a server is reached where it announces itself, unless an override says otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shoal.plan.ring import Ring, ServerAddress
from shoal.runtime import Runtime
from shoal.wire.address_book import AS_ANNOUNCED, AddressBook, Endpoint
from shoal.wire.dial import tcp

NEAR, FAR = ServerAddress("s1", "10.0.0.1", 7001), ServerAddress("s2", "10.0.0.2", 7002, site="oslo", tls=True)


async def proxied(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.Transport:
    raise ConnectionRefusedError(f"{host}:{port}")


def test_a_server_is_reached_where_it_announces_itself() -> None:
    assert AS_ANNOUNCED.reach(NEAR) == Endpoint("10.0.0.1", 7001, False, tcp)
    assert AS_ANNOUNCED.reach(FAR) == Endpoint("10.0.0.2", 7002, True, tcp)


def test_an_override_holds_for_one_server() -> None:
    behind_nat = Endpoint("192.0.2.7", 40002, True, proxied)
    book = AddressBook(overrides={"s2": behind_nat})
    assert book.reach(FAR) is behind_nat
    assert book.reach(NEAR) == Endpoint("10.0.0.1", 7001)


def test_a_runtime_has_one_book_for_all_its_connections() -> None:
    runtime = Runtime(dial=proxied, routes={"s2": Endpoint("127.0.0.1", 1)})
    ring = Ring(1, (NEAR, FAR))
    assert [runtime.address_book.reach(server) for server in ring.servers] == [
        Endpoint("10.0.0.1", 7001, False, proxied),
        Endpoint("127.0.0.1", 1),
    ]
