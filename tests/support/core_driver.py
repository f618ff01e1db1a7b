"""Cores driven by hand: a router or an agent core without sockets; the test plays servers, agents and clock.

    driver = RouterDriver()
    sub = driver.subscribe(b"tile")                      # handshake with the stand-in agent of s1
    driver.message("s1", b"tile", STREAM, 1, b"north")   # what the server pushes
    assert driver.payloads(sub) == [b"north"]

Owns the script's side only: it decides nothing that a core should decide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
from hiredis import PushNotification, ReplyError

from shoal.channels import states
from shoal.channels.agent.core import AgentCore
from shoal.channels.client.context import Connect, Disconnect, Effect
from shoal.channels.client.outgoing_stream import Outgoing
from shoal.channels.client.router import Router
from shoal.channels.client.server_link import ServerLink
from shoal.channels.client.subscription import SubscriptionCore
from shoal.channels.telemetry.scanner import Scanner
from shoal.limits import DEFAULT_LIMITS, Limits
from shoal.message import Attributes, Gap, Item, Message
from shoal.plan.book import PlanBook
from shoal.plan.placement import BY_THE_RING
from shoal.plan.ring import AgentKey, Ring, ServerAddress
from shoal.plan.signature import Signer, Verifier
from shoal.queues.keyspace.resp import encode_frame
from shoal.rules import ALL_RULES, Rules
from shoal.wire import control, envelope
from shoal.wire.commands import Burst, Command, Commands
from shoal.wire.envelope import AGENT_CHANNEL, HEARTBEAT_CHANNEL, RESERVED_PREFIX, inbox_channel, peer_channel
from shoal.wire.glob import glob_match
from shoal.wire.identity import AgentSecret

SIGNER: Final = Signer(bytes(range(32)))
FORGER: Final = Signer(bytes(range(1, 33)))
SECRET: Final = AgentSecret(1, bytes(range(2, 34)))
"""The agents' secret of drivers that authenticate messages."""
OTHER_SECRET: Final = AgentSecret(1, bytes(range(3, 35)))
"""That of a forger, who does not know the true one."""
CLIENT: Final = 0xA11CE
OTHER: Final = 0xB0B
STREAM: Final = envelope.stream_id(OTHER, 1)
"""A stream of another client, for what arrives."""
AGENT: Final = 77
BEGIN: Final = 100.0

T = TypeVar("T")


def of_kind(things: Iterable[object], kind: type[T]) -> list[T]:
    """Those of one kind, in their order."""
    return [thing for thing in things if isinstance(thing, kind)]


def ring(version: int, servers: tuple[str, ...], port: int = 7000, secret: AgentSecret | None = None) -> Ring:
    """A ring; with a secret, its messages are authenticated."""
    addresses = tuple(ServerAddress(server, "127.0.0.1", port + n) for n, server in enumerate(servers))
    if secret is None:
        return Ring(version, addresses, lease_ms=3000)
    keys = (AgentKey(secret.generation, secret.signing, secret.exchange),)
    return Ring(version, addresses, scheme=1, lease_ms=3000, agent_keys=keys)


def to_agent(secret: AgentSecret | None, client: int, server: str) -> control.Seal | None:
    """How a client authenticates its messages to an agent."""
    if secret is None:
        return None
    return control.KeySeal(control.CLIENT_SCHEME, secret.generation, secret.client(client).to_agent(server))


def from_agent(secret: AgentSecret | None, client: int, server: str) -> control.Seal | None:
    """How an agent authenticates its messages to a client."""
    if secret is None:
        return None
    return control.KeySeal(control.CLIENT_SCHEME, secret.generation, secret.client(client).from_agent(server))


def to_all(secret: AgentSecret | None) -> control.Seal | None:
    """How an agent authenticates its messages to all clients."""
    return control.SignatureSeal(secret) if secret is not None else None


def channel_at(here: Ring, server: str) -> bytes:
    """A channel whose home is the server."""
    return next(name for name in (b"tile.%d" % n for n in range(1000)) if here.home(name) == server)


def blob(
    stream: int,
    sequence: int,
    payload: bytes = b"",
    attributes: Attributes | None = None,
    version: int = BY_THE_RING | 1,
) -> bytes:
    """A message as its publisher sends it."""
    flags = envelope.ATTRIBUTES if attributes else 0
    body = envelope.encode_attributes(attributes, DEFAULT_LIMITS) if attributes else b""
    return envelope.prefix(flags, version, stream) + envelope.SUFFIX.pack(sequence, 5) + body + payload


def sequences(published: list[tuple[bytes, bytes]]) -> list[int]:
    """The sequence numbers of messages among what was published; beacons are left out."""
    headers = [envelope.HEADER.unpack_from(data) for _, data in published]
    return [header[4] for header in headers if not header[1] & envelope.BEACON]


def beacons(published: list[tuple[bytes, bytes]]) -> list[tuple[int, int, bool]]:
    """Last number, settled number and whether it is the end, of each beacon among what was published."""
    found = []
    for _, data in published:
        _, flags, _, _, last, _ = envelope.HEADER.unpack_from(data)
        if flags & envelope.BEACON:
            found.append((last, envelope.settled_of(data), bool(flags & envelope.FINAL)))
    return found


def one_by_one(commands: Commands) -> list[Command]:
    """Commands as the server takes them: a PUBLISH for each message of a burst."""
    single: list[Command] = []
    for command in commands:
        if isinstance(command, Burst):
            single += [(b"PUBLISH", command.channel, blob) for blob in command.blobs]
        else:
            single.append(command)
    return single


@dataclass
class StandIn:
    """A server and its agent, as the script wants them. `silent` agents answer nothing, `mute` servers too."""

    server: str
    incarnation: int = 1
    lease_ms: int = 3000
    ring_version: int = 1
    ring: bytes = b""
    remembers: bool = True
    complete: bool = True
    since: int = 0
    quiet_s: int = 0
    silent: bool = False
    mute: bool = False
    reachable: bool = True
    heartbeats: int = 0
    streams: dict[tuple[bytes, int], int] = field(default_factory=dict)
    absent: dict[tuple[bytes, int], int] = field(default_factory=dict)
    entries: dict[bytes, bytes] = field(default_factory=dict)
    refuse: dict[bytes, str] = field(default_factory=dict)
    heard: list[control.Received] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    published: list[tuple[bytes, bytes]] = field(default_factory=list)
    inbox: list[tuple[bytes, control.Control]] = field(default_factory=list)

    def answer(self, hello: control.Hello) -> control.Answer:
        """The answer to a hello by what the script has set."""

        def of(table: dict[tuple[bytes, int], int]) -> control.HeardList:
            fits = glob_match if hello.pattern else bytes.__eq__
            return [
                (name, stream, last, self.quiet_s) for (name, stream), last in table.items() if fits(hello.name, name)
            ]

        if hello.publisher:
            streams: control.HeardList = []
            absent: control.HeardList = []
        else:
            streams, absent = of(self.streams), of(self.absent)
        entry = b"" if hello.pattern else self.entries.get(hello.name, b"")
        return answer_of(
            self.server,
            hello.name,
            self.incarnation,
            entry=entry,
            remembers=self.remembers,
            complete=self.complete,
            since=self.since,
            streams=streams,
            absent=absent,
        )

    def welcome(self) -> control.Welcome:
        return control.Welcome(
            self.server, AGENT, self.incarnation, self.heartbeats, self.lease_ms, self.ring_version, self.ring
        )

    def heartbeat(self, heard: int | None = None) -> control.Heartbeat:
        """The next heartbeat; `heard` is the last own one that came back, by default the one before."""
        self.heartbeats += 1
        back = self.heartbeats - 1 if heard is None else heard
        return control.Heartbeat(self.server, AGENT, back, self.incarnation, self.lease_ms, True, self.ring_version)


class RouterDriver:
    """A router, its shell's part, and a stand-in for every server of the ring."""

    def __init__(
        self,
        servers: tuple[str, ...] = ("s1",),
        *,
        client: int = CLIENT,
        limits: Limits = DEFAULT_LIMITS,
        rules: Rules = ALL_RULES,
        secret: AgentSecret | None = None,
    ) -> None:
        self.now = BEGIN
        self.limits = limits
        self.secret = secret
        key = secret.client(client) if secret else None
        self.router = Router(client, PlanBook(Verifier(SIGNER.public)), limits, rules, key=key)
        self.counters = self.router.counters
        self.servers = {server: StandIn(server) for server in servers}
        self.effects: list[Effect] = []
        self.ready: list[SubscriptionCore] = []
        self._next_heartbeat = BEGIN + limits.heartbeat_interval_s
        self.ring = ring(1, servers, secret=secret)
        self.router.ring(SIGNER.ring(self.ring), self.now)

    # The shell's part

    def link(self, server: str) -> ServerLink:
        return self.router._context.links[server]

    def sent_to(self, server: str) -> list[Command]:
        """The commands that wait to be sent to a server."""
        return one_by_one(self.link(server).outbox)

    def _collect(self) -> None:
        """Takes what the router hands back, as a shell does."""
        self.effects += self.router.effects
        self.router.effects.clear()
        for server, commands in self.router.take_commands():
            self.servers[server].commands += one_by_one(commands)
        self.ready += self.router.take_ready()

    def play(self) -> None:
        """Lets servers and agents do their part until all are silent."""
        while True:
            self._collect()
            wishes = [effect for effect in self.effects if self._can_do(effect)]
            busy = [here for here in self.servers.values() if here.commands and not here.mute]
            if not wishes and not busy:
                return
            self.effects = [effect for effect in self.effects if not self._can_do(effect)]
            for wish in wishes:
                if isinstance(wish, Connect):
                    self.router.opened(wish.server, self.now)
                elif isinstance(wish, Disconnect):
                    self.lose(wish.server)
            for here in busy:
                commands, here.commands = here.commands, []
                frames = [frame for command in commands for frame in self._serve(here, command)]
                self.feed(here.server, *frames)

    def _can_do(self, effect: Effect) -> bool:
        """Whether the script carries an effect out; a wish to connect waits while the server is unreachable."""
        return isinstance(effect, Disconnect) or (isinstance(effect, Connect) and self.servers[effect.server].reachable)

    def _serve(self, here: StandIn, command: Command) -> list[Any]:
        match command:
            case (b"PING",):
                return [b"PONG"]
            case (b"PUBLISH", channel, data):
                if channel in here.refuse:
                    return [ReplyError(here.refuse[channel])]
                if channel == AGENT_CHANNEL:
                    return [1, *self._tell_agent(here, control.decode(data))]
                if channel.startswith(RESERVED_PREFIX):
                    here.inbox.append((channel, control.decode(data).message))
                else:
                    here.published.append((channel, data))
                return [1]
            case (kind, *names):
                return [PushNotification([kind.lower(), name, 1]) for name in names]
            case _:
                raise AssertionError(command)

    def _tell_agent(self, here: StandIn, received: control.Received) -> list[PushNotification]:
        here.heard.append(received)
        if here.silent:
            return []
        client, _, message = received
        match message:
            case control.Greet():
                return [addressed(client, here.welcome(), message.nonce, self.seal(here.server))]
            case control.Hello():
                return [addressed(client, here.answer(message), message.nonce, self.seal(here.server))]
            case control.Introduce() if self.secret is not None:
                return [addressed(client, self._introduced(client, message), message.nonce, self.seal(here.server))]
        return []

    def seal(self, server: str) -> control.Seal | None:
        """How the agent of a server authenticates its messages to the router."""
        return from_agent(self.secret, self.router.client, server)

    def _introduced(self, client: int, introduce: control.Introduce) -> control.Introduced:
        assert self.secret is not None
        key = self.secret.client(introduce.peer).peer(client)
        sealed = self.secret.client(client).sealed(key, introduce.nonce, introduce.peer, 1)
        return control.Introduced(introduce.peer, [(1, sealed)])

    # What comes from outside

    def feed(self, server: str, *frames: Any) -> None:
        """Frames from a server, in one go."""
        self.router.received(server, list(frames), self.now)

    def push(self, server: str, channel: bytes, data: bytes, pattern: bytes | None = None) -> None:
        """One message from a server, whatever it holds; then everyone does their part."""
        frame = [b"message", channel, data] if pattern is None else [b"pmessage", pattern, channel, data]
        self.feed(server, PushNotification(frame))
        self.play()

    def message(
        self, server: str, channel: bytes, stream: int, sequence: int, payload: bytes = b"", **more: Any
    ) -> None:
        pattern = more.pop("pattern", None)
        self.push(server, channel, blob(stream, sequence, payload, **more), pattern)

    def beacon(
        self,
        server: str,
        channel: bytes,
        stream: int,
        last: int,
        settled: int,
        final: bool = False,
        quiet_s: float = 0.0,
    ) -> None:
        self.push(server, channel, envelope.beacon(BY_THE_RING | 1, stream, last, settled, quiet_s, final))

    def tell(self, server: str, message: control.Control, number: int = 0, client: int = OTHER) -> None:
        """A control message to the router: of another client, or of the server's agent."""
        own = self.router.client
        if isinstance(message, control.ToPeer):
            self.push(
                server, peer_channel(own), control.encode(message, client, number, self._peer_seal(message, client))
            )
        else:
            self.push(server, inbox_channel(own), control.encode(message, own, number, self.seal(server)))

    def _peer_seal(self, message: control.ToPeer, client: int) -> control.Seal | None:
        if self.secret is None:
            return None
        if isinstance(message, control.Heal):
            return control.asking(self.secret.client(self.router.client).peer(client), 1)
        return control.replying(self.secret.client(client).peer(self.router.client), 1)

    def heartbeat(self, server: str, heard: int | None = None, **more: Any) -> None:
        """The agent of a server sends a heartbeat."""
        here = self.servers[server]
        heartbeat = msgspec.structs.replace(here.heartbeat(heard), **more)
        seal = to_all(self.secret)
        self.push(server, HEARTBEAT_CHANNEL, control.encode(heartbeat, 0, here.heartbeats, seal))

    def resync(self, server: str, number: int) -> None:
        """The agent of a server asks its clients what they do there."""
        resync = control.Resync(server, AGENT, self.servers[server].incarnation)
        seal = to_all(self.secret)
        self.push(server, HEARTBEAT_CHANNEL, control.encode(resync, 0, number, seal))

    def lose(self, server: str) -> None:
        """The connection to a server is gone."""
        self.router.lost(server, self.now)
        self.servers[server].commands.clear()
        self._collect()

    def change_ring(self, servers: tuple[str, ...], version: int = 2) -> None:
        """A new ring reaches the router."""
        for server in servers:
            self.servers.setdefault(server, StandIn(server))
        for here in self.servers.values():
            here.ring_version = version
        self.ring = ring(version, servers, secret=self.secret)
        self.router.ring(SIGNER.ring(self.ring), self.now)
        self.play()

    def advance(self, seconds: float, *, heartbeats: bool = True) -> None:
        """Lets time pass: timers fire when they are due, agents send heartbeats."""
        end = self.now + seconds
        while True:
            self.now = max(self.now, min(self.router.next_timer() or end, self._next_heartbeat, end))
            if self.now >= self._next_heartbeat:
                self._next_heartbeat += self.limits.heartbeat_interval_s
                for here in self.servers.values():
                    link = self.router._context.links.get(here.server)
                    if heartbeats and link is not None and link.open and not (here.silent or here.mute):
                        self.heartbeat(here.server)
            self.router.timer(self.now)
            self.play()
            at = self.router.next_timer()
            if self.now >= end and (at is None or at > self.now):
                return

    # The application

    def subscribe(self, name: bytes, *, pattern: bool = False) -> SubscriptionCore:
        sub = self.router.subscribe(name, pattern, self.now)
        self.play()
        return sub

    def publish(self, channel: bytes, *payloads: bytes, attributes: Attributes | None = None) -> Outgoing:
        encoded = envelope.encode_attributes(attributes, DEFAULT_LIMITS) if attributes else b""
        for payload in payloads:
            accepted = self.router.publish(channel, payload, encoded, 5, self.now)
            assert accepted is not None, "the publish buffer is full"
            out = accepted
        self.play()
        return out

    def items(self, sub: SubscriptionCore) -> list[Item]:
        """Whatever the application finds, taken."""
        found = []
        while sub.inbox.items:
            found.append(sub.inbox.take())
        return found

    def payloads(self, sub: SubscriptionCore) -> list[bytes]:
        """The payloads of what the application finds; a gap among it is a failure."""
        items = self.items(sub)
        assert all(isinstance(item, Message) for item in items), items
        return [item.payload for item in items if isinstance(item, Message)]

    def gaps(self, sub: SubscriptionCore) -> list[Gap]:
        """The gaps among what the application finds."""
        return [item for item in self.items(sub) if isinstance(item, Gap)]

    # What was said

    def heard(self, server: str, kind: type[T]) -> list[T]:
        """Control messages of a kind that the agent of a server has heard, taken."""
        return [message for _, _, message in self.heard_with_heads(server, kind)]  # type: ignore[misc]

    def heard_with_heads(self, server: str, kind: type[T]) -> list[control.Received]:
        """The same with client and number of each."""
        here = self.servers[server]
        found = [received for received in here.heard if isinstance(received.message, kind)]
        here.heard = [received for received in here.heard if received not in found]
        return found

    def told(self, server: str, client: int, kind: type[T]) -> list[T]:
        """Control messages of a kind to another client on a server, taken."""
        here = self.servers[server]
        address = peer_channel(client)
        found = of_kind((message for to, message in here.inbox if to == address), kind)
        here.inbox = [(to, m) for to, m in here.inbox if not (to == address and isinstance(m, kind))]
        return found

    def published(self, server: str) -> list[tuple[bytes, bytes]]:
        """What was published on application channels of a server, taken."""
        here = self.servers[server]
        published, here.published = here.published, []
        return published

    def happened(self, kind: type[T]) -> list[T]:
        """Effects of a kind, taken."""
        found = of_kind(self.effects, kind)
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return found

    # How it is: asked anew each time, so that a test may ask before and after

    def state(self, server: str) -> states.LinkState:
        return self.link(server).state

    def in_force(self, sub: SubscriptionCore) -> bool:
        return sub.in_force

    def lane_state(self, out: Outgoing) -> states.LaneState:
        return out.lanes[0].state

    def settled(self, out: Outgoing) -> bool:
        return out.settled


def addressed(
    client: int, message: control.Control, number: int = 0, seal: control.Seal | None = None
) -> PushNotification:
    """A control message as it arrives in an inbox."""
    return PushNotification([b"message", inbox_channel(client), control.encode(message, client, number, seal)])


def answer_of(server: str, name: bytes, incarnation: int = 1, **more: Any) -> control.Answer:
    """An Answer in one part."""
    fields = {
        "version": 1,
        "entry": b"",
        "ring": b"",
        "remembers": True,
        "complete": True,
        "since": 0,
        "part": 0,
        "parts": 1,
        "streams": [],
        "absent": [],
    }
    return control.Answer(server=server, name=name, incarnation=incarnation, **{**fields, **more})


class AgentDriver:
    """An agent core, its shell's part, and what its server says."""

    def __init__(
        self,
        server: str = "s1",
        *,
        limits: Limits = DEFAULT_LIMITS,
        instance: int = AGENT,
        secret: AgentSecret | None = None,
        rules: Rules = ALL_RULES,
    ) -> None:
        self.now = BEGIN
        self.server = server
        self.secret = secret
        book = PlanBook(Verifier(SIGNER.public))
        self.core = AgentCore(server, instance, Scanner(frame_bytes_max=1 << 20), book, limits, rules)
        self.said: dict[bytes, list[control.Received]] = defaultdict(list)
        self.number = 0
        """The number of the last message of a client to the agent."""
        self.announced: list[tuple[bytes, bytes]] = []
        """What the agent has published on application channels of its own server."""
        self.commands: list[Command] = []

    def open(self, run_id: str = "run one", clients: int = 0) -> None:
        """The server is there, with so many clients on it."""
        self.core.opened(run_id, self.now)
        self.play(clients)

    def play(self, clients: int | None = None) -> None:
        """The server answers; `clients` is its answer to NUMSUB, None if it does not give one."""
        while self.core.outbox:
            commands, self.core.outbox = self.core.outbox, []
            for command in commands:
                self.commands.append(command)
                match command:
                    case (b"PUBLISH", channel, data):
                        self.hear_own(channel, data)
                        self.receive(1)
                    case (b"PUBSUB", b"NUMSUB", channel):
                        self.receive(ReplyError("no") if clients is None else [channel, clients])

    def hear_own(self, channel: bytes, data: bytes) -> None:
        """What the agent publishes on its own server."""
        if channel.startswith(RESERVED_PREFIX):
            self.said[channel].append(control.decode(data))
        else:
            self.announced.append((channel, data))

    def receive(self, *frames: Any) -> None:
        done = self.core.received(b"".join(map(encode_frame, frames)), self.now)
        while not done:
            done = self.core.work(self.now)

    def hear(self, channel: bytes, data: bytes) -> None:
        """A client publishes on the server. Heartbeats come on the agent's light connection too."""
        self.receive(PushNotification([b"pmessage", b"*", channel, data]))
        if channel == HEARTBEAT_CHANNEL and (head := control.read_head(data)) is not None:
            self.core.heard_own(head, data)
        self.play()

    def tell(self, *messages: control.Control, client: int = CLIENT, number: int | None = None) -> None:
        """A client sends messages to the agent; their numbers grow unless one is given."""
        for message in messages:
            self.number += 1
            sent = self.number if number is None else number
            seal = to_agent(self.secret, client, self.server)
            self.hear(AGENT_CHANNEL, control.encode(message, client, sent, seal))

    def take(self, channel: bytes, kind: type[T]) -> list[T]:
        """Control messages of a kind that the agent has sent on a channel, taken."""
        return [message for _, _, message in self.take_with_heads(channel, kind)]  # type: ignore[misc]

    def take_with_heads(self, channel: bytes, kind: type[T]) -> list[control.Received]:
        """The same with client and number of each."""
        found = [received for received in self.said[channel] if isinstance(received.message, kind)]
        self.said[channel] = [received for received in self.said[channel] if received not in found]
        return found

    def state(self) -> states.AgentState:
        return self.core.state

    def answers(self, client: int = CLIENT) -> list[control.Answer]:
        return self.take(inbox_channel(client), control.Answer)

    def answered(self, client: int = CLIENT) -> list[int]:
        """The nonces of the Hellos that the agent has answered."""
        return [number for _, number, _ in self.take_with_heads(inbox_channel(client), control.Answer)]

    def heartbeats(self) -> list[control.Heartbeat]:
        return self.take(HEARTBEAT_CHANNEL, control.Heartbeat)

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while (at := self.core.next_timer()) is not None and at <= end:
            self.now = max(self.now, at)
            self.core.timer(self.now)
            self.play()
        self.now = end
