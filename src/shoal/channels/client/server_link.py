"""A client's connection to one server, as the router sees it: what to send, what is confirmed, and whether the server
may be used.

Owns the client's half of the lease rule. The shell owns the connection itself.

The lease rule, without comparing clocks: an agent's heartbeat says for how long it still holds the lease. A heartbeat
may be delayed in a buffer for any time, on its way to the server and on its way to the client, so its age must be
bounded. A PING bounds the second way: a heartbeat that arrives after the PONG was published after the PING was sent.
For the first way each heartbeat names the last of the agent's own heartbeats that it had received back: it was sent
after that one was published. The server may be used until the PING before that earlier heartbeat, plus the lease that
the new one grants. Clocks are only assumed to run at the same rate within `clock_drift_max`.
"""

from __future__ import annotations

from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING, Final

from shoal.channels import states
from shoal.channels.heartbeat_order import HeartbeatOrder
from shoal.channels.token_bucket import TokenBucket
from shoal.plan.ring import ServerAddress
from shoal.rules import ALL_RULES, Rules, rule
from shoal.wire import control
from shoal.wire.commands import Burst, Command
from shoal.wire.envelope import AGENT_CHANNEL
from shoal.wire.identity import ClientKey

if TYPE_CHECKING:
    from shoal.channels.client.outgoing_stream import Lane
    from shoal.channels.client.subscription import SubscribedServer

HEARD_BACK: Final = rule(
    "heard_back", "A heartbeat extends the lease from the last own heartbeat that its agent had heard back."
)

GREETINGS_REMEMBERED: Final = 16
HEARTBEATS_REMEMBERED: Final = 8
"""An agent hears its own heartbeats back long before it has sent this many more."""


RESYNCS_REMEMBERED: Final = 64
"""Resyncs on one connection that are recognised when they are repeated."""
SIGNATURES_PER_S_MAX: Final = 50
SIGNATURES_AT_ONCE_MAX: Final = 1000
"""Signatures that a client verifies on a connection: so many a second, and so many at once after a time without any, as
when it was suspended. Agents send two or three a second, up to ten while they name false messages; the rest is
dropped. One takes 0.11 ms."""


class Ping:
    """The position of a PING among the commands that wait for a reply."""

    __slots__ = ("sent_at",)

    def __init__(self, sent_at: float) -> None:
        self.sent_at = sent_at


class Listen:
    """The position of a SUBSCRIBE or similar command: a push answers it, or an error."""

    __slots__ = ("channel",)

    def __init__(self, channel: bytes) -> None:
        self.channel = channel


class AgentCommand:
    """The position of a control message to the server's agent."""

    __slots__ = ()


AGENT_COMMAND: Final = AgentCommand()


class ServerLink:
    """State of the connection to one server. `outbox` holds the commands that the shell must send, in order."""

    __slots__ = (
        "_anchors",
        "_greeted_at",
        "_greets",
        "_resyncs",
        "_rules",
        "_signatures",
        "address",
        "anchor",
        "burst",
        "burst_lane",
        "busy_until",
        "byes",
        "carried_until",
        "dirty",
        "from_agent",
        "incarnation",
        "inflight",
        "key",
        "lanes",
        "listening",
        "offered",
        "offered_at_number",
        "opened_at_number",
        "order",
        "outbox",
        "ping",
        "queue_end",
        "server",
        "sites",
        "state",
        "to_agent",
        "unusable_since",
        "usable_until",
    )

    def __init__(self, address: ServerAddress, key: ClientKey | None = None, rules: Rules = ALL_RULES) -> None:
        self.address = address
        self.server = address.id
        self.key: ClientKey | None = None
        """The client's key that is used at this server; None with scheme 0."""
        self.to_agent: control.KeySeal | None = None
        """Authenticates messages to the server's agent; None with scheme 0."""
        self.from_agent: dict[int, bytes] | None = None
        """The keys of the agent's messages to this client, by generation; None with scheme 0."""
        self.offered: ClientKey | None = None
        """A newer key. It is used when the agent has answered a Greet that was made with it: then the agent has it."""
        self.offered_at_number = 0
        """The number of the last such Greet."""
        if key is not None:
            self.use(key)
        self._rules = rules
        self.state = states.LinkState.DOWN
        self.outbox: list[Command | Burst] = []
        self.burst: list[bytes] = []
        """The messages of the burst that ends the outbox, if there is one."""
        self.burst_lane: Lane | None = None
        """The lane of that burst, whose messages are not in `inflight` yet; None if there is no such burst."""
        self.inflight: deque[Lane | Ping | Listen | AgentCommand | None] = deque()
        self.listening: dict[tuple[bool, bytes], int] = {}
        self.byes: dict[tuple[bool, bytes], bool | None] = {}
        """Channels and patterns that were left, until it is certain that the agent could receive the Bye: the PONG of a
        PING that was sent after it has come back. True while such a PING is on its way, None if the Bye was not sent
        yet."""
        self.lanes: dict[Lane, None] = {}
        self.sites: dict[SubscribedServer, None] = {}
        self.dirty = False
        self._greets: dict[int, float] = {}
        self._greeted_at = float("-inf")
        self._resyncs: dict[tuple[int, int, int], None] = {}
        self._signatures = TokenBucket(SIGNATURES_AT_ONCE_MAX, SIGNATURES_PER_S_MAX, 0.0)
        self.order = HeartbeatOrder(rules)
        self.incarnation = 0
        self.opened_at_number = 0
        """The router's last number before this connection opened; messages on it have higher ones."""
        self.anchor: float | None = None
        self._anchors: dict[tuple[int, int], float] = {}
        self.carried_until = float("-inf")
        """When the last PING that was answered was sent, on this connection or an earlier one."""
        self.ping: Ping | None = None
        self.usable_until = 0.0
        self.unusable_since: float | None = None
        """Since when the server is wanted and may not be used; None while it may be."""
        self.busy_until = 0.0
        """Until when the agent has asked this client to wait."""
        self.queue_end = 0.0
        """When the last of the questions that wait will be sent."""

    def use(self, key: ClientKey) -> None:
        """Uses this key from now on; the agent's messages are taken with older ones too."""
        self.key, self.offered = key, None
        self.to_agent = control.KeySeal(control.CLIENT_SCHEME, key.generation, key.to_agent(self.server))
        self.from_agent = {**(self.from_agent or {}), key.generation: key.from_agent(self.server)}

    def offer(self, key: ClientKey) -> None:
        """Takes a newer key, which the agent may not have yet."""
        self.offered = key
        self.from_agent = {**(self.from_agent or {}), key.generation: key.from_agent(self.server)}

    @property
    def open(self) -> bool:
        """Whether there is an open connection."""
        return self.state in _OPEN

    @property
    def wanted(self) -> bool:
        """Whether this client publishes or subscribes on the server."""
        return bool(self.lanes or self.sites)

    def step(self, event: str) -> None:
        """Takes the transition that `states.LINK` gives for the event."""
        self.state = states.step(states.LINK, self.state, event)

    def listen(self, command: bytes, channel: bytes) -> None:
        """Queues SUBSCRIBE or a similar command for one channel or pattern."""
        self.end_burst()
        self.outbox.append((command, channel))
        self.inflight.append(Listen(channel))

    def publish(self, channel: bytes, blob: bytes) -> None:
        """Queues a PUBLISH whose reply confirms nothing: a beacon, or a message to another client."""
        self.end_burst()
        self.outbox.append((b"PUBLISH", channel, blob))
        self.inflight.append(None)

    def carry(self, lane: Lane, blob: bytes) -> None:
        """Queues a PUBLISH; its reply confirms a message of `lane`. Messages that follow each other are a burst."""
        if self.burst_lane is lane:
            self.burst.append(blob)
        else:
            if self.burst_lane is not None:
                self.end_burst()
            self.burst, self.burst_lane = [blob], lane
            self.outbox.append(Burst(lane.out.name, self.burst))

    def end_burst(self) -> None:
        """Another command follows, or the outbox is sent."""
        lane = self.burst_lane
        if lane is not None:
            if len(self.burst) == 1:
                self.inflight.append(lane)
            else:
                self.inflight.extend(repeat(lane, len(self.burst)))
            self.burst_lane = lane.out.bursting = None

    def tell_agent(self, blob: bytes) -> None:
        """Queues a control message to the server's agent."""
        self.end_burst()
        self.outbox.append((b"PUBLISH", AGENT_CHANNEL, blob))
        self.inflight.append(AGENT_COMMAND)

    def send_ping(self, now: float) -> None:
        """Queues a PING, unless one is on its way."""
        if self.ping is None:
            self.byes = {key: None if before is None else True for key, before in self.byes.items()}
            self.end_burst()
            self.ping = Ping(now)
            self.outbox.append((b"PING",))
            self.inflight.append(self.ping)

    def ponged(self, ping: Ping) -> None:
        """A PONG came back: frames from now on were sent after the PING, and commands before the PING are done."""
        self.byes = {key: before for key, before in self.byes.items() if not before}
        self.anchor = self.carried_until = ping.sent_at
        self.ping = None

    def greeted(self, nonce: int, now: float) -> None:
        """A Greet is on its way to the agent."""
        self._greets[nonce] = self._greeted_at = now
        if len(self._greets) > GREETINGS_REMEMBERED:
            del self._greets[next(iter(self._greets))]

    def welcomed(self, nonce: int, welcome: control.Welcome, lease_s: float) -> bool:
        """Takes an agent's answer to the Greet with this nonce; False if there is no such Greet."""
        since = self._greets.pop(nonce, None)
        if since is None or welcome.server != self.server:
            return False
        self.incarnation = welcome.incarnation
        self.order.welcomed(welcome.instance, welcome.heartbeat)
        self.grant(lease_s, since)
        return True

    def heartbeat_heard(self, number: int, heartbeat: control.Heartbeat, lease_s: float) -> None:
        """Takes a heartbeat of the server's agent."""
        self.incarnation = heartbeat.incarnation
        since = self._anchors.get((heartbeat.instance, heartbeat.heard))
        if HEARD_BACK not in self._rules:
            since = self.anchor
        if since is not None:
            self.grant(lease_s, since)
        if self.anchor is not None:
            self._anchors[heartbeat.instance, number] = self.anchor
            if len(self._anchors) > HEARTBEATS_REMEMBERED:
                del self._anchors[next(iter(self._anchors))]

    def greeted_since(self, moment: float) -> bool:
        """Whether a Greet was sent after a moment."""
        return self._greeted_at > moment

    def takes_resync(self, number: int, resync: control.Resync) -> bool:
        """Whether a Resync is to be answered: each one once on a connection."""
        key = resync.instance, resync.incarnation, number
        if key in self._resyncs:
            return False
        self._resyncs[key] = None
        if len(self._resyncs) > RESYNCS_REMEMBERED:
            del self._resyncs[next(iter(self._resyncs))]
        return True

    def may_verify(self, now: float) -> bool:
        """Whether another signature on this connection may be verified now: junk must not use up all the time."""
        return self._signatures.take(1, now)

    def grant(self, lease_s: float, since: float) -> None:
        """The agent holds its lease for `lease_s` from a moment that is not before `since`."""
        self.usable_until = max(self.usable_until, since + lease_s)

    def is_busy(self, now: float) -> bool:
        """Whether questions to the agent have to wait."""
        return now < self.busy_until or now < self.queue_end

    def queue(self, per_s: float, now: float) -> float:
        """When the next question that waits may be sent: they go out one after the other, `per_s` a second."""
        self.queue_end = max(self.queue_end, self.busy_until, now) + 1 / per_s
        return self.queue_end

    def lapsed(self, now: float) -> bool:
        """Whether the lease is over and that was not noticed yet, for example because this process was suspended."""
        return self.state is states.LinkState.USABLE and now >= self.usable_until

    def disown(self, now: float) -> None:
        """The agent does not take this client's messages: the server is used again after the next Welcome."""
        self.order = HeartbeatOrder(self._rules)
        self.usable_until = min(self.usable_until, now)

    def reset(self) -> None:
        """The connection is lost, and everything in flight with it."""
        self.end_burst()
        self.outbox.clear()
        self.inflight.clear()
        self.listening.clear()
        self.anchor = None
        self._anchors.clear()
        self.ping = None
        self.usable_until = 0.0
        self.busy_until = 0.0
        self.queue_end = 0.0
        self._greets.clear()
        self._greeted_at = float("-inf")
        self._resyncs.clear()
        self.order = HeartbeatOrder(self._rules)
        self.incarnation = 0


_OPEN = frozenset({states.LinkState.GREETING, states.LinkState.USABLE, states.LinkState.STALE})
