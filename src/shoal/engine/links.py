"""What the processes of an engine say to each other, and the channels on which they do.

Owns the form of these messages. All of them name the instance, so those of an earlier one are ignored.

    fan       __shoal.i:<engine>:fan              access point to matchers and exit points: Batch, in one order
    member    __shoal.i:<engine>:member:<name>    matchers to an exit point: Part; to another matcher: State, StateAck
    head      __shoal.i:<engine>:head             all processes to the one with the access point: Status, Settled
    orders    __shoal.i:<engine>:orders           the process with the access point to all: Orders
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from shoal.engine.configuration import Configuration
from shoal.engine.messages import ENGINE_PREFIX, Event, FromEngine
from shoal.errors import ProtocolError


def fan_channel(engine: str) -> bytes:
    """The channel from the access point to matchers and exit points."""
    return b"%b%b:fan" % (ENGINE_PREFIX, engine.encode())


def member_channel(engine: str, name: str) -> bytes:
    """The channel to one process."""
    return b"%b%b:member:%b" % (ENGINE_PREFIX, engine.encode(), name.encode())


def head_channel(engine: str) -> bytes:
    """The channel to the process with the access point."""
    return b"%b%b:head" % (ENGINE_PREFIX, engine.encode())


def orders_channel(engine: str) -> bytes:
    """The channel to all processes."""
    return b"%b%b:orders" % (ENGINE_PREFIX, engine.encode())


# The fan

FILTERS_PER_EVENT: Final = 32
"""Filters that are added in the time in which an event is matched and sent, about."""
TURN_MAX: Final = 256
"""Work of a process in one turn, in events. Between turns it extends leases and shows that it lives."""


class Change(NamedTuple):
    """Filters of one client that come and go. With `presented`, all its other filters end; the list goes on in the next
    change if there is `more`."""

    client: int
    conversation: int
    added: list[tuple[int, bytes]]
    removed: list[int]
    presented: bool = False
    more: bool = False


class Events(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Events, each with its emitter."""

    events: list[tuple[int, Event]]


class Changes(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Changes of filters."""

    changes: list[Change]


class Replies(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """What the access point tells clients."""

    replies: list[tuple[int, FromEngine]]


class Step(enum.IntEnum):
    """The steps of a change of configuration that are marked in the fan."""

    PREPARE = 1
    """Matchers send each other the filters that change their matcher. New filters go to both."""
    SWITCH = 2
    """All that follows belongs to the new configuration."""
    GIVE_UP = 3
    """The change is given up: the old configuration stays."""


class Mark(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A step of a change of configuration."""

    step: Step
    configuration: Configuration


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """A part of the fan. Numbers are contiguous in the life of an instance."""

    instance: int
    number: int
    body: Events | Changes | Replies | Mark

    @property
    def work(self) -> int:
        """How much work it is, about, in events."""
        if type(self.body) is Events:
            return len(self.body.events)
        if type(self.body) is Changes:
            return 1 + sum(len(change.added) for change in self.body.changes) // FILTERS_PER_EVENT
        return 1


# Between members

Found: TypeAlias = tuple[int, int, bytes]
"""The place of an event in its batch, a client, and the numbers of its filters that the event matches (see
`messages.unpack`)."""


class Part(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """What a matcher found for a batch, for the clients of one exit point. It goes on in the next part if there is
    `more`."""

    instance: int
    number: int
    matcher: str
    found: list[Found]
    said: list[tuple[int, FromEngine]]
    more: bool = False


class State(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Filters that get another matcher with the next configuration."""

    instance: int
    configuration: int
    sender: str
    chunk: int
    last: bool
    rows: list[tuple[int, int, bytes]]
    """Client, number and filter."""


class StateAck(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A matcher has inserted a chunk of state."""

    instance: int
    configuration: int
    receiver: str
    chunk: int


ToMember: TypeAlias = Part | State | StateAck


# To and from the head


class Settled(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """An exit point has delivered everything up to a batch: servers have confirmed all letters."""

    name: str
    instance: int
    settled: int


class Status(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A process of an engine shows itself, several times a second."""

    name: str
    instance: int = 0
    joined: int = 0
    """The configuration for which it hears all that it must."""
    ready: int = 0
    """The configuration whose filters its matcher has."""
    settled: int = 0
    """The batch up to which its exit point has delivered everything."""
    failed: str = ""
    """Why it cannot go on with this instance."""
    filters: int = 0
    cpu_s: float = 0.0


ToHead: TypeAlias = Settled | Status


class Orders(msgspec.Struct, frozen=True, array_like=True):
    """Who runs what. Said again and again, so none of them needs an answer."""

    instance: int
    head: str
    configuration: Configuration
    next: Configuration | None = None


_T = TypeVar("_T")
encode: Final = msgspec.msgpack.Encoder().encode
_batches: Final = msgspec.msgpack.Decoder(Batch)
_to_member: Final[msgspec.msgpack.Decoder[ToMember]] = msgspec.msgpack.Decoder(ToMember)
_to_head: Final[msgspec.msgpack.Decoder[ToHead]] = msgspec.msgpack.Decoder(ToHead)
_orders: Final = msgspec.msgpack.Decoder(Orders)


def decode_batch(data: bytes) -> Batch:
    """A part of the fan; ProtocolError if it cannot be read."""
    return _decode(_batches, data)


def decode_to_member(data: bytes) -> ToMember:
    """A message to a member."""
    return _decode(_to_member, data)


def decode_to_head(data: bytes) -> ToHead:
    """A message to the head."""
    return _decode(_to_head, data)


def decode_orders(data: bytes) -> Orders:
    """Orders of the head."""
    return _decode(_orders, data)


def _decode(decoder: msgspec.msgpack.Decoder[_T], data: bytes) -> _T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a message between engines cannot be read ({error})") from error
