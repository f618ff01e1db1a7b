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

LOOK_S: Final = 0.5


class Asker:
    """Requests proposals as long as the load shifts."""

    def __init__(self, run: BalancerRun) -> None:
        self.run = run
        self.random = run.world.rng("asker")
        self._count = 0

    def start(self) -> None:
        """Starts to request proposals, after a while."""
        pause_s = self.run.ask_pause_s / (1 if self.run.options.auto else 4)
        self.run.world.after(self.random.expovariate(1 / pause_s), self._propose)

    def _ask(self, ask: Ask) -> str:
        self._count += 1
        id = f"ask{self._count}"
        self.run.coordinator.store.put(balancer_keys.ask_key(id), balancer_keys.encode(ask))
        return id

    def _propose(self) -> None:
        if self.run.shifting:
            own = self.random.choice(("", "shoal", "dynamoth"))
            policies = ("dynamoth", "shoal") if self.random.random() < self.run.rival_asks else (own,)
            later_s = self.random.choice(self.run.applied_later_s)
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
        if self.random.random() < self.run.applied_again:
            self.run.world.after(self.random.choice(self.run.applied_later_s), self._apply, digest)

    def _apply(self, digest: str) -> None:
        if self.run.shifting:
            self._ask(Ask("apply", digest=digest))
