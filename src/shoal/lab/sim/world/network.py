"""The simulated network: nodes, listeners, connection attempts, partitions, and faults of links.

Owns: the nodes, the open ends, and whether a path between two nodes is open. Never touches: what a process does with
the bytes it receives, and the schedule of faults (`shoal.lab.sim.world.faults` or the scenario).

Partitions delay bytes and do not lose them, because TCP sends them again. After `tcp_timeout_s` without acknowledgement
the sending end gives up; the other end stays half-open until it sends something itself (then it is reset, or times
out).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from shoal.lab.sim.world import link
from shoal.lab.sim.world.fault_options import FaultOptions, Range
from shoal.lab.sim.world.link import LinkEnd
from shoal.lab.sim.world.node import WAKE_JITTER_S, Node
from shoal.lab.sim.world.wires import Handler, Wires
from shoal.lab.sim.world.world import Event, World

Accept = Callable[[LinkEnd], Handler]
"""Called by a listening node for each new connection; returns the connection's handler."""


class Dialer(Handler, Protocol):
    """The owner of a connection attempt. Exactly one of `connected` and `failed` is called, unless the attempt is
    cancelled."""

    def connected(self, end: LinkEnd) -> None:
        """The connection is open."""

    def failed(self, reason: str) -> None:
        """The attempt failed: "refused" (no process listens) or "timeout"."""


class Dial:
    """A connection attempt."""

    __slots__ = ("attempt", "cancelled", "deadline", "dialer", "end", "incarnation", "node", "to")

    def __init__(self, node: Node, to: Node, dialer: Dialer, deadline: float) -> None:
        self.node = node
        self.to = to
        self.dialer = dialer
        self.deadline = deadline
        self.incarnation = node.incarnation
        self.cancelled = False
        self.end: LinkEnd | None = None
        self.attempt: Event | None = None

    @property
    def alive(self) -> bool:
        """Whether a process still waits for it."""
        return not self.cancelled and self.incarnation == self.node.incarnation

    def cancel(self) -> None:
        """Gives up, without a call to the dialer; aborts a connection that was established meanwhile."""
        self.cancelled = True
        if self.attempt is not None:
            self.attempt.cancel()
        if self.end is not None:
            self.end.abort()


class Partition:
    """A cut between two groups of nodes; `heal()` ends it."""

    __slots__ = ("_network", "_pairs")

    def __init__(self, network: Network, pairs: list[tuple[str, str]]) -> None:
        self._network = network
        self._pairs = pairs

    def heal(self) -> None:
        """Opens the paths that no other partition cuts. Healing twice does nothing."""
        pairs, self._pairs = self._pairs, []
        self._network.change_paths(pairs, -1)


class Network:
    """Nodes by name and the links between them; see `shoal.lab.sim` for how it is used."""

    def __init__(self, world: World, options: FaultOptions | None = None) -> None:
        self.world = world
        self.options = options or FaultOptions()
        self.nodes: dict[str, Node] = {}
        self._wires = Wires(world, self.options, self._forget)
        self._listeners: dict[str, Accept] = {}
        self._ends: dict[str, dict[LinkEnd, None]] = {}
        self._dead_ends: dict[str, list[LinkEnd]] = {}
        self._closed_paths: Counter[tuple[str, str]] = Counter()
        self._delays: dict[tuple[Node, Node], Callable[[], float]] = {}

    @property
    def stats(self) -> Counter[str]:
        """Counts of events: connects, refused, resets, stalls, timeouts, bytes_lost, ..."""
        return self._wires.stats

    def node(self, name: str, host: str | None = None) -> Node:
        """Makes a node. Nodes with the same `host` are close to each other (`delay_local_s`)."""
        if name in self.nodes:
            raise ValueError(f"there is a node {name!r} already")
        rng = self.world.rng(f"clock/{name}")
        drift = self.options.clock_drift_max
        rate = 1.0 + rng.uniform(-drift, drift)
        node = Node(self.world, self, name, host or name, rate, rng.uniform(*self.options.clock_offset_s))
        self.nodes[name] = node
        self._ends[name] = {}
        self._dead_ends[name] = []
        return node

    def listen(self, node: Node, accept: Accept) -> None:
        """Accepts connections to `node` until it crashes; a restarted process must listen again."""
        self._listeners[node.name] = accept

    def connect(self, node: Node, to: str, dialer: Dialer) -> Dial:
        """Starts to connect the process on `node` to the listener on node `to`."""
        dial = Dial(node, self.nodes[to], dialer, self.world.now + self.options.connect_timeout_s)
        dial.attempt = self.world.after(self._delay(node, dial.to), self._knock, dial)
        return dial

    def ends(self, name: str | None = None) -> list[LinkEnd]:
        """The open ends of one node, or of all, in a fixed order; a connection has up to two."""
        if name is not None:
            return list(self._ends[name])
        return [end for ends in self._ends.values() for end in ends]

    def path_open(self, src: str, dst: str) -> bool:
        """Whether no partition cuts the way from `src` to `dst`."""
        return not self._closed_paths.get((src, dst))

    def datagram(self, src: Node, dst: Node, fn: Callable[..., object], *args: Any) -> None:
        """Runs `fn(*args)` in the process of `dst` after a delay; dropped silently if `dst` cannot be reached then."""
        self.world.after(self._delay(src, dst), self._datagram_arrives, src.name, dst, fn, args)

    def reset(self, end: LinkEnd) -> None:
        """Resets a connection: each direction loses the last part of its bytes in flight, and each end is told
        separately."""
        self.stats["resets"] += 1
        for direction in link.directions(end):
            direction.cut()
            direction.end("reset")

    def stall(self, end: LinkEnd, duration_s: float, *, one_way: bool = False) -> None:
        """Delivers nothing to `end` (and, unless `one_way`, nothing from it) for a while."""
        self.stats["stalls"] += 1
        out, into = link.directions(end)
        into.stall(duration_s)
        if not one_way:
            out.stall(duration_s)

    def partition(self, from_: Iterable[str], to: Iterable[str], *, one_way: bool = False) -> Partition:
        """Delivers nothing from the first nodes to the second (and, unless `one_way`, nothing in the other
        direction)."""
        self.stats["partitions"] += 1
        to = list(to)
        pairs = [(a, b) for a in from_ for b in to if a != b]
        if not one_way:
            pairs += [(b, a) for a, b in pairs]
        pairs = list(dict.fromkeys(pairs))
        self.change_paths(pairs, 1)
        return Partition(self, pairs)

    def change_paths(self, pairs: list[tuple[str, str]], change: int) -> None:
        """Adds `change` to the number of partitions on each path. For `Partition`."""
        for pair in pairs:
            self._closed_paths[pair] += change
        sources = dict.fromkeys(src for src, _ in pairs)
        sources.update(dict.fromkeys(dst for _, dst in pairs))
        for name in sources:
            for end in self.ends(name):
                for direction in link.directions(end):
                    self._apply_path(direction)

    def node_paused(self, node: Node) -> None:
        """For `Node`: stops deliveries to it."""
        self.stats["pauses"] += 1
        for end in self.ends(node.name):
            link.directions(end)[1].block(link.PAUSED)

    def node_resumed(self, node: Node) -> None:
        """For `Node`: delivers the waiting bytes, and sends what the process could not write."""
        for end in self.ends(node.name):
            out, into = link.directions(end)
            delay = self._wires.cuts.random() * WAKE_JITTER_S
            self.world.after(delay, self._wake, node, out, into)

    def node_crashed(self, node: Node, power: bool) -> None:
        """For `Node`: drops its ends; peers are reset, or left half-open with `power`."""
        self.stats["power_crashes" if power else "crashes"] += 1
        self._listeners.pop(node.name, None)
        for end in self.ends(node.name):
            self._forget(end)
            end.open = False
            out, into = link.directions(end)
            out.cut()
            into.unblock(link.PAUSED | link.UNREAD | link.UNACCEPTED)
            if power:
                into.block(link.DEAD)
                self._dead_ends[node.name].append(end)
            else:
                out.end("reset")

    def node_restarted(self, node: Node) -> None:
        """For `Node`: the kernel resets the connections to the previous process."""
        dead, self._dead_ends[node.name] = self._dead_ends[node.name], []
        for end in dead:
            link.directions(end)[1].unblock(link.DEAD)

    def _delay(self, a: Node, b: Node) -> float:
        draw = self._delays.get((a, b))
        if draw is None:
            draw = self._delays[a, b] = self._delay_between(a, b)
        return draw()

    def _delay_between(self, a: Node, b: Node) -> Callable[[], float]:
        """Draws one-way delays between two nodes."""
        options = self.options
        span: Range = options.delay_local_s if a.host == b.host else options.delay_s
        low, width = span[0], span[1] - span[0]
        rng = self._wires.delays
        random = rng.random
        spike = options.spike_probability
        if not spike:
            return lambda: low + width * random()
        spike_low, spike_high = options.spike_s

        def draw() -> float:
            delay = low + width * random()
            return delay + rng.uniform(spike_low, spike_high) if random() < spike else delay

        return draw

    def _apply_path(self, direction: link.Direction) -> None:
        if self.path_open(direction.src.node.name, direction.dst.node.name):
            direction.unblock(link.PARTITION)
        else:
            direction.block(link.PARTITION)

    def _knock(self, dial: Dial) -> None:
        """Tries to reach the other machine."""
        if not dial.alive:
            return
        node, to = dial.node, dial.to
        back = self._delay(to, node)
        if not (to.kernel_up and self.path_open(node.name, to.name) and self.path_open(to.name, node.name)):
            if self.world.now >= dial.deadline:
                self._fail(dial, "timeout", 0.0)
            else:
                again = min(self.world.now + self.options.connect_retry_s, dial.deadline)
                dial.attempt = self.world.at(again, self._knock, dial)
            return
        accept = self._listeners.get(to.name)
        if accept is None:
            self._fail(dial, "refused", back)
            return
        self.stats["connects"] += 1
        near, far = LinkEnd(node), LinkEnd(to)
        link.connect_ends(self._wires, near, far, self._delay_between(node, to))
        self._ends[node.name][near] = None
        self._ends[to.name][far] = None
        for direction in link.directions(near):
            direction.block(link.UNACCEPTED)
            if direction.dst.node.paused:
                direction.block(link.PAUSED)
        dial.end = near
        to.call(self._accept, accept, far)
        self.world.after(back, node.call, self._establish, dial)

    def _fail(self, dial: Dial, reason: str, delay_s: float) -> None:
        self.stats["refused" if reason == "refused" else "connect_timeouts"] += 1
        dial.attempt = self.world.after(delay_s, dial.node.call, self._tell_failed, dial, reason)

    def _tell_failed(self, dial: Dial, reason: str) -> None:
        if dial.alive:
            dial.dialer.failed(reason)

    def _accept(self, accept: Accept, end: LinkEnd) -> None:
        if end.open:
            end.handler = accept(end)
            link.directions(end)[1].unblock(link.UNACCEPTED)

    def _establish(self, dial: Dial) -> None:
        end = dial.end
        if end is None or not dial.alive or not end.open:
            return
        dial.end = None
        end.handler = dial.dialer
        link.directions(end)[1].unblock(link.UNACCEPTED)
        dial.dialer.connected(end)

    def _wake(self, node: Node, out: link.Direction, into: link.Direction) -> None:
        if not node.paused:
            into.unblock(link.PAUSED)
            out.refill()

    def _datagram_arrives(self, src: str, dst: Node, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        if dst.up and self.path_open(src, dst.name):
            dst.call(fn, *args)
        else:
            self.stats["datagrams_lost"] += 1

    def _forget(self, end: LinkEnd) -> None:
        self._ends[end.node.name].pop(end, None)
