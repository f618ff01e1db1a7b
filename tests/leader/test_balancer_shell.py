"""The balancer's shell on a real coordinator and real telemetry streams: only the leader carries out effects."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis
from tests.balance.balancer_scene import OPTIONS, single, wish
from tests.balance.tiny_policy import Wish
from tests.load.telemetry_samples import record
from tests.support.agent_site import until
from tests.support.connections import connect_coordinator
from tests.support.redis_server import RedisServer

from shoal.balance import balancer_keys, pool_keeper
from shoal.balance.balancer_keys import Ask, AskOutcome, BalancerState, Why
from shoal.balance.balancer_options import BalancerOptions
from shoal.balance.effects import ProviderState
from shoal.balance.proposal import Proposal, decode_proposal
from shoal.balance.settings import BalanceSettings
from shoal.coordination.interface import Change
from shoal.coordination.redis import RedisCoordinator
from shoal.errors import ClusterError
from shoal.leader.audit_log import AuditLog
from shoal.leader.balancer_shell import BalancerShell
from shoal.leader.balancer_store import BalancerStore
from shoal.leader.conductor_shell import Leadership
from shoal.leader.telemetry_reader import TelemetryReader
from shoal.limits import Limits
from shoal.load.record import DATA_FIELD, ID_FIELD, TelemetryRecord, encode, xadd
from shoal.plan.keys import KEEPER_LEASE, Mark, move_key, pool_key
from shoal.plan.move_request import MoveRequest, decode_request, encode_request
from shoal.plan.placement import Mode
from shoal.plan.ring import Ring, ServerAddress
from shoal.plan.signature import Signer
from shoal.runtime import PRODUCTION
from shoal.wire.envelope import TELEMETRY_KEY

__all__ = ["wish"]

SETTINGS = BalanceSettings(window_s=1, lateness_s=0.2)
HOT = {b"hot": {"publications": 10, "bytes_out": 900, "messages_sent": 90, "subscribers": 9, "publishers": 1}}


def write(server: redis.Redis, said: TelemetryRecord) -> None:
    """Writes a telemetry record as an agent does."""
    server.execute_command(*xadd(said, 100))  # type: ignore[no-untyped-call]


class FakeProvider:
    """Adds the requested servers, or refuses."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.removed: list[str] = []
        self.refuses = False
        self.servers: tuple[str, ...] = ("s1", "s2")

    def state(self) -> ProviderState:
        return ProviderState(servers_min=1, servers_max=9, servers=self.servers)

    async def add(self, kind: str, count: int, site: str = "") -> tuple[str, ...]:
        assert kind == "server"
        self.asked.append(count)
        if self.refuses:
            raise ClusterError("no")
        return tuple(f"n{number}" for number in range(count))

    async def remove(self, host: str) -> None:
        self.removed.append(host)
        self.servers = tuple(other for other in self.servers if other != host)


class ShellScene:
    """A coordinator, a data server with two telemetry streams in one, and balancers by name."""

    def __init__(self, coordinator: RedisCoordinator, data: RedisServer, audit: Path) -> None:
        self.coordinator = coordinator
        self.audit = AuditLog(audit)
        self.provider = FakeProvider()
        self.signer = Signer(Signer.generate())
        self.ring = Ring(1, tuple(ServerAddress(id, data.host, data.port) for id in ("s1", "s2")))
        self.leading: dict[str, Leadership] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self._redis = redis.Redis(port=data.port)

    async def lead(self, name: str = "a") -> None:
        lease = await self.coordinator.acquire(KEEPER_LEASE, name, 60.0, takeover=True)
        assert lease is not None
        self.leading[name] = Leadership(lease, self.ring, lease)

    def start(self, name: str = "a", options: BalancerOptions = OPTIONS) -> None:
        changed = asyncio.Event()
        balancing = BalancerShell(
            BalancerStore(self.coordinator, self.signer.public, changed),
            TelemetryReader(None, None, Limits(), changed, PRODUCTION),
            self.provider,
            self.audit,
            lambda: self.leading.get(name),
            SETTINGS,
            options,
            changed,
            0.05,
            wall=PRODUCTION.wall,
        )
        self.tasks.append(asyncio.create_task(balancing.run()))

    def write(self, id: bytes, data: bytes) -> None:
        """An entry of the telemetry stream."""
        self._redis.xadd(TELEMETRY_KEY, {ID_FIELD: id, DATA_FIELD: data})

    async def report(self) -> None:
        """Agents write a record at the end of each second."""
        while True:
            await asyncio.sleep(1.0 - time.time() % 1.0 + 0.01)
            second = int(time.time()) - 1
            for server, load in (("s1", HOT), ("s2", {})):
                write(self._redis, record(server, second, load))

    async def request(self, channel: bytes = b"hot") -> MoveRequest | None:
        stored = await self.coordinator.get(move_key(channel))
        return decode_request(stored.value) if stored else None

    async def ask(self, ask: Ask) -> AskOutcome:
        await self.coordinator.put(balancer_keys.ask_key("me"), balancer_keys.encode(ask))
        stored = await until(lambda: self.coordinator.get(balancer_keys.answer_key("me")))
        await self.coordinator.delete(balancer_keys.answer_key("me"))
        return balancer_keys.decode(stored.value, AskOutcome)

    async def mark(self, server: str) -> bytes | None:
        stored = await self.coordinator.get(pool_key(server))
        return stored.value if stored else None


@pytest.fixture
async def scene(wish: Wish, tmp_path: Path) -> AsyncIterator[ShellScene]:
    with RedisServer(aof=True) as store, RedisServer() as data:
        async with await connect_coordinator(f"{store.host}:{store.port}") as coordinator:
            made = ShellScene(coordinator, data, tmp_path / "audit")
            made.tasks.append(asyncio.create_task(made.report()))
            yield made
            for task in made.tasks:
                task.cancel()
            await asyncio.gather(*made.tasks, return_exceptions=True)


async def test_a_decision_is_written_with_its_reason(wish: Wish, scene: ShellScene) -> None:
    wish.moves = {b"hot": single("s2")}
    await scene.lead()
    scene.start()
    request = await until(scene.request)
    assert (request.servers, request.mode) == (("s2",), Mode.SINGLE)
    why = await until(lambda: scene.coordinator.get(balancer_keys.why_key(b"hot")))
    kept = balancer_keys.decode(why.value, Why)
    assert (kept.reason, kept.figures) == ("overload", {"bytes_out": 900.0})
    assert request.id.startswith(kept.digest[:16])
    state = await until(lambda: scene.coordinator.get(balancer_keys.STATE_KEY))
    assert balancer_keys.decode(state.value, BalancerState).digest == kept.digest
    assert scene.audit.find(kept.digest).digest == kept.digest
    outcomes = await until(lambda: [*scene.audit.outcomes()])
    assert [outcome.state for outcome in outcomes] == ["applied"]


async def two_decisions(wish: Wish) -> None:
    """Waits until everything that was read is folded."""
    seen = len(wish.seen)
    await until(lambda: len(wish.seen) > seen + 1)


async def test_telemetry_of_another_version_is_skipped_and_logged_once_a_minute(
    wish: Wish, scene: ShellScene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.lead()
    scene.start()
    await until(lambda: wish.seen)
    for sequence in (1, 2):
        newer = bytearray(encode(record("s1", int(time.time()), HOT, instance="b", sequence=sequence)))
        newer[2] = 9
        scene.write(b"s1/b/%d/%d" % (time.time(), sequence), bytes(newer))
        await two_decisions(wish)
    assert caplog.text.count("unreadable telemetry dropped") == 1
    said = next(entry.__dict__ for entry in caplog.records if "unreadable telemetry dropped" in entry.getMessage())
    assert "version 9; this process knows version 2: upgrade this process" in str(said)
    assert {*wish.seen[-1].hosts.ids} == {"s1", "s2"}


async def test_only_the_leader_writes(wish: Wish, scene: ShellScene) -> None:
    wish.moves, wish.drain = {b"hot": single("s2")}, ("s2",)
    await scene.lead("a")
    await scene.lead("b")  # "a" does not know yet
    scene.start("a")
    await until(lambda: wish.seen)
    seen = len(wish.seen)
    await until(lambda: len(wish.seen) > seen)
    assert await scene.request() is None
    assert await scene.mark("s2") is None
    scene.start("b")
    await until(scene.request)


async def test_propose_then_apply_then_refused(wish: Wish, scene: ShellScene) -> None:
    from msgspec.structs import replace

    await scene.lead()
    scene.start(options=replace(OPTIONS, auto=False))
    wish.moves = {b"hot": single("s2")}
    proposed = await scene.ask(Ask("propose"))
    assert decode_proposal(proposed.proposal).digest == proposed.digest
    assert await scene.request() is None
    applied = await scene.ask(Ask("apply", digest=proposed.digest))
    assert (applied.error, applied.moves) == ("", 1)
    assert await scene.request() is not None
    refused = await scene.ask(Ask("apply", digest=proposed.digest))
    assert "still under way" in refused.error


async def test_a_new_leader_knows_the_plan_under_way_before_its_watch_does(
    wish: Wish, scene: ShellScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = "d" * 64
    request = MoveRequest(b"hot", ("s2",), Mode.SINGLE, False, f"{digest[:16]}-0")
    await scene.coordinator.put(move_key(b"hot"), encode_request(request))
    await scene.coordinator.put(balancer_keys.STATE_KEY, balancer_keys.encode(BalancerState(digest=digest)))
    proposal = Proposal(
        policy="shoal",
        settings="",
        window_end_s=0.0,
        ring_version=1,
        basis="",
        changes=(),
        max_ratio_before=0.0,
        max_ratio_after=0.0,
    )
    await scene.coordinator.put(balancer_keys.proposal_key(proposal.digest), proposal.encode())

    async def never(prefix: str) -> AsyncIterator[Change]:
        await asyncio.Event().wait()
        yield Change("", None)

    monkeypatch.setattr(scene.coordinator, "watch", never)
    await scene.lead()
    await scene.coordinator.put(balancer_keys.ask_key("me"), balancer_keys.encode(Ask("apply", digest=proposal.digest)))
    scene.start()
    stored = await until(lambda: scene.coordinator.get(balancer_keys.answer_key("me")))
    assert "still under way" in balancer_keys.decode(stored.value, AskOutcome).error


async def test_a_manual_move_request_is_kept(wish: Wish, scene: ShellScene) -> None:
    by_hand = MoveRequest(b"hot", ("s1",), Mode.SINGLE, False, "by hand")
    await scene.coordinator.put(move_key(b"hot"), encode_request(by_hand))
    wish.moves = {b"hot": single("s2")}
    await scene.lead()
    scene.start()
    await until(lambda: scene.coordinator.get(balancer_keys.why_key(b"hot")))
    assert await scene.request() == by_hand


async def test_servers_are_requested_and_marked_as_guests(wish: Wish, scene: ShellScene) -> None:
    wish.add = 2
    await scene.lead()
    scene.start()
    await until(lambda: scene.provider.asked)
    assert await until(lambda: scene.mark("n0")) == await until(lambda: scene.mark("n1")) == b"guest"

    async def noted() -> bool:
        stored = await scene.coordinator.get(balancer_keys.STATE_KEY)
        return stored is not None and {"n0", "n1"} <= balancer_keys.decode(stored.value, BalancerState).adding.keys()

    await until(noted)


async def test_a_balancer_that_has_lost_its_lease_marks_no_guest(
    wish: Wish, scene: ShellScene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another balancer leads by the time the provider answers: the mark is fenced like every write of a leader."""
    asked, answers = asyncio.Event(), asyncio.Event()

    async def add(kind: str, count: int, site: str = "") -> tuple[str, ...]:
        asked.set()
        await answers.wait()
        return ("n0",)

    monkeypatch.setattr(scene.provider, "add", add)
    wish.add = 1
    await scene.lead("a")
    scene.start("a")
    await asked.wait()
    await scene.lead("b")  # "a" does not know yet
    with caplog.at_level("WARNING", logger="shoal.leader.balancer_shell"):
        answers.set()
        await until(lambda: [record for record in caplog.records if record.message == "hosts not added"])
    assert await scene.mark("n0") is None


async def test_the_balancer_continues_after_a_refusal(wish: Wish, scene: ShellScene) -> None:
    scene.provider.refuses = True
    wish.add = 1
    await scene.lead()
    scene.start()
    await until(lambda: scene.provider.asked)
    wish.add, wish.moves = 0, {b"hot": single("s2")}
    await until(scene.request)
    assert scene.provider.asked == [1]


async def test_a_server_that_is_out_is_removed_and_its_mark_with_it(
    wish: Wish, scene: ShellScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_keeper, "FORGET_S", 0.1)
    scene.provider.servers = ("s1", "s2", "s3")
    await scene.coordinator.put(pool_key("s3"), Mark.OUT.value.encode())
    await scene.lead()
    scene.start()
    await until(lambda: scene.provider.removed == ["s3"])

    async def gone() -> bool:
        return await scene.mark("s3") is None

    await until(gone)


async def test_garbage_in_the_coordinator_is_ignored(wish: Wish, scene: ShellScene) -> None:
    for key in (
        balancer_keys.STATE_KEY,
        balancer_keys.why_key(b"x"),
        balancer_keys.ask_key("x"),
        balancer_keys.proposal_key("x"),
    ):
        await scene.coordinator.put(key, b"garbage")
    await scene.coordinator.put("moves/QQ", b"garbage")
    await scene.coordinator.put("plan/entries/QQ", b"garbage")
    wish.moves = {b"hot": single("s2")}
    await scene.lead()
    scene.start()
    await until(scene.request)


async def test_telemetry_is_read_again_after_a_server_returns(wish: Wish) -> None:
    changed = asyncio.Event()
    with RedisServer() as server:
        address = ServerAddress("s1", server.host, server.port)
        writer = redis.Redis(port=server.port)
        reader = TelemetryReader(None, None, Limits(), changed, PRODUCTION)
        write(writer, record("s1", 1))  # written before the first read
        reader.follow([address])
        with contextlib.closing(writer):

            async def heard(second: int) -> list[int]:
                write(writer, record("s1", second))
                changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), 1.0)
                found: list[int] = reader.take()["second"].to_pylist()
                return found

            first = await until(lambda: heard(10))
            assert set(first) == {10}
            server.kill()
            await asyncio.to_thread(server.restart)
            assert 20 in await until(lambda: heard(20))
            reader.follow([])
            write(writer, record("s1", 30))
            await asyncio.sleep(0)
            assert reader.take().num_rows == 0
        await reader.close()
