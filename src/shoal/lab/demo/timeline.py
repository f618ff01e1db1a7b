"""The demo's timeline: how many players there are when, when they gather in the town, and how much a server can send.

Owns the times, as shares of the whole, and the sizes. Pure. A short demo shows only the first part: it is over before
servers could be drained. The balancer alone reacts to the load.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from shoal.balance.balancer_options import BalancerOptions
from shoal.balance.settings import BalanceSettings
from shoal.lab.demo.game_map import NEIGHBOURS
from shoal.lab.rgame import UPDATES_PER_S

WHOLE_S_MIN: Final = 40.0
"""A demo shorter than this ends when players would leave."""

FIRST_SHARE: Final = 0.1
"""Share of the players that are there at the start."""
KILL_AT: Final = 0.20
"""When a server is killed. The supervisor restarts it."""
GATHER_AT: Final = 0.27
"""When players begin to gather in the town."""
GROWN_AT: Final = 0.30
"""When all players are there."""
LEAVE_AT: Final = 0.47
"""When players leave the town, and then the game."""
LEFT_AT: Final = 0.56
"""When only a few are left."""
LAST_SHARE: Final = 0.2
"""Share of the players that are left at the end."""

CROWD_SERVERS: Final = 2.2
"""Load of the whole crowd while it walks about, in full servers."""
TOWN_SERVERS: Final = 1.1
"""Load of the town's one channel, in full servers: more than one can carry."""

UPDATE_BYTES: Final = 200
"""Payload of an update; larger than the paper's, so that other traffic is small beside updates."""
UPDATES_BYTES: Final = 40_000
"""Smallest payload of one update of each player together: a small crowd sends larger updates."""
FRAME_BYTES: Final = 110
"""Size of an update on the wire without its payload."""

SETTINGS: Final = BalanceSettings(lateness_s=1.0, past_windows=6, wait_s=4.0, settle_s=6.0, horizon_s=10.0)
"""Settings of the balancer: a crowd that grows within seconds instead of minutes needs shorter waits."""
OPTIONS: Final = BalancerOptions(empty_s=2.0)


class Timeline(NamedTuple):
    """A demo of `seconds` with at most `players` players."""

    seconds: float
    players: int

    def at(self, elapsed_s: float) -> float:
        """How far the demo is, from 0 to 1."""
        whole = 1.0 if self.seconds >= WHOLE_S_MIN else LEAVE_AT
        return min(1.0, max(0.0, elapsed_s / self.seconds)) * whole

    def crowd(self, elapsed_s: float) -> int:
        """How many players there should be."""
        at = self.at(elapsed_s)
        if at <= LEAVE_AT:
            share = FIRST_SHARE + (1.0 - FIRST_SHARE) * min(1.0, at / GROWN_AT)
        else:
            share = 1.0 - (1.0 - LAST_SHARE) * min(1.0, (at - LEAVE_AT) / (LEFT_AT - LEAVE_AT))
        return max(1, round(self.players * share))

    def gathered(self, elapsed_s: float) -> int:
        """How many of them should be in the town."""
        if not GATHER_AT <= self.at(elapsed_s) < LEAVE_AT:
            return 0
        wanted = math.sqrt(TOWN_SERVERS * self.capacity_bytes_per_s / (UPDATES_PER_S * self.delivery_bytes))
        return min(self.crowd(elapsed_s), round(wanted))

    def phase(self, elapsed_s: float) -> str:
        """A short description of what happens at this time."""
        at = self.at(elapsed_s)
        if at < GATHER_AT:
            return "the crowd grows"
        if at < LEAVE_AT:
            return "players gather in the town"
        return "players leave" if at < LEFT_AT else "few players are left"

    @property
    def kill_at_s(self) -> float:
        """When a server is killed, in seconds since the start."""
        return KILL_AT / self.at(self.seconds) * self.seconds

    @property
    def update_bytes(self) -> int:
        """The payload of an update."""
        return max(UPDATE_BYTES, UPDATES_BYTES // self.players)

    @property
    def delivery_bytes(self) -> int:
        """Bytes that a server sends to deliver one update to one player."""
        return self.update_bytes + FRAME_BYTES

    @property
    def capacity_bytes_per_s(self) -> float:
        """Capacity of a server."""
        return self.players * UPDATES_PER_S * NEIGHBOURS * self.delivery_bytes / CROWD_SERVERS
