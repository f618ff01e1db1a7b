"""The schedule of faults, drawn by seed.

Owns: the time and target of each fault, and the return to a healthy world. Never touches: the effect of a fault
(`shoal.lab.sim.world.network`).

A run has two phases. While faults are on, only safety can be checked. After `stop()` the world is healthy and stays
healthy, so liveness can be checked too: every promise must be kept within its time limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from shoal.lab.sim.world.fault_options import FaultOptions, Range
from shoal.lab.sim.world.link import LinkEnd
from shoal.lab.sim.world.network import Network, Partition
from shoal.lab.sim.world.node import Node


class Faults:
    """Causes faults of links and nodes at the rates of the network's options, from `start` to `stop`.

    `crashable`, `pausable` and `partitionable` name the nodes that each kind of fault may hit; links of all nodes may
    be reset and stalled. `counts` has the number of faults of each kind, `first_at` the time of the first one.
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
        """Adds new nodes, which may now be crashed and partitioned; those in `pausable` may be paused too."""
        self._crashable += names
        self._pausable += pausable
        self._partitionable += names

    def leave_out(self, names: Collection[str]) -> None:
        """Spares nodes that were removed."""
        for nodes in (self._crashable, self._pausable, self._partitionable):
            nodes[:] = [node for node in nodes if node not in names]

    def start(self) -> None:
        """Starts the schedule."""
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
        """Ends all faults: heals partitions, resumes paused nodes, restarts crashed ones."""
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
            self.reset(end)

    def reset(self, end: LinkEnd) -> None:
        """Resets a connection now, if faults are on."""
        if self.active:
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
        """Cuts some nodes off from others for a while, if faults are on."""
        if self.active:
            self._later(span, self.cut(some, others, one_way=one_way).heal)

    def cut(self, some: list[str], others: list[str], *, one_way: bool = False) -> Partition:
        """Cuts some nodes off from others, until the partition is healed or faults end."""
        self._count("partition_one_way" if one_way else "partition")
        self.network.world.note("partition", some, others, one_way)
        partition = self.network.partition(some, others, one_way=one_way)
        self._partitions.append(partition)
        return partition

    def _pause(self) -> None:
        node = self._some_node(self._pausable)
        if node is not None:
            self.pause(node, self._options.pause_s)

    def pause(self, node: Node, span: Range) -> None:
        """Pauses a node now, if faults are on and it runs."""
        if self.active and node.running:
            self._count("pause")
            self.network.world.note("pause", node.name)
            node.pause()
            self._later(span, node.resume)

    def _crash(self) -> None:
        node = self._some_node(self._crashable)
        if node is not None:
            self.crash(node)

    def crash(self, node: Node, down_s: Range | None = None) -> None:
        """Crashes a node now, if faults are on and it is up."""
        if self.active and node.up:
            power = self._rng.random() < self._options.power_probability
            self._count("crash_power" if power else "crash")
            self.network.world.note("crash", node.name, power)
            node.crash(power=power)
            self._later(down_s or self._options.down_s, node.restart)

    def _count(self, kind: str) -> None:
        self.counts[kind] += 1
        if self.first_at is None:
            self.first_at = self.network.world.now

    def _later(self, span: Range, fn: Callable[[], None]) -> None:
        self.network.world.after(self._rng.uniform(*span), fn)

    def _some_end(self) -> LinkEnd | None:
        ends = self.network.ends()
        return self._rng.choice(ends) if ends else None

    def _some_node(self, names: list[str]) -> Node | None:
        """A running node, if there is one: crashing or pausing one that is already down has no effect."""
        nodes = [node for node in map(self.network.nodes.__getitem__, names) if node.running]
        return self._rng.choice(nodes) if nodes else None
