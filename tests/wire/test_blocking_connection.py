"""Blocking questions: one command, one answer, no event loop of the caller."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import hiredis
import pytest
from tests.support.connections import ask
from tests.support.redis_server import RedisServer, free_port

from shoal.errors import AuthenticationError, ConnectError


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(password="secret", users=["narrow on >pass ~* &* +hello +ping"]) as server:
        yield server


def test_the_reply_comes_back_as_hiredis_decodes_it(server: RedisServer) -> None:
    assert ask(server.host, server.port, None, "secret", "SET", b"key", 7) == b"OK"
    assert ask(server.host, server.port, None, "secret", "GET", "key") == b"7"
    assert ask(server.host, server.port, None, "secret", "CONFIG", "GET", "appendonly") == {b"appendonly": b"no"}


def test_a_reply_of_many_reads_comes_back_whole(server: RedisServer) -> None:
    assert ask(server.host, server.port, None, "secret", "PING", bytes(3_000_000)) == bytes(3_000_000)


def test_a_user_needs_no_other_right_than_the_command(server: RedisServer) -> None:
    assert ask(server.host, server.port, "narrow", "pass", "PING") == b"PONG"
    with pytest.raises(hiredis.ReplyError, match="NOPERM"):
        ask(server.host, server.port, "narrow", "pass", "INFO")


def test_a_wrong_password_is_an_authentication_error(server: RedisServer) -> None:
    with pytest.raises(AuthenticationError, match="refused user 'default'"):
        ask(server.host, server.port, None, "wrong", "PING")


def test_a_closed_port_is_a_connect_error(server: RedisServer) -> None:
    with pytest.raises(ConnectError, match="cannot connect to"):
        ask(server.host, free_port(), None, None, "PING")


def test_a_silent_peer_times_out(server: RedisServer) -> None:
    with (
        socket.create_server((server.host, 0)) as silent,
        pytest.raises(ConnectError, match="no answer to HELLO within"),
    ):
        ask(server.host, silent.getsockname()[1], None, None, "PING", timeout_s=0.1)


WAITING = """
import sys
from shoal.wire.blocking_connection import BlockingConnection
from shoal.wire.dial import tcp
with BlockingConnection(sys.argv[1], int(sys.argv[2]), None, "secret", dial=tcp, timeout_s=60.0) as connection:
    connection.ask("BLPOP", "empty", 0)
"""


def test_ctrl_c_ends_a_request_that_waits(server: RedisServer) -> None:
    command = [sys.executable, "-c", WAITING, server.host, str(server.port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while b"blocked_clients:1" not in ask(server.host, server.port, None, "secret", "INFO", "clients"):
            assert process.poll() is None, "it ended by itself"
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "Task" not in errors
