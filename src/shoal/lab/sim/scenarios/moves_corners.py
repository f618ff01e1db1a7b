"""The corners that a campaign of the scenario `moves` must exercise, and the rules that it can break.

Owns the two lists, the names of the counters, and the variants in which broken rules show.
"""

from __future__ import annotations

from typing import Final

from shoal.lab.sim.scenario import Variant
from shoal.lab.sim.scenarios.moves_provocation import SilentPublisher, UnheardPublisher
from shoal.lab.sim.scenarios.provocations import FullDisk
from shoal.lab.sim.world.fault_options import RATES
from shoal.plan.entry import Phase
from shoal.plan.placement import Mode

BREAKS: Final = (
    "forward_old_to_new",
    "forward_new_to_old",
    "home_help",
    "version_in_header",
    "mark_forwarded",
    "forward_authentic",
    "all_unended_placements",
    "prepare",
    "widen_before_switch",
    "narrow_last",
    "whole_resync",
    "dedupe",
    "order",
    "heal",
    "handshake",
    "lease",
)
"""The rules that this scenario tests."""

MORTALS: Final = ("agent", "server", "mover", "coordinator", "client")
MOVING: Final = (Phase.PREPARE, Phase.WIDEN, Phase.SWITCH, Phase.NARROW)


def pair(old: Mode, new: Mode) -> str:
    """The counter of moves from one kind of placement to another."""
    return f"{old.value} -> {new.value}"


def death(kind: str, phase: Phase) -> str:
    """The counter of crashes of a kind of process while a channel was in a phase."""
    return f"death of {kind} in {phase.value}"


_SAME: Final = (
    *(pair(old, new) for old in Mode for new in Mode),
    *(f"phase {phase.value}" for phase in Phase),
    *(death(kind, phase) for kind in MORTALS for phase in MOVING),
    "abort",
    "overlapping moves",
    "second move before the end of the first",
    "back and forth",
    "idle move",
    "eager move",
    "lazy move",
    "client slept through a plan",
    "client slept through several plans",
    "plain subscriber",
    "plain subscriber left behind by a move",
    "mover takes over",
    "notice",
    "stale publish forwarded",
    "foreign message forwarded",
    "message forwarded to a helped server",
    "forwarded by a server without part in the channel",
    "idle subscriber at the end",
    SilentPublisher.counter,
    UnheardPublisher.counter,
    FullDisk.counter,
)
"""Corners that are named like their counters."""

CORNERS: Final = {
    **{name: name for name in _SAME},
    "hand-over": "agent handovers",
    "message owed to a plain subscriber": "owed to a plain subscriber",
    "foreign message owed to a subscriber": "foreign message owed",
    "foreign message owed to a plain subscriber": "foreign message owed to a plain subscriber",
    "late joiner": "late joiner",
    "foreign message": "router foreign",
    "hole healed": "router healed",
    "unconfirmed publish repeated": "router repeated",
    "server left the ring": "server left ring",
    "server came back to the ring": "server joined ring",
    "partition": "partition",
    "pause": "pause",
    "power failure": "crash_power",
}
"""Every corner that a campaign must exercise, and its counter."""

VARIANTS: Final[dict[str, Variant]] = {
    "all_unended_placements": {
        "plain_publishers": 1.0, "peaceful_share": 1.0, "fixed_faults": dict.fromkeys(RATES, 0.0),
        "fixed_operator": {
            "pause_s": 0.4, "together": 4, "eager": 0.5, "back": 0.5, "flurry": 0.3, "deadly": 0.0, "naps_per_s": 0.0,
        },
        "fixed_shape": {"servers": 4, "safety_s": 9.0},
    },
    "whole_resync": {"silences_share": 1.0, "fixed_faults": {"resets_per_s": 0.1}},
}  # fmt: skip
"""The variant of the scenario in which it soon shows that a rule is broken: messages of plain clients reach a channel
that has many placements; a publisher is silent while an agent restarts. In the same variant the protocol holds."""
