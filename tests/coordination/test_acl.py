"""The roles on a real Redis: each can do its work through the coordinator, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis
from tests.coordination.contract_support import Follower, held
from tests.support.connections import connect_coordinator
from tests.support.redis_server import RedisServer

from shoal.coordination.acl import DEFAULT_USER_RULES, ROLES, Role, acl_rules
from shoal.coordination.interface import Coordinator, KeyWrite, Versioned
from shoal.coordination.redis import RedisCoordinator
from shoal.errors import AuthenticationError, ConfigError, ConflictError, CoordinatorError
from shoal.load.window_feed import ALIVE_KEY, alive_command, ended_command, feed_command, read_command

USERS: dict[str, list[str]] = {
    "client": acl_rules("client"),
    "reader": acl_rules("reader"),
    "pipeline": acl_rules("pipeline"),
    "agent": acl_rules("agent"),
    "agent-7": acl_rules("agent", server_id="7"),
    "agent-7-on-6.2": acl_rules("agent", server_id="7", server_version=(6, 2)),
    **{f"{role}-on-6.2": acl_rules(role, server_version=(6, 2)) for role in ("client", "reader", "pipeline")},
    "engine": acl_rules("engine"),
    "admin": acl_rules("admin"),
    "default": list(DEFAULT_USER_RULES),
}
AGENTS_OF_SERVER_7 = ["agent-7", "agent-7-on-6.2"]
NEEDED_BY_NOBODY = [
    *("FLUSHALL", "FLUSHDB", "KEYS *", "CONFIG GET *", "CONFIG SET maxmemory 1", "SHUTDOWN"),
    *("FUNCTION LIST", "SCRIPT LOAD x", "ACL LIST", "ACL SETUSER x on", "MONITOR", "SAVE", "SWAPDB 0 1"),
    *("REPLICAOF localhost 1", "BGREWRITEAOF", "CLIENT KILL ID 1", "CLIENT LIST", "MODULE LIST", "EVAL x 0"),
    *(
        "SET other 1",
        "GET other",
        "SUBSCRIBE other",
        "PSUBSCRIBE *",
        "PUBLISH other x",
        "BLPOP shoal:plan/x 1",
    ),
    *("RESTORE shoal:plan/x 0 x", "MIGRATE localhost 1 shoal:plan/x 0 1", "SORT shoal:plan/x"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    users = [f"{user} on >pw-{user} {' '.join(rules)}" for user, rules in USERS.items()]
    with RedisServer(aof=True, users=users) as running:
        yield running


@pytest.fixture(autouse=True)
def clean(server: RedisServer) -> None:
    with as_user(server, "admin") as admin:
        for key in admin.execute_command("SCAN", 0, "COUNT", 10_000)[1]:
            admin.execute_command("DEL", key)


def as_user(server: RedisServer, user: str) -> Any:
    """A client that uses this user's password to send raw commands."""
    return redis.Redis(host=server.host, port=server.port, username=user, password=f"pw-{user}")


async def connect(server: RedisServer, user: str) -> RedisCoordinator:
    address = f"{server.host}:{server.port}"
    return await connect_coordinator(address, username=user, password=f"pw-{user}", timeout_s=5.0)


@pytest.fixture
async def admin(server: RedisServer) -> AsyncIterator[Coordinator]:
    async with await connect(server, "admin") as coordinator:
        yield coordinator


class TestWhatARoleCanDo:
    async def test_an_engine_takes_its_lease_and_writes_who_serves(self, server: RedisServer) -> None:
        async with await connect(server, "engine") as coordinator:
            lease = await coordinator.acquire("engines/main", "one", 5.0)
            assert lease is not None
            await coordinator.put("engines/main/serving", b"1", fence=lease)
            assert await coordinator.renew(lease)
            await coordinator.release(lease)
            for refused in ("plan/ring", "secrets/agents", "moves/queue/x"):
                with pytest.raises(CoordinatorError):
                    await coordinator.put(refused, b"1")
            with pytest.raises(CoordinatorError):
                await coordinator.acquire("servers/s1", "one", 5.0)

    @pytest.mark.parametrize("user", ["client", "reader", "agent", *AGENTS_OF_SERVER_7, "admin"])
    async def test_everybody_reads_and_watches_the_plan(
        self, server: RedisServer, admin: Coordinator, user: str
    ) -> None:
        version = await admin.put("plan/entries/tile.1", b"1")
        async with await connect(server, user) as coordinator:
            assert await coordinator.get("plan/entries/tile.1") == Versioned(b"1", version)
            assert await coordinator.list("plan/entries/") == {"plan/entries/tile.1": Versioned(b"1", version)}
            follower = Follower(coordinator, "plan/")
            await follower.until({"plan/entries/tile.1": b"1"})
            await admin.put("plan/ring", b"2")
            await follower.until({"plan/entries/tile.1": b"1", "plan/ring": b"2"})
            await follower.stop()

    @pytest.mark.parametrize("user", ["agent", *AGENTS_OF_SERVER_7, "admin"])
    async def test_an_agent_keeps_its_lease_and_membership(
        self, server: RedisServer, admin: Coordinator, user: str
    ) -> None:
        await held(admin.acquire("servers/8", "another", 60.0))
        await admin.join("servers", "8", b"address 8", 60.0)
        async with await connect(server, user) as coordinator:
            lease = await held(coordinator.acquire("servers/7", "me", 60.0))
            assert await coordinator.renew(lease)
            membership = await coordinator.join("servers", "7", b"address 7", 60.0)
            assert await membership.renew()
            assert await coordinator.members("servers") == {"7": b"address 7", "8": b"address 8"}
            assert set(await coordinator.leases("servers/")) == {"servers/7", "servers/8"}
            assert await coordinator.lease_of("servers/7") is not None
            await membership.leave()
            await coordinator.release(lease)
            assert await coordinator.lease_of("servers/7") is None

    @pytest.mark.parametrize("user", ["agent", *AGENTS_OF_SERVER_7, "admin"])
    async def test_agents_read_and_watch_their_secret(self, server: RedisServer, admin: Coordinator, user: str) -> None:
        version = await admin.put("secrets/agents/1", b"1")
        async with await connect(server, user) as coordinator:
            assert await coordinator.list("secrets/agents/") == {"secrets/agents/1": Versioned(b"1", version)}
            follower = Follower(coordinator, "secrets/agents/")
            await follower.until({"secrets/agents/1": b"1"})
            await admin.put("secrets/agents/2", b"2")
            await follower.until({"secrets/agents/1": b"1", "secrets/agents/2": b"2"})
            await follower.stop()

    @pytest.mark.parametrize("user", ["agent", "agent-7"])
    async def test_agents_cannot_write_their_secret(self, server: RedisServer, admin: Coordinator, user: str) -> None:
        await admin.put("secrets/agents/1", b"1")
        async with await connect(server, user) as coordinator:
            with pytest.raises(CoordinatorError):
                await coordinator.put("secrets/agents/1", b"another")
            with pytest.raises(CoordinatorError):
                await coordinator.delete("secrets/agents/1")

    @pytest.mark.parametrize(
        "user", ["client", "reader", "pipeline", "client-on-6.2", "reader-on-6.2", "pipeline-on-6.2"]
    )
    async def test_no_other_user_can_read_it(self, server: RedisServer, admin: Coordinator, user: str) -> None:
        await admin.put("secrets/agents/1", b"1")
        async with await connect(server, user) as coordinator:
            with pytest.raises(CoordinatorError):
                await coordinator.get("secrets/agents/1")
            with pytest.raises(CoordinatorError):
                await coordinator.get_all(("plan/ring", "secrets/agents/1"))
            with pytest.raises(CoordinatorError):
                await coordinator.list("secrets/")
        with as_user(server, user) as raw:
            for command in ("GET shoal:secrets/agents/1", "MGET shoal:plan/key shoal:secrets/agents/1"):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    raw.execute_command(*command.split())
            with pytest.raises(redis.exceptions.NoPermissionError):
                raw.execute_command("ZRANGEBYLEX", "shoal:@index/secrets", "-", "+")

    def test_the_pipeline_hands_load_windows_over_and_the_balancer_reads_them(self, server: RedisServer) -> None:
        with as_user(server, "pipeline") as pipeline, as_user(server, "admin") as admin:
            pipeline.execute_command(*feed_command(b"window"))
            pipeline.execute_command(*alive_command("here"))
            assert admin.execute_command(*read_command(b"0-0", 5))[0][1] == [b"data", b"window"]
            pipeline.execute_command(*ended_command())
            assert admin.get(ALIVE_KEY) is None
        for user in ("client", "reader", "agent"):
            with as_user(server, user) as other, pytest.raises(redis.exceptions.NoPermissionError):
                other.execute_command(*feed_command(b"forged"))

    def test_the_pipeline_cannot_write_the_plan(self, server: RedisServer) -> None:
        with as_user(server, "pipeline") as pipeline, pytest.raises(redis.exceptions.NoPermissionError):
            pipeline.set("shoal:plan/ring", b"mine")

    @pytest.mark.parametrize("user", ["agent", *AGENTS_OF_SERVER_7, "admin"])
    async def test_an_agent_writes_its_report(self, server: RedisServer, admin: Coordinator, user: str) -> None:
        async with await connect(server, user) as coordinator:
            version = await coordinator.put("reports/channel/7", b"1", expect=0)
            version = await coordinator.put("reports/channel/7", b"2", expect=version)
            assert await admin.list("reports/") == {"reports/channel/7": Versioned(b"2", version)}
            assert await coordinator.get("reports/channel/7") == Versioned(b"2", version)
            await coordinator.delete("reports/channel/7")
        assert await admin.list("reports/") == {}

    @pytest.mark.parametrize("user", ["agent", *AGENTS_OF_SERVER_7, "admin"])
    async def test_an_agent_asks_for_a_queue_once(self, server: RedisServer, admin: Coordinator, user: str) -> None:
        async with await connect(server, user) as coordinator:
            await coordinator.put("moves/queue/a", b"1", expect=0)
            with pytest.raises(ConflictError):
                await coordinator.put("moves/queue/a", b"2", expect=0)
            if user.startswith("agent"):
                with pytest.raises(CoordinatorError, match="no permission"):
                    await coordinator.put("moves/channel/a", b"1", expect=0)
        assert [kept.value for kept in (await admin.list("moves/")).values()] == [b"1"]
        await admin.delete("moves/queue/a")

    @pytest.mark.parametrize("key", ["balance/why/x", "pool/s1"])
    async def test_a_reader_sees_what_the_balancer_does(
        self, server: RedisServer, admin: Coordinator, key: str
    ) -> None:
        version = await admin.put(key, b"1")
        area = key.split("/")[0] + "/"
        async with await connect(server, "reader") as coordinator:
            assert await coordinator.list(area) == {key: Versioned(b"1", version)}
            with pytest.raises(CoordinatorError, match="no permission"):
                await coordinator.put(key, b"forged")
        async with await connect(server, "client") as coordinator:
            with pytest.raises(CoordinatorError, match="no permission"):
                await coordinator.get(key)

    async def test_an_admin_does_everything(self, admin: Coordinator) -> None:
        lease = await held(admin.acquire("plan/keeper", "me", 60.0))
        version = await admin.put("plan/ring", b"1", expect=0, fence=lease)
        await admin.delete("plan/ring", expect=version, fence=lease)
        *written, gone = await admin.write_all(
            [KeyWrite("plan/entries/a", b"", 0), KeyWrite("plan/entries/b", b""), KeyWrite("moves/a", None)],
            fence=lease,
        )
        stored = await admin.list("plan/")
        assert [*(now.version for now in stored.values()), 0] == [*written, gone]
        assert await admin.barrier("move/1", "me", 1).wait(5.0)
        assert not await admin.barrier("move/2", "me", 2).wait(0.05)

    async def test_an_admin_sees_whether_the_append_only_file_is_well(self, server: RedisServer) -> None:
        with as_user(server, "admin") as admin:
            assert admin.info("persistence")["aof_enabled"] == 1


class TestWhatARoleCannotDo:
    @pytest.mark.parametrize("user", ["client", "reader", "agent", "agent-7"])
    async def test_only_the_admin_writes_the_plan(self, server: RedisServer, admin: Coordinator, user: str) -> None:
        version = await admin.put("plan/key", b"public")
        async with await connect(server, user) as coordinator:
            with pytest.raises(CoordinatorError, match=f"'{user}' has no permission"):
                await coordinator.put("plan/key", b"forged")
            with pytest.raises(CoordinatorError, match=f"'{user}' has no permission"):
                await coordinator.delete("plan/key")
            with pytest.raises(CoordinatorError, match=f"'{user}' has no permission"):
                await coordinator.write_all([KeyWrite("plan/key", b"forged"), KeyWrite("plan/ring", b"forged")])
        assert await admin.get("plan/key") == Versioned(b"public", version)

    @pytest.mark.parametrize("user", ["client", "reader", "agent", *AGENTS_OF_SERVER_7])
    async def test_only_the_admin_asks_for_moves(self, server: RedisServer, admin: Coordinator, user: str) -> None:
        await admin.put("moves/x", b"1")
        async with await connect(server, user) as coordinator:
            for attempt in (coordinator.put("moves/x", b""), coordinator.delete("moves/x"), coordinator.get("moves/x")):
                with pytest.raises(CoordinatorError, match="no permission"):
                    await attempt

    @pytest.mark.parametrize("user", ["client", *AGENTS_OF_SERVER_7])
    async def test_nobody_writes_the_report_of_another(
        self, server: RedisServer, admin: Coordinator, user: str
    ) -> None:
        version = await admin.put("reports/channel/8", b"8")
        async with await connect(server, user) as coordinator:
            for attempt in (coordinator.put("reports/channel/8", b"forged"), coordinator.delete("reports/channel/8")):
                with pytest.raises(CoordinatorError, match="no permission"):
                    await attempt
        assert await admin.get("reports/channel/8") == Versioned(b"8", version)

    async def test_a_client_neither_writes_nor_reads_reports(self, server: RedisServer) -> None:
        async with await connect(server, "client") as coordinator:
            for attempt in (coordinator.put("reports/channel/7", b""), coordinator.get("reports/channel/7")):
                with pytest.raises(CoordinatorError, match="no permission"):
                    await attempt
            with pytest.raises(CoordinatorError, match="no permission"):
                await coordinator.list("reports/")

    async def test_an_agent_of_one_server_cannot_take_another(self, server: RedisServer, admin: Coordinator) -> None:
        lease = await held(admin.acquire("servers/8", "another", 60.0))
        async with await connect(server, "agent-7") as coordinator:
            for name in ("servers/8", "servers/77"):
                with pytest.raises(CoordinatorError, match="no permission"):
                    await coordinator.acquire(name, "thief", 60.0, takeover=True)
            with pytest.raises(CoordinatorError, match="no permission"):
                await coordinator.release(lease)
            with pytest.raises(CoordinatorError, match="no permission"):
                await coordinator.join("servers", "8", b"forged", 60.0)
        assert await admin.renew(lease)

    @pytest.mark.parametrize("user", ["client", "reader", "agent", *AGENTS_OF_SERVER_7])
    async def test_nobody_else_takes_other_leases_groups_or_keys(self, server: RedisServer, user: str) -> None:
        async with await connect(server, user) as coordinator:
            for attempt in (
                coordinator.acquire("plan/keeper", "thief", 60.0),
                coordinator.join("balancers", "thief", b"", 60.0),
                coordinator.get("private/x"),
                coordinator.put("private/x", b""),
                coordinator.list("private/"),
                coordinator.barrier("move/1", "thief", 1).wait(1.0),
            ):
                with pytest.raises(CoordinatorError, match="no permission"):
                    await attempt

    async def test_a_client_neither_joins_nor_looks_at_servers(self, server: RedisServer) -> None:
        async with await connect(server, "client") as coordinator:
            for attempt in (
                coordinator.acquire("servers/7", "thief", 60.0),
                coordinator.join("servers", "7", b"", 60.0),
                coordinator.members("servers"),
                coordinator.leases("servers/"),
            ):
                with pytest.raises(CoordinatorError, match="no permission"):
                    await attempt

    @pytest.mark.parametrize("user", [user for user in USERS if user != "default"])
    def test_nobody_does_what_no_role_needs(self, server: RedisServer, user: str) -> None:
        with as_user(server, user) as client:
            for command in NEEDED_BY_NOBODY:
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(*command.split())

    def test_a_client_writes_nothing_at_all(self, server: RedisServer) -> None:
        with as_user(server, "client") as client:
            for command in ("PUBLISH shoal:changed x", "SET shoal:plan/x 1", "DEL shoal:plan/x", "INFO"):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(*command.split())


class TestTheDefaultUser:
    async def test_nobody_is_let_in_without_a_user(self, server: RedisServer) -> None:
        address = f"{server.host}:{server.port}"
        for user, password in (
            (None, None),
            ("default", ""),
            ("default", "pw-default"),
            (None, "pw-default"),
        ):
            with pytest.raises(AuthenticationError):
                await connect_coordinator(address, username=user, password=password)

    async def test_what_was_written_is_there_after_a_restart(self, server: RedisServer, admin: Coordinator) -> None:
        """Redis replays transactions as `default`: without permissions it would refuse them all."""
        version = await admin.put("plan/ring", b"kept")
        server.kill()
        server.restart()
        assert await admin.get("plan/ring") == Versioned(b"kept", version)
        assert "CRITICAL" not in server.log


class TestRules:
    def test_every_role_has_rules_that_begin_with_nothing(self) -> None:
        for role in ROLES:
            assert acl_rules(role)[:3] == ["resetkeys", "resetchannels", "-@all"]

    def test_an_unknown_role_is_refused(self) -> None:
        role: Any = "root"
        with pytest.raises(ConfigError, match="client, reader, pipeline, agent, engine, admin"):
            acl_rules(role)

    @pytest.mark.parametrize("server_id", ["", "*", "a b", "7/8", "x" * 65, "[0-9]"])
    def test_an_id_that_would_widen_the_rights_is_refused(self, server_id: str) -> None:
        role: Role = "agent"
        with pytest.raises(ConfigError, match="valid server id"):
            acl_rules(role, server_id=server_id)
