"""The balancer's records of an engine: its entry, and requests to change it.

Owns the records of the kind `engine`: the entry, which combines the engine's report with the wanted configuration
(`shoal.leader.engine_units`), the request, and the change in a proposal. The engine itself carries out a request.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from shoal.balance.change import UnitMove, registered
from shoal.errors import PlanError
from shoal.load.engine_load import EngineLoad
from shoal.plan.kinds import ENGINE
from shoal.plan.move_request import decode_body

OPERATORS_MAX: Final = 64
"""Operators of a layer."""


class Layers(NamedTuple):
    """The numbers of access points, matchers and exit points."""

    points: int
    matchers: int
    exits: int

    @property
    def text(self) -> str:
        """The usual form: `1-3-1`."""
        return "-".join(map(str, self))


class EngineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that serves. `unit` is its name, `revision` the version of the wanted configuration, 0 if there is
    none."""

    unit: bytes
    revision: int
    layers: Layers
    """The configuration in force."""
    phase: str
    """Where a change is: `idle` if there is none."""
    wanted: Layers | None = None
    """None if no numbers were ever wanted."""
    by: str = ""
    """The request of a plan that wants them; empty if an operator does."""
    without: tuple[str, ...] = ()
    """Processes that are to have no matcher and no exit point."""
    startable: int = 0
    """Processes that the provider can still start."""
    load: EngineLoad = EngineLoad()

    @property
    def newness(self) -> int:
        """The revision."""
        return self.revision

    @property
    def is_moving(self) -> bool:
        """Whether its configuration changes."""
        return self.phase != "idle"

    @property
    def stage(self) -> object:
        """Where the change is."""
        return self.phase

    @property
    def is_pinned(self) -> bool:
        """Whether an operator has chosen the numbers."""
        return self.wanted is not None and not self.by

    @property
    def usable(self) -> tuple[str, ...]:
        """The processes that may have matchers and exit points."""
        names = [process.name for process in self.load.processes]
        return tuple(name for name in names if name not in self.without) or tuple(names[:1])

    @property
    def awaits(self) -> Layers | None:
        """The wanted configuration, if the engine can still reach it with its processes; else None."""
        if self.wanted is None or self.wanted == self.layers or max(self.wanted) > len(self.usable):
            return None
        return self.wanted

    def check(self) -> None:
        """Raises ValueError if a layer is empty."""
        if min(self.layers) < 1:
            raise ValueError(f"the engine has the configuration {self.layers.text}")


class EngineRequest(msgspec.Struct, frozen=True):
    """Other numbers for an engine. `revision` is that of the entry from which they were decided."""

    unit: bytes
    id: str
    layers: Layers
    revision: int


@registered
class EngineMove(UnitMove, frozen=True, tag=ENGINE):
    """Another configuration of an engine."""

    before: Layers
    after: Layers
    reason: str
    figures: dict[str, float]

    def check(self) -> None:
        """Raises ValueError if the numbers are not possible."""
        if self.before == self.after or not all(1 <= count <= OPERATORS_MAX for count in self.after):
            raise ValueError(f"an engine cannot change from {self.before.text} to {self.after.text}")


_requests: Final = msgspec.msgpack.Decoder(EngineRequest)


def decode_engine_request(data: bytes) -> EngineRequest:
    """The request in `data`; PlanError if it cannot be read."""
    try:
        return decode_body(data, ENGINE, _requests)
    except ValueError as error:
        raise PlanError(f"a request about an engine cannot be read: {error}") from error
