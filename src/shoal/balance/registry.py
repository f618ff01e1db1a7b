"""The registry of kinds: what the leader needs to measure, plan and move each kind of unit.

Owns the two records. The kinds that ship are listed in `shoal.load_kinds`; everything that handles all kinds takes a
`Registry` as an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal.balance.change import Planner
from shoal.limits import Limits
from shoal.load.kinds import Kinds
from shoal.plan.conductor import Steps
from shoal.rules import Rules


@dataclass(frozen=True, slots=True)
class ManagedKind:
    """A kind of unit that moves. `steps` creates its table of steps; None if its units do it themselves.
    Its hosts are the live members of the group `group` in the coordinator; empty means the ring. A kind without a
    planner moves on request; channels are planned by the policy."""

    steps: Callable[[Limits, Rules], Steps[Any, Any, Any, Any]] | None
    planner: Planner | None = None
    group: str = ""


@dataclass(frozen=True, slots=True)
class Registry:
    """All kinds: `load` are those that are measured, `units` those that move."""

    load: Kinds
    units: tuple[ManagedKind, ...]

    @property
    def planners(self) -> tuple[Planner, ...]:
        """The planners of all kinds except channels."""
        return tuple(kind.planner for kind in self.units if kind.planner is not None)
