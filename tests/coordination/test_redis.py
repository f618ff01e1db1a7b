"""The coordinator on a real Redis: the contract, and Redis-specific behaviour."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.coordination.contract import CoordinatorContract
from tests.coordination.contract_support import Factory, Follower, eventually, held
from tests.support.connections import connect_coordinator
from tests.support.redis_server import RedisServer, free_port

from shoal.coordination import link, writer
from shoal.coordination.acl import DEFAULT_USER_RULES
from shoal.coordination.interface import Coordinator, KeyWrite, Versioned
from shoal.coordination.layout import CHANNEL
from shoal.coordination.redis import RedisCoordinator
from shoal.errors import (
    AuthenticationError,
    ConfigError,
    ConflictError,
    ConnectError,
    CoordinatorError,
    CoordinatorUnavailableError,
    DataLostError,
    ServerTooOldError,
)
from shoal.wire import handshake
from shoal.wire.commands import Request

USER, PASSWORD = "keeper", "correct horse: battery/staple@%"
TIMEOUT_S = 3.0
POLL_S = 3.0


@pytest.fixture
def store() -> Iterator[RedisServer]:
    users = [f'{USER} on ">{PASSWORD}" ~shoal:* &{CHANNEL} +@all', f"default {' '.join(DEFAULT_USER_RULES)}"]
    with RedisServer(aof=True, users=users) as server:
        yield server


async def connect(store: RedisServer, timeout_s: float = TIMEOUT_S) -> RedisCoordinator:
    return await connect_coordinator(
        f"{store.host}:{store.port}", username=USER, password=PASSWORD, timeout_s=timeout_s, poll_s=POLL_S
    )


@pytest.fixture
async def coordinator_factory(store: RedisServer) -> AsyncIterator[Factory]:
    made: list[Coordinator] = []

    async def make() -> Coordinator:
        made.append(await connect(store))
        return made[-1]

    yield make
    for coordinator in made:
        await coordinator.close()


class ByHand:
    """A user with redis-cli who writes into Shoal's keys."""

    def __init__(self, store: RedisServer) -> None:
        self._client: Any = redis.Redis(host=store.host, port=store.port, username=USER, password=PASSWORD)

    def __call__(self, *command: str | bytes | int) -> Any:
        return self._client.execute_command(*command)

    def close(self) -> None:
        self._client.close()


def refuse_writes(by_hand: ByHand, cause: str) -> None:
    """The server accepts no writes: no memory, too few replicas, or a snapshot that it cannot write."""
    data = Path(by_hand("CONFIG", "GET", "dir")[b"dir"].decode())
    if cause == "maxmemory":
        by_hand("CONFIG", "SET", "maxmemory", "1")
    elif cause == "replicas":
        by_hand("CONFIG", "SET", "min-replicas-to-write", "1")
    else:
        by_hand("CONFIG", "SET", "save", "3600 1")
        (data / "dump.rdb").unlink(missing_ok=True)
        (data / "dump.rdb" / "in the way").mkdir(parents=True)
        by_hand("BGSAVE")
        deadline = time.monotonic() + 10.0
        while by_hand("INFO", "persistence")["rdb_last_bgsave_status"] == "ok" and time.monotonic() < deadline:
            time.sleep(0.05)


def accept_writes(by_hand: ByHand, cause: str) -> None:
    """There is room again."""
    setting = {"maxmemory": "maxmemory", "replicas": "min-replicas-to-write", "disk": "stop-writes-on-bgsave-error"}
    by_hand("CONFIG", "SET", setting[cause], "no" if cause == "disk" else "0")


@pytest.fixture
def by_hand(store: RedisServer) -> Iterator[ByHand]:
    hand = ByHand(store)
    yield hand
    hand.close()


class TestContractOnRedis(CoordinatorContract):
    """The whole contract."""


class TestConnect:
    async def test_all_spellings_of_an_address(self, store: RedisServer) -> None:
        quoted = "correct%20horse%3A%20battery%2Fstaple%40%25"
        async with await connect_coordinator(f"redis://{USER}:{quoted}@127.0.0.1:{store.port}") as one:
            version = await one.put("plan/a", b"1")
        address = f"shoal://127.0.0.1:{store.port}"
        async with await connect_coordinator(address, username=USER, password=PASSWORD) as other:
            assert await other.get("plan/a") == Versioned(b"1", version)

    @pytest.mark.parametrize("address", ["", "host", "http://h:1", "h:notaport", "h:99999", "redis://:1", "[::1"])
    async def test_an_address_that_cannot_be_read(self, address: str) -> None:
        with pytest.raises(ConfigError, match="shoal://host:port"):
            await connect_coordinator(address)

    async def test_times_that_cannot_be(self) -> None:
        with pytest.raises(ConfigError, match="timeout_s"):
            await connect_coordinator("127.0.0.1:1", timeout_s=0)

    @pytest.mark.parametrize(("user", "password"), [(USER, "wrong"), ("nobody", PASSWORD), (None, None)])
    async def test_a_wrong_password_is_said_at_once_and_not_shown(
        self, store: RedisServer, user: str | None, password: str | None
    ) -> None:
        with pytest.raises(AuthenticationError, match="check the user name and password") as caught:
            await connect_coordinator(f"127.0.0.1:{store.port}", username=user, password=password, timeout_s=60.0)
        assert isinstance(caught.value, ConnectError)
        assert "wrong" not in str(caught.value).replace("WRONGPASS", "")

    async def test_a_password_that_changes_is_noticed(self, store: RedisServer, by_hand: ByHand) -> None:
        async with await connect(store, timeout_s=60.0) as coordinator:
            by_hand("ACL", "SETUSER", USER, "resetpass", ">other")
            by_hand("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            with pytest.raises(AuthenticationError):
                await coordinator.get("plan/a")

    async def test_nobody_there(self) -> None:
        with pytest.raises(CoordinatorUnavailableError, match="check that the coordinator runs"):
            await connect_coordinator(f"127.0.0.1:{free_port()}", timeout_s=0.2)

    async def test_somebody_who_is_no_redis(self) -> None:
        def answer(listener: socket.socket) -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(100)
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        with socket.create_server(("127.0.0.1", 0)) as listener:
            answering = asyncio.create_task(asyncio.to_thread(answer, listener))
            with pytest.raises(CoordinatorError, match=r"is not Redis|check that the coordinator runs"):
                await connect_coordinator(f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.5)
            listener.shutdown(socket.SHUT_RDWR)
            await answering

    async def test_somebody_who_never_answers(self) -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            pytest.raises(CoordinatorUnavailableError, match="check that the coordinator runs"),
        ):
            await connect_coordinator(f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.3)

    async def test_a_server_without_hello_is_too_old(self) -> None:
        """Redis 5 answers like this."""
        with (
            RedisServer(config=['rename-command HELLO ""']) as server,
            pytest.raises(ServerTooOldError, match=r"older than Redis 6.*6\.2 or newer"),
        ):
            await connect_coordinator(f"127.0.0.1:{server.port}")

    async def test_a_server_of_an_old_version_is_too_old(
        self, store: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(handshake, "REDIS_VERSION_MIN", (99, 1))
        with pytest.raises(ServerTooOldError, match=r"99\.1 or newer"):
            await connect(store)

    @pytest.mark.parametrize("cause", ["maxmemory", "replicas", "disk"])
    async def test_a_server_that_takes_no_writes(self, store: RedisServer, by_hand: ByHand, cause: str) -> None:
        """Every write is refused at once, as by the model of the simulator (`ModelCoordinator.fill_disk`); reads go on,
        and a lease that has not run out meanwhile can be renewed."""
        async with await connect(store) as coordinator:
            member = await coordinator.join("servers", "s1", b"", 30.0)
            lease = await held(coordinator.acquire("servers/s1", "agent", 30.0))
            refuse_writes(by_hand, cause)
            for write in (
                coordinator.put("plan/a", b"1"),
                coordinator.write_all([KeyWrite("plan/a", b"1"), KeyWrite("plan/b", b"2")]),
                coordinator.renew(lease),
                coordinator.acquire("servers/s2", "agent", 3.0),
                coordinator.join("servers", "s2", b"", 3.0),
                member.renew(),
            ):
                with pytest.raises(CoordinatorUnavailableError, match="does not accept writes"):
                    await write
            assert await coordinator.get("plan/a") is None
            assert list(await coordinator.leases("servers/")) == ["servers/s1"]
            assert list(await coordinator.members("servers")) == ["s1"]
            accept_writes(by_hand, cause)
            assert await coordinator.renew(lease)
            assert await coordinator.put("plan/a", b"1")


class TestGarbage:
    """Foreign bytes under Shoal's keys."""

    @pytest.fixture(params=[b"", b"\xff\xfe", b"garbage", b"\x93\xa5value\xff\xc4\x01x", b"\x93\xa5grant\x01\xa1x"])
    def garbage(self, request: pytest.FixtureRequest) -> bytes:
        value: bytes = request.param
        return value

    async def test_a_garbage_key_is_named_and_hides_no_other(
        self, coordinator_factory: Factory, by_hand: ByHand, garbage: bytes
    ) -> None:
        coordinator = await coordinator_factory()
        await coordinator.put("plan/a", b"1")
        good = await coordinator.put("plan/b", b"2")
        by_hand("SET", "shoal:plan/a", garbage)
        with pytest.raises(CoordinatorError, match="plan/a is not Shoal's"):
            await coordinator.get("plan/a")
        with pytest.raises(CoordinatorError, match="plan/a is not Shoal's"):
            await coordinator.put("plan/a", b"3", expect=1)
        assert await coordinator.list("plan/") == {"plan/b": Versioned(b"2", good)}

    async def test_a_garbage_key_is_mended_by_a_write_or_a_delete(
        self, coordinator_factory: Factory, by_hand: ByHand, garbage: bytes
    ) -> None:
        coordinator = await coordinator_factory()
        by_hand("SET", "shoal:plan/a", garbage)
        version = await coordinator.put("plan/a", b"3")
        assert await coordinator.get("plan/a") == Versioned(b"3", version)
        by_hand("SET", "shoal:plan/a", garbage)
        await coordinator.delete("plan/a")
        assert await coordinator.get("plan/a") is None

    async def test_a_key_of_the_wrong_type(self, coordinator_factory: Factory, by_hand: ByHand) -> None:
        coordinator = await coordinator_factory()
        by_hand("RPUSH", "shoal:plan/a", "x")
        with pytest.raises(CoordinatorError, match="not Shoal's"):
            await coordinator.get("plan/a")
        await coordinator.put("plan/a", b"1")
        assert set(await coordinator.list("plan/")) == {"plan/a"}

    async def test_a_garbage_lease_is_named_and_can_be_taken_over(
        self, coordinator_factory: Factory, by_hand: ByHand, garbage: bytes
    ) -> None:
        coordinator = await coordinator_factory()
        lease = await held(coordinator.acquire("servers/1", "me", 60.0))
        other = await held(coordinator.acquire("servers/2", "me", 60.0))
        by_hand("SET", "shoal:@lease/servers/1", garbage)
        assert not await coordinator.renew(lease)
        assert set(await coordinator.leases("servers/")) == {"servers/2"}
        with pytest.raises(CoordinatorError, match="not Shoal's"):
            await coordinator.lease_of("servers/1")
        with pytest.raises(CoordinatorError, match="not Shoal's"):
            await coordinator.acquire("servers/1", "me", 60.0)
        assert (await held(coordinator.acquire("servers/1", "me", 60.0, takeover=True))).token > other.token

    async def test_garbage_members_do_not_hide_good_ones(
        self, coordinator_factory: Factory, by_hand: ByHand, garbage: bytes
    ) -> None:
        coordinator = await coordinator_factory()
        await coordinator.join("servers", "1", b"", 60.0)
        await coordinator.join("servers", "2", b"", 60.0)
        by_hand("SET", "shoal:@member/servers/1", garbage)
        assert set(await coordinator.members("servers")) == {"2"}
        await coordinator.join("servers", "1", b"", 60.0)
        assert set(await coordinator.members("servers")) == {"1", "2"}

    async def test_garbage_notifications_harm_nobody(self, coordinator_factory: Factory, by_hand: ByHand) -> None:
        coordinator = await coordinator_factory()
        follower = Follower(coordinator, "plan/")
        await coordinator.put("plan/a", b"1")
        await follower.until({"plan/a": b"1"})
        lists = (
            b"\x90",
            b"\x92\xa6plan/a",
            b"\x91\x07",
            b"\x91\xa2\xff\xfe",
            b"\x92\xa6plan/a\xa6plan/b",
            b"\xdd" + b"\xff" * 4,
        )
        single = (b"", b"\xff\xfe", b"plan/", b"plan/\xff", b"plan/nothing", b"plan/a", b"x" * 100_000)
        for payload in (*single, *lists):
            by_hand("PUBLISH", CHANNEL, payload)
        for number in range(3000):
            by_hand("PUBLISH", CHANNEL, f"plan/{number}")
        await coordinator.put("plan/a", b"2")
        await follower.until({"plan/a": b"2"})
        assert {change.key for change in follower.changes} == {"plan/a"}
        await follower.stop()


class TestManyWritesOnRedis:
    async def test_garbage_is_told_in_its_place_and_stops_no_other(
        self, coordinator_factory: Factory, by_hand: ByHand
    ) -> None:
        coordinator = await coordinator_factory()
        by_hand("SET", "shoal:plan/a", b"garbage")
        by_hand("RPUSH", "shoal:plan/b", b"garbage")
        good, garbage, mended, gone = await coordinator.write_all(
            [
                KeyWrite("plan/good", b"1", 0),
                KeyWrite("plan/a", b"1", 1),
                KeyWrite("plan/b", b"1"),
                KeyWrite("plan/c", None),
            ]
        )
        assert (isinstance(good, int), isinstance(mended, int), gone) == (True, True, 0)
        assert "plan/a is not Shoal's" in str(garbage)
        assert set(await coordinator.list("plan/")) == {"plan/good", "plan/b"}

    async def test_few_transactions_and_notifications_for_many_writes(
        self, coordinator_factory: Factory, by_hand: ByHand
    ) -> None:
        coordinator = await coordinator_factory()
        by_hand("CONFIG", "RESETSTAT")
        await coordinator.write_all([KeyWrite(f"plan/{number}", b"", 0) for number in range(1000)])
        for command in ("exec", "publish"):
            assert by_hand("INFO", "commandstats")[f"cmdstat_{command}"]["calls"] == 1000 / writer.CHUNK_KEYS

    async def test_large_values_are_spread_over_transactions(
        self, coordinator_factory: Factory, by_hand: ByHand
    ) -> None:
        coordinator = await coordinator_factory()
        by_hand("CONFIG", "RESETSTAT")
        value = bytes(writer.CHUNK_BYTES // 2)
        await coordinator.write_all([KeyWrite(f"plan/{number}", value) for number in range(5)])
        assert by_hand("INFO", "commandstats")["cmdstat_exec"]["calls"] == 3

    async def test_writes_that_are_refused_together_are_made_one_by_one(
        self, coordinator_factory: Factory, by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another client changes a key in the middle of every transaction with more than one key."""
        coordinator = await coordinator_factory()
        await coordinator.put("plan/hot", b"")
        commit = link.Session.commit
        sizes = []

        async def disturbed(session: link.Session, *commands: Request) -> list[Any]:
            if "plan/a" not in str(commands) and "plan/hot" not in str(commands):
                return await commit(session, *commands)  # another client of this process
            sizes.append(len(commands[0]))
            if len(commands[0]) > 3:
                by_hand("SET", "shoal:plan/hot", by_hand("GET", "shoal:plan/hot"))
            return await commit(session, *commands)

        monkeypatch.setattr(link.Session, "commit", disturbed)
        written, cold, hot = await coordinator.write_all(
            [KeyWrite("plan/a", b"1", 0), KeyWrite("plan/b", b"1", 7), KeyWrite("plan/hot", b"1")]
        )
        assert isinstance(cold, ConflictError)
        assert sizes == [5] * writer.CHUNK_TRIES + [3, 3]
        assert {key: now.version for key, now in (await coordinator.list("plan/")).items()} == {
            "plan/a": written,
            "plan/hot": hot,
        }

    async def test_writes_whose_answer_was_lost_are_not_made_again(
        self, coordinator_factory: Factory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        coordinator = await coordinator_factory()
        old = await coordinator.put("plan/b", b"old")
        commit = link.Session.commit
        lost = 0

        async def cut_off(session: link.Session, *commands: Request) -> list[Any]:
            nonlocal lost
            answers = await commit(session, *commands)
            if "plan/a" not in str(commands):
                return answers
            lost += 1
            raise ConnectError("cut off")

        monkeypatch.setattr(link.Session, "commit", cut_off)
        first, gone, second = await coordinator.write_all(
            [KeyWrite("plan/a", b"1", 0), KeyWrite("plan/b", None, old), KeyWrite("plan/c", b"1", 0)]
        )
        monkeypatch.undo()
        assert (lost, gone) == (1, 0)
        stored = await coordinator.list("plan/")
        assert {key: now.version for key, now in stored.items()} == {"plan/a": first, "plan/c": second}


class TestWatchOnRedis:
    async def test_a_lost_notification_is_made_good_by_the_poll(self, store: RedisServer, by_hand: ByHand) -> None:
        """The notification is suppressed, so only the poll can find the change."""
        async with await connect(store) as writer:
            await writer.put("plan/a", b"1")
            reader = await connect_coordinator(f"127.0.0.1:{store.port}", username=USER, password=PASSWORD, poll_s=0.1)
            async with reader:
                follower = Follower(reader, "plan/")
                await follower.until({"plan/a": b"1"})
                before = by_hand("GET", "shoal:plan/a")
                await writer.put("plan/a", b"2")
                await follower.until({"plan/a": b"2"})
                by_hand("SET", "shoal:plan/a", before)
                by_hand("INCR", "shoal:@counter/plan")
                await follower.until({"plan/a": b"1"})
                await follower.stop()

    async def test_a_subscription_that_is_cut_comes_back(self, coordinator_factory: Factory, by_hand: ByHand) -> None:
        coordinator = await coordinator_factory()
        follower = Follower(coordinator, "plan/")
        for number in range(5):
            await coordinator.put("plan/a", b"%d" % number)
            await follower.until({"plan/a": b"%d" % number})
            by_hand("CLIENT", "KILL", "TYPE", "pubsub")
        await follower.stop()

    async def test_a_watch_without_the_right_to_listen_says_so(self, store: RedisServer, by_hand: ByHand) -> None:
        by_hand("ACL", "SETUSER", "deaf", "on", ">pw", "~shoal:*", "resetchannels", "+@all")
        address = f"127.0.0.1:{store.port}"
        async with await connect_coordinator(address, username="deaf", password="pw") as coordinator:
            follower = Follower(coordinator, "plan/")
            with pytest.raises(CoordinatorError, match="'deaf' has no permission"):
                await follower.ended()


class TestGrantsOnRedis:
    async def test_names_of_grants_that_ended_long_ago_are_cleaned_up(
        self, coordinator_factory: Factory, by_hand: ByHand
    ) -> None:
        coordinator = await coordinator_factory()
        index = "shoal:@index/@member/servers"
        for number in range(100):
            by_hand("ZADD", index, 1000, f"@member/servers/old {number}")
        await coordinator.join("servers", "1", b"", 60.0)
        assert by_hand("ZRANGE", index, 0, -1) == [b"@member/servers/1"]

    async def test_connections_are_few_and_returned(self, coordinator_factory: Factory, by_hand: ByHand) -> None:
        coordinator = await coordinator_factory()
        await asyncio.gather(*(coordinator.put(f"plan/{number}", b"") for number in range(50)))
        await coordinator.close()

        async def only_by_hand() -> bool:
            clients: bytes = by_hand("CLIENT", "LIST")
            return len(clients.splitlines()) == 1

        await eventually(only_by_hand)


class TestLostData:
    """A store that comes back with less data than it had."""

    async def test_a_watch_says_so_and_reports_nothing_as_deleted(self, store: RedisServer, by_hand: ByHand) -> None:
        async with await connect(store) as coordinator:
            for number in range(3):
                await coordinator.put(f"plan/{number}", b"x")
            changes = coordinator.watch("plan/")
            seen = [await anext(changes) for _ in range(3)]
            assert all(change.now is not None for change in seen)
            await coordinator.put("plan/3", b"x")
            assert (await anext(changes)).key == "plan/3"
            by_hand("FLUSHALL")
            for number in range(3):
                await coordinator.put(f"plan/{number}", b"another leader")
            with pytest.raises(DataLostError, match="shoal coordinator restore"):
                async with asyncio.timeout(60):
                    await anext(changes)

    async def test_a_new_watch_begins_with_what_is_there(self, store: RedisServer, by_hand: ByHand) -> None:
        async with await connect(store) as coordinator:
            for number in range(3):
                await coordinator.put(f"plan/{number}", b"x")
            by_hand("FLUSHALL")
            await coordinator.put("plan/1", b"restored")
            change = await anext(coordinator.watch("plan/"))
            assert (change.key, change.now) == ("plan/1", Versioned(b"restored", 1))

    async def test_another_password_is_used_for_new_connections(self, store: RedisServer, by_hand: ByHand) -> None:
        async with await connect(store) as coordinator:
            by_hand("ACL", "SETUSER", USER, ">other")
            coordinator.use_password("other")
            by_hand("ACL", "SETUSER", USER, f"<{PASSWORD}")
            by_hand("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert await coordinator.put("plan/a", b"1") > 0
