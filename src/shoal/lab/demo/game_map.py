"""The map of the demo's game: which tile, and so which channel, each player of a crowd is on.

Owns speeds, the size of the map and the town where players gather. The movement itself is in `shoal.lab.rgame`. Uses no
buses; time and seed are arguments.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from shoal.lab.rgame import Meeting, Walk, Walkers

SPEED_TILES_PER_S: Final = 0.15
"""A tile is crossed in about 6 s, so that subscriptions change all the time."""
RUN_TILES_PER_S: Final = 1.2
"""Speed on the way to the town."""
BREAK_S: Final = (0.5, 2.0)
"""Shortest and longest break at a waypoint."""
TOWN: Final = (0.2, 0.8)
"""The part of its tile, in both directions, that is the town."""
NEIGHBOURS: Final = 8.5
"""Average number of players that receive an update, its sender included, while none gather in the town."""
PLAYERS_PER_TILE: Final = 6
"""Average of a full map. Random waypoints lead through the middle, so tiles there hold twice as many."""
STEP_S: Final = 0.1
"""Players move in steps of this length, so that their ways do not depend on the times of calls."""


class GameMap:
    """A square of `tiles` by `tiles` tiles, with the players of one crowd on it, numbered from 0.

    The same seed leads players the same way.
    """

    def __init__(self, tiles: int, players: int, seed: tuple[int, int], now: float) -> None:
        self._tiles = tiles
        self._walkers = Walkers(players, Walk(SPEED_TILES_PER_S / tiles, BREAK_S), np.random.default_rng(seed))
        self._now = now
        low, high = TOWN
        # At the edge of the map, where few players come by chance.
        self._town = Meeting(low / tiles, (tiles // 2 + low) / tiles, (high - low) / tiles, RUN_TILES_PER_S / tiles)

    def advance(self, now: float) -> None:
        """Moves all players to where they are at `now`."""
        while self._now + STEP_S <= now:
            self._now += STEP_S
            self._walkers.step(STEP_S)

    def gather(self, players: int) -> None:
        """Sends the first players to the town, and all others away from it."""
        self._walkers.gather(players, self._town)

    def position(self, player: int) -> tuple[float, float]:
        """Where a player is, in tiles."""
        x, y = (self._walkers.at[player] * self._tiles).tolist()
        return x, y

    def channel(self, player: int) -> str:
        """The channel of the tile that a player is on."""
        x, y = self._walkers.tile(player, self._tiles)
        return f"tile.{x}.{y}"


def tiles_for(players: int) -> int:
    """The side of a map for a number of players."""
    return max(2, round(math.sqrt(players / PLAYERS_PER_TILE)))
