"""The checkers of the scenario `balancer`, in addition to those of channels and moves.

Owns the checks at the end of a run. The checks of each write are in `balancer_watch`.
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
        """Adds violations to the verdict."""
        for text in self.unsettled():
            verdict.violate("unsettled move", text)
        self._foreign(verdict)
        for kind, text in self.run.balance.violations:
            verdict.violate(kind, text)

    def _is_promised(self, foreign: Foreign) -> bool:
        """Whether the server is one of the first ones. An added server is up before it joins the ring, and has no
        subscribers until then."""
        return foreign.server in self.run.first_names
