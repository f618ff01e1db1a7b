"""The scenario `channels`: publishers and subscribers come and go on a cluster with faults.

Owns the corners that a campaign must exercise. Channels have placements of every kind, which do not change; only the
ring does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from shoal.lab.sim.scenario import Outcome
from shoal.lab.sim.scenarios.cluster import ChannelScenario
from shoal.lab.sim.scenarios.shape import Shape
from shoal.lab.sim.world.fault_options import FaultOptions
from shoal.rules import ALL_RULES, Rules

BREAKS: Final = (
    *("dedupe", "order", "heal", "beacon", "handshake", "baseline", "lease", "repeat", "remembers", "complete"),
)
"""The rules that this scenario tests."""

CORNERS: Final = {
    "late joiner": "late joiner",
    "late joiner with a baseline": "router late_joins",
    "burst": "burst",
    "last message of a burst (beacon)": "router beacons",
    "publisher returns to a server (announce)": "router announces",
    "channel subscription": "channel",
    "pattern subscription": "pattern",
    "slow subscriber overflows": "router overflows",
    "subscriber cut off by its output buffer": "cut off",
    "placement single": "placement single",
    "placement all_subscribers": "placement all_subscribers",
    "placement all_publishers": "placement all_publishers",
    "foreign message": "router foreign",
    "garbage refused": "router garbage",
    "garbage refused by an agent": "agent garbage",
    "forged ring or entry refused": "router forged",
    "duplicate dropped": "router duplicates",
    "unconfirmed publish repeated": "router repeated",
    "message held behind a hole": "router held",
    "hole": "router holes",
    "hole healed": "router healed",
    "closed gap": "closed gap",
    "open gap": "open gap",
    "connection reset": "reset",
    "connection stalled": "stall",
    "partition": "partition",
    "one-way partition": "partition_one_way",
    "pause": "pause",
    "quiet channel": "quiet burst",
    "server crash": "server crash",
    "server and agent crash together": "machine crash",
    "server's restart noticed": "router restarts_seen",
    "server left the ring": "server left ring",
    "server came back to the ring": "server joined ring",
    "agent crash": "agent crash",
    "resync": "router resyncs",
    "hello deferred by a resync": "agent hellos_deferred",
    "client crash": "client crash",
    "client closes": "closed",
    "client closes before all is confirmed": "closed unconfirmed",
    "closing client lingers": "lingered",
    "coordinator crash": "coordinator crash",
    "keeper crash": "keeper crash",
    "power failure": "crash_power",
    "lease ran out": "router stale_links",
    "agent speaks while the coordinator is down": "agent orphan_heartbeats",
    "agent's table of streams is full": "agent answers_incomplete",
    "agent asks a client to wait": "router busy",
}
"""Every corner that a campaign must exercise, and its counter."""


class ChannelsRun(ChannelScenario):
    """One seed of the scenario."""

    calm_s = 7.0
    """Shorter than in the other scenarios: no move has to end in it."""

    def make_shape(self, options: FaultOptions) -> Shape:
        """The common shape; in one of five runs a limit of agents is so small that it is met."""
        rng, shape = self.world.rng("bounds"), super().make_shape(options)
        changes: dict[str, int] = {}
        match rng.randrange(10):
            case 0:
                changes = {"known_streams_max": rng.randint(2, 5)}
            case 1:
                changes = {"control_at_once_max": rng.choice((4, 12)), "control_per_s_max": rng.choice((5, 20))}
        limits = msgspec.structs.replace(shape.limits, **changes)
        return replace(shape, limits=limits, full="known_streams_max" in changes)


def run_seed(seed: int, rules: Rules = ALL_RULES, trace: bool = False) -> Outcome:
    """Runs one seed; the same seed always gives the same outcome."""
    return ChannelsRun(seed, rules, trace).execute()
