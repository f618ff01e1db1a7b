"""The rights on a store: queues work with them, nothing else does, and what was confirmed survives a kill -9."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Any

import hiredis
import pytest
from tests.support.connections import ask
from tests.support.queue_store import client_of, store_server
from tests.support.redis_server import RedisServer

from shoal.cluster.acl import ADMIN, AGENT, CLIENT, QUEUE_KEYS, ROLES, store_acl_file, store_rights
from shoal.errors import AuthenticationError
from shoal.plan.queue_settings import QueueSettings
from shoal.queues.message_format import KEY_PREFIX
from shoal.queues.queue import NewMessage
from shoal.queues.script_loader import load_scripts

SHAS = {script.name: script.sha.decode() for script in load_scripts()}
PASSWORDS = dict.fromkeys(ROLES, "secret")


def users(text: str) -> list[str]:
    """The lines of an ACL file, as a server's configuration has them."""
    return [line.removeprefix("user ") for line in text.splitlines()]


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    with store_server(users=users(store_acl_file(PASSWORDS, SHAS))) as server:
        yield server


def test_the_rights_name_every_command_that_the_scripts_call() -> None:
    called = {word for script in load_scripts() for word in re.findall(rb"redis\.call\(\s*'(\w+)'", script.text)}
    given = {rule[1:].upper() for rule in store_rights(CLIENT, SHAS).split() if rule.startswith("+")}
    assert {word.decode() for word in called} | {"LPUSH", "RPUSH"} <= given
    assert QUEUE_KEYS.encode() == KEY_PREFIX


async def make_queue(server: RedisServer, name: str, **settings: Any) -> None:
    """Loads the scripts and creates a queue, as the agent of a store does."""
    for script in load_scripts():
        ask(server.host, server.port, AGENT, "secret", "SCRIPT", "LOAD", script.text.decode())
    async with client_of(server, user=ADMIN, password="secret") as admin:
        await admin.create(name, **settings)


async def test_a_client_of_the_store_can_do_everything_that_queues_need(guarded: RedisServer) -> None:
    await make_queue(guarded, "rights", attempts_max=1)
    async with client_of(guarded, user=CLIENT, password="secret") as client:
        queue = client.queue("rights")
        async with queue.take() as jobs:
            await queue.put_many([NewMessage(b"%d" % n, key="k", id=f"{n}") for n in range(3)])
            await (await anext(jobs)).done()
            await (await anext(jobs)).fail("broken")
            await queue.replay((await queue.dead())[0].entry)
            await queue.put(b"later", delay=60.0)
            assert await queue.keys()
            assert await queue.peek()
        assert await queue.purge() == 3


async def test_only_agents_and_administrators_create_configure_and_drop_queues_on_a_store(guarded: RedisServer) -> None:
    await make_queue(guarded, "protected")
    async with client_of(guarded, user=CLIENT, password="secret") as client:
        queue = client.queue("protected")
        await queue.put(b"kept")
        for attempt in (queue.drop(), queue.configure(QueueSettings(messages_max=1)), client.create("other")):
            with pytest.raises(AuthenticationError, match="NOPERM"):
                await attempt
        assert (await queue.stats()).messages == 1
    ship = [SHAS["ship"], "1", f"{QUEUE_KEYS}protected:", "seal", "1", "1", "0", "1"]
    for role in (CLIENT, ADMIN):
        with pytest.raises(hiredis.ReplyError, match="NOPERM"):
            ask(guarded.host, guarded.port, role, "secret", "EVALSHA", *ship)


@pytest.mark.parametrize(
    "command",
    [
        ("EVAL", "return 1", "0"),
        ("SCRIPT", "LOAD", "return 1"),
        ("GET", "other"),
        ("RPUSH", "other", "x"),
        ("SUBSCRIBE", "__shoal:heartbeat"),
        ("PUBLISH", "other", "x"),
        ("CONFIG", "GET", "*"),
        ("FLUSHALL",),
        ("KEYS", "*"),
        ("ACL", "LIST"),
        ("BGREWRITEAOF",),
    ],
)
def test_a_client_can_do_nothing_else(guarded: RedisServer, command: tuple[str, ...]) -> None:
    with pytest.raises(hiredis.ReplyError, match="NOPERM"):
        ask(guarded.host, guarded.port, CLIENT, "secret", *command)


@pytest.mark.parametrize("replays", [True, False])
async def test_confirmed_messages_survive_a_kill_only_with_the_rule_for_replay(replays: bool) -> None:
    text = store_acl_file(PASSWORDS, SHAS)
    if not replays:
        text = text.replace("resetpass allkeys allchannels +@all", "resetpass resetkeys resetchannels -@all")
    with store_server(users=users(text)) as server:
        await make_queue(server, "kill")
        async with client_of(server, user=CLIENT, password="secret") as client:
            queue = client.queue("kill")
            assert (await queue.put_many([NewMessage(b"%d" % n, key="k") for n in range(5)])).accepted == 5
        server.kill()
        server.start()
        reply = ask(server.host, server.port, CLIENT, "secret", "LLEN", f"{QUEUE_KEYS}kill:{zlib.crc32(b'k') % 16}:k:k")
        assert reply == (5 if replays else 0)
