"""The protocols that `shoal sim` can run.

Owns the list. The scenarios are in `shoal.lab.sim.scenarios`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from shoal.lab.sim.campaign import Protocol
from shoal.lab.sim.scenario import COMMON, Outcome, Variant
from shoal.lab.sim.scenarios import balancer, balancer_corners, channels, engine, moves, moves_corners, queue, recording
from shoal.rules import ALL_RULES, Rules, without


def _run(run_seed: Callable[[int, Rules], Outcome], seed: int, broken_rule: str | None) -> Outcome:
    return run_seed(seed, without(broken_rule) if broken_rule else ALL_RULES)


def _provoke(
    run_seed: Callable[[int, Rules, bool, Variant], Outcome],
    variants: Mapping[str, Variant],
    seed: int,
    broken_rule: str | None,
) -> Outcome:
    """Without a rule, a seed runs in the variant of the scenario in which that shows."""
    variant = variants.get(broken_rule, COMMON) if broken_rule else COMMON
    return run_seed(seed, without(broken_rule) if broken_rule else ALL_RULES, False, variant)


RING_CHANGES: Final = ("server left ring", "server joined ring")

PROTOCOLS: Final = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "channels",
            partial(_provoke, channels.run_seed, channels.VARIANTS),
            channels.CORNERS,
            channels.BREAKS,
            RING_CHANGES,
        ),
        Protocol(
            "moves",
            partial(_provoke, moves.run_seed, moves_corners.VARIANTS),
            moves_corners.CORNERS,
            moves_corners.BREAKS,
            ("move",),
        ),
        Protocol("recording", partial(_run, recording.run_seed), recording.CORNERS, recording.BREAKS, ("move",)),
        Protocol(
            "balancer",
            partial(_provoke, balancer.run_seed, balancer_corners.VARIANTS),
            balancer_corners.CORNERS,
            balancer_corners.BREAKS,
            ("move",),
        ),
        Protocol(
            "engine", partial(_provoke, engine.run_seed, engine.VARIANTS), engine.CORNERS, engine.BREAKS, ("take-over",)
        ),
        Protocol(
            "queue", partial(_provoke, queue.run_seed, queue.VARIANTS), queue.CORNERS, queue.BREAKS, ("move ended",)
        ),
    )
}
