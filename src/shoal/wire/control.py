"""The control messages between clients and agents, and between clients: their shapes and their codec.

Owns the vocabulary of the internal channels. Who sends what when is the business of `shoal.channels`.

    client -> agent   (AGENT_CHANNEL)  Greet, Hello, Bye, Present, Stand, Gone
    agent  -> client  (its inbox)      Welcome, Answer, Notice
    agent  -> all     (HEARTBEAT_CHANNEL)   Word, RollCall
    client -> client  (its inbox)      Heal, Resend, Healed

Everything here may come from anyone who may publish on the server, so decoding is strict and what does
not decode is a `ProtocolError` for the receiver to count and drop. What a client must be able to trust,
rings and placements, travels inside as signed bytes (see `shoal.plan.signing`).
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from shoal.errors import ProtocolError

ClientId = Annotated[int, Meta(ge=0, lt=1 << 48)]
U64 = Annotated[int, Meta(ge=0)]
U32 = Annotated[int, Meta(ge=0, lt=1 << 32)]
StreamList: TypeAlias = list[tuple[bytes, U64, U64]]
"""Channel, stream, last sequence number."""


class _Control(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="t", forbid_unknown_fields=True):
    """Base of all control messages."""


class Greet(_Control, frozen=True, tag=1):
    """A client has come to this server and asks whether it may use it."""

    client: ClientId
    nonce: U64
    ring_version: U32


class Hello(_Control, frozen=True, tag=2):
    """A client subscribes to, or wants to publish on, a channel (or a pattern) of this server.

    A publisher names its stream and how far servers have confirmed it, before it sends anything here. `fresh`
    says that a subscription has not been in force anywhere yet; `life` is the agent's life that it last heard of here.
    """

    client: ClientId
    nonce: U64
    name: bytes
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


class Bye(_Control, frozen=True, tag=3):
    """A client has left a channel or pattern of this server. The nonce is from the same row as those of its hellos: a
    Bye that was stuck in an old connection is older than the hello that came by a new one, and means nothing any more.
    """

    client: ClientId
    name: bytes
    pattern: bool
    nonce: U64 = 0


class Present(_Control, frozen=True, tag=4):
    """A client's answer to a resync: what it subscribes to here, and where its streams stand."""

    client: ClientId
    resync: U64
    channels: list[bytes]
    patterns: list[bytes]
    streams: StreamList


class Welcome(_Control, frozen=True, tag=5):
    """An agent's answer to a greeting: the server may be used for `lease_ms` from when the greeting was sent."""

    nonce: U64
    server: str
    incarnation: U64
    lease_ms: U32
    ring_version: U32
    ring: bytes


class Answer(_Control, frozen=True, tag=6):
    """An agent's answer to a hello: the signed placement, if there is one, and the baseline.

    `life` names the time in which the agent has heard everything on the server without a break. `absent` lists
    streams of lives before whose publishers have not been heard in this one; `remembers` is false when the agent
    cannot know them all, because it was not there in the life that the client last heard of. `entry` is empty when
    the ring decides, `ring` when the client's is as new: who asked in the wrong place learns of it before it relies
    on the answer. `since` is the version of the ring that there was when the agent's process began: whoever came
    here to publish by a later one was answered by it.
    """

    nonce: U64
    name: bytes
    incarnation: U64
    version: U32
    entry: bytes
    ring: bytes
    remembers: bool
    streams: StreamList
    absent: StreamList
    since: U32 = 0


class Heartbeat(_Control, frozen=True, tag=7):
    """An agent's word that it holds the lease of its server for another `lease_ms`.

    `heard` is the number of the last of its own words that the agent had heard back from the server when it
    spoke this one: so this one is younger than that one's publication. `granted` is false when the coordinator's
    grant has run out and the agent goes on because the coordinator seems to be down; `lapsed_ms` is how long ago that
    was, and None if the grant runs or the agent never had one.
    """

    server: str
    agent: U64
    number: U64
    heard: U64
    incarnation: U64
    lease_ms: U32
    granted: bool
    ring_version: U32
    lapsed_ms: U32 | None = None


class Resync(_Control, frozen=True, tag=8):
    """An agent asks everyone on its server what they do there, because it has lost its memory of it."""

    agent: U64
    resync: U64


class Heal(_Control, frozen=True, tag=9):
    """A subscriber misses messages of a stream and asks its publisher for them."""

    client: ClientId
    channel: bytes
    stream: U64
    first: U64
    last: U64


class Resend(_Control, frozen=True, tag=10):
    """A message once more, for one subscriber that missed it; `blob` is the message with its envelope."""

    channel: bytes
    blob: bytes


class Healed(_Control, frozen=True, tag=11):
    """The end of a page of resends: nothing below `floor` can be had any more.

    `last` is where the stream stands, `first` repeats the question."""

    channel: bytes
    stream: U64
    floor: U64
    last: U64
    first: U64


class Notice(_Control, frozen=True, tag=12):
    """An agent tells a client that a channel has a newer entry than the client seems to know."""

    name: bytes
    entry: bytes


class Subscribed(_Control, frozen=True, tag=13):
    """A subscriber is in force on every server where the channel's entry of this revision wants it."""

    client: ClientId
    name: bytes
    revision: U64


class Left(_Control, frozen=True, tag=14):
    """A publisher has left this server with one of its streams, by the channel's entry of this revision."""

    client: ClientId
    name: bytes
    stream: U64
    revision: U64


Control: TypeAlias = (
    Greet
    | Hello
    | Bye
    | Present
    | Welcome
    | Answer
    | Heartbeat
    | Resync
    | Heal
    | Resend
    | Healed
    | Notice
    | Subscribed
    | Left
)

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Control)
_MARK: Final = b"\xf5C"


def encode(message: Control) -> bytes:
    """The bytes of a control message."""
    return _MARK + _encoder.encode(message)


def decode(data: bytes) -> Control:
    """The control message in `data`, or a ProtocolError that says that the peer broke the protocol."""
    if data[:2] != _MARK:
        raise ProtocolError("a peer sent something that is not a control message on an internal channel")
    try:
        message: Control = _decoder.decode(memoryview(data)[2:])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a peer sent a malformed control message: {error}") from error
    return message
