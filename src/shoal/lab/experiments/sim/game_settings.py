"""The games of the simulated experiments: their maps, their servers, and the settings of the policies.

Owns the figures. The paper names neither its tiles nor its servers' bandwidth. The setting `paper` is chosen so that
hashing and Dynamoth support about as many players as in figure 5 (625 and 1,000). The other settings have capacities
for which the bound is near 1,050 players: they differ in how the load is divided.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import msgspec

from shoal.balance.settings import BalanceSettings
from shoal.flow import Models, MoveModel, PoolModel, ServerModel
from shoal.lab.experiments.sim.rgame_load import RGameMap
from shoal.lab.rgame import Walk

SERVERS_MAX: Final = 8
WALK: Final = Walk(speed_per_s=0.0015)


@dataclass(frozen=True, slots=True)
class GameSetting:
    """A map, and the capacity of its servers."""

    name: str
    words: str
    map: RGameMap
    capacity_bytes_per_s: float
    forward_share: float = MoveModel().forward_share
    """Share of a channel's load that is forwarded while it moves: almost none with Shoal's moves, all of it with the
    paper's."""

    @property
    def models(self) -> Models:
        """The models of servers, moves and pool: the link is the limit, as the paper observed (III.A)."""
        server = ServerModel(
            capacity_bytes_per_s=self.capacity_bytes_per_s,
            publication_cpu_s=20e-6,
            delivery_cpu_s=20e-6,
            connection_messages_per_s=2000.0,
            connection_buffer_bytes=1e6,
            output_buffer_bytes=8e6,
        )
        moves = MoveModel(forward_share=self.forward_share)
        return Models(server=server, moves=moves, pool=PoolModel(servers_max=SERVERS_MAX))


PAPER_GAME: Final = GameSetting(
    "paper",
    "5x5 tiles, three of ten waypoints in one of six towns: most like figure 5",
    RGameMap(5, Walk(speed_per_s=WALK.speed_per_s, towns=6, town_share=0.3)),
    4.1e6,
)
FORWARDING_GAME: Final = replace(
    PAPER_GAME,
    name="forwarding",
    words="as `paper`, but moves forward all load for a second, both ways, as the paper's moves do",
    forward_share=1.0,
)
GAMES: Final = (
    PAPER_GAME,
    FORWARDING_GAME,
    GameSetting("coarse", "4x4 tiles, random waypoints", RGameMap(4, WALK), 5.6e6),
    GameSetting("medium", "8x8 tiles, random waypoints", RGameMap(8, WALK), 1.55e6),
    GameSetting("fine", "12x12 tiles, random waypoints", RGameMap(12, WALK), 0.74e6),
    GameSetting(
        "towns",
        "10x10 tiles, three of five waypoints in one of six towns",
        RGameMap(10, Walk(speed_per_s=WALK.speed_per_s, towns=6, town_share=0.6)),
        1.65e6,
    ),
)

OFTEN: Final = BalanceSettings(window_s=1, wait_s=3.0)
"""All policies get windows of one second and may decide every three seconds, since players change tiles quickly."""
POLICY_SETTINGS: Final = {
    "consistent-hashing": OFTEN,
    "bounded-load": OFTEN,
    "slots": OFTEN,
    # A tile has three publications a second for each subscriber, so Algorithm 1 replicates tiles only with a threshold
    # below three. 0.5 asks for six servers, for tiles with 40 players or more.
    "dynamoth": msgspec.structs.replace(OFTEN, all_subscribers_ratio=0.5, publications_min=120.0),
    "shoal": msgspec.structs.replace(OFTEN, settle_s=3.0),
}
"""In the order of the tables."""
