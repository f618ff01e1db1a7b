"""The protocols that `shoal sim` can run.

Owns the list. The scenarios are in `shoal.lab.sim.scenarios`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from shoal.lab.sim.campaign import Protocol
from shoal.lab.sim.scenario import Outcome
from shoal.lab.sim.scenarios import balancer, balancer_corners, channels, engine, moves, moves_corners, queue, recording
from shoal.rules import ALL_RULES, Rules, without


def _run(run_seed: Callable[[int, Rules], Outcome], seed: int, broken_rule: str | None) -> Outcome:
    return run_seed(seed, without(broken_rule) if broken_rule else ALL_RULES)


RING_CHANGES: Final = ("server left ring", "server joined ring")

PROTOCOLS: Final = {
    protocol.name: protocol
    for protocol in (
        Protocol("channels", partial(_run, channels.run_seed), channels.CORNERS, channels.BREAKS, RING_CHANGES),
        Protocol("moves", partial(_run, moves.run_seed), moves_corners.CORNERS, moves_corners.BREAKS, ("move",)),
        Protocol("recording", partial(_run, recording.run_seed), recording.CORNERS, recording.BREAKS, ("move",)),
        Protocol(
            "balancer", partial(_run, balancer.run_seed), balancer_corners.CORNERS, balancer_corners.BREAKS, ("move",)
        ),
        Protocol("engine", partial(_run, engine.run_seed), engine.CORNERS, engine.BREAKS, ("take-over",)),
        Protocol("queue", partial(_run, queue.run_seed), queue.CORNERS, queue.BREAKS, ("move ended",)),
    )
}
