"""An engine with all operators in one process, without I/O."""

from __future__ import annotations

from shoal.engine.configuration import Configuration
from shoal.engine.links import Orders, Stage
from shoal.engine.measures import Meter
from shoal.engine.operators import Operators
from shoal.limits import Limits
from shoal.rules import ALL_RULES, Rules


class LoneEngine(Operators):
    """One instance. Its roll is called at once."""

    def __init__(
        self,
        instance: int,
        predecessor: int,
        limits: Limits,
        now: float,
        rules: Rules = ALL_RULES,
        meter: Meter | None = None,
    ) -> None:
        name = "a"
        configuration = Configuration(1, (name,), (name,), (name,))
        self.ordered = Orders(instance, name, predecessor, configuration, stage=Stage.ROLL)
        super().__init__(name, self.ordered, limits, now, rules, meter)

    @property
    def wants_to_serve(self) -> bool:
        """Whether the roll is over."""
        return self.progress[-1]

    @property
    def roll_open(self) -> bool:
        """Whether the roll is open."""
        return self.access_point is not None and self.access_point.roll_open

    def serve(self) -> None:
        """It is written down that this instance serves; it does from the next turn on."""
        orders = Orders(*(self.instance, self.name, 0, self.ordered.configuration), stage=Stage.SERVE)
        self.arrange(orders, 0.0)
