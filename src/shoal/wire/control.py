"""The control messages between clients and agents, and between clients: their layout and their codec.

Owns the messages of the internal channels. `shoal.channels` decides when to send them.

    client -> agent   (AGENT_CHANNEL)       Enrol, Renew, Greet, Hello, Bye, Present, Subscribed, Left, Introduce,
                                            RequestQueue
    agent  -> client  (its inbox)           Enrolled, Welcome, Answer, Notice, Introduced, QueueRequested, Refused
    agent  -> all     (HEARTBEAT_CHANNEL)   Heartbeat, Resync
    client -> client  (its peer channel)    Heal, Resend, Healed

A message is a head of 24 bytes, little-endian, a tag, and a body, a MessagePack array of the fields below:

    mark        2 bytes   F5 44
    version     u8        2
    kind        u8        see `_KINDS`
    scheme      u8        0: not authenticated. Otherwise a tag follows the head: 1 client key (16 bytes), 2 signature
                          of an agent (64), 3 peer key (16), 4 enrolment (16); see docs/identity.md
    generation  u8        of the agents' secret; 0 with scheme 0
    reserved    2 bytes   zero, not checked
    client      u64       the sender (to agents, between clients), the receiver (from agents), 0 (to all)
    number      u64       to agents: grows with every message of the client. Welcome, Answer, Introduced, Enrolled,
                          QueueRequested, Resend, Healed: the nonce of the request. Refused: the number of the refused
                          message. Notice: 0. Heartbeat, Resync: their own count

The head and the body of Refused keep their layout in later versions, so that any version can refuse any other. Readers
ignore additional fields at the end of a body, so that fields can be added without a new version.

Any client that may publish on the server can send any of these messages. A receiver that knows the key checks size and
tag before it decodes (`is_tagged`, `is_signed`); `decode` alone proves nothing about the sender. Decoding is strict:
bytes that do not decode, names above `NAME_BYTES_MAX`, lists above `PAGE_ITEMS_MAX` and messages to agents above
`TO_AGENT_BYTES_MAX` raise `ProtocolError`, and the receiver counts and drops them. Rings and placements travel inside
as signed bytes (see `shoal.plan.signature`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hmac import compare_digest
from itertools import zip_longest
from typing import Annotated, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from shoal.errors import ProtocolError
from shoal.limits import KIB, NAME_BYTES_MAX
from shoal.wire import identity
from shoal.wire.envelope import CLIENT_ID_BITS

VERSION: Final = 2
"""The only version of control messages that this code reads and writes."""

U64 = Annotated[int, Meta(ge=0)]
U32 = Annotated[int, Meta(ge=0, lt=1 << 32)]
U16 = Annotated[int, Meta(ge=0, lt=1 << 16)]
U8 = Annotated[int, Meta(ge=0, lt=1 << 8)]

PAGE_ITEMS_MAX: Final = 1024
PAGE_BYTES_MAX: Final = 16 * KIB
"""Size of the lists in one part of a Present or an Answer. With three lists a Present stays below 64 KiB."""
TO_AGENT_BYTES_MAX: Final = 64 * KIB
"""Largest control message to an agent. Larger ones are dropped before they are decoded."""
FROM_AGENT_BYTES_MAX: Final = 1024 * KIB
"""Largest message from an agent. Larger ones are dropped before they are decoded."""

QUEUE_SETTINGS_BYTES_MAX: Final = KIB

Name = Annotated[bytes, Meta(max_length=NAME_BYTES_MAX)]
"""The name of a channel or a pattern."""
NameList = Annotated[list[Name], Meta(max_length=PAGE_ITEMS_MAX)]
Text = Annotated[str, Meta(max_length=1024)]
"""The id of a server, a code, or a text for people."""
StreamList: TypeAlias = list[tuple[Name, U64, U64]]
"""Streams by channel and id, with their last sequence numbers."""
HeardList: TypeAlias = list[tuple[Name, U64, U64, U32]]
"""The same, with the whole seconds for which each stream has been quiet at least."""
Heard: TypeAlias = tuple[bytes, int, int, float]
"""A stream of an Answer: channel, id, last sequence number, and the seconds for which it has been quiet at least."""
QUIET_STEPS_PER_S: Final = 256
QUIET_STEPS_MAX: Final = (1 << 32) * QUIET_STEPS_PER_S - 1
StreamPage = Annotated[StreamList, Meta(max_length=PAGE_ITEMS_MAX)]

T = TypeVar("T")
Stream = TypeVar("Stream", tuple[bytes, int, int], Heard)


class _Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all bodies."""


class Greet(_Body, frozen=True):
    """A client has connected to this server and asks whether it may use it."""

    nonce: U64
    ring_version: U32
    incarnation: U64 = 0
    """The agent's incarnation that the client last heard of on this connection; 0 if none."""
    version_min: U8 = VERSION
    version_max: U8 = VERSION
    """The versions of control messages that the client speaks."""
    agent: bool = False
    """Whether the sender is another agent, which only listens to heartbeats: it sends no Present."""


class Hello(_Body, frozen=True):
    """A client subscribes to, or wants to publish on, a channel (or a pattern) of this server.

    A publisher names its stream and how far servers have confirmed it, before it sends anything here. `fresh` says that
    the subscription has not been in force anywhere yet. `incarnation` is the agent's incarnation that the subscription
    last heard of here.
    """

    nonce: U64
    name: Name
    pattern: bool
    fresh: bool
    version: U32
    ring_version: U32
    stream: U64 = 0
    last: U64 = 0
    incarnation: U64 = 0

    @property
    def publisher(self) -> bool:
        """Whether the client wants to publish, and not to subscribe."""
        return self.stream != 0


class Bye(_Body, frozen=True):
    """A client has left a channel or pattern of this server. A Bye that was delayed in an old connection has a lower
    number than the Hello that came by a new one, and has no effect."""

    name: Name
    pattern: bool
    incarnation: U64 = 0


class Present(_Body, frozen=True):
    """A client's answer to a Resync: its subscriptions here, and how far its streams are confirmed.

    Long lists come in several parts, in order; `part` counts from 0.
    """

    incarnation: U64
    resync: U64
    part: U16
    parts: U16
    channels: NameList
    patterns: NameList
    streams: StreamPage


class Welcome(_Body, frozen=True):
    """An agent's answer to a Greet: the server may be used for `lease_ms` from when the Greet was sent.

    `heartbeat` is the number of the last heartbeat that the agent has sent. `renewed` is empty with scheme 0.
    """

    server: Text
    instance: U64
    incarnation: U64
    heartbeat: U64
    lease_ms: U32
    ring_version: U32
    ring: bytes
    renewed_generation: U8 = 0
    renewed: bytes = b""


class Answer(_Body, frozen=True):
    """An agent's answer to a Hello: the signed placement, if there is one, and the baseline.

    `incarnation` identifies the period in which the agent has heard everything on the server without a break. `streams`
    lists the streams heard in it, `absent` those of earlier incarnations that have not been heard in this one. A stream
    in both was heard, but its publisher has not told how far it had come: the agent does not vouch for it.
    `remembers` is false if the agent cannot know all of those, because it was not there in the incarnation that the
    client named. `complete` is false if the agent's tables had no room for some stream. `entry` is empty if the ring
    decides, `ring` if the client's is as new. `since` is the version of the ring when the agent's process started:
    publishers that used a later ring were answered by this process.

    Long lists come in several parts, in order; `part` counts from 0. Entry and ring are in the first one.
    """

    server: Text
    name: Name
    incarnation: U64
    version: U32
    entry: bytes
    ring: bytes
    remembers: bool
    complete: bool
    since: U32
    part: U16
    parts: U16
    streams: HeardList
    absent: HeardList
    streams_finer: bytes = b""
    absent_finer: bytes = b""
    """One byte for each stream of the list: 1/256 s to be added to its whole seconds."""

    def heard(self) -> list[Heard]:
        """The streams heard in this incarnation."""
        return _heard(self.streams, self.streams_finer)

    def heard_before(self) -> list[Heard]:
        """The absent streams."""
        return _heard(self.absent, self.absent_finer)


def _heard(listed: HeardList, finer: bytes) -> list[Heard]:
    steps = finer.ljust(len(listed), b"\0")
    return [
        (channel, stream, last, quiet_s + step / QUIET_STEPS_PER_S)
        for (channel, stream, last, quiet_s), step in zip(listed, steps, strict=False)
    ]


class Heartbeat(_Body, frozen=True):
    """An agent tells all clients that it holds the lease of its server for another `lease_ms`.

    `heard` is the number of the last of its own heartbeats that the agent had received back from the server when it
    sent this one, so this one is younger than that one's publication. `granted` is false if the coordinator's grant has
    run out and the agent continues because the coordinator seems to be down. `lapsed_ms` is how long ago the grant ran
    out, and None if it has not or if there was none. `refuted` are false messages by channel, each with stream, number
    and mark; `overflow` are channels with more of them. Both are empty with scheme 0.
    """

    server: Text
    instance: U64
    heard: U64
    incarnation: U64
    lease_ms: U32
    granted: bool
    ring_version: U32
    lapsed_ms: U32 | None = None
    refuted: list[tuple[Name, list[tuple[U64, U64, U64]]]] = []
    overflow: list[Name] = []


class Resync(_Body, frozen=True):
    """An agent asks all clients of its server for their subscriptions and streams: its incarnation has just begun."""

    server: Text
    instance: U64
    incarnation: U64


class Heal(_Body, frozen=True):
    """A subscriber requests a page of missing messages of a stream from its publisher. `until` is the last one that it
    misses."""

    channel: Name
    stream: U64
    first: U64
    last: U64
    until: U64 = 0


class Resend(_Body, frozen=True):
    """A message resent to one subscriber that missed it; `blob` is the message with its envelope."""

    channel: Name
    blob: bytes


class Healed(_Body, frozen=True):
    """The end of a page of resends: messages below `floor` are no longer available.

    Servers have confirmed the stream up to `last`, and it has numbers up to `assigned`. `first` repeats the request.
    All messages below `floor` and up to `until` had been published `age_ms` before this answer.
    """

    channel: Name
    stream: U64
    floor: U64
    last: U64
    assigned: U64
    first: U64
    age_ms: U64 = 0
    until: U64 = 0


class Notice(_Body, frozen=True):
    """An agent tells a client that a channel has a newer entry than the client seems to know."""

    server: Text
    name: Name
    entry: bytes


class Subscribed(_Body, frozen=True):
    """A subscriber is in force on every server where the channel's entry of this revision wants it."""

    name: Name
    revision: U64
    incarnation: U64 = 0


class Left(_Body, frozen=True):
    """A publisher has left this server with one of its streams, by the channel's entry of this revision."""

    name: Name
    stream: U64
    revision: U64
    incarnation: U64 = 0


class Enrol(_Body, frozen=True):
    """A client without an id asks for one, and for its key. It listens on the inbox that follows from its public key
    (`identity.enrolment_inbox`), whose number is the client of the head."""

    exchange_key: bytes


class Renew(_Body, frozen=True):
    """An Enrol of a client that keeps its id: it has a key of an older generation of the agents' secret, and proves
    that with `ClientKey.renewal`."""

    exchange_key: bytes
    id: U64
    generation: U8
    proof: bytes


class Enrolled(_Body, frozen=True):
    """An agent's answer to an Enrol or a Renew: the id, and the client's key, sealed with the key of the exchange."""

    id: U64
    sealed: bytes


class Introduce(_Body, frozen=True):
    """A client asks for the key that it shares with a publisher, in order to ask that for missing messages."""

    nonce: U64
    peer: U64


class Introduced(_Body, frozen=True):
    """An agent's answer to an Introduce: the peer key by generation, sealed with the client's key."""

    peer: U64
    keys: list[tuple[U8, bytes]]


class RequestQueue(_Body, frozen=True):
    """A client asks for a queue that does not exist. `settings` is a MessagePack map of the settings that differ from
    the defaults; empty if none does."""

    nonce: U64
    name: Name
    settings: Annotated[bytes, Meta(max_length=QUEUE_SETTINGS_BYTES_MAX)] = b""


class QueueRequested(_Body, frozen=True):
    """An agent's answer to a RequestQueue. `code` is one of `QUEUE_*`; `text` is the reason, for people."""

    name: Name
    code: Text
    text: Text = ""


QUEUE_ACCEPTED: Final = "accepted"
"""The queue exists, or a leader has been asked to create it."""
QUEUE_BUSY: Final = "busy"
"""The agent cannot pass the request on now: ask again later, or another agent."""
QUEUE_INVALID: Final = "invalid"
"""The queue cannot have this name or these settings."""
QUEUE_TOO_MANY: Final = "too many"
"""The cluster has as many queues as it may."""


class Refused(_Body, frozen=True):
    """An agent rejects a message. `code` is one of `REFUSED_*`, or one that docs/identity.md names."""

    code: Text
    version_min: U8
    version_max: U8
    retry_ms: U32
    text: Text


REFUSED_VERSION: Final = "version"
"""The agent does not support the version of the message."""
REFUSED_SCHEME: Final = "scheme"
"""The cluster authenticates messages, and this one is not authenticated."""
REFUSED_IDENTITY: Final = "identity"
"""The client's key is of a generation that the agents do not have any more."""
REFUSED_BUSY: Final = "busy"
"""The client, or all clients together, ask for more than the agent does; `retry_ms` is the time to wait."""

ToAgent: TypeAlias = Enrol | Renew | Greet | Hello | Bye | Present | Subscribed | Left | Introduce | RequestQueue
FromAgent: TypeAlias = Enrolled | Welcome | Answer | Notice | Introduced | QueueRequested | Refused
ToAll: TypeAlias = Heartbeat | Resync
ToPeer: TypeAlias = Heal | Resend | Healed
Control: TypeAlias = ToAgent | FromAgent | ToAll | ToPeer

_KINDS: Final[dict[int, type[Control]]] = {
    1: Greet,
    2: Hello,
    3: Bye,
    4: Present,
    5: Welcome,
    6: Answer,
    7: Heartbeat,
    8: Resync,
    9: Heal,
    10: Resend,
    11: Healed,
    12: Notice,
    13: Subscribed,
    14: Left,
    15: Enrol,
    16: Introduce,
    17: Enrolled,
    18: Introduced,
    19: Refused,
    20: Renew,
    21: RequestQueue,
    22: QueueRequested,
}
_TO_AGENT: Final = frozenset(ToAgent.__args__)
_kind_of: Final = {body: kind for kind, body in _KINDS.items()}
_decoders: Final = {kind: msgspec.msgpack.Decoder(body) for kind, body in _KINDS.items()}
_encoder: Final = msgspec.msgpack.Encoder()

_HEAD: Final = struct.Struct("<2sBBBBxxQQ")
HEAD_BYTES: Final = _HEAD.size
CLIENT_AT: Final = HEAD_BYTES - 16
NUMBER_AT: Final = HEAD_BYTES - 8
"""Where client and number are in the head."""
_FIELDS: Final = struct.Struct("<2xBBBBxxQQ")
_MARK: Final = b"\xf5D"
_MARK_1: Final = b"\xf5C"

NO_SCHEME: Final = 0
CLIENT_SCHEME: Final = 1
SIGNED_SCHEME: Final = 2
PEER_SCHEME: Final = 3
ENROL_SCHEME: Final = 4
_TAG_BYTES: Final = {
    NO_SCHEME: 0,
    CLIENT_SCHEME: identity.CONTROL_TAG_BYTES,
    SIGNED_SCHEME: identity.SIGNATURE_BYTES,
    PEER_SCHEME: identity.CONTROL_TAG_BYTES,
    ENROL_SCHEME: identity.CONTROL_TAG_BYTES,
}

SIGNATURES_MAX: Final = 256
"""Messages whose signature is remembered. The clients of a process get a heartbeat at about the same time."""
_signed: Final[dict[tuple[bytes, bytes], bool]] = {}

_ITEM_BYTES: Final = 24
"""Most bytes of an item in addition to its name."""


class Head(NamedTuple):
    """The fields of a head that any version can read."""

    version: int
    kind: int
    scheme: int
    generation: int
    client: int
    number: int


class Seal(Protocol):
    """What authenticates the messages of a sender."""

    @property
    def scheme(self) -> int:
        """The scheme of the head."""

    @property
    def generation(self) -> int:
        """The generation of the agents' secret."""

    def tag(self, head: bytes, body: bytes) -> bytes:
        """The tag or signature of a message."""


class KeySeal(NamedTuple):
    """A key that sender and receiver share."""

    scheme: int
    generation: int
    key: bytes

    def tag(self, head: bytes, body: bytes) -> bytes:
        """The tag of a message."""
        return identity.control_tag(self.key, head, body)


def asking(peer_key: bytes, generation: int) -> KeySeal:
    """Authenticates requests to a publisher."""
    return KeySeal(PEER_SCHEME, generation, identity.ask_key(peer_key))


def replying(peer_key: bytes, generation: int) -> KeySeal:
    """Authenticates a publisher's answers."""
    return KeySeal(PEER_SCHEME, generation, identity.reply_key(peer_key))


class SignatureSeal(NamedTuple):
    """The signature of the agents, which every client can verify."""

    secret: identity.AgentSecret

    @property
    def scheme(self) -> int:
        """See `Seal`."""
        return SIGNED_SCHEME

    @property
    def generation(self) -> int:
        """See `Seal`."""
        return self.secret.generation

    def tag(self, head: bytes, body: bytes) -> bytes:
        """The signature of a message."""
        return self.secret.sign(head, body)


class Received(NamedTuple):
    """A message of this version: the head's fields that matter, and the body."""

    client: int
    number: int
    message: Control


def encode(message: Control, client: int = 0, number: int = 0, seal: Seal | None = None) -> bytes:
    """The bytes of a control message, authenticated with `seal`."""
    kind, body = _kind_of[type(message)], _encoder.encode(message)
    if seal is None:
        return _HEAD.pack(_MARK, VERSION, kind, NO_SCHEME, 0, client, number) + body
    head = _HEAD.pack(_MARK, VERSION, kind, seal.scheme, seal.generation, client, number)
    data = head + seal.tag(head, body) + body
    if isinstance(seal, SignatureSeal):
        _note_signed((data, seal.secret.signing), True)
    return data


def kind_of(head: Head) -> type[Control] | None:
    """The kind of message that a head begins; None if it is unknown."""
    return _KINDS.get(head.kind)


def is_kind(head: Head, *bodies: type[Control]) -> bool:
    """Whether a head is that of a message with one of these bodies."""
    return _KINDS.get(head.kind) in bodies


def is_tagged(data: bytes, key: bytes) -> bool:
    """Whether the sender of a message of scheme 1, 3 or 4 has the key."""
    at = HEAD_BYTES + identity.CONTROL_TAG_BYTES
    tag = identity.control_tag(key, data[:HEAD_BYTES], data[at:])
    return compare_digest(tag, data[HEAD_BYTES:at])


def is_signed(data: bytes, public: bytes) -> bool:
    """Whether agents have signed a message of scheme 2; `public` is their signing key. The clients of one process share
    the answer, and a process that has signed a message itself knows it."""
    known = known_signature(data, public)
    if known is None:
        at = HEAD_BYTES + identity.SIGNATURE_BYTES
        known = identity.is_signed(public, data[:HEAD_BYTES], data[at:], data[HEAD_BYTES:at])
        _note_signed((data, public), known)
    return known


def known_signature(data: bytes, public: bytes) -> bool | None:
    """What is remembered about the signature of a message; None if it was not verified lately."""
    return _signed.get((data, public))


def _note_signed(key: tuple[bytes, bytes], known: bool) -> None:
    _signed[key] = known
    if len(_signed) > SIGNATURES_MAX:
        del _signed[next(iter(_signed))]


def read_head(data: bytes) -> Head | None:
    """The head of a control message of version 2 or later; None if `data` is not one."""
    if data[:2] != _MARK or len(data) < HEAD_BYTES:
        return None
    head = Head._make(_FIELDS.unpack_from(data))
    return head if head.client < 1 << CLIENT_ID_BITS else None


def is_format_1(data: bytes) -> bool:
    """Whether `data` begins like a control message of format 1."""
    return data[:2] == _MARK_1


def decode(data: bytes, head: Head | None = None) -> Received:
    """The control message in `data`. Does not check who sent it. Raises ProtocolError if it is not a control message,
    or if it has another version and is not a Refused. `head` is that of `data`, if it is known."""
    head = head or read_head(data)
    if head is None:
        raise ProtocolError("a peer sent something that is not a control message on an internal channel")
    if head.version != VERSION and head.kind != _kind_of[Refused]:
        raise ProtocolError(f"a peer sent a control message of version {head.version}; this process speaks {VERSION}")
    if len(data) > TO_AGENT_BYTES_MAX and _KINDS.get(head.kind) in _TO_AGENT:
        raise ProtocolError(f"a peer sent a control message of {len(data)} bytes to an agent")
    decoder = _decoders.get(head.kind)
    tag_bytes = _TAG_BYTES.get(head.scheme)
    if decoder is None or tag_bytes is None:
        raise ProtocolError(f"a peer sent a control message of kind {head.kind} and scheme {head.scheme}")
    try:
        message: Control = decoder.decode(memoryview(data)[HEAD_BYTES + tag_bytes :])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a peer sent a malformed control message: {error}") from error
    return Received(head.client, head.number, message)


def _name_pages(names: Sequence[bytes]) -> list[list[bytes]]:
    return _pages(names, names)


def _stream_pages(streams: Sequence[Stream]) -> list[list[Stream]]:
    return _pages(streams, [stream[0] for stream in streams])


def _pages(items: Sequence[T], names: Sequence[bytes]) -> list[list[T]]:
    """Items in lists that fit one part of a message; each item has a name."""
    pages: list[list[T]] = []
    room = 0
    for item, name in zip(items, names, strict=True):
        size = len(name) + _ITEM_BYTES
        if not pages or size > room or len(pages[-1]) >= PAGE_ITEMS_MAX:
            pages.append([])
            room = PAGE_BYTES_MAX
        pages[-1].append(item)
        room -= size
    return pages


def presents(
    incarnation: int, resync: int, channels: Sequence[bytes], patterns: Sequence[bytes], streams: StreamList
) -> list[Present]:
    """The answer to a Resync in as many parts as it needs."""
    pages = list(zip_longest(_name_pages(channels), _name_pages(patterns), _stream_pages(streams))) or [(None,) * 3]
    return [
        Present(incarnation, resync, part, len(pages), names or [], globs or [], ends or [])
        for part, (names, globs, ends) in enumerate(pages)
    ]


def in_parts(answer: Answer, streams: Sequence[Heard], absent: Sequence[Heard]) -> list[Answer]:
    """An Answer with these streams, in as many parts as it needs."""
    pages = list(zip_longest(_stream_pages(streams), _stream_pages(absent))) or [(None, None)]
    rest = msgspec.structs.replace(answer, parts=len(pages))
    parts = []
    for part, (here, away) in enumerate(pages):
        (listed, finer), (listed_away, finer_away) = _listed(here or ()), _listed(away or ())
        parts.append(
            msgspec.structs.replace(
                rest,
                part=part,
                streams=listed,
                absent=listed_away,
                streams_finer=finer,
                absent_finer=finer_away,
            )
        )
        rest = msgspec.structs.replace(rest, entry=b"", ring=b"")
    return parts


def _listed(heard: Sequence[Heard]) -> tuple[HeardList, bytes]:
    """Streams as an Answer lists them, and the rest of their quiet times."""
    steps = [min(int(quiet_s * QUIET_STEPS_PER_S), QUIET_STEPS_MAX) for _, _, _, quiet_s in heard]
    listed = [
        (channel, stream, last, step // QUIET_STEPS_PER_S)
        for (channel, stream, last, _), step in zip(heard, steps, strict=True)
    ]
    return listed, bytes(step % QUIET_STEPS_PER_S for step in steps)
