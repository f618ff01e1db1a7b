"""A simulated machine with one process, for tests of what runs on it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from shoal.lab.sim import FaultOptions, ModelCoordinator, Network, World
from shoal.lab.sim.world.loop import SimLoop
from shoal.lab.sim.world.process import Processes


class Machine:
    """A node with a process on it, in its own world."""

    def __init__(self, seed: int = 1, options: FaultOptions | None = None) -> None:
        self.world = World(seed)
        self.network = Network(self.world, options)
        self.processes = Processes(self.network, ModelCoordinator(self.network))
        self.node = self.network.node("machine")
        self.process = self.processes.new(self.node)

    @property
    def loop(self) -> SimLoop:
        return self.process.loop

    @property
    def failures(self) -> list[str]:
        return self.processes.failures

    def begin(self, main: Coroutine[Any, Any, object]) -> None:
        self.process.begin(main)

    def run_for(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def result_of(self, main: Coroutine[Any, Any, Any], within_s: float = 60.0) -> Any:
        """What a coroutine returns or raises within some virtual time."""
        results: list[Any] = []

        async def run() -> None:
            results.append(await main)

        self.begin(run())
        self.run_for(within_s)
        assert self.failures == []
        (result,) = results
        return result
