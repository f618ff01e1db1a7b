"""The address book: a server is reached where it announces itself, unless an override says otherwise, and with TLS if
it or the cluster's address asks for TLS."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from shoal.plan.ring import Ring, ServerAddress
from shoal.runtime import PRODUCTION
from shoal.wire.address_book import AddressBook, Endpoint
from shoal.wire.dial import tcp
from shoal.wire.tls import TlsSettings

NEAR, FAR = ServerAddress("s1", "10.0.0.1", 7001), ServerAddress("s2", "10.0.0.2", 7002, site="oslo")
ENCRYPTED = ServerAddress("s3", "10.0.0.3", 7003, tls=True)


async def proxied(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.Transport:
    raise ConnectionRefusedError(f"{host}:{port}")


async def secure(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.Transport:
    raise ConnectionRefusedError(f"{host}:{port}")


def test_a_server_is_reached_where_it_announces_itself() -> None:
    assert AddressBook(tcp, secure=secure).reach(NEAR) == Endpoint("10.0.0.1", 7001, tcp)


def test_an_override_holds_for_one_server() -> None:
    behind_nat = Endpoint("192.0.2.7", 40002, proxied)
    book = AddressBook(tcp, {"s2": behind_nat}, secure=secure)
    assert book.reach(FAR) is behind_nat
    assert book.reach(NEAR) == Endpoint("10.0.0.1", 7001, tcp)


def test_a_runtime_has_one_book_for_all_its_connections() -> None:
    runtime = dataclasses.replace(PRODUCTION, dial=proxied, routes={"s2": Endpoint("127.0.0.1", 1, tcp)})
    ring = Ring(1, (NEAR, FAR))
    assert [runtime.address_book.reach(server) for server in ring.servers] == [
        Endpoint("10.0.0.1", 7001, proxied),
        Endpoint("127.0.0.1", 1, tcp),
    ]


def test_a_server_that_announces_tls_is_never_dialled_without() -> None:
    """Its password would travel in the clear."""
    book = AddressBook(tcp, secure=secure)
    assert book.reach(ENCRYPTED) == Endpoint("10.0.0.3", 7003, secure)
    assert PRODUCTION.address_book.reach(ENCRYPTED).dial is not tcp


def test_with_tls_in_the_address_of_the_cluster_every_server_is_dialled_with_tls() -> None:
    book = PRODUCTION.with_tls(TlsSettings(ca="ca.pem")).address_book
    assert book.reach(NEAR).dial is not tcp
    assert PRODUCTION.with_tls(None).address_book.reach(NEAR).dial is tcp
