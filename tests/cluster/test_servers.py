"""Server programs: search, security checks, setup; ports that stay free."""

from __future__ import annotations

import itertools
import socket
import stat
from pathlib import Path

import pytest

from shoal.cluster.servers import (
    HOST,
    ServerProgram,
    ServerSetup,
    choose_program,
    find_programs,
    free_port,
    inspect_program,
    judge,
    offers_tls,
    port_candidates,
    port_is_free,
    port_was_taken,
    write_setup,
)
from shoal.errors import ClusterError, PortInUseError, ServerTooOldError
from shoal.wire.tls import role_files


@pytest.mark.parametrize(
    ("kind", "version", "revision", "safe"),
    [
        ("redis", (7, 0, 15), "5:7.0.15-1~deb12u10", True),
        ("redis", (7, 0, 15), "5:7.0.15-1~deb12u9", False),
        ("redis", (7, 0, 15), None, False),
        ("redis", (6, 2, 14), None, False),
        ("redis", (6, 2, 24), None, True),
        ("redis", (7, 2, 15), None, False),
        ("redis", (8, 4, 6), None, False),
        ("redis", (8, 10, 2), None, True),
        ("redis", (9, 0, 0), None, False),
        ("redis", (5, 0, 14), None, False),
        ("valkey", (8, 1, 4), None, False),
        ("valkey", (9, 1, 0), None, False),
        ("valkey", (9, 1, 1), None, True),
    ],
)
def test_safety_looks_at_the_package_before_the_version(
    kind: str, version: tuple[int, int, int], revision: str | None, safe: bool
) -> None:
    judged, reason = judge(kind, version, revision)
    assert judged is safe
    assert reason


def fake_server(path: Path, version_line: str) -> None:
    path.write_text(f"#!/bin/sh\necho '{version_line}'\n")
    path.chmod(0o755)


def test_programs_are_found_each_once_and_the_best_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_server(tmp_path / "valkey-server", "Valkey server v=7.2.5 sha=0:0 malloc=libc bits=64")
    fake_server(tmp_path / "redis-server", "Redis server v=8.2.10 sha=0:0 malloc=libc bits=64")
    (tmp_path / "again").symlink_to(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{tmp_path / 'again'}")
    ours = [program for program in find_programs() if program.path.startswith(str(tmp_path))]
    assert [(program.kind, program.version, program.safe) for program in ours] == [
        ("redis", (8, 2, 10), True),
        ("valkey", (7, 2, 5), False),
    ]


def test_what_is_no_server_is_not_taken_for_one(tmp_path: Path) -> None:
    fake_server(tmp_path / "redis-server", "hello")
    assert inspect_program(str(tmp_path / "redis-server")) is None
    assert inspect_program(str(tmp_path / "missing")) is None


def test_without_a_server_program_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.cluster.servers.find_programs", list)
    with pytest.raises(ClusterError, match="apt install"):
        choose_program()


def test_a_server_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    old = ServerProgram("/x/redis-server", "redis", (6, 0, 16), None, False, "old")
    monkeypatch.setattr("shoal.cluster.servers.find_programs", lambda: [old])
    with pytest.raises(ServerTooOldError, match=r"6\.0\.16, older than 6\.2"):
        choose_program()


@pytest.mark.parametrize("durable", [True, False])
def test_a_setup_is_private_local_and_remembers_only_what_it_must(tmp_path: Path, durable: bool) -> None:
    program = ServerProgram("/x/redis-server", "redis", (7, 0, 15), None, True, "")
    directory = tmp_path / 'a "b' / "s1"
    command = write_setup(ServerSetup(directory, 7001, "user default off\n", durable), program)
    assert command == ["/x/redis-server", str(directory / "server.conf")]
    lines = (directory / "server.conf").read_text().splitlines()
    assert {"bind 127.0.0.1", "port 7001", "protected-mode yes", 'save ""'} <= {*lines}
    assert f"appendonly {'yes' if durable else 'no'}" in lines
    assert ("appendfsync always" in lines) is durable
    assert "enable-debug-command no" in lines
    assert "proto-max-bulk-len 33554432" in lines
    assert "client-output-buffer-limit pubsub 268435456 134217728 60" in lines
    for path in directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_old_servers_are_not_given_settings_that_they_do_not_know(tmp_path: Path) -> None:
    program = ServerProgram("/x/redis-server", "redis", (6, 2, 14), None, False, "")
    write_setup(ServerSetup(tmp_path, 7001, "", False), program)
    assert "enable-" not in (tmp_path / "server.conf").read_text()


def test_ports_lie_below_those_of_outgoing_connections() -> None:
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    bound = low if low >= 16384 else 32768
    assert all(1024 < port < bound for port in itertools.islice(port_candidates(), 200))


def test_a_taken_port_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not port_is_free(port)
        monkeypatch.setattr("shoal.cluster.servers.port_candidates", lambda: iter([port] * 5))
        with pytest.raises(PortInUseError, match="5 tries"):
            free_port(5)
    assert port_is_free(port)


def test_a_port_that_is_spoken_for_is_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = free_port(20), free_port(20)
    monkeypatch.setattr("shoal.cluster.servers.port_candidates", lambda: iter([first, second]))
    assert free_port(2, {first}) == second


def test_a_clash_is_read_from_the_log() -> None:
    assert port_was_taken("# Warning: Could not create server TCP listening socket 127.0.0.1:1: bind: Address")
    assert not port_was_taken("Fatal error, can't open config file")


def test_a_server_listens_where_its_site_is(tmp_path: Path) -> None:
    program = ServerProgram("/x/redis-server", "redis", (7, 0, 15), None, True, "")
    write_setup(ServerSetup(tmp_path, 7001, "", False, "10.1.2.3"), program)
    assert "bind 10.1.2.3" in (tmp_path / "server.conf").read_text().splitlines()


def test_a_program_without_tls_is_not_used_for_a_cluster_with_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_server(tmp_path / "redis-server", "Redis server v=7.2.16 sha=0:0 malloc=libc bits=64 build=0")
    assert not offers_tls(str(tmp_path / "redis-server"))
    (only,) = [inspect_program(str(tmp_path / "redis-server"))]
    assert only is not None
    monkeypatch.setattr("shoal.cluster.servers.find_programs", lambda: [only])
    assert choose_program() is only
    with pytest.raises(ClusterError, match="was built without TLS: install a server with TLS"):
        choose_program(tls=True)


def test_with_tls_a_server_listens_on_no_other_port(tmp_path: Path) -> None:
    setup = ServerSetup(tmp_path, 7001, "user default off\n", durable=False, tls=role_files("/a b", "s1"))
    write_setup(setup, ServerProgram("/x", "redis", (7, 0, 15), None, True, ""))
    lines = (tmp_path / "server.conf").read_text().splitlines()
    assert {"port 0", "tls-port 7001", 'tls-cert-file "/a b/s1.pem"', "tls-auth-clients yes"} <= {*lines}
    assert "port 7001" not in lines
