"""The state that all links of a simulated network share, and the interface of a connection's handler.

Owns: the options, random streams and counters of the links. Never touches: the state of any link
(`shoal.lab.sim.world.link`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Protocol

from shoal.lab.sim.world.fault_options import FaultOptions
from shoal.lab.sim.world.world import World

if TYPE_CHECKING:
    from shoal.lab.sim.world.link import LinkEnd


class Handler(Protocol):
    """Handles the events of one end, for its process. Called only while the node runs."""

    def received(self, end: LinkEnd, data: bytes) -> None:
        """Bytes arrived."""

    def lost(self, end: LinkEnd, reason: str) -> None:
        """The connection has ended: "closed" by the peer, "reset", or "timeout" (the peer may still take it for
        open)."""


class Wires:
    """Options, random streams and counters that all links of a network share."""

    __slots__ = ("cuts", "delays", "forget", "options", "stats", "world")

    def __init__(
        self,
        world: World,
        options: FaultOptions,
        forget: Callable[[LinkEnd], None],
    ) -> None:
        self.world = world
        self.options = options
        self.forget = forget
        self.delays: Random = world.rng("network/delays")
        self.cuts: Random = world.rng("network/cuts")
        self.stats: Counter[str] = Counter()
