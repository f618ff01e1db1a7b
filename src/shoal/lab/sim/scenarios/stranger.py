"""A stranger on the cluster's servers: a client without Shoal, with another version of it, or a hostile one.

Owns the bad input of a simulated run: foreign messages on application channels, garbage, forgeries and messages of
other versions on every internal channel; and lies: it listens to the channels, and publishes messages and beacons under
the streams that it hears. None of it may do any harm.

In the hostile seeds the stranger has a client's rights on Redis 6.2: it hears every internal channel and may publish
on each. It answers questions in the name of agents and publishers with the nonces that it hears, repeats what others
have sent, and has an identity of its own, under which it makes claims about the streams of others.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Final

import hiredis
from msgspec.structs import replace

from shoal.channels.client.enrolment import Enrolment
from shoal.lab.sim.scenarios.channel_checkers import FOREIGN
from shoal.lab.sim.scenarios.channel_run_history import ChannelRunHistory, Lie
from shoal.lab.sim.world.link import LinkEnd
from shoal.lab.sim.world.network import Network
from shoal.plan.placement import Mode, Placement
from shoal.plan.ring import Ring, ServerAddress
from shoal.plan.signature import Signer
from shoal.wire import control, envelope
from shoal.wire.commands import Command, encode_commands
from shoal.wire.envelope import (
    AGENT_CHANNEL,
    BEACON,
    FINAL,
    HEADER,
    HEADER_BYTES,
    HEARTBEAT_CHANNEL,
    MAGIC,
    RESERVED_PREFIX,
    SUFFIX,
    UNKNOWN_FLAGS,
    beacon,
    client_of,
    inbox_channel,
    is_envelope,
    peer_channel,
    prefix,
    stream_id,
)
from shoal.wire.identity import SIGNATURE_BYTES, ClientKey
from shoal.wire.lane_tag import TAG_AT, lane_state, tagged

PAUSE_S: Final = 0.7
HOSTILE: Final = 0.2
"""The share of the seeds in which it listens to internal channels, answers and repeats what it hears there."""
ANSWERS: Final = 0.5
"""The share of overheard questions that it answers, at most `ANSWERS_MAX` on one connection. It answers all of them
where the agent is silent. Both shares may be others in a variant of a scenario."""
ANSWERS_MAX: Final = 8
REMEMBERED: Final = 6
"""Overheard messages of each kind and server that it repeats later."""
FAR: Final = 1 << 60
"""The number that it claims for the streams of others."""
HEARD_MAX: Final = 20
"""Published messages that it remembers."""
LIE: Final = b"lie "
"""Prefix of the payloads of its lies."""
FLAGS_AT: Final = 2
FLOOD: Final = 300
FLOODS: Final = 0.005
"""How many lies it tells at once, and how often."""
GREED: Final = 60
"""How many questions, and messages on new channels, a greedy one sends at once."""
ALTERS: Final = 0.3
"""How often it alters a message that it has heard on the same server, and those of a channel for a subscriber that
comes to it."""
FOREVER_MS: Final = (1 << 32) - 1
REPEATED: Final[tuple[type[control.Control], ...]] = (
    control.Heartbeat,
    control.Resync,
    control.Welcome,
    control.Answer,
    control.Hello,
    control.Bye,
    control.Present,
    control.Left,
    control.Resend,
    control.Healed,
    control.Heal,
)


REPEATED_KINDS: Final = tuple(kind.__name__ for kind in REPEATED)
FORGED: Final = (
    *("Welcome", "Answer", "Heartbeat", "Resync", "Resend", "Healed"),
    *("Hello", "Present", "Left", "Bye", "Subscribed", "Heal"),
)
"""The kinds of messages that it forges."""


class FalseSignature:
    """A signature that is none."""

    scheme = control.SIGNED_SCHEME
    generation = 1

    def tag(self, head: bytes, body: bytes) -> bytes:
        """See `control.Seal`."""
        return bytes(SIGNATURE_BYTES)

    @staticmethod
    def is_on(head: control.Head, data: bytes) -> bool:
        """Whether a message has this signature."""
        return head.scheme == control.SIGNED_SCHEME and not any(data[control.HEAD_BYTES :][:SIGNATURE_BYTES])


class Visit:
    """One connection to a server."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.reader = hiredis.Reader()
        self.answers = 0
        self.silent = True
        """Whether the agent has sent no heartbeat."""
        self.enrolment: Enrolment | None = None


class Repetition:
    """A connection on which the stranger repeats messages that it has heard."""

    def __init__(self, channel: bytes, blobs: list[bytes]) -> None:
        self._commands: list[Command] = [(b"PUBLISH", channel, blob) for blob in blobs]

    def connected(self, end: LinkEnd) -> None:
        """Publishes them."""
        end.handler = self
        end.send(encode_commands(self._commands))
        end.node.after(PAUSE_S, end.close)

    def failed(self, reason: str) -> None:
        """Gives up."""

    def lost(self, end: LinkEnd, reason: str) -> None:
        """Does nothing."""

    def received(self, end: LinkEnd, data: bytes) -> None:
        """Ignores replies."""


class Overhearing(Repetition):
    """A connection on which the stranger only listens to a channel."""

    def __init__(self, channel: bytes, heard: Callable[[str, bytes, bytes], None]) -> None:
        super().__init__(channel, [])
        self._commands = [(b"SUBSCRIBE", channel)]
        self._heard = heard
        self._reader = hiredis.Reader()

    def connected(self, end: LinkEnd) -> None:
        """Subscribes, until the server or the world ends."""
        end.handler = self
        end.send(encode_commands(self._commands))

    def received(self, end: LinkEnd, data: bytes) -> None:
        """Takes what it hears."""
        self._reader.feed(data)
        while (frame := self._reader.gets()) is not False:
            if isinstance(frame, list) and frame[0] == b"message":
                self._heard(end.peer.node.name, frame[1], frame[2])


class Stranger:
    """Connects to one server after another, listens, and publishes bad input. `said` counts it by kind; `ring` is the
    newest ring."""

    def __init__(
        self,
        network: Network,
        servers: list[str],
        clients: Callable[[], list[int]],
        channels: list[str],
        active: Callable[[], bool],
        history: ChannelRunHistory,
        ring: Callable[[], Ring | None],
        said: Counter[str],
        greedy: bool = False,
        hostile: float = HOSTILE,
        answers: float = ANSWERS,
    ) -> None:
        self.network = network
        self.node = network.node("stranger")
        self.servers = servers
        self.clients = clients
        self.channels = channels
        self.active = active
        self.history = history
        self.random: Random = network.world.rng("stranger")
        self.ring = ring
        self.said = said
        self._forger = Signer(self.random.randbytes(32))
        self._key: ClientKey | None = None
        self._number = 0
        self._heard: dict[tuple[str, type[control.Control]], dict[bytes, bytes]] = {}
        """Control messages that it has overheard, by server and kind, with their channels, the newest last."""
        self._published: deque[tuple[str, bytes, bytes]] = deque(maxlen=HEARD_MAX)
        """Published messages that it has heard: server, channel and envelope."""
        self._incarnations: dict[str, int] = {}
        self._forged: dict[int, int] = {}
        """By instance of an agent: the number of the last heartbeat that was forged."""
        self._visit: Visit | None = None
        self.greedy = greedy
        self.hostile = self.random.random() < hostile or greedy
        self._answers = answers
        self._connect()

    def _connect(self) -> None:
        self.network.connect(self.node, self.random.choice(self.servers), self)

    def connected(self, end: LinkEnd) -> None:
        """Publishes a few messages, listens for a while, lies, then moves on to another server."""
        end.handler = self
        if self.active():
            server = end.peer.node.name
            visit = self._visit = Visit(server)
            speeches = [self._speech(server) for _ in range(3)]
            channels = [channel.encode() for channel in self.channels]
            commands: list[Command] = [(b"HELLO", b"3"), (b"SUBSCRIBE", *channels)]
            ring = self.ring()
            if self.hostile:
                speeches += [*self._repetitions(server), *self._claims(server)]
                commands.append((b"PSUBSCRIBE", RESERVED_PREFIX + b"*"))
            if self.greedy:
                speeches += self._greed(server)
            if self.hostile and self._key is None and ring is not None and ring.scheme:
                visit.enrolment = Enrolment(ring, server, self.random.randbytes(32), self.random.getrandbits(60))
                commands += visit.enrolment.commands()
            end.send(encode_commands([*commands, *((b"PUBLISH", *speech) for speech in speeches)]))
            self.node.after(PAUSE_S / 2, self._lie_there, end)
            self.node.after(PAUSE_S, self._leave, end)

    def _lie_there(self, end: LinkEnd) -> None:
        if end.open and self._published and self.active():
            server = end.peer.node.name
            end.send(encode_commands([(b"PUBLISH", *self._lie(server)) for _ in range(self._lies_at_once())]))

    def _lies_at_once(self) -> int:
        """A few, or more than an agent can name in a heartbeat."""
        return FLOOD if self.random.random() < FLOODS else self.random.randint(0, 2)

    def _lie(self, server: str) -> tuple[bytes, bytes]:
        """A message or a beacon under a stream that it has heard, perhaps on another server."""
        random = self.random
        where, channel, blob = random.choice(self._published)
        _, _, version, stream, sequence, _ = HEADER.unpack_from(blob)
        number = len(self.history.lies) + 1
        payload = LIE + b"%d" % number
        tag = random.choice((random.randbytes(8), blob[TAG_AT:HEADER_BYTES], bytes(8)))
        flags = 0
        if where == server and random.random() < ALTERS:
            return channel, self._altered(server, channel, blob)
        match random.randrange(6):
            case 0:
                sequence = FAR + random.randrange(3)
            case 1 | 2:
                sequence += random.randint(1, 3)
            case 3:
                sequence, flags = FAR, BEACON
                payload = random.choice((0, sequence)).to_bytes(8, "little")
            case 4:
                sequence, flags = sequence + random.randrange(2), BEACON | FINAL
                payload = bytes(8)
            case _:
                stream = stream_id(client_of(stream), random.getrandbits(15))
        lie = HEADER.pack(MAGIC, flags, version, stream, sequence, number)
        told = Lie(payload, channel.decode(), client_of(stream), sequence, server, self.network.world.now)
        self.history.lie_told(told, delivered=not flags)
        return channel, lie[:TAG_AT] + tag + payload

    def _altered(self, server: str, channel: bytes, blob: bytes) -> bytes:
        """A copy of a message on its own server, with another payload."""
        _, flags, _, stream, sequence, _ = HEADER.unpack_from(blob)
        if flags:
            return blob
        payload = LIE + b"%d" % (len(self.history.lies) + 1)
        now = self.network.world.now
        told = Lie(payload, channel.decode(), client_of(stream), sequence, server, now, altered=True)
        self.history.lie_told(told, delivered=True)
        return blob[:HEADER_BYTES] + payload

    def _alter_all(self, server: str, only: bytes | None = None) -> list[tuple[bytes, bytes]]:
        """An agent or a subscriber begins to listen: it has not heard the true messages that were published before."""
        heard = [(channel, blob) for where, channel, blob in self._published if where == server and not blob[FLAGS_AT]]
        return [(name, self._altered(server, name, blob)) for name, blob in heard if only in (None, name)]

    def heard_of(self, server: str, channel: str, client: int) -> list[bytes]:
        """The messages that it remembers of a client on a channel of a server."""
        where = server, channel.encode()
        heard = [blob for *place, blob in self._published if (*place,) == where and not blob[FLAGS_AT]]
        return [blob for blob in heard if client_of(HEADER.unpack_from(blob)[3]) == client]

    def repeat(self, server: str, channel: str, blobs: list[bytes]) -> None:
        """Connects to a server, and publishes messages again that it has heard there."""
        self.network.connect(self.node, server, Repetition(channel.encode(), blobs))

    def overhear(self, server: str, channel: str) -> None:
        """Listens to a channel of a server from now on."""
        self.network.connect(self.node, server, Overhearing(channel.encode(), self._take_published))

    def lie_about(self, server: str, channel: str, blob: bytes, version: int) -> None:
        """Publishes another message on a server under the stream and the number of one that it has heard elsewhere."""
        _, _, _, stream, sequence, _ = HEADER.unpack_from(blob)
        number = len(self.history.lies) + 1
        payload = LIE + b"%d" % number
        told = Lie(payload, channel, client_of(stream), sequence, server, self.network.world.now)
        self.history.lie_told(told, delivered=True)
        lie = HEADER.pack(MAGIC, 0, version, stream, sequence, number)[:TAG_AT] + self.random.randbytes(8) + payload
        self.network.connect(self.node, server, Repetition(channel.encode(), [lie]))

    def _leave(self, end: LinkEnd) -> None:
        """Moves on. Where an agent has fallen silent a hostile one stays: there its heartbeats are not contradicted."""
        end.close()
        visit = self._visit
        if self.hostile and visit is not None and visit.silent and (visit.server, control.Heartbeat) in self._heard:
            self.network.connect(self.node, visit.server, self)
        else:
            self._connect()

    def failed(self, reason: str) -> None:
        """Tries another server."""
        self.node.after(PAUSE_S, self._connect)

    def lost(self, end: LinkEnd, reason: str) -> None:
        """Does nothing: after its pause it connects to another server."""

    def received(self, end: LinkEnd, data: bytes) -> None:
        """Takes what it hears; replies are ignored."""
        visit = self._visit
        if visit is None or end.peer.node.name != visit.server or not self.active():
            return
        visit.reader.feed(data)
        while (frame := visit.reader.gets()) is not False:
            if not isinstance(frame, hiredis.PushNotification):
                continue
            if frame[0] == b"message" and not frame[1].startswith(RESERVED_PREFIX):
                self._take_published(visit.server, frame[1], frame[2])
            elif frame[0] == b"message" and visit.enrolment is not None:
                answer = visit.enrolment.received([frame])
                self._key = answer if isinstance(answer, ClientKey) else None
            elif frame[0] == b"pmessage":
                lies = self._overheard(visit, frame[2], frame[3])
                if lies:
                    end.send(encode_commands([(b"PUBLISH", *lie) for lie in lies]))

    def _take_published(self, server: str, channel: bytes, blob: bytes) -> None:
        """Remembers a message of a client."""
        if is_envelope(blob) and not blob[FLAGS_AT] & envelope.FOREIGN and not blob[HEADER_BYTES:].startswith(LIE):
            self._published.append((server, channel, blob))

    def _overheard(self, visit: Visit, channel: bytes, data: bytes) -> list[tuple[bytes, bytes]]:
        """Remembers a message, and answers it in another's name."""
        head = control.read_head(data)
        if head is None or head.scheme == control.NO_SCHEME:
            return []
        kind = control.kind_of(head)
        if kind in REPEATED and not FalseSignature.is_on(head, data):
            heard = self._heard.setdefault((visit.server, kind), {})
            new = data not in heard
            heard[data] = channel
            if len(heard) > REMEMBERED:
                del heard[next(iter(heard))]
            if new and kind is control.Heartbeat:
                visit.silent = False
            if new and kind is control.Resync:
                return self._alter_all(visit.server)
        if head.scheme == control.SIGNED_SCHEME and kind is control.Heartbeat:
            message = control.decode(data).message
            assert isinstance(message, control.Heartbeat)
            self._incarnations[visit.server] = message.incarnation
        if visit.answers >= ANSWERS_MAX or (not visit.silent and self.random.random() > self._answers):
            return []
        lies = self._false_answers(visit.server, head, data)
        visit.answers += bool(lies)
        return lies

    def _false_answers(self, server: str, head: control.Head, data: bytes) -> list[tuple[bytes, bytes]]:
        """Answers to an overheard message in the name of its receiver, with its nonce."""
        message = control.decode(data).message
        match message:
            case control.Greet() if not message.agent:
                welcome = control.Welcome(
                    server, self.random.getrandbits(60), 1, 0, FOREVER_MS, message.ring_version, b""
                )
                return [self._as_agent(head.client, welcome, message.nonce)]
            case control.Hello():
                own = self.random.random() < 0.5
                heard = {HEADER.unpack_from(blob)[3] for _, name, blob in self._published if name == message.name}
                heard.update(stream_id(client, 1) for client in self.clients())
                streams = [(message.name, stream, FAR, 0) for stream in sorted(heard)] if own else []
                incarnation = self._incarnations.get(server, 1)
                answer = control.Answer(
                    server, message.name, incarnation, message.version, b"", b"", True, True, 1, 0, 1, streams, []
                )
                altered = self._alter_all(server, message.name) if self.random.random() < ALTERS else []
                return [self._as_agent(head.client, answer, message.nonce), *altered]
            case control.Heartbeat():
                self.said["forged Resync"] += 1
                resync = control.Resync(server, message.instance, message.incarnation)
                return [
                    *self._forged_heartbeats(message, head.number),
                    (HEARTBEAT_CHANNEL, control.encode(resync, 0, 1, FalseSignature())),
                ]
            case control.Heal():
                self.said["forged Resend"] += 1
                self.said["forged Healed"] += 1
                blob = prefix(0, 1, message.stream) + SUFFIX.pack(message.first, 1) + b"false"
                publisher, asker = client_of(message.stream), peer_channel(head.client)
                healed = control.Healed(message.channel, message.stream, FAR, FAR, FAR, message.first)
                return [
                    (asker, control.encode(lie, publisher, head.number, self._peer_seal()))
                    for lie in (control.Resend(message.channel, blob), healed)
                ]
        return []

    def _forged_heartbeats(self, heartbeat: control.Heartbeat, number: int) -> list[tuple[bytes, bytes]]:
        """Heartbeats after those that were overheard or forged, as if the agent had the lease forever: each has heard
        the one before."""
        number = max(number, self._forged.get(heartbeat.instance, 0))
        self._forged[heartbeat.instance] = number + 3
        lie = replace(heartbeat, lease_ms=FOREVER_MS, granted=True, lapsed_ms=None)
        self.said["forged Heartbeat"] += 1
        return [
            (HEARTBEAT_CHANNEL, control.encode(replace(lie, heard=number + n), 0, number + n + 1, FalseSignature()))
            for n in range(3)
        ]

    def _as_agent(self, client: int, message: control.Control, nonce: int) -> tuple[bytes, bytes]:
        self.said[f"forged {type(message).__name__}"] += 1
        seal = control.KeySeal(control.CLIENT_SCHEME, 1, self.random.randbytes(32))
        return inbox_channel(client), control.encode(message, client, nonce, seal)

    def _peer_seal(self) -> control.Seal:
        return control.KeySeal(control.PEER_SCHEME, 1, self.random.randbytes(32))

    def _repetitions(self, server: str) -> list[tuple[bytes, bytes]]:
        """What was overheard on this server, or another one, again: all heartbeats, and some of the rest."""
        random = self.random
        found: list[tuple[bytes, bytes]] = []
        for kind in (REPEATED[0], *random.sample(REPEATED[1:], 3)):
            place = server if random.random() < 0.8 else random.choice(self.servers)
            for data, channel in self._heard.get((place, kind), {}).items():
                self.said[f"repeated {kind.__name__}"] += 1
                found.append((channel, data))
        for data in list(self._heard.get((server, control.Heartbeat), {}))[-1:]:
            _, number, message = control.decode(data)
            assert isinstance(message, control.Heartbeat)
            found += self._forged_heartbeats(message, number)
        return found

    def _claims(self, server: str) -> list[tuple[bytes, bytes]]:
        """Claims about the streams of others, with its own key, and in the names of others without theirs."""
        clients, random = self.clients(), self.random
        if not clients:
            return []
        victim, channel = random.choice(clients), random.choice(self.channels).encode()
        streams = [stream_id(victim, epoch) for epoch in range(1, 4)]
        incarnation = self._incarnations.get(server, 1)
        claims: list[control.Control] = [
            *(control.Hello(random.getrandbits(60), channel, False, False, 0, 1, stream, FAR) for stream in streams),
            control.Present(incarnation, 0, 0, 1, [], [], [(channel, stream, FAR) for stream in streams]),
            *(control.Left(channel, stream, FAR, incarnation) for stream in streams),
        ]
        as_victim = [*claims, control.Bye(channel, False, incarnation), control.Subscribed(channel, FAR, incarnation)]
        found = []
        own = self._key
        for claim in random.sample(claims, 2) if own is not None else ():
            assert own is not None
            self._number += 1
            self.said[f"claim in a {type(claim).__name__}"] += 1
            seal = control.KeySeal(control.CLIENT_SCHEME, own.generation, own.to_agent(server))
            found.append((AGENT_CHANNEL, control.encode(claim, own.client, self._number, seal)))
        for claim in random.sample(as_victim, 2):
            self.said[f"forged {type(claim).__name__}"] += 1
            seal = control.KeySeal(control.CLIENT_SCHEME, 1, random.randbytes(32))
            found.append((AGENT_CHANNEL, control.encode(claim, victim, FAR + self._number, seal)))
        self.said["forged Heal"] += 1
        heal = control.Heal(channel, streams[0], 1, FAR)
        asker = random.choice(clients)
        found.append((peer_channel(victim), control.encode(heal, asker, random.getrandbits(60), self._peer_seal())))
        return found

    def _greed(self, server: str) -> list[tuple[bytes, bytes]]:
        """More than a client may ask of an agent, with its own key: patterns, greetings, streams, and messages on
        channels that no other client uses."""
        own, random = self._key, self.random
        if own is None:
            return []
        seal = control.KeySeal(control.CLIENT_SCHEME, own.generation, own.to_agent(server))
        found = []
        for _ in range(GREED):
            self._number += 1
            name = b"greed.%d" % random.randrange(1000)
            stream = stream_id(own.client, random.randrange(1, 1 << 15))
            questions: tuple[control.Control, ...] = (
                control.Hello(random.getrandbits(60), b"*%d*e*" % random.randrange(100), True, True, 0, 1),
                control.Hello(random.getrandbits(60), name, False, False, 0, 1, stream, 5),
                control.Greet(random.getrandbits(60), 1, 0),
            )
            found.append((AGENT_CHANNEL, control.encode(random.choice(questions), own.client, self._number, seal)))
            message = prefix(0, 1, stream) + SUFFIX.pack(1, 1) + b"greed"
            found.append((name, tagged(message, lane_state(own.lane(server, name)))))
        self.said["greed"] += 1
        return found

    def _speech(self, server: str) -> tuple[bytes, bytes]:
        random = self.random
        clients = self.clients()
        client = random.choice(clients) if clients else 0
        inbox, peer = inbox_channel(client), peer_channel(client)
        channel = random.choice(self.channels).encode()
        match random.randrange(8):
            case 0:
                return channel, FOREIGN + b"%d" % self.history.foreign_sent(server, channel, self.network.world.now)
            case 1:
                where = random.choice((inbox, peer, AGENT_CHANNEL, HEARTBEAT_CHANNEL))
                return where, random.randbytes(random.randrange(60))
            case 2:
                return inbox, self._forgery(client, channel)
            case 3:
                return AGENT_CHANNEL, control.encode(control.Resend(channel, b"?"), client)
            case 4:
                return peer, control.encode(control.Resend(channel, random.randbytes(40)), client)
            case 5:
                return AGENT_CHANNEL, self._of_another_version(client)
            case 6:
                return channel, prefix(UNKNOWN_FLAGS, 1, stream_id(client, 1)) + random.randbytes(30)
            case _:
                return channel, beacon(1, 0, 0, 9, 0)

    def _of_another_version(self, client: int) -> bytes:
        """A control message of format 1, or of a version that does not exist yet."""
        greet = control.encode(control.Greet(1, 1), client, self.random.getrandbits(60))
        if self.random.random() < 0.5:
            return b"\xf5C" + greet[control.HEAD_BYTES :]
        return greet[:2] + b"\x09" + greet[3:]

    def _forgery(self, client: int, channel: bytes) -> bytes:
        """A ring or an entry that the cluster did not sign."""
        here = self.random.choice(self.servers)
        ring = self._forger.ring(Ring(999, (ServerAddress(here, here, 1),)))
        entry = self._forger.entry(channel, Placement(999, Mode.SINGLE, (here,)))
        if self.random.random() < 0.5:
            return control.encode(control.Welcome(here, 1, 1, 1, 60_000, 999, ring), client, 1)
        answer = control.Answer(here, channel, 1, 999, entry, b"", True, True, 1, 0, 1, [], [])
        return control.encode(answer, client, 1)
