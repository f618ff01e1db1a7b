"""What clients and the engine say to each other, and the channels on which they do.

Owns the form of these messages. A channel message carries several *items*, in order. The channel layer delivers them in
order and says who published them, so no item names its sender.

    lane    __shoal.e:<engine>:in:<lane>     clients to the access point: Open, Add, Remove, Ready, Event, Alive, Close
    seat    __shoal.i:<engine>:to:<client>   the engine to one client: Welcome, InForce, Refused, Delivery, Taken, ...
    call    __shoal.i:<engine>:all           the engine to all clients: Roll
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec

from shoal.errors import ProtocolError

CLIENT_PREFIX: Final = b"__shoal.e:"
"""Prefix of the channels on which clients may publish."""
ENGINE_PREFIX: Final = b"__shoal.i:"
"""Prefix of the channels on which only engines may publish."""
LANES: Final = 16
"""Lanes of an engine. A client keeps its lane for life, so the number never changes."""
NUMBER_BYTES: Final = 4
"""Bytes of the number of a filter where many are named. So a client may have four billion filters in its life."""
NUMBER_MAX: Final = (1 << 8 * NUMBER_BYTES) - 1
EventNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""The number of an event. Larger ones are an error of the client: the number after it must fit a message too."""
ITEMS_MAX: Final = 8192
"""Items of a client's letter: it is read in one turn of the engine."""
MAIN: Final = "main"
"""The engine of a cluster."""


def lane_channel(engine: str, lane: int) -> bytes:
    """The channel of a lane."""
    return b"%b%b:in:%d" % (CLIENT_PREFIX, engine.encode(), lane)


def seat_channel(engine: str, client: int) -> bytes:
    """The channel to one client."""
    return b"%b%b:to:%012x" % (ENGINE_PREFIX, engine.encode(), client)


def call_channel(engine: str) -> bytes:
    """The channel to all clients."""
    return b"%b%b:all" % (ENGINE_PREFIX, engine.encode())


def lane_of(client: int) -> int:
    """The lane of a client."""
    return zlib.crc32(client.to_bytes(8, "little")) % LANES


def pack(numbers: Sequence[int]) -> bytes:
    """Numbers of filters, four bytes for each."""
    return struct.pack(f"<{len(numbers)}I", *numbers)


def unpack(packed: bytes) -> tuple[int, ...]:
    """The numbers of filters that were packed."""
    return struct.unpack_from(f"<{len(packed) // NUMBER_BYTES}I", packed)


# From clients


class Open(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A conversation begins; earlier ones of this client are over. It is the first item of a letter. The client
    presents all its filters, up to Ready. `instance` is the engine with which filters of this client were in force
    before, 0 if with none."""

    conversation: int
    instance: int = 0


class Add(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Filters by the client's numbers, which it never uses again."""

    filters: list[tuple[int, bytes]]


class Remove(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Filters that are not wanted any more."""

    numbers: list[int]


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """All filters that the client had when it opened the conversation are presented."""


class Event(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    """One event, with its attributes in MessagePack. Numbers are contiguous in the life of a client."""

    number: EventNumber
    time_us: int
    attributes: bytes
    payload: bytes


class Alive(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The client lives."""


class Close(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The client leaves: its filters end."""


FromClient: TypeAlias = Open | Add | Remove | Ready | Event | Alive | Close


class Letter(msgspec.Struct, frozen=True, array_like=True):
    """Items of one conversation. All events of the client below `floor` are taken."""

    conversation: int
    floor: EventNumber
    items: Annotated[list[FromClient], msgspec.Meta(max_length=ITEMS_MAX)]


# From the engine


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The conversation is open, or refused. `late`: the engine has matched events without this client's filters,
    although they had been in force before."""

    conversation: int
    instance: int
    late: bool = False
    refusal: str = ""


class InForce(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Filters are in force: events that are emitted from now on are matched against them."""

    conversation: int
    numbers: list[int]


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A filter is refused."""

    number: int
    reason: str


class Delivery(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """An event, named by its emitter and number, and the numbers of this client's filters that it matches (see
    `unpack`)."""

    emitter: int
    number: int
    time_us: int
    attributes: bytes
    payload: bytes
    matched: bytes


class Taken(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """All events of this client up to a number have been delivered wherever they match."""

    number: int


class Again(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The engine does not know the conversation, or has missed a part of it: open another one."""

    conversation: int


class Rejected(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """An event is not valid; it was taken and dropped."""

    number: int
    reason: str


class Resend(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The engine had no room for the client's events from this number on, and has room now: send them again."""

    number: int


class Dropped(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The client was silent for so long that its filters have ended: events are matched without them."""

    conversation: int


class Matched(msgspec.Struct, frozen=True, array_like=True, tag=10, gc=False):
    """Numbers of this client's filters that the event of the next Delivery matches, if they are very many."""

    emitter: int
    number: int
    matched: bytes


class PathEnd(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """The last item of this exit point for the client: from this configuration on, another one serves it."""

    instance: int
    configuration: int


class PathBegin(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """The first item of an exit point that serves the client from this configuration on. What follows comes after the
    PathEnd of the exit point before."""

    instance: int
    configuration: int


FromEngine: TypeAlias = (
    Welcome | InForce | Refused | Delivery | Taken | Again | Rejected | Resend | Dropped | Matched | PathEnd | PathBegin
)


class Roll(msgspec.Struct, frozen=True, array_like=True):
    """This instance of the engine is in force. While the roll is `open`, it waits for clients to present themselves.
    Instance 0 is a process that is starting: it compiles its kernels, and clients wait longer for an answer."""

    instance: int
    open: bool


_T = TypeVar("_T")
_encoder: Final = msgspec.msgpack.Encoder()
_letters: Final = msgspec.msgpack.Decoder(Letter)
_replies: Final = msgspec.msgpack.Decoder(list[FromEngine])
_rolls: Final = msgspec.msgpack.Decoder(Roll)
encode: Final = _encoder.encode


def decode_letter(data: bytes) -> Letter:
    """A client's letter; ProtocolError if it cannot be read."""
    return _decode(_letters, data)


def decode_replies(data: bytes) -> list[FromEngine]:
    """What the engine tells a client."""
    return _decode(_replies, data)


def decode_roll(data: bytes) -> Roll:
    """What the engine tells all clients."""
    return _decode(_rolls, data)


def _decode(decoder: msgspec.msgpack.Decoder[_T], data: bytes) -> _T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a message about the engine cannot be read ({error}); it is ignored") from error
