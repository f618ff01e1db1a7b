"""What the processes of an engine say to each other, and the channels on which they do.

Owns the form of these messages. All of them name the instance, so those of an earlier one are ignored.

    fan       __shoal.i:<engine>:fan:<name>       an access point to matchers and exit points: Batch, in one order
    member    __shoal.i:<engine>:member:<name>    matchers to an exit point: Part; to another matcher: State, StateAck;
                                                  an access point to another: Handover
    head      __shoal.i:<engine>:head             all processes to the head and the access points: Status, Settled
    orders    __shoal.i:<engine>:orders           the head to all processes: Orders
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from shoal.engine.configuration import Configuration
from shoal.engine.measures import Measures
from shoal.engine.messages import ENGINE_PREFIX, Event, FromEngine
from shoal.errors import ProtocolError


def fan_channel(engine: str, access_point: str) -> bytes:
    """The channel from an access point to matchers and exit points."""
    return b"%b%b:fan:%b" % (ENGINE_PREFIX, engine.encode(), access_point.encode())


def member_channel(engine: str, name: str) -> bytes:
    """The channel to one process."""
    return b"%b%b:member:%b" % (ENGINE_PREFIX, engine.encode(), name.encode())


def head_channel(engine: str) -> bytes:
    """The channel to the head and to access points."""
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
    """What an access point tells clients."""

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


_FIRST_BITS: Final = 32


def number_before_first(configuration: Configuration) -> int:
    """The number before that of the first batch of an access point that begins while a configuration is in force. So a
    process that becomes an access point again has greater numbers than before."""
    return configuration.number << _FIRST_BITS


def is_first(number: int) -> bool:
    """Whether an access point has begun with this batch."""
    return number & ((1 << _FIRST_BITS) - 1) == 1


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """A part of the fan of an access point, the `source`. Its numbers are contiguous while it is one."""

    instance: int
    source: str
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
    source: str
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


class Handed(NamedTuple):
    """A conversation that gets another access point."""

    client: int
    conversation: int
    next: int
    """The number of the client's next event."""
    sequence: int
    """The number of the last letter that was read."""
    filters: int
    ready: bool
    in_roll: bool
    served: bool
    choked: bool
    distrusted: bool = False


class Handover(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Conversations of a lane that gets another access point. The `last` part makes the lane complete."""

    instance: int
    configuration: int
    lane: int
    last: bool
    rows: list[Handed]


ToMember: TypeAlias = Part | State | StateAck | Handover


# To and from the head


class Settled(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """An exit point has delivered everything up to a batch of each access point: servers have confirmed all letters."""

    name: str
    instance: int
    settled: dict[str, int]


class Status(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A process of an engine shows itself, several times a second."""

    name: str
    instance: int = 0
    joined: int = 0
    """The configuration for which it hears all that it must."""
    ready: int = 0
    """The configuration whose filters its matcher has."""
    settled: dict[str, int] = {}
    """By access point: the batch up to which its exit point has delivered everything."""
    drained: int = 0
    """The newest configuration to which it has switched, and before which its exit point has delivered everything."""
    prepared: int = 0
    """The newest configuration for which its access point has marked PREPARE."""
    roll_over: bool = False
    """Whether its access point may serve."""
    failed: str = ""
    """Why it cannot go on with this instance."""
    stamp: float = 0.0
    """The time by its own clock."""
    clients: int = 0
    filters: int = 0
    in_flight: int = 0
    events: int = 0
    deliveries: int = 0
    choked: int = 0
    cpu_s: float = 0.0
    measures: Measures = Measures()
    waits: list[int] = []
    """How long events of its access point have waited; see `event_waits`."""


ToHead: TypeAlias = Settled | Status


class Stage(enum.IntEnum):
    """How far the start of an instance is."""

    JOIN = 0
    ROLL = 1
    """All processes hear what they must: clients are called."""
    SERVE = 2


class Orders(msgspec.Struct, frozen=True, array_like=True):
    """Who runs what. Said again and again, so none of them needs an answer."""

    instance: int
    head: str
    predecessor: int
    configuration: Configuration
    next: Configuration | None = None
    step: Step | None = None
    """The step of the change that access points mark in their fans."""
    stage: Stage = Stage.JOIN
    leases: dict[str, tuple[float, float]] = {}
    """By process: a stamp that it has sent, and for how many seconds after it the instance holds its lease."""

    @property
    def newness(self) -> tuple[int, ...]:
        """Newer orders have a larger one, or the same with newer leases."""
        following = 0 if self.next is None else self.next.number
        return self.instance, self.configuration.number, self.stage, following, self.step or 0


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
