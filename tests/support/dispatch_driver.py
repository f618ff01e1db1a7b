"""An agent core driven by hand, with other servers beside its own: for tests of the dispatcher.

Owns the script's side: what NUMSUB says, which connections to other servers stand, what was published there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from tests.support.core_driver import AGENT, SIGNER, AgentDriver, ring

from shoal.channels.agent.core import AgentCore
from shoal.channels.telemetry.scanner import Scanner
from shoal.limits import DEFAULT_LIMITS, Limits
from shoal.plan.book import PlanBook
from shoal.plan.entry import Entry, Phase
from shoal.plan.move_request import ChannelReport
from shoal.plan.placement import Mode, Placement
from shoal.plan.signature import Verifier
from shoal.rules import ALL_RULES, Rules
from shoal.wire import control
from shoal.wire.envelope import HEARTBEAT_CHANNEL, inbox_channel
from shoal.wire.identity import AgentSecret

SERVERS = ("s1", "s2", "s3")


def single(version: int, server: str) -> Placement:
    return Placement(version, Mode.SINGLE, (server,))


def entry_of(channel: bytes, phase: Phase, revision: int, newest: Placement, *earlier: Placement, **more: Any) -> Entry:
    """An entry of a move; publishers use the last of the earlier placements before the switch."""
    publish = earlier[-1].version if phase in (Phase.PREPARE, Phase.WIDEN) else 0
    since = more.pop("since", revision)
    return Entry(channel, newest, phase, earlier, publish, revision, since=since, **more)


class DispatchDriver(AgentDriver):
    """The agent of s1, one of the servers of a ring, to which it has connections."""

    def __init__(
        self,
        *,
        limits: Limits = DEFAULT_LIMITS,
        rules: Rules = ALL_RULES,
        server: str = "s1",
        connected: bool = True,
        secrets: dict[int, AgentSecret] | None = None,
    ) -> None:
        newest = secrets[max(secrets)] if secrets else None
        super().__init__(server, secret=newest)
        book = PlanBook(Verifier(SIGNER.public))
        self.core = AgentCore(server, AGENT, Scanner(frame_bytes_max=1 << 20), book, limits, rules)
        self.numsub: Counter[bytes] = Counter()
        self.counts = True
        self.elsewhere: dict[str, list[tuple[bytes, bytes]]] = defaultdict(list)
        self.held_back: set[str] = set()
        self.core.secrets = secrets or {}
        self.core.ring(SIGNER.ring(ring(3, SERVERS, secret=newest)))
        if connected:
            for other in SERVERS:
                if other != server:
                    self.core.forward_opened(other, self.now)

    def play(self, clients: int | None = None) -> None:
        """The servers answer."""
        if clients is not None:
            self.numsub[HEARTBEAT_CHANNEL] = clients
        while self.core.outbox:
            commands, self.core.outbox = self.core.outbox, []
            for command in commands:
                self.commands.append(command)
                if command[0] == b"PUBLISH":
                    self.hear_own(command[1], command[2])
                    self.receive(self.numsub[command[1]])
                elif command[:2] == (b"PUBSUB", b"NUMSUB") and self.counts:
                    self.receive([item for name in command[2:] for item in (name, self.numsub[name])])
        self.carry()

    def carry(self) -> None:
        """Takes what the agent publishes elsewhere; servers that are not held back confirm it."""
        while forwards := self.core.take_forwards():
            for server, commands in forwards.items():
                self.elsewhere[server] += [(command[1], command[2]) for command in commands]
                if server not in self.held_back:
                    self.core.forward_replied(server, len(commands), self.now)

    def serve(self, run_id: str = "run one") -> DispatchDriver:
        """The agent serves an empty server."""
        self.open(run_id)
        self.carry()
        return self

    def enter(self, entry: Entry) -> None:
        """An entry comes from the coordinator."""
        self.core.entry(SIGNER.line(entry))
        self.play()

    def change_ring(self, version: int, servers: tuple[str, ...]) -> None:
        self.core.ring(SIGNER.ring(ring(version, servers)))
        self.play()

    def subscribe(self, client: int, channel: bytes) -> None:
        """A client subscribes, and the agent knows it."""
        self.numsub[channel] += 1
        self.numsub[inbox_channel(client)] += 1
        self.tell(control.Hello(1, channel, False, True, 0, 3), client=client)
        self.said[inbox_channel(client)].clear()

    def taken(self, server: str) -> list[tuple[bytes, bytes]]:
        """What was published on another server since this was asked last."""
        return self.elsewhere.pop(server, [])

    def notices(self, client: int) -> list[control.Notice]:
        return self.take(inbox_channel(client), control.Notice)

    def watches(self, channel: bytes, blob: bytes) -> bool:
        """Whether such a message would be shown to the dispatcher."""
        seen: list[bytes] = []
        dispatcher: Any = self.core.dispatcher
        heard = dispatcher.heard
        dispatcher.heard = lambda name, data, standing, now: seen.append(data)
        try:
            self.hear(channel, blob)
        finally:
            dispatcher.heard = heard
        return seen == [blob]

    def line(self, channel: bytes) -> ChannelReport | None:
        """The newest report of a channel, from the beginning if need be."""
        reporting: Any = self.core.dispatcher._reporting
        reporting._last = None
        report = self.core.take_report()
        return report.channels.get(channel) if report is not None else None
