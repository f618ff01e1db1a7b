"""What all links of one simulated network share, and what a process must offer to be told of its connection.

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
    from shoal.lab.sim.world.link import Endpoint


class Handler(Protocol):
    """The process's side of an end; called only while its node runs."""

    def received(self, end: Endpoint, data: bytes) -> None:
        """Bytes arrived."""

    def lost(self, end: Endpoint, reason: str) -> None:
        """The connection is over: "closed" by the peer, "reset", or "timeout" (the peer may still think it
        open).
        """


class Wires:
    """What all links of a network share."""

    __slots__ = ("cuts", "delays", "forget", "options", "stats", "world")

    def __init__(
        self,
        world: World,
        options: FaultOptions,
        forget: Callable[[Endpoint], None],
    ) -> None:
        self.world = world
        self.options = options
        self.forget = forget
        self.delays: Random = world.rng("network/delays")
        self.cuts: Random = world.rng("network/cuts")
        self.stats: Counter[str] = Counter()
