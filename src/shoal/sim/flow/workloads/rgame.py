"""RGame: the Dynamoth paper's game. Tiles are channels; players publish on, and hear, the tile that they stand in.

Owns the counts of players by tile and second, made once from the seed. A response time is a player's own update on its
way back: client to server to the same client, so it takes two latency samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from shoal.balance.columns import Floats
from shoal.sim.flow.latency import Latencies
from shoal.sim.flow.traffic import Traffic
from shoal.sim.flow.workloads.curves import Curve
from shoal.sim.flow.workloads.walkers import DEFAULT_WALK, Walk, Walkers

UPDATES_PER_S: Final = 3.0
SAMPLES_PER_RESPONSE: Final = 2


@dataclass(frozen=True, slots=True)
class RGameMap:
    """A game: how many tiles a side, how players walk, what an update weighs."""

    side: int
    walk: Walk = DEFAULT_WALK
    message_bytes: float = 200.0


class RGame:
    """One game from a seed: who stands where at every second of the curve of players."""

    def __init__(self, game: RGameMap, players: Curve, latencies: Latencies, seed: int) -> None:
        rng = np.random.default_rng([seed, game.side])
        self.game = game
        self.names = pa.array(
            [b"game%d/tile.%d.%d" % (seed, x, y) for x in range(game.side) for y in range(game.side)], pa.binary()
        )
        self.seconds = players.seconds
        self.players = np.rint(players.at(np.arange(self.seconds))).astype(np.int64)
        self.counts: Floats = np.empty((self.seconds, game.side**2))
        self.latency_ms: Floats = np.empty(self.seconds)
        walkers = Walkers(int(self.players.max()), game.walk, rng)
        for second, active in enumerate(self.players.tolist()):
            self.counts[second] = walkers.tiles(active, game.side)
            self.latency_ms[second] = latencies.mean_ms(rng, round(active * UPDATES_PER_S), SAMPLES_PER_RESPONSE)
            walkers.step(1.0)

    def at(self, second: int) -> Traffic:
        """What the players do in that second."""
        here = self.counts[second]
        people = here.astype(np.int64)
        updates = UPDATES_PER_S * here
        return Traffic(
            updates,
            people,
            people,
            self.game.message_bytes,
            updates,
            self.latency_ms[second],
            int(self.players[second]),
        )
