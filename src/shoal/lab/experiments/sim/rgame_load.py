"""RGame, the game of the Dynamoth paper, as a workload: players publish and subscribe on the channel of their tile.

Owns the number of players by tile and second, made once from the seed. The movement is in `shoal.lab.rgame`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shoal.balance.columns import Floats
from shoal.flow.latency import SAMPLES_PER_RESPONSE, Latencies
from shoal.flow.traffic import Traffic
from shoal.flow.workloads.curves import Curve
from shoal.lab.rgame import DEFAULT_WALK, UPDATES_PER_S, Walk, Walkers


@dataclass(frozen=True, slots=True)
class RGameMap:
    """A map: tiles on each side, how players walk, and the size of an update."""

    side: int
    walk: Walk = DEFAULT_WALK
    message_bytes: float = 200.0


class RGame:
    """One game from a seed: the players on each tile in every second of the curve."""

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
            self.counts[second] = walkers.players_per_tile(active, game.side)
            self.latency_ms[second] = latencies.mean_ms(rng, round(active * UPDATES_PER_S), SAMPLES_PER_RESPONSE)
            walkers.step(1.0)

    def at(self, second: int) -> Traffic:
        """The traffic of a second."""
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
