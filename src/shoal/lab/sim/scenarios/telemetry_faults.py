"""Faults of telemetry between an agent and its readers: records are lost, duplicated or late.

Owns the faults of the telemetry stream of a model server. Readers must cope with all of them, because streams are
trimmed, agents repeat unanswered writes, and servers answer late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from shoal.lab.sim.models.redis_node import RedisNode
from shoal.lab.sim.world.world import World
from shoal.wire.envelope import TELEMETRY_KEY

LATE_S: Final = (0.5, 5.0)
"""Delay of a late record."""


class TelemetryFaults:
    """Loses, duplicates and delays records at rates drawn by seed, while `troubled`."""

    def __init__(self, world: World, troubled: Callable[[], bool]) -> None:
        self.seen: Counter[str] = Counter()
        self._world = world
        self._random = world.rng("telemetry")
        self._troubled = troubled
        self._lost = self._random.choice((0.0, 0.0, 0.03))
        self._doubled = self._random.choice((0.0, 0.05))
        self._late = self._random.choice((0.0, 0.0, 0.05))

    def strike(self, server: RedisNode) -> None:
        """Applies faults to the telemetry of a server from now on, also after it restarts."""
        server.on_add = lambda key, fields: self._strikes(server, key, fields)

    def _strikes(self, server: RedisNode, key: bytes, fields: tuple[bytes, ...]) -> bool:
        """Whether a new entry must be removed from its stream."""
        random = self._random
        if key != TELEMETRY_KEY or not self._troubled():
            return False
        if random.random() < self._lost:
            self.seen["telemetry lost"] += 1
            return True
        if random.random() < self._doubled:
            self._again(server, fields)
        if random.random() < self._late:
            self._again(server, fields)
            return True
        return False

    def _again(self, server: RedisNode, fields: tuple[bytes, ...]) -> None:
        """Adds the record once more after a while, if the server has not crashed by then."""
        self._world.after(self._random.uniform(*LATE_S), server.add_entry, TELEMETRY_KEY, fields, server.model)
