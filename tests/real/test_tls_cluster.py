"""A real cluster with TLS on every connection: it works as one without, refuses what is not certified, and changes its
certificates while it runs."""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.agent_site import until
from tests.support.cluster_thread import ClusterThread
from tests.support.command import run_command, run_json_command
from tests.support.one_worker import only_one_worker

import shoal
import shoal.redis
from shoal.cluster.acl import ADMIN, CLIENT, READER
from shoal.cluster.authority import Authority
from shoal.cluster.cluster_timeouts import Timing
from shoal.cluster.local import COORDINATOR, LocalCluster
from shoal.coordination.link import Address, parse_address
from shoal.errors import TlsError
from shoal.history.server_reader import ServerReader
from shoal.message import Message
from shoal.pipeline.source.cluster_address import read_cluster_address
from shoal.plan.ring import ServerAddress
from shoal.redis.pubsub import PubSub
from shoal.wire.tls import TlsSettings, client_context

WAIT_S = 60.0


@pytest.fixture(scope="session")
def tls_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterThread]:
    only_one_worker("tls_cluster", tmp_path_factory)
    with ClusterThread(servers=2, tls=True) as cluster:
        yield cluster


@pytest.fixture
def address(tls_cluster: ClusterThread) -> Address:
    return parse_address(tls_cluster.url, None, None)


@pytest.fixture
async def bus(tls_cluster: ClusterThread) -> AsyncIterator[shoal.Bus]:
    async with shoal.connect(tls_cluster.url) as opened:
        yield opened


def role_url(cluster: ClusterThread, role: str) -> str:
    async def url(running: LocalCluster) -> str:
        return running.url_for(role)

    return cluster.call(url)


def folder(cluster: ClusterThread) -> Path:
    async def path(running: LocalCluster) -> Path:
        return running.directory.tls

    return cluster.call(path)


@pytest.fixture
def commands(tls_cluster: ClusterThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of the test find the cluster in its state directory."""
    monkeypatch.setenv("SHOAL_STATE_DIR", str(folder(tls_cluster).parent))


def with_tls(address: Address, **changes: str) -> str:
    assert address.tls is not None
    tls = msgspec.structs.replace(address.tls, **changes)
    return Address(address.host, address.port, address.username, address.password, tls).url


async def exchange(bus: shoal.Bus, channel: str, count: int, payload: bytes = b"") -> None:
    """Publish, and check that everything arrives once and in order."""
    async with bus.subscribe(channel) as messages:
        for number in range(count):
            await bus.publish(channel, b"%d:" % number + payload)
        for number in range(count):
            item = await messages.get(WAIT_S)
            assert isinstance(item, Message)
            assert item.payload == b"%d:" % number + payload


# -- it works as without -----------------------------------------------------------------------------------------------


async def test_messages_arrive_once_and_in_order(bus: shoal.Bus) -> None:
    await exchange(bus, "small", 2000)
    await exchange(bus, "large", 6, b"x" * 1_000_000)


def test_no_server_listens_without_tls(tls_cluster: ClusterThread) -> None:
    async def configured(cluster: LocalCluster) -> list[str]:
        paths = cluster.directory.root.glob("**/server.conf")
        return [path.read_text() for path in paths]

    found = tls_cluster.call(configured)
    assert len(found) == 3
    for text in found:
        assert "\nport 0\n" in text
        assert "\ntls-auth-clients yes\n" in text


def test_all_files_are_private(tls_cluster: ClusterThread) -> None:
    files = list(folder(tls_cluster).iterdir())
    assert {"ca.pem", "ca.key", "client.pem", "coordinator.pem", "s1.pem"} <= {file.name for file in files}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


async def test_a_channel_moves_under_load(
    bus: shoal.Bus, tls_cluster: ClusterThread, capsys: pytest.CaptureFixture[str], commands: None
) -> None:
    async with bus.subscribe("moving") as messages:
        for number in range(100):
            await bus.publish("moving", b"%d" % number)
        _, facts = await run_json_command(capsys, "plan", "show", "moving")
        (home,) = facts["channels"][0]["servers"]
        away = "s2" if home == "s1" else "s1"
        status, _ = await run_json_command(capsys, "plan", "move", "moving", "--to", away)
        assert status == 0
        for number in range(100, 200):
            await bus.publish("moving", b"%d" % number)
        items = [await messages.get(WAIT_S) for _ in range(200)]
    assert [item.payload for item in items if isinstance(item, Message)] == [b"%d" % number for number in range(200)]


@pytest.mark.parametrize("victim", ["agent-s1", "agent-s2", COORDINATOR])
async def test_a_killed_process_comes_back(bus: shoal.Bus, tls_cluster: ClusterThread, victim: str) -> None:
    async with bus.subscribe("steady") as messages:
        tls_cluster.call(lambda cluster: cluster.kill(victim))
        for number in range(50):
            await bus.publish("steady", b"%d" % number, confirm=True)
            item = await messages.get(WAIT_S)
            assert isinstance(item, Message)
            assert item.payload == b"%d" % number
    await asyncio.to_thread(tls_cluster.call, lambda cluster: cluster.wait_until_ready())
    async with shoal.connect(tls_cluster.url) as other:
        await exchange(other, f"after.{victim}", 10)


# -- everything finds and uses it --------------------------------------------------------------------------------------


async def test_commands_and_applications_find_the_cluster_and_its_authority(
    commands: None, capsys: pytest.CaptureFixture[str]
) -> None:
    async with shoal.connect() as bus:
        await exchange(bus, "found", 5)
    status: dict[str, Any] = {"ready": False}
    async with asyncio.timeout(WAIT_S):  # on a busy machine a report may be late
        while not status["ready"]:
            _, status = await run_json_command(capsys, "status")
    assert status["certificates_expire_at"] > 0
    assert all(server["load"]["connections"] > 0 for server in status["servers"])
    _, text, _ = await run_command(capsys, "status")
    assert "TLS: certificates renewed automatically, the first expires in" in text
    _, top = await run_json_command(capsys, "top", "--once")
    assert [server["trouble"] for server in top["servers"]] == [None, None]
    code, doctor = await run_json_command(capsys, "doctor", "--quick")
    assert [finding["level"] for finding in doctor["findings"] if finding["check"] == "tls"] == ["ok"]
    code, shown = await run_json_command(capsys, "tls", "show")
    assert code == 0
    assert {"authority", "client", "s1"} <= {row["name"] for row in shown["certificates"]}


async def test_recorded_messages_are_read_over_tls(
    tls_cluster: ClusterThread, commands: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_COORDINATOR", role_url(tls_cluster, ADMIN))
    code, _ = await run_json_command(capsys, "channels", "record", "kept")
    assert code == 0
    monkeypatch.delenv("SHOAL_COORDINATOR")
    async with shoal.connect(tls_cluster.url) as bus:
        await exchange(bus, "kept", 3)
    for _ in range(20):
        _, facts = await run_json_command(capsys, "history", "kept", "--since", "10m")
        if facts["messages"] == 3:
            break
    assert facts["messages"] == 3
    assert facts["unreachable"] == []


def test_the_spark_source_reads_servers_over_tls(tls_cluster: ClusterThread) -> None:
    cluster = read_cluster_address({"coordinator": role_url(tls_cluster, READER)})
    servers = cluster.servers()
    assert [server.tls for server in servers] == [True, True]
    for server in servers:
        with ServerReader(server, cluster.login) as reader:
            assert reader._asking.ask("XLEN", "__shoal:telemetry") >= 0


async def test_the_redis_surface_takes_the_names_of_redis_py(address: Address) -> None:
    assert address.tls is not None
    client = shoal.redis.Redis(
        host=address.host,
        port=address.port,
        username=address.username,
        password=address.password,
        ssl=True,
        ssl_ca_certs=address.tls.ca,
        ssl_certfile=address.tls.cert,
    )
    async with client, client.pubsub() as pubsub:
        await pubsub.subscribe("surface")
        assert await client.publish("surface", b"hello") == 1
        await until(lambda: _heard(pubsub))
    with pytest.raises(TypeError, match="give ssl=True"):
        shoal.redis.Redis(host="h", ssl_ca_certs="x")


async def _heard(pubsub: PubSub) -> bool:
    message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=1.0)
    return message is not None and message["data"] == b"hello"


# -- what is not certified is refused ----------------------------------------------------------------------------------


async def refused(url: str, why: str) -> None:
    with pytest.raises(TlsError, match=why):
        await shoal.connect(url).open()


async def test_a_wrong_authority_is_refused(address: Address, tmp_path: Path) -> None:
    other = Authority.create(tmp_path, "other")
    other.issue(CLIENT, server=False, client=True)
    await refused(with_tls(address, ca=str(tmp_path / "ca.pem")), "is not from a trusted authority")
    await refused(with_tls(address, cert=str(tmp_path / "client.pem")), "another authority issued it")


async def test_a_client_without_a_certificate_is_refused(address: Address) -> None:
    await refused(with_tls(address, cert=""), "requires a client certificate")


async def test_an_expired_certificate_is_refused(address: Address, tls_cluster: ClusterThread) -> None:
    authority = Authority.load(folder(tls_cluster))
    assert authority is not None
    expired = authority.issue("expired", server=False, client=True, valid_s=-1)
    try:
        await refused(with_tls(address, cert=str(expired)), "it has expired")
    finally:
        expired.unlink()


async def test_plain_text_is_refused_with_what_to_write(address: Address) -> None:
    plain = Address(address.host, address.port, address.username, address.password).url
    await refused(plain, "expects TLS: write shoals://")


# -- renewal -----------------------------------------------------------------------------------------------------------


async def serial(host: str, port: int, tls: TlsSettings) -> str:
    """The serial number of the certificate that a server shows."""
    _, writer = await asyncio.open_connection(host, port, ssl=client_context(tls))
    try:
        shown: ssl.SSLObject = writer.get_extra_info("ssl_object")
        certificate = shown.getpeercert()
        assert certificate is not None
        return str(certificate["serialNumber"])
    finally:
        writer.close()


async def test_certificates_are_renewed_while_clients_stay_connected(
    bus: shoal.Bus, tls_cluster: ClusterThread, address: Address, commands: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert address.tls is not None
    where = [(address.host, address.port), *((server.host, server.port) for server in bus.ring.servers)]
    async with bus.subscribe("kept open") as messages:
        before = [await serial(*one, address.tls) for one in where]
        code, facts = await run_json_command(capsys, "tls", "renew")
        assert (code, facts["behind"]) == (0, [])
        after = [await serial(*one, address.tls) for one in where]
        assert not {*before} & {*after}
        await bus.publish("kept open", b"still here", confirm=True)
        item = await messages.get(WAIT_S)
        assert isinstance(item, Message)
        await bus.disconnect()
        await bus.publish("kept open", b"and again", confirm=True)
        item = await messages.get(WAIT_S)
        assert isinstance(item, Message)
    async with shoal.connect(tls_cluster.url) as other:
        await exchange(other, "renewed", 10)


async def test_short_lived_certificates_are_renewed_in_time(tmp_path: Path) -> None:
    """All first certificates expire during the test; only the renewal keeps new connections possible."""
    timing = Timing(certificate_s=6.0)
    async with LocalCluster(1, tmp_path / "state", agents=False, tls=True, timing=timing) as cluster:
        (server,) = cluster.servers
        tls = cluster.state.tls_for(ADMIN)
        assert tls is not None
        seen = {await serial(server.host, server.port, tls)}

        async def renewed() -> bool:
            try:
                seen.add(await serial(server.host, server.port, tls))
            except OSError:  # expired for a moment: this machine was too busy to renew in time
                return False
            return len(seen) >= 4

        await until(renewed)
        cluster.pause("s1")  # it misses a renewal until its certificate has expired, and is told all the same
        expires_at = cluster.status().certificates_expire_at
        assert expires_at is not None
        await asyncio.sleep(expires_at - time.time())
        cluster.resume("s1")
        await until(lambda: _opens(server, tls))


async def _opens(server: ServerAddress, tls: TlsSettings) -> bool:
    try:
        await serial(server.host, server.port, tls)
    except OSError:
        return False
    return True


async def test_the_authority_outlives_the_cluster_but_no_certificate_does(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with LocalCluster(1, state, agents=False, tls=True):
        authority, client = ((state / "tls" / name).read_bytes() for name in ("ca.pem", "client.pem"))
    assert sorted(os.listdir(state)) == ["tls"]
    async with LocalCluster(2, state, agents=False, tls=True):
        assert (state / "tls" / "ca.pem").read_bytes() == authority
        assert (state / "tls" / "client.pem").read_bytes() != client


async def test_a_removed_server_leaves_no_certificate(tls_cluster: ClusterThread) -> None:
    (added,) = await asyncio.to_thread(tls_cluster.call, lambda cluster: cluster.add_servers(1))
    assert (folder(tls_cluster) / f"{added}.pem").exists()
    await asyncio.to_thread(tls_cluster.call, lambda cluster: cluster.remove_host(added))
    assert not (folder(tls_cluster) / f"{added}.pem").exists()
