"""The schedule of faults: when which fault strikes whom, by seed.

Owns: the drawing of faults and the way back to a healthy world. Never touches: what a fault does
(`shoal.lab.sim.world.network`).

A run has two phases. While faults are on, only safety can be checked. After `stop()` everything is healed and
stays so: then everything promised must come true within bounds, which is liveness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from shoal.lab.sim.world.fault_options import FaultOptions, Range
from shoal.lab.sim.world.link import Endpoint
from shoal.lab.sim.world.network import Network, Partition
from shoal.lab.sim.world.node import Node


class Faults:
    """Strikes links and nodes of a network at the rates of its options, from `start` to `stop`.

    `crashable`, `pausable` and `partitionable` name the nodes that may be struck in that way; links of all
    nodes may be reset and stalled. `counts` says what struck how often, `first_at` when something first did.
    """

    def __init__(
        self,
        network: Network,
        *,
        crashable: Sequence[str] = (),
        pausable: Sequence[str] = (),
        partitionable: Sequence[str] = (),
    ) -> None:
        self.network = network
        self.counts: Counter[str] = Counter()
        self.first_at: float | None = None
        self.active = False
        self._options: FaultOptions = network.options
        self._crashable = list(crashable)
        self._pausable = list(pausable)
        self._partitionable = list(partitionable)
        self._partitions: list[Partition] = []
        self._rng = network.world.rng("faults")

    def include(self, names: Collection[str], pausable: Collection[str]) -> None:
        """These nodes have come, and may be crashed and cut off as all others; some of them may be paused too."""
        self._crashable += names
        self._pausable += pausable
        self._partitionable += names

    def leave_out(self, names: Collection[str]) -> None:
        """These nodes are gone, and are not struck any more."""
        for nodes in (self._crashable, self._pausable, self._partitionable):
            nodes[:] = [node for node in nodes if node not in names]

    def start(self) -> None:
        """Begin to strike."""
        self.active = True
        options = self._options
        for rate, strike in (
            (options.resets_per_s, self._reset),
            (options.stalls_per_s, self._stall),
            (options.partitions_per_s if len(self._partitionable) > 1 else 0.0, self._partition),
            (options.pauses_per_s if self._pausable else 0.0, self._pause),
            (options.crashes_per_s if self._crashable else 0.0, self._crash),
        ):
            if rate:
                self._next(rate, strike)

    def stop(self) -> None:
        """Strike no more and heal: partitions end, who is paused goes on, who is down is up again."""
        self.active = False
        for partition in self._partitions:
            partition.heal()
        self._partitions.clear()
        for node in self.network.nodes.values():
            node.resume()
            node.restart()

    def _next(self, rate: float, strike: Callable[[], None]) -> None:
        self.network.world.after(self._rng.expovariate(rate), self._strike, rate, strike)

    def _strike(self, rate: float, strike: Callable[[], None]) -> None:
        if self.active:
            strike()
            self._next(rate, strike)

    def _reset(self) -> None:
        end = self._some_end()
        if end is not None:
            self._count("reset")
            self.network.world.note("reset", str(end))
            self.network.reset(end)

    def _stall(self) -> None:
        end = self._some_end()
        if end is not None:
            self._count("stall")
            one_way = self._rng.random() < self._options.one_way_probability
            self.network.world.note("stall", str(end), one_way)
            self.network.stall(end, self._rng.uniform(*self._options.stall_s), one_way=one_way)

    def _partition(self) -> None:
        names = list(self._partitionable)
        self._rng.shuffle(names)
        size = self._rng.randint(1, len(names) - 1)
        one_way = self._rng.random() < self._options.one_way_probability
        self.partition(names[:size], names[size:], self._options.partition_s, one_way=one_way)

    def partition(self, some: list[str], others: list[str], span: Range, *, one_way: bool = False) -> None:
        """Cuts some nodes off from others, as if their turn had come, if faults are on."""
        if not self.active:
            return
        self._count("partition_one_way" if one_way else "partition")
        self.network.world.note("partition", some, others, one_way)
        partition = self.network.partition(some, others, one_way=one_way)
        self._partitions.append(partition)
        self._later(span, partition.heal)

    def _pause(self) -> None:
        node = self._some_node(self._pausable)
        if node is not None:
            self.pause(node, self._options.pause_s)

    def pause(self, node: Node, span: Range) -> None:
        """Pauses one node, as if its turn had come, if faults are on and it runs."""
        if self.active and node.running:
            self._count("pause")
            self.network.world.note("pause", node.name)
            node.pause()
            self._later(span, node.resume)

    def _crash(self) -> None:
        node = self._some_node(self._crashable)
        if node is not None:
            self.crash(node)

    def crash(self, node: Node) -> None:
        """Crashes one node, as if its turn had come, if faults are on and it is up."""
        if self.active and node.up:
            power = self._rng.random() < self._options.power_probability
            self._count("crash_power" if power else "crash")
            self.network.world.note("crash", node.name, power)
            node.crash(power=power)
            self._later(self._options.down_s, node.restart)

    def _count(self, kind: str) -> None:
        self.counts[kind] += 1
        if self.first_at is None:
            self.first_at = self.network.world.now

    def _later(self, span: Range, fn: Callable[[], None]) -> None:
        self.network.world.after(self._rng.uniform(*span), fn)

    def _some_end(self) -> Endpoint | None:
        ends = self.network.ends()
        return self._rng.choice(ends) if ends else None

    def _some_node(self, names: list[str]) -> Node | None:
        """A node that runs, if there is one: a fault on top of a fault of the same kind would be none."""
        nodes = [node for node in map(self.network.nodes.__getitem__, names) if node.running]
        return self._rng.choice(nodes) if nodes else None
