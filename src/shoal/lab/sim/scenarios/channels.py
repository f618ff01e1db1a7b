"""The scenario `channels`: publishers and subscribers come and go on a cluster with faults.

Owns the corners that a campaign must exercise. Channels have placements of every kind, which do not change; only the
ring does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

import shoal.channels.agent.session  # noqa: F401 - the agent loads these modules late, and they declare rules
from shoal.lab.sim.scenario import Outcome
from shoal.lab.sim.scenarios.app import App
from shoal.lab.sim.scenarios.cluster import ChannelScenario
from shoal.lab.sim.scenarios.shape import Shape
from shoal.lab.sim.scenarios.stranger import FORGED, REPEATED_KINDS
from shoal.lab.sim.world.fault_options import FaultOptions
from shoal.rules import ALL_RULES, Rules

BREAKS: Final = (
    *("dedupe", "order", "heal", "beacon", "handshake", "baseline", "lease", "repeat", "remembers", "unbroken"),
    *("agent_tags", "signatures", "client_tags", "owners", "peer_tags", "fresh_heartbeats"),
    *("tags", "refute", "retract", "away", "complete"),
)
"""The rules that this scenario tests."""

NAPS: Final = 0.6
NAP_EVERY_S: Final = 4.0
NAP_S_MAX: Final = 12.0
NAP_LAPSE_S: Final = (4.0, 5.0)
NAP_AFTER_S: Final = (0.05, 1.5)
"""In the share `NAPS` of the runs with faults, about every `NAP_EVERY_S`, a subscriber sleeps while its
server leaves the ring and comes back, and `NAP_AFTER_S` longer. The server's agent does not renew its lease for
`NAP_LAPSE_S`: not much longer than the lease, so that the server is back before faults end."""
AGENTS_DIE: Final = 0.7
"""How often the agents of the servers that were used meanwhile crash when the server is back, so that no agent can tell
what was published there."""
TALKER_DOWN_S: Final = 0.1
TALK_S: Final = (0.5, 2.5)
"""How long another application is down, so that it is a new client, and when it publishes after the ring changes."""

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
    "subscriber sleeps while its server is out of the ring": "nap",
    "agent speaks while the coordinator is down": "agent orphan_heartbeats",
    "agent's table of streams is full": "agent answers_incomplete",
    "agent asks a client to wait": "router busy",
}
"""Every corner that a campaign must exercise, and its counter."""


@dataclass
class Nap:
    """A subscriber of a channel sleeps while its server is out of the ring, and another application publishes."""

    channel: str
    sleeper: App
    talker: App
    others: list[str] = field(default_factory=list)
    """The servers that are used meanwhile."""


class ChannelsRun(ChannelScenario):
    """One seed of the scenario."""

    calm_s = 3.5
    """Shorter than in the other scenarios: no move has to end in it."""

    def __init__(self, seed: int, rules: Rules = ALL_RULES, trace: bool = False) -> None:
        self._naps: dict[str, Nap] = {}
        """Subscribers that sleep, by their server."""
        super().__init__(seed, rules, trace)

    def faults_began(self) -> None:
        """In some runs subscribers sleep while their servers are out of the ring."""
        super().faults_began()
        if not self.network.options.peaceful and self.world.rng("naps").random() < NAPS:
            self._nap()

    def _nap(self) -> None:
        """A server does not renew its lease for a while, and a client that has subscribed there alone sleeps."""
        if not self.faults.active:
            return
        rng = self.world.rng("naps")
        self.world.after(rng.expovariate(1 / NAP_EVERY_S), self._nap)
        sleepers = [
            (app, core)
            for app in self.apps
            for core in (sub.core for sub in app.subs)
            if core is not None and core.undivided and self.book.entry(core.name) is not None
            if self._naps.keys().isdisjoint(core.sites)
        ]
        if sleepers:
            sleeper, core = rng.choice(sleepers)
            (server,) = core.sites
            talker = rng.choice([app for app in self.apps if app is not sleeper])
            self._naps[server] = Nap(core.text, sleeper, talker)
            self.coordinator.mute_leases(f"agent-{server}", self.world.now + rng.uniform(*NAP_LAPSE_S))
            self.faults.pause(sleeper.node, (NAP_S_MAX, NAP_S_MAX))

    def members_changed(self, left: list[str], joined: list[str]) -> None:
        """A new client publishes on the channel of a sleeping subscriber while its server is out of the ring, and again
        when the server is back. Then the subscriber wakes."""
        rng = self.world.rng("naps")
        for nap in [self._naps[server] for server in left if server in self._naps]:
            self.exercised["nap"] += 1
            nap.others += self.book.placement(nap.channel.encode()).servers
            self.faults.crash(nap.talker.node)
            self.world.after(TALKER_DOWN_S, nap.talker.node.restart)
            for _ in range(3):
                self._talk(nap)
        for nap in [self._naps.pop(server) for server in joined if server in self._naps]:
            self._talk(nap)
            self.world.after(rng.uniform(*NAP_AFTER_S), nap.sleeper.node.resume)
            if rng.random() < AGENTS_DIE:
                for server in nap.others:
                    self.faults.crash(self.network.nodes[f"agent-{server}"])

    def _talk(self, nap: Nap) -> None:
        rng = self.world.rng("naps")
        self.world.after(rng.uniform(*TALK_S), self._burst, nap, rng.randint(1, 3))

    def _burst(self, nap: Nap, count: int) -> None:
        if nap.talker.started and nap.talker.node.up:
            nap.talker.process.call(nap.talker.burst, nap.channel, count)

    def make_shape(self, options: FaultOptions) -> Shape:
        """The common shape; in three of ten runs a limit of agents is so small that it is met."""
        rng, shape = self.world.rng("bounds"), super().make_shape(options)
        changes: dict[str, int] = {}
        match rng.randrange(10):
            case 0 | 2:
                changes = {"known_streams_max": rng.randint(2, 5)}
            case 1:
                changes = {"control_at_once_max": rng.choice((4, 12)), "control_per_s_max": rng.choice((5, 20))}
        limits = msgspec.structs.replace(shape.limits, **changes)
        return replace(shape, limits=limits, full="known_streams_max" in changes)


def run_seed(seed: int, rules: Rules = ALL_RULES, trace: bool = False) -> Outcome:
    """Runs one seed; the same seed always gives the same outcome."""
    return ChannelsRun(seed, rules, trace).execute()
