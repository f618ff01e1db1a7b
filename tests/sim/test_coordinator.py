"""The model of the coordinator: the contract on virtual time, and what only a simulated network can do to it."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from tests.coordination.contract import CoordinatorContract

from shoal.coordination.interface import Coordinator
from shoal.sim import FaultOptions, ModelCoordinator, Network, World
from shoal.sim.coordinator import CoordinatorOptions
from shoal.sim.loop import SimLoop

T = TypeVar("T")

LIMIT_S = 600.0
"""Virtual time that a test may take."""


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
        self.clients: list[Coordinator] = []

    def start(self, name: str) -> SimLoop:
        """A new process on a node."""
        loop = self.loops[name] = SimLoop(self.network.nodes[name], self.failures)
        return loop

    def _crashed(self, name: str) -> None:
        self.loops[name].kill()

    def client(self, name: str = "a") -> Coordinator:
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
            at = self.world.next_time()
            assert at is not None, "nothing will ever happen again, and the task is not done"
            assert at < limit, f"not done after {LIMIT_S:g} s of virtual time"
            self.world.run(at)
        return task.result()

    def run(self, work: Coroutine[Any, Any, T], name: str = "a") -> T:
        """Runs a coroutine as a task of the process on that node."""
        return self.finish(self.begin(work, name))

    def wait(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def close(self) -> None:
        """Closes all clients; no task may have failed without being asked."""

        async def close_all(name: str) -> None:
            for client in self.clients:
                if client.loop is self.loops[name]:  # type: ignore[attr-defined]
                    await client.close()

        for name, loop in self.loops.items():
            if not loop.dead:
                self.run(close_all(name), name)
            loop.bury()
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
    """Makes clients for the contract's tests; they all live in the process that the test runs in."""

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
