"""The scenario `channels`: publishers and subscribers come and go on a cluster with faults.

Owns the corners that a campaign must exercise. Channels have placements of every kind, which do not change; only the
ring does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

import shoal.channels.agent.session  # noqa: F401 - the agent loads these modules late, and they declare rules
from shoal.errors import PlanError
from shoal.lab.sim.scenario import COMMON, Outcome, Variant
from shoal.lab.sim.scenarios.app import App
from shoal.lab.sim.scenarios.cluster import ChannelScenario
from shoal.lab.sim.scenarios.provocations import (
    LATE_S_MAX,
    ForgottenPublisher,
    FullDisk,
    LateHeartbeats,
    LateSecret,
    LongAbsence,
    RepeatedMessage,
)
from shoal.lab.sim.scenarios.shape import Shape
from shoal.lab.sim.scenarios.stranger import FORGED, REPEATED_KINDS
from shoal.lab.sim.world.fault_options import RATES, FaultOptions
from shoal.plan.keys import ROTATION_KEY
from shoal.plan.secret_rotation import decode, encode, generations, revoked, rotated
from shoal.rules import ALL_RULES, Rules

BREAKS: Final = (
    *("dedupe", "order", "heal", "beacon", "handshake", "baseline", "lease", "repeat", "remembers", "unbroken"),
    *("agent_tags", "signatures", "client_tags", "owners", "peer_tags", "fresh_heartbeats"),
    *("tags", "refute", "retract", "away", "complete", "earlier_streams", "heard_back"),
    *("key_proved", "old_secret", "told_streams"),
)
"""The rules that this scenario tests."""

NAP_EVERY_S: Final = 2.0
NAP_S_MAX: Final = 12.0
NAP_LAPSE_S: Final = (4.0, 5.0)
NAP_NEWS_S: Final = 1.0
NAP_AFTER_S: Final = (0.05, 1.5)
"""In the share `naps` of the runs with faults, about every `NAP_EVERY_S`, a subscriber sleeps while its
server leaves the ring and comes back, and `NAP_AFTER_S` longer. The server's agent does not renew its lease for
`NAP_LAPSE_S`: not much longer than the lease, so that the server is back before faults end. It hears of the rings
`NAP_NEWS_S` later, so that it never tells of the one without its server."""
TALKER_DOWN_S: Final = 0.1
TALK_S: Final = (0.5, 2.5)
"""How long another application is down, so that it is a new client, and when it publishes after the ring changes."""
LIE_EVERY_S: Final = 0.06
LIES: Final = 24
"""How often the stranger lies under the name of that client when the server is back, and how many times; the client
publishes in between. An agent takes longer to refute a lie than the stranger to tell the next one."""

IDLE_LIMITS: Final = {"publisher_idle_s": 8.0, "gap_timeout_s": 2.0, "heal_retry_s": 0.1}
IDLE_SHAPE: Final[dict[str, Any]] = {
    "servers": 2, "clients": 4, "channels": 4, "safety_s": 14.0, "burst_pause_s": 2.0, "slow_readers": False,
    "healable": False, "idle": True,
}  # fmt: skip
"""What is different in runs in which streams end."""
GREEDY_LIMITS: Final = {
    "control_at_once_max": 60, "control_per_s_max": 30, "new_channels_at_once_max": 10, "new_channels_per_s_max": 5,
}  # fmt: skip
"""What each client may ask in runs in which a client with a valid key floods agents."""
ROTATE_S: Final = (0.2, 3.0)
REVOKE_S: Final = (0.3, 5.0)
REVOKES: Final = 0.7
OVERLAP_S: Final = (1.0, 4.0)
"""In the share `rotations` of the runs, about every `ROTATE_S`, an operator rotates the agents' secret. After
`REVOKE_S` the share `REVOKES` is revoked; the overlap of the others takes `OVERLAP_S`."""
CUT_OFF_S: Final = (2.5, 4.0)
SPEAK_S: Final = (0.0, 3.0)
SPEAK_TIMES: Final = 4
"""How long an agent does not hear of a rotation, so that it does not have the new secret; and when and how often each
client publishes on its server meanwhile."""
LEADER_DIES: Final = 0.3
LEADER_DIES_S: Final = (0.0, 0.6)
"""How often, and how soon, the leader dies after a rotation was requested."""

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
    **{
        provocation.counter: provocation.counter
        for provocation in (ForgottenPublisher, RepeatedMessage, LateHeartbeats, LateSecret, FullDisk)
    },
    "greedy client": "greed",
    "greedy client's questions are not read": "agent control_unread",
    "greedy client's channels are not looked up": "agent not_looked_up",
    "stream ends because its publisher is silent": "stream ended by silence",
    "subscriber away for longer than agents remember streams": "gap after a long absence",
    "agent speaks while the coordinator is down": "agent orphan_heartbeats",
    "agent's table of streams is full": "agent answers_incomplete",
    "agent asks a client to wait": "router busy",
    "secret rotated": "secret rotated",
    "secret revoked": "secret revoked",
    "leader dies during a rotation": "leader dies during a rotation",
    "client renews its key": "router renewals",
    "client goes on with another id": "router identities",
}
"""Every corner that a campaign must exercise, and its counter."""

_LATE: Final[dict[str, Any]] = {
    "late": 1.0, "greedy": 0.0, "idle": 0.0, "fixed_faults": {"tcp_timeout_s": 15.0, "resets_per_s": 0.1},
    "fixed_shape": {"safety_s": 8.0},
}  # fmt: skip
"""Heartbeats arrive after their lease."""

_MISLED: Final[dict[str, Any]] = {
    "naps": 1.0, "short_naps": True, "nap_lies": 1.0, "agents_die": 0.0,
    "fixed_faults": dict.fromkeys(RATES, 0.0) | {"resets_per_s": 0.01},
    "fixed_shape": {"lapses": False, "slow_readers": False},
    **dict.fromkeys(("idle", "greedy", "forgotten", "late", "repeated", "rotations", "ring_death"), 0.0),
}  # fmt: skip
"""A subscriber sleeps while its server is out of the ring. When it is back, the stranger lies about the messages that
were published elsewhere, before their publisher has announced itself."""

VARIANTS: Final[dict[str, Variant]] = {
    "agent_tags": {"hostile": 1.0, "false_answers": 1.0, "liveness_s_max": 60.0},
    "repeat": {"liveness_s_max": 60.0},
    "client_tags": {"liveness_s_max": 60.0},
    "signatures": _LATE,
    "fresh_heartbeats": _LATE,
    "unbroken": _MISLED,
}
"""The variant of the scenario in which it soon shows that a rule is broken. A cluster that never settles need not run
for long. In the same variant the protocol holds."""


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

    calm_s = 3.0
    """Shorter than in the other scenarios: no move has to end in it."""
    naps = 0.6
    """The share of the runs with faults in which subscribers sleep while their servers are out of the ring."""
    agents_die = 0.7
    """How often the agents of the servers that were used meanwhile crash when the server is back, so that no agent can
    tell what was published there."""
    short_naps = False
    """Whether subscribers sleep only while the server is out of the ring. A longer sleep costs them the connection."""
    nap_lies = 0.0
    """How often the stranger lies on the server that is back, about messages that were published on the others."""
    idle = 0.06
    """The share of the runs in which streams end. These runs are longer, and have fewer participants."""
    greedy = 0.06
    """The share of the runs in which a client with a valid key floods agents."""
    forgotten = 0.35
    late = 0.35
    repeated = 0.2
    """The share of the runs with faults in which each sequence of `provocations` is tried, where the network allows
    it."""
    rotations = 0.1
    """The share of the runs in which an operator rotates the agents' secret."""
    late_secrets = 0.3
    """The share of the runs without other faults in which all agents hear late of a rotation (`LateSecret`)."""

    def __init__(self, seed: int, rules: Rules = ALL_RULES, trace: bool = False, variant: Variant = COMMON) -> None:
        self._naps: dict[str, Nap] = {}
        """Subscribers that sleep, by their server."""
        self._rotates = False
        self._late_secret = False
        self._generations: list[int] = []
        super().__init__(seed, rules, trace, variant)

    def faults_began(self) -> None:
        """In some runs subscribers sleep while their servers are out of the ring."""
        super().faults_began()
        if not self.network.options.peaceful and self.world.rng("naps").random() < self.naps:
            self._nap()
        self._provoke()
        if self._rotates:
            self._later("secret", ROTATE_S, self._rotate)

    def _provoke(self) -> None:
        """Begins sequences of faults. One ends with a gap, which should not take long; one needs a network that keeps
        bytes for seconds."""
        options, rng = self.network.options, self.world.rng("provocations")
        forgotten, late = rng.random() < self.forgotten, rng.random() < self.late
        if self.shape.idle:
            LongAbsence(self).begin()
        if self._late_secret:
            LateSecret(self, self._request_rotation, self._revoke).begin()
        if options.peaceful:
            return
        if forgotten and not self.shape.healable:
            ForgottenPublisher(self).begin()
        if late and options.tcp_timeout_s > LATE_S_MAX:
            LateHeartbeats(self).begin()
        if self.world.rng("repetitions").random() < self.repeated and not self.shape.healable and not self.shape.idle:
            RepeatedMessage(self).begin()

    def _later(self, stream: str, span: tuple[float, float], fn: Callable[[], None]) -> None:
        self.world.after(self.world.rng(stream).uniform(*span), fn)

    def _rotate(self) -> None:
        """An operator rotates the agents' secret, and the leader may die."""
        if not self.faults.active or self.book.ring is None:
            return
        rng = self.world.rng("secret")
        self._later("secret", ROTATE_S, self._rotate)
        with contextlib.suppress(PlanError):  # two generations are in force
            self._request_rotation()
            if rng.random() < REVOKES:
                self._later("secret", REVOKE_S, self._revoke)
            if rng.random() < LEADER_DIES and not self.network.options.peaceful:
                self._later("secret", LEADER_DIES_S, self._kill_leader)

    def _request_rotation(self) -> None:
        assert self.book.ring is not None
        self.coordinator.store.put(ROTATION_KEY, encode(rotated(self.book.ring)))

    def secret_written(self) -> None:
        """In runs with faults an agent does not hear of a new secret, and clients publish on its server while they get
        their new keys."""
        rng = self.world.rng("secret")
        if not self.faults.active or self.network.options.peaceful:
            return
        placed = [(channel, self.book.placement(channel.encode()).servers) for channel in self.channels]
        server = rng.choice([server for _, servers in placed for server in servers])
        self.faults.partition([f"agent-{server}"], ["coordinator"], CUT_OFF_S)
        for channel in [channel for channel, servers in placed if server in servers]:
            for app in self.apps * SPEAK_TIMES:
                self.world.after(rng.uniform(*SPEAK_S), self._speak, app, channel, 1)

    def _revoke(self) -> None:
        """An operator ends the older generation of the agents' secret."""
        with contextlib.suppress(PlanError):  # its overlap is over
            store = self.coordinator.store
            assert self.book.ring is not None
            stored = store.get(ROTATION_KEY)
            wanted = revoked(self.book.ring, decode(stored.value) if stored is not None else None)
            store.put(ROTATION_KEY, encode(wanted))

    def _kill_leader(self) -> None:
        self.exercised["leader dies during a rotation"] += self.network.nodes["keeper"].up
        self.faults.crash(self.network.nodes["keeper"])

    def _nap(self) -> None:
        """A server does not renew its lease for a while, and a client that has subscribed there alone will sleep."""
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
            back_at = self.world.now + rng.uniform(*NAP_LAPSE_S)
            self.coordinator.mute_leases(f"agent-{server}", back_at)
            self.coordinator.delay_news(f"agent-{server}", back_at + NAP_NEWS_S)
            if not self.short_naps:
                self.faults.pause(sleeper.node, (NAP_S_MAX, NAP_S_MAX))

    def members_changed(self, left: list[str], joined: list[str]) -> None:
        """A new client publishes on the channel of a sleeping subscriber while its server is out of the ring, and again
        when the server is back. Then the subscriber wakes."""
        assert self.book.ring is not None
        before, self._generations = self._generations, generations(self.book.ring)
        if before and before != self._generations:
            self.exercised["secret rotated" if self._generations[-1] > before[-1] else "secret revoked"] += 1
        rng = self.world.rng("naps")
        for nap in [self._naps[server] for server in left if server in self._naps]:
            self.exercised["nap"] += 1
            if self.short_naps:
                self.faults.pause(nap.sleeper.node, (NAP_S_MAX, NAP_S_MAX))
            nap.others += self.book.placement(nap.channel.encode()).servers
            for server in nap.others if self.nap_lies else ():
                self.stranger.overhear(server, nap.channel)
            self.faults.crash(nap.talker.node)
            self.world.after(TALKER_DOWN_S, nap.talker.node.restart)
            for _ in range(3):
                self._talk(nap)
        for server, nap in [(server, self._naps.pop(server)) for server in joined if server in self._naps]:
            self._talk(nap)
            if rng.random() < self.nap_lies:
                for number in range(LIES):
                    self.world.after(number * LIE_EVERY_S, self._mislead, nap, server)
                    self.world.after((number + 0.5) * LIE_EVERY_S, self._speak, nap.talker, nap.channel, 1)
            self.world.after(rng.uniform(*NAP_AFTER_S), nap.sleeper.node.resume)
            if rng.random() < self.agents_die:
                for other in nap.others:
                    self.faults.crash(self.network.nodes[f"agent-{other}"])

    def _talk(self, nap: Nap) -> None:
        rng = self.world.rng("naps")
        self.world.after(rng.uniform(*TALK_S), self._speak, nap.talker, nap.channel, rng.randint(1, 3))

    def _mislead(self, nap: Nap, server: str) -> None:
        """The stranger lies about the newest message of the talker that it has heard elsewhere."""
        client = nap.talker.record.client
        heard = [blob for other in nap.others for blob in self.stranger.heard_of(other, nap.channel, client)]
        if heard:
            self.exercised["nap lie"] += 1
            version = self.book.placement(nap.channel.encode()).version
            self.stranger.lie_about(server, nap.channel, heard[-1], version)

    def _speak(self, app: App, channel: str, count: int) -> None:
        if app.started and app.node.up:
            app.process.call(app.burst, channel, count)

    def make_shape(self, options: FaultOptions) -> Shape:
        """The common shape; in three of ten runs a limit of agents is so small that it is met. In a few, publishers are
        silent for longer than streams last."""
        rng, shape = self.world.rng("bounds"), super().make_shape(options)
        if self.world.rng("idle").random() < self.idle:
            return replace(shape, limits=msgspec.structs.replace(shape.limits, **IDLE_LIMITS), **IDLE_SHAPE)
        changes: dict[str, float] = {}
        secret = self.world.rng("secret")
        self._rotates = secret.random() < self.rotations
        if self._rotates:
            changes["secret_overlap_s"] = secret.uniform(*OVERLAP_S)
        elif options.peaceful and self.world.rng("late secrets").random() < self.late_secrets:
            self._late_secret = True
            self.ring_death = 0.0
            shape = replace(shape, lapses=False)
        match rng.randrange(10):
            case 0 | 2:
                changes["known_streams_max"] = rng.randint(2, 5)
            case 1:
                changes |= {"control_at_once_max": rng.choice((4, 12)), "control_per_s_max": rng.choice((5, 20))}
        greedy = self.world.rng("greed").random() < self.greedy
        if greedy:
            changes |= GREEDY_LIMITS
        limits = msgspec.structs.replace(shape.limits, **changes)
        return replace(shape, limits=limits, full="known_streams_max" in changes, greedy=greedy)


def run_seed(seed: int, rules: Rules = ALL_RULES, trace: bool = False, variant: Variant = COMMON) -> Outcome:
    """Runs one seed; the same seed always gives the same outcome."""
    return ChannelsRun(seed, rules, trace, variant).execute()
