"""An operator who requests proposals from the balancer and applies some: late, twice, or with an unknown digest.

Owns the requests of the scenario `balancer`, in the form in which `shoal plan propose` and `shoal plan apply` write
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.balance import balancer_keys
from shoal.balance.balancer_keys import Ask, AskOutcome

if TYPE_CHECKING:
    from shoal.lab.sim.scenarios.balancer import BalancerRun

PAUSE_S: Final = 5.0
LOOK_S: Final = 0.5
LATER_S: Final = (0.0, 3.0, 9.0)
"""Time between a proposal and its application."""
RIVAL_SHARE: Final = 0.3
"""How often two policies are asked at once and both proposals are applied at the same time."""
AGAIN_SHARE: Final = 0.3
"""How often a proposal is applied a second time."""


class Asker:
    """Requests proposals as long as the load shifts."""

    def __init__(self, run: BalancerRun) -> None:
        self.run = run
        self.random = run.world.rng("asker")
        self._count = 0

    def start(self) -> None:
        """Starts to request proposals, after a while."""
        pause_s = PAUSE_S if self.run.options.auto else PAUSE_S / 4
        self.run.world.after(self.random.expovariate(1 / pause_s), self._propose)

    def _ask(self, ask: Ask) -> str:
        self._count += 1
        id = f"ask{self._count}"
        self.run.coordinator.store.put(balancer_keys.ask_key(id), balancer_keys.encode(ask))
        return id

    def _propose(self) -> None:
        if self.run.shifting:
            own = self.random.choice(("", "shoal", "dynamoth"))
            policies = ("dynamoth", "shoal") if self.random.random() < RIVAL_SHARE else (own,)
            later_s = self.random.choice(LATER_S)
            for policy in policies:
                self._wait_for(self._ask(Ask("propose", policy=policy)), later_s)
            self.start()

    def _wait_for(self, id: str, later_s: float) -> None:
        """Polls for the proposal, and deletes it when it is there."""
        stored = self.run.coordinator.store.get(balancer_keys.answer_key(id))
        if stored is None:
            if self.run.shifting:
                self.run.world.after(LOOK_S, self._wait_for, id, later_s)
            return
        self.run.coordinator.store.delete(balancer_keys.answer_key(id))
        answer = balancer_keys.decode(stored.value, AskOutcome)
        self.run.balance.seen["proposal asked for"] += 1
        self.run.balance.seen["proposal asked for that moves channels"] += answer.moves > 0
        digest = answer.digest if self.random.random() < 0.95 else "0" * 64
        self.run.world.after(later_s, self._apply, digest)
        if self.random.random() < AGAIN_SHARE:
            self.run.world.after(self.random.choice(LATER_S), self._apply, digest)

    def _apply(self, digest: str) -> None:
        if self.run.shifting:
            self._ask(Ask("apply", digest=digest))
