"""The scenario `channels`: publishers and subscribers come and go on a cluster with faults.

Owns the corners that a campaign must exercise. Channels have placements of every kind, which do not change; only the
ring does.
"""

from __future__ import annotations

from typing import Final

import shoal.channels.agent.session  # noqa: F401 - the agent loads these modules late, and they declare rules
from shoal.lab.sim.scenario import Outcome
from shoal.lab.sim.scenarios.cluster import ChannelScenario
from shoal.lab.sim.scenarios.stranger import FORGED, REPEATED_KINDS
from shoal.rules import ALL_RULES, Rules

BREAKS: Final = (
    *("dedupe", "order", "heal", "beacon", "handshake", "baseline", "lease", "repeat", "remembers"),
    *("agent_tags", "signatures", "client_tags", "owners", "peer_tags", "fresh_heartbeats"),
    *("tags", "refute", "retract", "away"),
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
    "false message delivered": "false message delivered",
    "false message retracted": "false message retracted",
    "false message refuted by an agent": "agent refuted",
    "false claim forgotten": "router refuted",
    "second copy of a number kept": "router rivals",
    "number taken from its publisher only": "router barred",
    "more false messages than an agent can name": "router rechecks",
    "garbage refused": "router garbage",
    "garbage refused by an agent": "agent garbage",
    "unauthentic message refused": "router unauthentic",
    "unauthentic message refused by an agent": "agent unauthentic",
    "outdated message refused": "router outdated",
    "outdated message refused by an agent": "agent outdated",
    "claim about another's stream refused": "agent claims_refused",
    "enrolment": "agent enrolments",
    "key of a publisher from an agent": "agent introductions",
    **{f"forged {kind}": f"forged {kind}" for kind in FORGED},
    **{f"repeated {kind}": f"repeated {kind}" for kind in REPEATED_KINDS},
    **{f"claim about another's stream in a {kind}": f"claim in a {kind}" for kind in ("Hello", "Present", "Left")},
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
}
"""Every corner that a campaign must exercise, and its counter."""


class ChannelsRun(ChannelScenario):
    """One seed of the scenario."""

    calm_s = 7.0
    """Shorter than in the other scenarios: no move has to end in it."""


def run_seed(seed: int, rules: Rules = ALL_RULES, trace: bool = False) -> Outcome:
    """Runs one seed; the same seed always gives the same outcome."""
    return ChannelsRun(seed, rules, trace).execute()
