"""The checkers of the scenario `balancer`, beside those of channels and moves.

Owns what is judged at the end of a run. What is judged at the moment of each write is `balancer_watch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.lab.sim.checkers import Verdict
from shoal.lab.sim.scenarios.channel_run_history import Foreign
from shoal.lab.sim.scenarios.moves_checkers import MovesCheck

if TYPE_CHECKING:
    from shoal.lab.sim.scenarios.balancer import BalancerRun


class BalancerCheck(MovesCheck):
    """Judges one run at its end."""

    run: BalancerRun

    def __init__(self, run: BalancerRun) -> None:
        super().__init__(run)

    def judge(self, verdict: Verdict) -> None:
        """Adds what is wrong to the verdict."""
        for text in self.unsettled():
            verdict.violate("unsettled move", text)
        self._foreign(verdict)
        for kind, text in self.run.balance.violations:
            verdict.violate(kind, text)

    def _is_promised(self, foreign: Foreign) -> bool:
        """A server that is added is there before it is in the ring, and nobody listens to it yet."""
        return foreign.server in self.run.first_names
