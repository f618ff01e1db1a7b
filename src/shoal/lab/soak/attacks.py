"""What hostile clients do: one small function for each attack, by name.

Owns the attacks. They speak raw RESP with the password of the user `client`, are enrolled like any client, and know
what any client can overhear: the control messages of others, their ids, nonces and streams. What they send in their own
name has a valid tag; what they send in the name of others has a false one. Each attack yields batches of commands; who
calls it sends them at the attack's rate, or harmless commands of the same sizes instead. `hostile_worker` is the
process.

An attack that publishes on a channel of honest clients marks its payloads (`HOSTILE`), so that the checker does not
take them for messages of the load.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Final, NamedTuple, TypeAlias

from shoal.errors import ProtocolError
from shoal.wire import control, envelope
from shoal.wire.commands import Command
from shoal.wire.envelope import AGENT_CHANNEL, HEARTBEAT_CHANNEL, inbox_channel, peer_channel, stream_id
from shoal.wire.identity import AgentSecret, ClientKey
from shoal.wire.lane_tag import lane_state, tagged

HOSTILE: Final = b"hostile "
"""How payloads of attacks begin."""
FAR: Final = 1 << 60
"""A sequence number that no stream reaches."""
LONG_MS: Final = (1 << 32) - 1
BATCH: Final = 200
"""Commands in one batch of a flood."""
SMALL_BATCH: Final = 20
"""Those in one batch that honest subscribers hear."""
HEARD_MAX: Final = 10_000
"""Overheard messages that are remembered."""
LARGE_BYTES: Final = 34_000_000
PATTERN_BYTES: Final = 80_000

Batches: TypeAlias = Iterator[list[Command]]


class Heard(NamedTuple):
    """A message that was overheard."""

    channel: bytes
    data: bytes


class Scene:
    """An attacker's knowledge: the server's name, its own key, and the messages that it has overheard there so far."""

    def __init__(self, server: str, key: ClientKey, seed: int) -> None:
        self.server = server
        self.key = key
        self.random = Random(seed)
        self.heard: deque[Heard] = deque(maxlen=HEARD_MAX)
        self.channels: dict[bytes, bytes] = {}
        """A message of each channel of the load."""
        self.peers: dict[int, control.KeySeal] = {}
        """What authenticates requests to a publisher, by its id; agents give the key to any client."""
        self._number = 0
        self._guessed = AgentSecret(key.generation, self.random.randbytes(len(key.key)))

    def hear(self, channel: bytes, data: bytes) -> None:
        """Something was published."""
        if channel == inbox_channel(self.key.client):
            self._told(data)
        elif channel.startswith(envelope.RESERVED_PREFIX):
            self.heard.append(Heard(channel, data))
        elif envelope.is_envelope(data) and not data.startswith(HOSTILE, envelope.HEADER_BYTES):
            self.channels[channel] = data

    def _told(self, data: bytes) -> None:
        """An agent's answer to the attacker."""
        head = control.read_head(data)
        if head is not None and control.is_kind(head, control.Introduced):
            introduced = control.decode(data, head).message
            assert isinstance(introduced, control.Introduced)
            for generation, sealed in introduced.keys:
                peer_key = self.key.sealed(sealed, head.number, introduced.peer, generation)
                self.peers[introduced.peer] = control.asking(peer_key, generation)

    def questions(self, kind: type[control.Control]) -> Iterator[control.Received]:
        """The overheard control messages of a kind, each once."""
        while self.heard:
            try:
                received = control.decode(self.heard.popleft().data)
            except ProtocolError:
                continue
            if isinstance(received.message, kind):
                yield received

    def streams(self) -> list[tuple[bytes, int, int]]:
        """Channel, stream and sequence number of an overheard message of each channel."""
        headers = ((channel, envelope.HEADER.unpack_from(data)) for channel, data in self.channels.items())
        return [(channel, header[3], header[4]) for channel, header in headers]

    # What it sends

    def next_number(self) -> int:
        """The next number of a message to the agent, which takes only growing ones."""
        self._number += 1
        return self._number

    def to_agent(self, message: control.ToAgent, number: int | None = None) -> Command:
        """A control message to the server's agent, in the attacker's own name."""
        seal = control.KeySeal(control.CLIENT_SCHEME, self.key.generation, self.key.to_agent(self.server))
        sent = self.next_number() if number is None else number
        return b"PUBLISH", AGENT_CHANNEL, control.encode(message, self.key.client, sent, seal)

    def as_client(self, client: int, message: control.ToAgent) -> Command:
        """A control message to the server's agent, in the name of another client."""
        seal = control.KeySeal(control.CLIENT_SCHEME, self.key.generation, self.key.to_agent(self.server))
        return b"PUBLISH", AGENT_CHANNEL, control.encode(message, client, FAR, seal)

    def as_agent(self, client: int, message: control.FromAgent, number: int) -> Command:
        """A control message to a client, in the agent's name."""
        seal = control.KeySeal(control.CLIENT_SCHEME, self.key.generation, self.key.from_agent(self.server))
        return b"PUBLISH", inbox_channel(client), control.encode(message, client, number, seal)

    def to_all(self, message: control.ToAll, number: int) -> Command:
        """A control message to all clients, in the agent's name."""
        return b"PUBLISH", HEARTBEAT_CHANNEL, control.encode(message, 0, number, control.SignatureSeal(self._guessed))

    def as_peer(self, client: int, asker: int, message: control.ToPeer, number: int) -> Command:
        """An answer to a subscriber, in the name of a publisher."""
        seal = control.replying(self.key.peer(asker), self.key.generation)
        return b"PUBLISH", peer_channel(asker), control.encode(message, client, number, seal)

    def message(self, channel: bytes, client: int | None = None) -> Command:
        """A first message of a new stream, of the attacker, or of a client that does not exist."""
        number = self.key.client if client is None else client
        blob = envelope.prefix(0, 0, stream_id(number, 1)) + envelope.SUFFIX.pack(1, 0) + HOSTILE
        return b"PUBLISH", channel, tagged(blob, lane_state(self.key.lane(self.server, channel)))


# Speaking as an agent


def forge_welcomes(scene: Scene) -> Batches:
    """Answers every Greet with a lease of seven weeks."""
    while True:
        yield [
            scene.as_agent(client, control.Welcome(scene.server, 1, 1, 1, LONG_MS, 1, b""), message.nonce)
            for client, _, message in scene.questions(control.Greet)
            if isinstance(message, control.Greet)
        ]


def forge_answers(scene: Scene) -> Batches:
    """Answers every Hello with baselines that no stream reaches."""
    while True:
        yield [
            scene.as_agent(client, _answer(scene, message), message.nonce)
            for client, _, message in scene.questions(control.Hello)
            if isinstance(message, control.Hello)
        ]


def _answer(scene: Scene, hello: control.Hello) -> control.Answer:
    streams: control.HeardList = [(channel, stream, FAR, 0) for channel, stream, _ in scene.streams()]
    return control.Answer(scene.server, hello.name, 1, 0, b"", b"", True, True, 0, 0, 1, streams, [])


def forge_heartbeats(scene: Scene) -> Batches:
    """Extends the lease in the agent's name, and asks all clients for their Present."""
    number = 0
    while True:
        number += 1
        heartbeat = control.Heartbeat(scene.server, 1, number - 1, 1, LONG_MS, True, 1)
        resync = control.Resync(scene.server, 1, 1)
        yield [scene.to_all(message, number) for message in (heartbeat, resync)]


# Speaking as another client


def claim_streams(scene: Scene) -> Batches:
    """Claims, in its own Hellos and Presents, that the streams of others have come far."""
    while True:
        claims = [(channel, stream, FAR) for channel, stream, _ in scene.streams()]
        hellos = [control.Hello(1, channel, False, False, 0, 0, stream, FAR) for channel, stream, _ in claims]
        presents = control.presents(1, 1, [], [], claims)
        yield [*map(scene.to_agent, hellos), *map(scene.to_agent, presents)]


def claim_by_beacons(scene: Scene) -> Batches:
    """The same on the channels themselves, where subscribers hear it."""
    while True:
        yield [
            (b"PUBLISH", channel, envelope.beacon(0, stream, FAR, FAR, 0, scene.random.random() < 0.5))
            for channel, stream, _ in scene.streams()
        ]


def forge_presents(scene: Scene) -> Batches:
    """Answers resyncs for others, and leaves in their name."""
    while True:
        batch: list[Command] = []
        for channel, stream, _ in scene.streams():
            client = envelope.client_of(stream)
            batch.append(scene.as_client(client, control.Present(1, 1, 0, 1, [], [], [])))
            batch.append(scene.as_client(client, control.Left(channel, stream, FAR)))
        for client, _, message in scene.questions(control.Hello):
            if isinstance(message, control.Hello) and not message.publisher:
                batch.append(scene.as_client(client, control.Bye(message.name, message.pattern)))
        yield batch


def forge_resends(scene: Scene) -> Batches:
    """Answers every Heal with a false message, and says that the publisher has nothing else."""
    while True:
        batch: list[Command] = []
        for asker, nonce, message in scene.questions(control.Heal):
            if isinstance(message, control.Heal):
                publisher = envelope.client_of(message.stream)
                blob = envelope.prefix(0, 0, message.stream) + envelope.SUFFIX.pack(message.first, 0) + HOSTILE
                healed = control.Healed(message.channel, message.stream, FAR, FAR, FAR, message.first)
                for answer in (control.Resend(message.channel, blob), healed):
                    batch.append(scene.as_peer(publisher, asker, answer, nonce))
        yield batch


# Large and many


def send_giant_names(scene: Scene) -> Batches:
    """Names, patterns and lists far above their limits."""
    pattern = (b"*a[b-z]?" * PATTERN_BYTES)[:PATTERN_BYTES]
    slow = b"*" + b"a" * 480 + b"*b"
    name = b"x" * LARGE_BYTES
    while True:
        yield [
            scene.to_agent(control.Hello(1, pattern, True, True, 0, 0)),
            scene.to_agent(control.Hello(2, b"*a" * 200, True, True, 0, 0)),
            scene.to_agent(control.Hello(3, slow, True, True, 0, 0)),
            scene.to_agent(control.Present(1, 1, 0, 1, [b"y"] * 5000, [], [])),
            scene.to_agent(control.Bye(name[:1_000_000], False)),
            *((b"PUBLISH", b"hostile." + b"a" * 490 + b"%d" % number, HOSTILE) for number in range(BATCH)),
        ]
        yield [(b"PUBLISH", name, HOSTILE)]


def flood_hellos(scene: Scene) -> Batches:
    """Hellos for ever new channels and patterns."""
    number = 0
    while True:
        batch = []
        for _ in range(BATCH):
            number += 1
            pattern = number % 10 == 0
            name = b"hostile.%d%b" % (number, b"*" if pattern else b"")
            batch.append(scene.to_agent(control.Hello(number, name, pattern, True, 0, 0)))
        yield batch


def flood_greets(scene: Scene) -> Batches:
    """Greets, each of which wants a ring."""
    while True:
        yield [scene.to_agent(control.Greet(index, 0)) for index in range(1, BATCH + 1)]


def flood_as_others(scene: Scene) -> Batches:
    """Hellos in the names of others, to use up their quotas."""
    while True:
        clients = [envelope.client_of(stream) for _, stream, _ in scene.streams()]
        clients = clients or [scene.random.getrandbits(47) + 1]
        yield [
            scene.as_client(clients[index % len(clients)], control.Hello(1, b"hostile", False, True, 0, 0))
            for index in range(BATCH)
        ]


def flood_heals(scene: Scene) -> Batches:
    """Asks publishers for all that they have, again and again, with the keys that agents gave it."""
    while True:
        streams = scene.streams()
        batch: list[Command] = []
        for channel, stream, _ in streams:
            publisher = envelope.client_of(stream)
            if publisher not in scene.peers:
                nonce = scene.next_number()
                batch.append(scene.to_agent(control.Introduce(nonce, publisher)))
            heal = control.Heal(channel, stream, 1, FAR)
            for number in range(max(1, BATCH // len(streams))):
                data = control.encode(heal, scene.key.client, number, scene.peers.get(publisher))
                batch.append((b"PUBLISH", peer_channel(publisher), data))
        yield batch


def flood_streams(scene: Scene) -> Batches:
    """Made-up streams, on channels of the attacker."""
    while True:
        yield [scene.message(b"hostile.%d" % (index % 10), scene.random.getrandbits(47) + 1) for index in range(BATCH)]


def flood_one_channel(scene: Scene) -> Batches:
    """Made-up streams on one channel of the load. Its subscribers hear all of them, so the rate is that of a busy
    publisher: what volume alone does to subscribers is not the question."""
    while True:
        channels = sorted(scene.channels)
        channel = channels[0] if channels else b"hostile"
        yield [scene.message(channel, scene.random.getrandbits(47) + 1) for _ in range(SMALL_BATCH)]


def flood_channels(scene: Scene) -> Batches:
    """Ever new channels with long names."""
    number = 0
    while True:
        number += BATCH
        yield [scene.message(b"hostile.%d." % (number + index) + b"x" * 100) for index in range(BATCH)]


def send_large_messages(scene: Scene) -> Batches:
    """Messages four times as large as permitted."""
    large = HOSTILE + b"x" * LARGE_BYTES
    while True:
        yield [(b"PUBLISH", b"hostile.large", large)]


def read_slowly(scene: Scene) -> Batches:
    """Subscribes to everything and reads nothing, while large messages are published. The worker does not read replies
    on connections that have subscribed."""
    yield [(b"PSUBSCRIBE", b"*")]
    payload = HOSTILE + b"x" * 100_000
    while True:
        yield [(b"PUBLISH", b"hostile.slow", payload)]


class Attack(NamedTuple):
    """An attack: its batches, the commands and bytes that it sends a second at most, and whether it answers what honest
    clients ask."""

    batches: Callable[[Scene], Batches]
    commands_per_s: float
    bytes_per_s: float = 50e6
    answers: bool = False


ATTACKS: Final[dict[str, Attack]] = {
    "welcomes": Attack(forge_welcomes, 1000, answers=True),
    "answers": Attack(forge_answers, 1000, answers=True),
    "heartbeats": Attack(forge_heartbeats, 100),
    "resends": Attack(forge_resends, 1000, answers=True),
    "beacons": Attack(claim_by_beacons, 1000),
    "presents": Attack(forge_presents, 1000),
    "claims": Attack(claim_streams, 1000),
    "giant-names": Attack(send_giant_names, 2000),
    "hellos": Attack(flood_hellos, 50_000),
    "greets": Attack(flood_greets, 50_000),
    "as-others": Attack(flood_as_others, 50_000),
    "heals": Attack(flood_heals, 2000),
    "streams": Attack(flood_streams, 50_000),
    "one-channel": Attack(flood_one_channel, 500),
    "channels": Attack(flood_channels, 50_000),
    "large": Attack(send_large_messages, 2, bytes_per_s=100e6),
    "slow-readers": Attack(read_slowly, 200),
}
"""All attacks by name."""
