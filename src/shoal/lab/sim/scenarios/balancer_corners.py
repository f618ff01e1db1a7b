"""The corners that a campaign of the scenario `balancer` must exercise, and the rules that it can break.

Owns the two lists, the names of the counters, and the variants in which broken rules show.
"""

from __future__ import annotations

from typing import Any, Final

from shoal.lab.sim.scenario import Variant
from shoal.lab.sim.world.fault_options import RATES

BREAKS: Final = (
    "fence",
    "drained",
    "one_at_a_time",
    "basis",
    "pinned",
    "once",
    "settle",
    "fresh_load",
    "guest",
    "state_first",
)
"""The rules that this scenario tests."""

_SAME: Final = (
    "plan",
    "moved for overload",
    "moved for replicate",
    "moved for merge",
    "moved for drain",
    "moved for lost",
    "moved for spread",
    "move hurried",
    "server added",
    "server drained",
    "server kept after all",
    "server left empty",
    "drained server with records",
    "server removed",
    "server died",
    "server died and came back empty",
    "returned server is a home again",
    "guest promoted",
    "channel pinned",
    "channel pinned at its home",
    "channel moved and pinned",
    "pin released",
    "pinned channel lost its server",
    "leader died with a plan under way",
    "leader paused with a plan under way",
    "leader cut off with a plan under way",
    "leader deposed with a plan under way",
    "leader stopped before a write",
    "deposed leader refused",
    "standby finished a plan",
    "move given up",
    "proposal asked for",
    "proposal applied on request",
    "stale proposal refused",
    "proposal refused that was applied already",
    "proposal refused while a plan is under way",
    "late telemetry",
    "early telemetry",
    "duplicate telemetry",
    "window with missing telemetry",
    "policy shoal",
    "policy dynamoth",
    "late joiner",
    "machine crash",
)
"""Corners that are named like their counters."""

CORNERS: Final = {
    **{name: name for name in _SAME},
    "agent died": "agent crash",
    "server crashed": "server crash",
    "coordinator died": "coordinator crash",
    "client died": "client crash",
    "client closes": "closed",
    "closing client lingers": "lingered",
    "move by hand": "move by hand",
    "hole healed": "router healed",
    "hand-over": "agent handovers",
    "partition": "partition",
    "pause": "pause",
    "power failure": "crash_power",
}
"""Every corner that a campaign must exercise, and its counter."""

_SMALL: Final[dict[str, Any]] = {"safety_s": 16.0, "clients": 4, "channels": 4}
_CROWDED: Final[dict[str, Any]] = {
    "leaders": 2, "capacity_bytes_per_s": 25_000.0, "refuses": 0.0, "fails": 0.0, "strangers": False,
}  # fmt: skip
"""Small servers, so that many plans are made, and a provider that does not get in the way."""

_BUSY: Final[dict[str, Any]] = {
    "rests": False, "shift_s": (2.0, 4.0), "ask_pause_s": 2.5, "rival_asks": 0.5, "applied_again": 0.7,
    "pinning": 1.0, "pin_pause_s": 3.0, "pins_released": 0.1,
    "fixed_mix": _CROWDED | {"struck": 0.9}, "fixed_options": {"auto": True}, "fixed_shape": _SMALL,
}  # fmt: skip
"""Load changes often, leaders fail, and operators pin channels and ask for proposals."""

_ASKED: Final[dict[str, Any]] = {
    "rests": False, "pinning": 0.0, "shift_s": (2.0, 4.0),
    "fixed_mix": _CROWDED | {"struck": 0.0, "by_hand": False}, "fixed_options": {"auto": False},
    "fixed_faults": dict.fromkeys(RATES, 0.0), "fixed_shape": _SMALL | {"lapses": False},
}  # fmt: skip
"""Only operators change the plan, and nothing fails."""

VARIANTS: Final[dict[str, Variant]] = {
    **dict.fromkeys(("fence", "drained", "pinned", "once", "settle", "guest"), _BUSY),
    "one_at_a_time": {**_ASKED, "ask_pause_s": 4.0, "rival_asks": 1.0, "applied_later_s": (0.0,)},
    "basis": {**_ASKED, "ask_pause_s": 3.0, "rival_asks": 0.5, "applied_later_s": (6.0,)},
    "fresh_load": {
        "rests": False, "pinning": 0.0, "deposed": 1.0, "shift_s": (2.0, 3.0), "ask_pause_s": 2.0,
        "fixed_mix": _CROWDED | {"struck": 1.0}, "fixed_faults": {"crashes_per_s": 0.0},
        "fixed_shape": _SMALL | {"safety_s": 24.0},
    },
    "state_first": {"rests": False},
}  # fmt: skip
"""The variant of the scenario in which it soon shows that a rule is broken: the situation that the rule is for comes
often, and the run is short. In the same variant the protocol holds."""
