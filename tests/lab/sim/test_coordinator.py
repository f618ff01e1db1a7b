"""The model of the coordinator: the contract on virtual time, and faults that only a simulated network can cause."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.coordination.contract import CoordinatorContract

from shoal.coordination.interface import Change, Coordinator, KeyWrite, Lease, Versioned
from shoal.errors import ConflictError, CoordinatorError, CoordinatorUnavailableError, LeaseLostError
from shoal.lab.sim import FaultOptions, ModelClient, ModelCoordinator, Network, World
from shoal.lab.sim.models.coordinator import CoordinatorOptions
from shoal.lab.sim.world.loop import SimLoop

T = TypeVar("T")

LIMIT_S = 600.0
"""Virtual time that a test may take."""
STEP_S = 0.001
"""Virtual time between two looks at a task."""


class Desk:
    """A coordinator and processes that use it. `run` drives the world until a coroutine on a process is done."""

    def __init__(self, seed: int = 1, options: CoordinatorOptions | None = None) -> None:
        self.world = World(seed)
        self.network = Network(self.world, FaultOptions(clock_drift_max=0.001, clock_offset_s=(0.0, 1000.0)))
        self.coordinator = ModelCoordinator(self.network, options=options)
        self.store = self.coordinator.store
        self.failures: list[str] = []
        self.loops: dict[str, SimLoop] = {}
        for name in ("a", "b"):
            self.network.node(name).on_crash = functools.partial(self._crashed, name)
            self.start(name)
        self.clients: list[ModelClient] = []

    def start(self, name: str) -> SimLoop:
        """A new process on a node."""
        loop = self.loops[name] = SimLoop(self.network.nodes[name], self.failures)  # type: ignore[abstract]
        return loop

    def _crashed(self, name: str) -> None:
        self.loops[name].kill()

    def client(self, name: str = "a") -> ModelClient:
        """A client of the process on that node."""
        client = self.coordinator.client(self.loops[name])
        self.clients.append(client)
        return client

    def begin(self, work: Coroutine[Any, Any, T], name: str = "a") -> asyncio.Task[T]:
        """Starts a task of the process on that node."""
        tasks: list[asyncio.Task[T]] = []
        loop = self.loops[name]
        loop.run(lambda: tasks.append(loop.create_task(work)))
        return tasks[0]

    def finish(self, task: asyncio.Task[T]) -> T:
        """Drives the world until a task is done; returns or raises what it did."""
        limit = self.world.now + LIMIT_S
        while not task.done():
            assert self.world.now < limit, f"not done after {LIMIT_S:g} s of virtual time"
            self.wait(STEP_S)
        return task.result()

    def run(self, work: Coroutine[Any, Any, T], name: str = "a") -> T:
        """Runs a coroutine as a task of the process on that node."""
        return self.finish(self.begin(work, name))

    def wait(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def close(self) -> None:
        """Closes all clients; no task may have failed unnoticed."""

        async def close_all(name: str) -> None:
            for client in self.clients:
                if client.loop is self.loops[name]:
                    await client.close()

        for name, loop in self.loops.items():
            if not loop.dead:
                self.run(close_all(name), name)
        self.wait(1.0)
        for loop in self.loops.values():
            loop.discard()
        assert self.failures == []


# -- The contract ------------------------------------------------------------------------------------------------------


class Process:
    """The coordinator's process as the contract's tests see it."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def kill(self) -> None:
        self.desk.coordinator.node.crash()

    def restart(self) -> None:
        self.desk.coordinator.node.restart()


class Connect:
    """Makes clients for the contract's tests, all in the process of the test."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def __call__(self) -> Coordinator:
        return self.desk.client()


@pytest.fixture(params=range(1, 4), ids="seed {}".format)
def store(request: pytest.FixtureRequest) -> Process:
    return Process(Desk(request.param))


@pytest.fixture
def coordinator_factory(store: Process) -> Iterator[Connect]:
    yield Connect(store.desk)
    store.desk.close()


def on_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The same test, as a task of a simulated process."""

    @functools.wraps(test)
    def run(self: object, coordinator_factory: Connect, **others: Any) -> None:
        coordinator_factory.desk.run(test(self, coordinator_factory=coordinator_factory, **others))

    return run


def all_on_virtual_time(contract: type) -> type:
    """A class of tests with every asynchronous test on virtual time."""
    for name, test in inspect.getmembers(contract, inspect.iscoroutinefunction):
        if name.startswith("test_"):
            setattr(contract, name, on_virtual_time(test))
    return contract


@all_on_virtual_time
class TestContractOnTheModel(CoordinatorContract):
    """All of the contract."""


# -- Requests ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


async def outcome(asked: Awaitable[T]) -> T | CoordinatorError:
    """What a request returns or raises."""
    try:
        return await asked
    except CoordinatorError as error:
        return error


def test_a_request_that_is_lost_is_sent_again_within_the_time_limit(desk: Desk) -> None:
    client = desk.client()
    partition = desk.network.partition(["a"], ["coordinator"])
    asked = desk.begin(client.put("plan/x", b"1", 0))
    desk.wait(1.0)
    assert desk.store.get("plan/x") is None
    partition.heal()
    assert desk.finish(asked) == 1
    assert desk.world.now < 2.0


@pytest.mark.parametrize("crash", [False, True])
def test_a_change_whose_answer_was_lost_is_answered_again_and_not_made_again(desk: Desk, crash: bool) -> None:
    client = desk.client()
    partition = desk.network.partition(["coordinator"], ["a"], one_way=True)
    puts = [desk.begin(client.put("plan/x", b"1", 0)), desk.begin(client.put("plan/y", b"1"))]
    desk.wait(0.1)
    if crash:
        desk.coordinator.node.crash()
        desk.coordinator.node.restart()
    partition.heal()
    assert [desk.finish(put) for put in puts] == [1, 1]


def test_a_read_that_is_repeated_is_read_again(desk: Desk) -> None:
    client = desk.client()
    partition = desk.network.partition(["coordinator"], ["a"], one_way=True)
    asked = desk.begin(client.get("plan/x"))
    desk.wait(0.1)
    partition.heal()
    desk.store.put("plan/x", b"new")
    assert desk.finish(asked) == Versioned(b"new", 1)


def test_a_request_without_an_answer_times_out_and_may_have_taken_effect(desk: Desk) -> None:
    client = desk.client()
    partition = desk.network.partition(["coordinator"], ["a"], one_way=True)
    before = desk.loops["a"].time()
    with pytest.raises(CoordinatorUnavailableError, match="cannot write plan/x at coordinator within 2 s"):
        desk.run(client.put("plan/x", b"1", 0))
    assert desk.loops["a"].time() == pytest.approx(before + 2.0, abs=0.002)
    partition.heal()
    with pytest.raises(ConflictError, match="plan/x is at version 1, it was expected not to exist"):
        desk.run(client.put("plan/x", b"1", 0))
    assert desk.run(client.get("plan/x")) == Versioned(b"1", 1)


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (lambda client: client.delete("plan/x"), "delete plan/x"),
        (lambda client: client.renew(Lease("servers/1", "me", 1, 5.0)), "renew servers/1"),
        (lambda client: client.write_all([KeyWrite("plan/x", b"")]), "write plan/x"),
        (
            lambda client: client.write_all([KeyWrite(f"plan/{n}", b"") for n in range(300)]),
            "write plan/0 and 199 more",
        ),
        (lambda client: client.join("servers", "1", b"", 5.0), "join servers"),
        (lambda client: client.barrier("move/1", "me", 2).wait(9.0), "reach barrier move/1"),
    ],
)
def test_errors_name_the_operation(desk: Desk, ask: Callable[[Coordinator], Any], what: str) -> None:
    client = desk.client()
    desk.coordinator.node.crash()
    with pytest.raises(CoordinatorUnavailableError, match=f"cannot {what} at"):
        desk.run(ask(client))


def test_stored_values_survive_a_crash_and_leases_still_expire(desk: Desk) -> None:
    client = desk.client()
    desk.run(client.put("plan/x", b"1"))
    desk.run(client.acquire("servers/1", "me", 5.0))
    desk.coordinator.node.crash()
    assert isinstance(desk.run(outcome(client.get("plan/x"))), CoordinatorUnavailableError)
    desk.wait(2.0)
    desk.coordinator.node.restart()
    assert desk.run(client.get("plan/x")) == Versioned(b"1", 1)
    desk.wait(2.0)
    assert desk.run(client.acquire("servers/1", "you", 5.0)) == Lease("servers/1", "you", 2, 5.0)


def test_leases_end_by_the_coordinators_clock_and_fence_writes(desk: Desk) -> None:
    client = desk.client()
    mine = desk.run(client.acquire("servers/1", "me", 5.0))
    assert mine == Lease("servers/1", "me", 1, 5.0)
    desk.wait(4.0)
    assert desk.run(client.renew(mine))
    desk.wait(4.0)
    assert desk.run(client.put("plan/x", b"", fence=mine)) == 1
    desk.wait(2.0)
    assert desk.store.lease_of("servers/1") is None
    for write in (client.put("plan/x", b"", fence=mine), client.write_all([KeyWrite("plan/x", b"")], fence=mine)):
        with pytest.raises(LeaseLostError, match=r"me lost the lease servers/1 \(token 1\), so plan/x was not written"):
            desk.run(write)
    assert desk.store.refused == 2


def test_a_paused_process_gets_its_answer_or_its_time_limit_when_it_resumes(desk: Desk) -> None:
    for pause_s, kinds in ((0.5, {int}), (30.0, {int, CoordinatorUnavailableError})):
        seen = set()
        for number in range(20):
            asked = desk.begin(outcome(desk.client().put(f"plan/{pause_s}/{number}", b"", 0)))
            desk.wait(0.000_1)
            desk.network.nodes["a"].pause()
            desk.wait(pause_s)
            assert not asked.done()
            desk.network.nodes["a"].resume()
            seen.add(type(desk.finish(asked)))
            desk.wait(1.0)
        assert seen <= kinds
    assert len(desk.store.list("plan/")) == 40


def test_a_restarted_process_gets_no_answer_to_a_request_of_the_process_before_it(desk: Desk) -> None:
    ended: list[str] = []

    async def ask(client: Coordinator) -> None:
        try:
            await client.put("plan/x", b"1")
        finally:
            ended.append("ended")

    asked = desk.begin(ask(desk.client()))
    desk.wait(0.000_1)
    desk.network.nodes["a"].crash()
    desk.network.nodes["a"].restart()
    desk.start("a")
    assert desk.run(desk.client().get("plan/y")) is None
    desk.wait(10.0)
    assert desk.store.get("plan/x") == Versioned(b"1", 1)
    assert (asked.done(), ended) == (False, [])


def test_a_request_that_is_cancelled_is_not_sent_again(desk: Desk) -> None:
    client = desk.client()
    partition = desk.network.partition(["a"], ["coordinator"])
    asked = desk.begin(client.put("plan/x", b"1"))
    desk.wait(0.1)
    desk.loops["a"].run(asked.cancel)
    desk.wait(0.1)
    partition.heal()
    desk.wait(5.0)
    assert asked.cancelled()
    assert desk.store.get("plan/x") is None


def test_a_client_that_is_closed_does_not_send_again(desk: Desk) -> None:
    client = desk.client()
    partition = desk.network.partition(["a"], ["coordinator"])
    asked = desk.begin(client.put("plan/x", b"1"))
    desk.run(client.close())
    desk.wait(0.1)
    partition.heal()
    with pytest.raises(CoordinatorError, match="cannot write plan/x: the coordinator was closed"):
        desk.finish(asked)
    assert desk.store.get("plan/x") is None


def test_a_scenario_sees_each_change_and_who_asked_for_it(desk: Desk) -> None:
    changes: list[tuple[str, tuple[str, int] | None]] = []
    tell = desk.store.on_change
    assert tell is not None

    def changed(key: str) -> None:
        changes.append((key, desk.coordinator.serving))
        tell(key)

    desk.store.on_change = changed
    desk.store.put("plan/x", b"1")
    desk.network.nodes["b"].crash()
    desk.network.nodes["b"].restart()
    desk.start("b")
    desk.run(desk.client("a").put("plan/y", b"1"), "a")
    desk.run(desk.client("b").delete("plan/x"), "b")
    assert changes == [("plan/x", None), ("plan/y", ("a", 1)), ("plan/x", ("b", 2))]


def test_many_writes_can_be_cut_off_in_the_middle() -> None:
    """Both few and many writes may be split, so scenarios cover both cases."""
    desk = Desk(options=CoordinatorOptions(split_probability=0.5))
    client = desk.client()
    seen = set()
    for number in range(60):
        writes = [KeyWrite(f"plan/{number}/{at}", b"", 0) for at in range(4)]
        desk.begin(outcome(client.write_all(writes)))
        while not desk.store.list(f"plan/{number}/"):
            desk.wait(0.000_1)
        desk.coordinator.node.crash()
        desk.wait(3.0)
        desk.coordinator.node.restart()
        seen.add(len(desk.store.list(f"plan/{number}/")))
    assert seen == {1, 2, 3, 4}
    desk.close()


def test_muted_leases_have_no_effect_and_no_answer_for_one_node_until_a_time(desk: Desk) -> None:
    a, b = desk.client("a"), desk.client("b")
    lease = desk.run(a.acquire("servers/1", "a", 60.0))
    assert lease is not None
    place = desk.run(a.join("agents", "a", b"", 60.0))
    desk.coordinator.mute_leases("a", desk.world.now + 20.0)
    for ask in (
        a.acquire("servers/2", "a", 60.0),
        a.renew(lease),
        a.lease_of("servers/1"),
        a.release(lease),
        a.join("agents", "a2", b"", 60.0),
        place.renew(),
        place.leave(),
    ):
        assert isinstance(desk.run(outcome(ask)), CoordinatorUnavailableError)
    assert desk.run(a.put("plan/x", b"1")) == 1
    assert set(desk.run(a.leases("servers/"))) == {"servers/1"}
    assert desk.run(b.acquire("servers/3", "b", 60.0), "b") is not None
    assert desk.run(b.members("agents"), "b") == {"a": b""}
    desk.world.run(20.0)
    assert desk.run(place.renew())
    assert desk.run(a.renew(lease))


# -- Watches -----------------------------------------------------------------------------------------------------------


async def follow(news: AsyncGenerator[T, None], seen: list[T]) -> None:
    """Reads a watch to its end."""
    async for state in news:
        seen.append(state)


def test_a_watch_shows_the_state_and_then_the_newest_of_each_key_and_may_skip_states(desk: Desk) -> None:
    seen: list[Change] = []
    desk.store.put("plan/x", b"0")
    desk.begin(follow(desk.client("b").watch("plan/"), seen), "b")
    desk.wait(1.0)
    assert seen == [Change("plan/x", Versioned(b"0", 1))]
    for number in range(20):
        desk.run(desk.client().put("plan/x", b"%d" % number))
    desk.store.put("other/x", b"")
    desk.store.delete("plan/y")
    desk.wait(1.0)
    versions = [change.now.version for change in seen if change.now is not None]
    assert versions == sorted(set(versions))
    assert len(versions) < 21
    assert seen[-1] == Change("plan/x", Versioned(b"19", 21))
    desk.store.delete("plan/x")
    desk.wait(1.0)
    assert seen[-1] == Change("plan/x", None)


def test_a_watch_survives_partition_and_crash_and_ends_with_its_process(desk: Desk) -> None:
    seen: list[Change] = []
    desk.begin(follow(desk.client("b").watch("plan/"), seen), "b")
    partition = desk.network.partition(["b"], ["coordinator"])
    desk.store.put("plan/x", b"1")
    desk.wait(5.0)
    assert seen == []
    partition.heal()
    desk.coordinator.node.crash()
    desk.wait(5.0)
    assert seen == []
    desk.coordinator.node.restart()
    desk.wait(5.0)
    assert seen == [Change("plan/x", Versioned(b"1", 1))]
    desk.network.nodes["b"].crash()
    desk.network.nodes["b"].restart()
    desk.start("b")
    desk.store.put("plan/x", b"2")
    desk.wait(5.0)
    assert len(seen) == 1


def test_changes_that_waited_for_a_paused_process_stay_in_order() -> None:
    for seed in range(30):
        desk = Desk(seed, CoordinatorOptions(watch_delay_s=(0.0, 0.000_05)))
        seen: list[Change] = []
        desk.begin(follow(desk.client("b").watch("plan/"), seen), "b")
        for number in range(60):
            desk.store.put("plan/x", b"%d" % number)
            desk.wait(0.000_1)
            node = desk.network.nodes["b"]
            (node.resume if node.paused else node.pause)()
        desk.network.nodes["b"].resume()
        desk.wait(1.0)
        versions = [change.now.version for change in seen if change.now is not None]
        assert versions == sorted(set(versions))
        assert versions[-1] == 60
        desk.close()


def test_a_watch_ends_when_its_generator_or_its_client_is_closed(desk: Desk) -> None:
    client = desk.client()
    desk.store.put("plan/x", b"1")

    async def first_only() -> Change:
        async with aclosing(client.watch("plan/")) as changes:
            return await anext(changes)

    assert desk.run(first_only()).key == "plan/x"
    seen: list[Change] = []
    following = desk.begin(follow(client.watch("plan/"), seen))
    desk.wait(1.0)
    desk.run(client.close())
    desk.finish(following)
    desk.store.put("plan/x", b"2")
    desk.wait(1.0)
    assert len(seen) == 1
    with pytest.raises(CoordinatorError, match="cannot watch plan/: the coordinator was closed"):
        desk.run(follow(client.watch("plan/"), seen))


def test_the_expiry_of_a_member_is_seen_without_any_other_request(desk: Desk) -> None:
    seen: list[dict[str, bytes]] = []
    client = desk.client("a")
    desk.run(client.join("agents", "early", b"0", 2.0))
    desk.begin(follow(desk.client("b").watch_members("agents"), seen), "b")
    desk.wait(1.0)
    assert seen == [{"early": b"0"}]
    desk.wait(2.0)
    assert seen == [{"early": b"0"}, {}]
    desk.run(client.join("agents", "long", b"1", 8.0))
    place = desk.run(client.join("agents", "short", b"2", 3.0))
    desk.wait(2.0)
    assert desk.run(place.renew())
    desk.wait(2.0)
    assert seen[-1] == {"long": b"1", "short": b"2"}
    desk.wait(1.5)
    assert seen[-1] == {"long": b"1"}
    desk.coordinator.node.crash()
    desk.wait(5.0)
    assert seen[-1] == {"long": b"1"}
    desk.coordinator.node.restart()
    desk.wait(1.0)
    assert seen[-1] == {}
    assert len({tuple(state) for state in seen}) == len(seen) - 1  # the empty group comes twice


def test_a_barrier_that_opened_before_its_watch_showed_it_is_passed() -> None:
    desk = Desk(options=CoordinatorOptions(watch_delay_s=(5.0, 5.0)))
    early = desk.begin(desk.client("a").barrier("move/1", "a", 2).wait(2.0), "a")
    desk.wait(1.0)
    late = desk.begin(desk.client("b").barrier("move/1", "b", 2).wait(1.5), "b")
    assert (desk.finish(early), desk.finish(late)) == (True, True)
    assert desk.store.arrived("move/1") == 2
    desk.close()


# -- Determinism -------------------------------------------------------------------------------------------------------

TRACE = """
import asyncio
from tests.lab.sim.test_coordinator import Desk, follow, outcome

desk = Desk(7)
seen = []
work = [desk.begin(follow(desk.client(name).watch("plan/"), seen), name) for name in ("a", "b", "a", "b")]
work += [desk.begin(follow(desk.client(name).watch_members("agents"), seen), name) for name in ("a", "b")]

async def use(client, name):
    for number in range(30):
        print(name, desk.world.now, await outcome(client.put(f"plan/{number % 7}", name.encode(), number % 3)))
        await client.join("agents", f"{name}{number}", b"", 0.1 + number / 10)
        await asyncio.sleep(0.01)

for name in ("a", "b"):
    desk.begin(use(desk.client(name), name), name)
desk.wait(0.2)
partition = desk.network.partition(["b"], ["coordinator"])
desk.wait(0.9)
partition.heal()
desk.wait(30.0)
print(desk.world.events_run, seen)
"""


def test_a_run_is_the_same_under_any_hash_seed() -> None:
    here = Path(__file__).parents[3]
    outputs = []
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{here / 'src'}{os.pathsep}{here}"}
        run = subprocess.run(
            [sys.executable, "-c", TRACE], env=environment, cwd=here, capture_output=True, text=True, check=True
        )
        outputs.append(run.stdout)
    assert outputs[0] == outputs[1]
    assert outputs[0].count("\n") == 61


@pytest.mark.parametrize(
    "change", ["request", "answer", "watch"], ids=["another argument", "another answer", "other delivery of a watch"]
)
def test_the_digest_covers_the_traffic_of_the_coordinator(change: str) -> None:
    """Requests, answers and deliveries of watches cross the simulated network as values, not as bytes of a
    connection."""

    def digest(value: bytes) -> bytes:
        desk = Desk()
        if change == "request":
            desk.run(desk.client().put("plan/a", value))
        else:
            desk.store.put("plan/a", value)
        if change == "answer":
            desk.run(desk.client().get("plan/a"))
        if change == "watch":
            desk.begin(follow(desk.client().watch("plan/"), []))
            desk.wait(1.0)
        return desk.world.digest

    assert digest(b"1") == digest(b"1") != digest(b"2")


def test_a_full_disk_refuses_writes_and_answers_reads(desk: Desk) -> None:
    """As the coordinator on Redis does, see `test_a_server_that_takes_no_writes`."""
    client = desk.client()

    async def story() -> None:
        lease = await client.acquire("servers/s1", "agent", 30.0)
        assert lease is not None
        member = await client.join("servers", "s1", b"", 30.0)
        desk.coordinator.fill_disk(desk.world.now + 5.0)
        for write in (
            client.put("plan/a", b"1"),
            client.write_all([KeyWrite("plan/a", b"1"), KeyWrite("plan/b", b"2")]),
            client.renew(lease),
            client.acquire("servers/s2", "agent", 3.0),
            client.join("servers", "s2", b"", 3.0),
            member.renew(),
        ):
            with pytest.raises(CoordinatorUnavailableError, match="does not accept writes"):
                await write
        assert await client.get("plan/a") is None
        assert list(await client.leases("servers/")) == ["servers/s1"]
        assert list(await client.members("servers")) == ["s1"]
        await asyncio.sleep(6.0)
        assert await client.renew(lease)
        assert await client.put("plan/a", b"1")

    desk.run(story())
