"""The games of the simulated experiments: maps, the servers that they are played on, and how policies are set.

Owns the figures. The paper names neither its tiles nor its servers' bandwidth; here they are chosen so that hashing and
Dynamoth come to about what figure 5 shows (625 and 1,000 players) in the setting `paper`. The other settings have their
own capacity, so that the bound is near 1,050 players in all of them: what differs is how the load is divided.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import msgspec

from shoal.balance.settings import BalanceSettings
from shoal.sim.flow import Models, MoveModel, PoolModel, ServerModel
from shoal.sim.flow.workloads import RGameMap, Walk

SERVERS_MAX: Final = 8
WALK: Final = Walk(speed_per_s=0.0015)


@dataclass(frozen=True, slots=True)
class Game:
    """One setting: a map and what its servers can send."""

    name: str
    words: str
    map: RGameMap
    capacity_bytes_per_s: float
    forward_share: float = MoveModel().forward_share
    """What of a channel's load is forwarded while it moves: next to nothing by our protocol, all by the paper's."""

    @property
    def models(self) -> Models:
        """Servers, moves and pool for this game: the link is the limit, as the paper observed (III.A)."""
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


PAPER_GAME: Final = Game(
    "paper",
    "5x5 tiles, three of ten waypoints in one of six towns: most like figure 5",
    RGameMap(5, Walk(speed_per_s=WALK.speed_per_s, towns=6, town_share=0.3)),
    4.1e6,
)
FORWARDING_GAME: Final = replace(
    PAPER_GAME,
    name="forwarding",
    words="as `paper`, but all that moves is forwarded for a second, both ways, as the paper's moves do",
    forward_share=1.0,
)
GAMES: Final = (
    PAPER_GAME,
    FORWARDING_GAME,
    Game("coarse", "4x4 tiles, random waypoints", RGameMap(4, WALK), 5.6e6),
    Game("medium", "8x8 tiles, random waypoints", RGameMap(8, WALK), 1.55e6),
    Game("fine", "12x12 tiles, random waypoints", RGameMap(12, WALK), 0.74e6),
    Game(
        "towns",
        "10x10 tiles, three of five waypoints in one of six towns",
        RGameMap(10, Walk(speed_per_s=WALK.speed_per_s, towns=6, town_share=0.6)),
        1.65e6,
    ),
)

OFTEN: Final = BalanceSettings(window_s=1, wait_s=3.0)
"""All policies see windows of one second and may decide every three seconds: game players change tiles quickly."""
POLICY_SETTINGS: Final = {
    "consistent-hashing": OFTEN,
    "bounded-load": OFTEN,
    "slots": OFTEN,
    # A tile has three publications a second for each subscriber. So that Algorithm 1 replicates tiles at all, its
    # threshold must be below three: 0.5 asks for six servers, for tiles of 40 players and more.
    "dynamoth": msgspec.structs.replace(OFTEN, all_subscribers_ratio=0.5, publications_min=120.0),
    "shoal": msgspec.structs.replace(OFTEN, settle_s=3.0),
}
"""In the order of tables."""
