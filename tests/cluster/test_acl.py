"""Permissions of each role: the patterns by reasoning, everything else on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.connections import ask

from shoal.cluster.acl import ADMIN, AGENT, CLIENT, ENGINE, PIPELINE, READER, ROLES, names_without, rights
from shoal.cluster.local import LocalCluster
from shoal.cluster.state import ClusterState
from shoal.errors import AuthenticationError
from shoal.wire.envelope import (
    AGENT_CHANNEL,
    HEARTBEAT_CHANNEL,
    RESERVED_PREFIX,
    TELEMETRY_KEY,
    inbox_channel,
    peer_channel,
)
from shoal.wire.glob import glob_match

HEARTBEAT = HEARTBEAT_CHANNEL.decode()
PREFIX = RESERVED_PREFIX.decode()
Ask = Callable[..., Any]


@given(st.one_of(st.text("_shoalwrd:x", max_size=14), st.text(max_size=8), st.just(PREFIX), st.just(HEARTBEAT)))
def test_the_patterns_match_every_name_without_the_prefix(name: str) -> None:
    raw = name.encode("utf-8", "surrogatepass")
    matched = any(glob_match(pattern.encode(), raw) for pattern in names_without(PREFIX))
    assert matched == (raw != b"" and not raw.startswith(RESERVED_PREFIX))
    assert len(names_without(PREFIX)) == 15


@given(
    st.one_of(st.text("_shoal:.ie", max_size=14), st.text(max_size=8), st.just("__shoal.i:x"), st.just("__shoal.e:"))
)
def test_the_patterns_match_every_name_without_two_prefixes(name: str) -> None:
    raw = name.encode("utf-8", "surrogatepass")
    matched = any(glob_match(pattern.encode(), raw) for pattern in names_without(PREFIX, "__shoal.i:"))
    assert matched == (raw != b"" and not raw.startswith((RESERVED_PREFIX, b"__shoal.i:")))


def test_the_first_pattern_takes_common_names() -> None:
    assert glob_match(names_without(PREFIX)[0].encode(), b"tile.3.4")


def test_a_prefix_with_pattern_characters_is_refused() -> None:
    with pytest.raises(ValueError, match="pattern"):
        names_without("a*b")


def test_old_servers_get_plain_rules() -> None:
    assert "(" not in rights(CLIENT, (6, 2, 14))
    assert "+publish" in rights(CLIENT, (6, 2, 14))


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(ValueError, match="roles are client, agent, reader, pipeline, admin"):
        rights("root", (7, 0, 0))


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterState]:
    """A data server and a coordinator with the cluster's users; the event loop is blocked while the tests send
    commands.
    """
    with asyncio.Runner() as runner:
        local = LocalCluster(servers=1, agents=False)
        runner.run(local.__aenter__())
        try:
            yield local.state
        finally:
            runner.run(local.__aexit__(None, None, None))


@pytest.fixture
def as_role(cluster: ClusterState) -> Ask:
    """Send a command to the data server as a role."""

    def ask_as(role: str, *command: bytes | str | int) -> Any:
        server = cluster.servers[0]
        return ask(server.host, server.port, role, cluster.passwords[role], *command)

    return ask_as


COMMON = ["PING", "CLIENT ID", "CLIENT SETNAME me", "INFO server"]
COUNTS = ["PUBSUB CHANNELS", "PUBSUB NUMSUB a", "PUBSUB NUMPAT"]
ALLOWED = {
    CLIENT: [*COMMON, *COUNTS, "GET __shoal:plan", "PUBLISH tile.1 x", "PUBLISH _x y", "PUBLISH __shoal y"],
    AGENT: [
        *COMMON,
        *COUNTS,
        f"PUBLISH {HEARTBEAT} x",
        "PUBLISH tile.1 x",
        f"PUBLISH {inbox_channel(7).decode()} x",
        f"PUBLISH {peer_channel(7).decode()} x",
        f"XADD {TELEMETRY_KEY.decode()} MAXLEN ~ 10 * a b",
        f"XLEN {TELEMETRY_KEY.decode()}",
        f"XTRIM {TELEMETRY_KEY.decode()} MAXLEN 10",
        "CLIENT LIST",
        "SET __shoal:plan x",
    ],
    READER: [
        *COMMON,
        f"XRANGE {TELEMETRY_KEY.decode()} - +",
        f"XREAD COUNT 1 STREAMS {TELEMETRY_KEY.decode()} 0",
    ],
    PIPELINE: [*COMMON, f"XRANGE {TELEMETRY_KEY.decode()} - +", f"XINFO STREAM {TELEMETRY_KEY.decode()}"],
    ENGINE: [*COMMON, *COUNTS, "PUBLISH __shoal.i:main:all x", "PUBLISH tile.1 x", "GET __shoal:plan"],
    ADMIN: [*COMMON, *COUNTS, "CLIENT LIST", "CONFIG GET maxclients", "INFO all"],
}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_do_its_work(as_role: Ask, role: str) -> None:
    for command in ALLOWED[role]:
        as_role(role, *command.split())


@pytest.mark.parametrize(
    "channel",
    [AGENT_CHANNEL, peer_channel(7), b"a", b"__shoal", b"__shoalx", b"__shoal.e:main:in:0", b"\xff\x00", b"["],
)
def test_a_client_may_publish_where_it_must(as_role: Ask, channel: bytes) -> None:
    assert as_role(CLIENT, "PUBLISH", channel, "x") == 0


@pytest.mark.parametrize(
    "channel", [HEARTBEAT_CHANNEL, inbox_channel(7), RESERVED_PREFIX, b"__shoal:agents", b"__shoal.i:main:to:1"]
)
def test_a_client_cannot_publish_what_only_agents_send(as_role: Ask, channel: bytes) -> None:
    with pytest.raises(hiredis.ReplyError, match="NOPERM"):
        as_role(CLIENT, "PUBLISH", channel, "forged")


async def answer_to(cluster: ClusterState, role: str, command: str) -> bytes:
    """Return the first line of the data server's reply to a command of a role."""
    server = cluster.servers[0]
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(f"AUTH {role} {cluster.passwords[role]}\r\n{command}\r\n".encode())
    try:
        assert await reader.readline() == b"+OK\r\n"
        return await reader.readline()
    finally:
        writer.close()


LISTENED = ["tile", HEARTBEAT, inbox_channel(7).decode(), peer_channel(7).decode()]


@pytest.mark.parametrize(
    "command", ["PSUBSCRIBE *", "UNSUBSCRIBE x", "PUNSUBSCRIBE x*", *(f"SUBSCRIBE {name}" for name in LISTENED)]
)
@pytest.mark.parametrize("role", [CLIENT, AGENT])
async def test_clients_and_agents_listen_where_they_must(cluster: ClusterState, role: str, command: str) -> None:
    assert await answer_to(cluster, role, command) == b"*3\r\n"


async def test_a_client_may_not_subscribe_to_what_clients_tell_agents(cluster: ClusterState) -> None:
    assert (await answer_to(cluster, CLIENT, f"SUBSCRIBE {AGENT_CHANNEL.decode()}")).startswith(b"-NOPERM")


HARMFUL = [
    "FLUSHALL",
    "EVAL return 1 0",
    "SCRIPT LOAD x",
    "FUNCTION LIST",
    "RESTORE k 0 x",
    "REPLICAOF no one",
    "KEYS *",
    "SCAN 0",
    "GET k",
    "SET k v",
    "CONFIG SET maxmemory 1",
    "ACL LIST",
    "ACL SETUSER default on",
    "DEBUG SLEEP 0",
    "MODULE LIST",
    "MONITOR",
    "SAVE",
    "BGREWRITEAOF",
    "MIGRATE 127.0.0.1 1 k 0 1",
    "SELECT 1",
    f"DEL {TELEMETRY_KEY.decode()}",
]
EXTRA = {
    CLIENT: [
        "CONFIG GET maxclients",
        "CLIENT LIST",
        "CLIENT KILL ID 1",
        "SHUTDOWN",
        "XADD __shoal:telemetry * a b",
        "SET __shoal:plan x",
    ],
    AGENT: ["CONFIG GET maxclients", "SHUTDOWN", "XADD other * a b"],
    READER: ["PUBLISH a x", "XADD __shoal:telemetry * a b", "XRANGE other - +", "CLIENT LIST", "SHUTDOWN"],
    PIPELINE: ["PUBLISH a x", "XADD __shoal:telemetry * a b", "XRANGE other - +", "CLIENT LIST", "SHUTDOWN"],
    ENGINE: ["PUBLISH __shoal:heartbeat x", "XADD __shoal:telemetry * a b", "CLIENT LIST", "SHUTDOWN"],
    ADMIN: ["PUBLISH a x", "XADD __shoal:telemetry * a b", "SUBSCRIBE a"],
}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_do_nothing_else(as_role: Ask, role: str) -> None:
    for command in [*HARMFUL, *EXTRA[role]]:
        with pytest.raises(hiredis.ReplyError, match=r"NOPERM|not allowed"):
            as_role(role, *command.split())


@pytest.mark.parametrize("at", ["coordinator", "server"])
def test_logins_without_a_valid_password_are_rejected(cluster: ClusterState, at: str) -> None:
    place = cluster.coordinator if at == "coordinator" else cluster.servers[0]
    for user, password in [
        (None, None),
        ("default", ""),
        ("default", "x"),
        (CLIENT, "wrong"),
        ("nobody", "x"),
    ]:
        with pytest.raises(AuthenticationError):
            ask(place.host, place.port, user, password, "PING")


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_enter_the_coordinator_and_do_no_harm_there(cluster: ClusterState, role: str) -> None:
    place = cluster.coordinator
    assert ask(place.host, place.port, role, cluster.passwords[role], "PING") in (b"PONG", "PONG")
    for command in ["FLUSHALL", "EVAL return 1 0", "CONFIG GET *", "SHUTDOWN", "ACL LIST", "SET other x"]:
        with pytest.raises(hiredis.ReplyError, match="NOPERM"):
            ask(place.host, place.port, role, cluster.passwords[role], *command.split())
