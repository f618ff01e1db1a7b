"""Connections to a real server with TLS: what each side refuses is an error with what to do, at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import uvloop
from tests.support.redis_server import RedisServer
from tests.support.tls_files import TlsFiles

from shoal.coordination.link import Address, Link
from shoal.errors import CoordinatorUnavailableError, TlsError
from shoal.runtime import PRODUCTION
from shoal.wire.blocking_connection import BlockingConnection, ask
from shoal.wire.connection import Connection
from shoal.wire.dial import Dial, over_tls, tcp
from shoal.wire.tls import TlsSettings

Loop = Callable[[], asyncio.AbstractEventLoop]
LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
PATIENCE_S = 60.0
"""Longer than any of these tests may take: a failure is noticed at once, not after a timeout."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(shared: TlsFiles) -> Iterator[RedisServer]:
    with RedisServer(tls=shared.settings("server")) as running:
        yield running


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path)


def connection(server: RedisServer, tls: TlsSettings, host: str = "127.0.0.1", dial: Dial | None = None) -> Connection:
    return Connection(
        host,
        server.port,
        username=None,
        password=None,
        name="test",
        dial=dial or over_tls(tls),
        connect_timeout_s=PATIENCE_S,
        answer_timeout_s=PATIENCE_S,
    )


def run(loop: Loop, work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(work)


async def refused(server: RedisServer, tls: TlsSettings, why: str, host: str = "127.0.0.1") -> None:
    with pytest.raises(TlsError, match=why):
        await connection(server, tls, host).open()


@LOOPS
def test_a_connection_with_certificates_of_one_authority_opens(
    loop: Loop, server: RedisServer, shared: TlsFiles
) -> None:
    async def work() -> None:
        large = b"x" * 3_000_000
        async with connection(server, shared.settings()) as opened:
            assert await opened.ask((b"SET", b"large", large), (b"GET", b"large")) == [b"OK", large]

    run(loop, work())


def test_a_blocking_connection_uses_tls_too(server: RedisServer, shared: TlsFiles) -> None:
    dial = over_tls(shared.settings())
    assert ask("127.0.0.1", server.port, None, None, "PING", dial=dial, timeout_s=PATIENCE_S) == b"PONG"


@LOOPS
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"ca": ""}, "is not from a trusted authority.*SHOAL_TLS_CA"),
        ({"cert": ""}, "requires a client certificate.*as cert and key"),
        ({"server_name": "s2"}, "is for another name.*set server_name"),
        ({"cert": "server.pem"}, "refused this client's certificate"),
    ],
    ids=["no authority", "no certificate", "another name", "the certificate of a server"],
)
def test_what_one_side_refuses_is_an_error_with_advice(
    loop: Loop, wrong: dict[str, str], why: str, server: RedisServer, shared: TlsFiles
) -> None:
    given = {name: str(shared.folder / value) if value.endswith(".pem") else value for name, value in wrong.items()}
    run(loop, refused(server, msgspec.structs.replace(shared.settings(), **given), why))


@LOOPS
def test_an_authority_of_another_cluster_is_refused_by_both_sides(
    loop: Loop, server: RedisServer, shared: TlsFiles, files: TlsFiles
) -> None:
    async def work() -> None:
        await refused(server, files.settings(), "is not from a trusted authority")
        mixed = msgspec.structs.replace(files.settings(), ca=shared.settings().ca)
        await refused(server, mixed, "refused this client's certificate: another authority issued it")

    run(loop, work())


@LOOPS
def test_an_expired_certificate_is_named(loop: Loop, server: RedisServer, shared: TlsFiles, files: TlsFiles) -> None:
    async def work() -> None:
        files.issue_server(valid_s=-1)
        with RedisServer(tls=files.settings("server")) as expired:
            await refused(expired, files.settings(), "the certificate of .* has expired: renew it")
            async with connection(expired, msgspec.structs.replace(files.settings(), verify=False)):
                pass
            late = over_tls(files.settings(), ignore_expiry=True)
            async with connection(expired, files.settings(), dial=late):
                pass
            stranger = over_tls(shared.settings(), ignore_expiry=True)
            with pytest.raises(TlsError, match="is not from a trusted authority"):
                await connection(expired, shared.settings(), dial=stranger).open()
        shared.authority.issue("late", server=False, client=True, valid_s=-1)
        await refused(server, shared.settings("late"), "refused this client's certificate: it has expired")

    run(loop, work())


async def test_a_host_name_must_be_in_the_certificate(files: TlsFiles) -> None:
    files.issue_server("s1.example")
    with RedisServer(tls=files.settings("server")) as named:
        await refused(named, files.settings(), "is for another name")
        async with connection(named, msgspec.structs.replace(files.settings(), server_name="s1.example")):
            pass


def test_a_blocking_connection_raises_the_same_errors(server: RedisServer) -> None:
    with (
        pytest.raises(TlsError, match="is not from a trusted authority"),
        BlockingConnection("127.0.0.1", server.port, None, None, dial=over_tls(TlsSettings())),
    ):
        pass


# -- only one side uses TLS: a server then waits for more, or closes the connection -----------------------------------


@LOOPS
def test_a_coordinator_without_tls_is_found_out(loop: Loop, shared: TlsFiles) -> None:
    async def work() -> None:
        with RedisServer() as plain, pytest.raises(TlsError, match=r"does not use TLS on this port.*write shoal://"):
            await PRODUCTION.coordinator(Address("127.0.0.1", plain.port, None, None, shared.settings()).url, 3.0)

    run(loop, work())


@LOOPS
def test_a_coordinator_with_tls_is_found_out(loop: Loop, server: RedisServer) -> None:
    async def work() -> None:
        with pytest.raises(TlsError, match="expects TLS: write shoals://"):
            await PRODUCTION.coordinator(f"shoal://127.0.0.1:{server.port}", PATIENCE_S)

    run(loop, work())


@LOOPS
def test_a_coordinator_that_is_away_is_not_blamed_on_tls(loop: Loop, shared: TlsFiles) -> None:
    async def work() -> None:
        with RedisServer() as ended:
            port = ended.port
        for tls in (None, shared.settings()):
            with pytest.raises(CoordinatorUnavailableError):
                await PRODUCTION.coordinator(Address("127.0.0.1", port, None, None, tls).url, 1.0)

    run(loop, work())


# -- renewal -----------------------------------------------------------------------------------------------------------


async def test_a_server_and_its_clients_change_their_certificates_while_they_run(files: TlsFiles) -> None:
    """The server loads a file again when it is told; clients look at theirs for each connection."""
    files.issue_server(valid_s=3600)
    with RedisServer(tls=files.settings("server")) as server:
        async with connection(server, files.settings()) as kept:
            files.issue_server(valid_s=-1)
            await kept.ask((b"CONFIG", b"SET", b"tls-cert-file", files.settings("server").cert))
            await refused(server, files.settings(), "has expired")
            files.issue_server(valid_s=3600)
            await kept.ask((b"CONFIG", b"SET", b"tls-cert-file", files.settings("server").cert))
            files.authority.issue("client", server=False, client=True, valid_s=-1)
            await refused(server, files.settings(), "refused this client's certificate: it has expired")
            files.authority.issue("client", server=False, client=True)
            async with connection(server, files.settings()):
                await kept.ask((b"PING",))


async def test_a_client_that_was_connected_waits_for_the_renewal(files: TlsFiles) -> None:
    """Only a first connection fails at once: later, certificates are renewed while clients run."""
    with RedisServer(tls=files.settings("server")) as server:
        url = Address("127.0.0.1", server.port, None, None, files.settings()).url
        async with await PRODUCTION.coordinator(url, PATIENCE_S) as coordinator:
            files.authority.issue("client", server=False, client=True, valid_s=-1)
            server.restart()
            reading = asyncio.ensure_future(coordinator.get("plan/ring"))
            await asyncio.wait({reading}, timeout=0.3)
            assert not reading.done()
            files.authority.issue("client", server=False, client=True)
            assert await reading is None


def test_the_tcp_dialer_stays_without_tls() -> None:
    assert PRODUCTION.dial is tcp
    assert PRODUCTION.coordinator_dial is tcp


# -- a server that is busy with handshakes -----------------------------------------------------------------------------


async def test_a_slow_handshake_is_finished_by_a_later_attempt(shared: TlsFiles) -> None:
    """A server that all clients reach at once after a restart does each handshake once, not once for each timeout."""
    with RedisServer(tls=shared.settings("server"), config=["loglevel verbose"]) as server:
        address = Address("127.0.0.1", server.port, None, None, shared.settings())
        link = Link(address, 0.2, dial=over_tls(shared.settings()), random=Random(1))
        os.kill(server.pid, signal.SIGSTOP)
        for _ in range(5):
            with pytest.raises(CoordinatorUnavailableError):
                await link.check_connection()
        os.kill(server.pid, signal.SIGCONT)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await link.check_connection()
                except CoordinatorUnavailableError:
                    continue
                break
        assert server.log.count("Accepted 127.0.0.1") == 1
        assert "Error accepting" not in server.log
        await link.close()


async def test_a_closed_link_leaves_no_handshake_behind(shared: TlsFiles) -> None:
    with RedisServer(tls=shared.settings("server")) as server:
        address = Address("127.0.0.1", server.port, None, None, shared.settings())
        link = Link(address, 0.2, dial=over_tls(shared.settings()), random=Random(1))
        os.kill(server.pid, signal.SIGSTOP)
        with pytest.raises(CoordinatorUnavailableError):
            await link.check_connection()
        await link.close()
        os.kill(server.pid, signal.SIGCONT)
        assert asyncio.all_tasks() == {asyncio.current_task()}
