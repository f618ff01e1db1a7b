"""Telemetry in the simulator: agents count what their servers carry, and a leader reads what they wrote.

Owns the clock on the wall, the turns of the shipped monitor, and the way of records from a server's stream to the
leader, on which some are late, lost or doubled. What the figures are is counted by the shipped code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Final

import pyarrow as pa

from shoal.balance.reports import BATCH_SCHEMA, entries_to_batch
from shoal.channels.analyzer import Analyzer
from shoal.channels.monitor import Monitor
from shoal.channels.peers import PEER_PATTERN
from shoal.channels.telemetry import DATA_FIELD, ID_FIELD
from shoal.sim.agent_actor import AgentActor
from shoal.sim.model_keys import Stream, StreamId
from shoal.sim.network import Network
from shoal.sim.node import Node
from shoal.sim.redis_node import RedisNode
from shoal.wire.envelope import TELEMETRY_KEY

LISTED_MAX: Final = 16
READ_S: Final = 0.5
READ_RECORDS_MAX: Final = 16
FIRST_SECOND: Final = 1_700_000_000
"""What clocks on the wall show when a run begins."""
LATE_S: Final = (0.5, 5.0)
"""How much later a record that is late arrives."""

Entry = tuple[bytes, bytes]
"""The id of a record and its bytes."""


class WallClock:
    """What a node takes for the time of day: nearly the true one, or not at all."""

    def __init__(self, node: Node, skew_s: float) -> None:
        self._node = node
        self._skew_s = skew_s

    def __call__(self) -> float:
        """The time in seconds."""
        return FIRST_SECOND + self._node.world.now + self._skew_s


class MonitorActor:
    """Closes each second of one life of an agent, as long as it is `wanted`."""

    def __init__(
        self, actor: AgentActor, wall: WallClock, max_out_bytes_per_s: float, wanted: Callable[[], bool]
    ) -> None:
        analyzer = Analyzer(actor.core.scanner, LISTED_MAX)
        own = frozenset({b"*", PEER_PATTERN})
        self.monitor = actor.monitor = Monitor(actor.core, analyzer, max_out_bytes_per_s, own)
        self._actor = actor
        self._wall = wall
        self._wanted = wanted
        self._actor.core.second = int(wall())
        self._wait()

    def _wait(self) -> None:
        self._actor.node.after(1.000_1 - self._wall() % 1.0, self._turn)

    def _turn(self) -> None:
        core, second = self._actor.core, int(self._wall())
        if second != core.second:
            over, core.second = core.second, second
            self.monitor.second_over(over, self._actor.node.clock())
            self._actor.flush()
        if self._wanted():
            self._wait()


class ReaderTemper:
    """How often a record is lost, doubled or late on its way, by seed."""

    def __init__(self, rng: Random) -> None:
        self.lost = rng.choice((0.0, 0.0, 0.03))
        self.doubled = rng.choice((0.0, 0.05))
        self.late = rng.choice((0.0, 0.0, 0.05))


class ReaderActor:
    """Reads the streams of some servers for one life of a leader. Records suffer on their way while it is
    `troubled`."""

    def __init__(
        self,
        network: Network,
        node: Node,
        wall: WallClock,
        server_of: Callable[[str], RedisNode],
        temper: ReaderTemper,
        troubled: Callable[[], bool],
    ) -> None:
        self.network = network
        self.node = node
        self.seen: Counter[str] = Counter()
        self._wall = wall
        self._server_of = server_of
        self._temper = temper
        self._troubled = troubled
        self._random = network.world.rng("telemetry")
        self._positions: dict[str, StreamId | None] = {}
        self._batches: list[pa.RecordBatch] = []
        self._read()

    def follow(self, servers: Iterable[str]) -> None:
        """Reads these servers from now on, each from where its stream ends now, and no others."""
        wanted = list(servers)
        self._positions = {server: self._positions.get(server) for server in wanted}

    def take(self) -> pa.Table:
        """What was read since the last call."""
        batches, self._batches = self._batches, []
        return pa.Table.from_batches(batches, BATCH_SCHEMA)

    def _read(self) -> None:
        for server, position in self._positions.items():
            redis = self._server_of(server)
            self.network.datagram(self.node, redis.node, self._asked, redis, server, position)
        self.node.after(READ_S, self._read)

    def _asked(self, redis: RedisNode, server: str, position: StreamId | None) -> None:
        """At the server: what its stream has beyond a position."""
        stream = redis.model.keys.values.get(TELEMETRY_KEY)
        if not isinstance(stream, Stream):
            stream = Stream()
        if position is None:
            found, last = [], stream.last
        else:
            beyond = [entry for entry in stream.entries if entry[0] > position][:READ_RECORDS_MAX]
            found, last = [fields for _, fields in beyond], beyond[-1][0] if beyond else position
        self.network.datagram(redis.node, self.node, self._answered, server, position, last, found)

    def _answered(self, server: str, position: StreamId | None, last: StreamId, found: list[tuple[bytes, ...]]) -> None:
        """At the leader: takes what it has not taken yet."""
        if server not in self._positions or self._positions[server] != position:
            return
        self._positions[server] = last
        for fields in found:
            named = dict(zip(fields[::2], fields[1::2], strict=True))
            self._on_its_way((named[ID_FIELD], named[DATA_FIELD]))

    def _on_its_way(self, entry: Entry) -> None:
        random, temper = self._random, self._temper
        if not self._troubled():
            self._arrived(entry)
            return
        if random.random() < temper.lost:
            self.seen["telemetry lost"] += 1
            return
        for _ in range(2 if random.random() < temper.doubled else 1):
            if random.random() < temper.late:
                self.node.after(random.uniform(*LATE_S), self._arrived, entry)
            else:
                self._arrived(entry)

    def _arrived(self, entry: Entry) -> None:
        self._batches.append(entries_to_batch([entry], self._wall()))
