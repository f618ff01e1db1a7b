"""The lines of the logs: what each process of a soak run writes down, and the checking process reads.

Owns the form of the logs, a JSON array a line. Knows neither the bus nor the checkers. Whatever a load process
knows, it knows as an application does: sequence numbers are counted by the publisher itself, from 1 on each
channel, and a message is known by the number in its payload.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

import msgspec

from shoal.plan.entry import Phase
from shoal.plan.placement import Mode

READ_BYTES: Final = 1 << 20
"""How much of a log is decoded at a time."""
WRITE_BUFFER_BYTES: Final = 1 << 18


class _Line(msgspec.Struct, array_like=True, gc=False, tag_field="kind"):
    pass


class Opened(_Line, tag="opened"):
    """A client that publishes is there."""

    client: int
    at: float


class Closed(_Line, tag="closed"):
    """A client that published begins to leave."""

    client: int
    at: float


class Published(_Line, tag="pub"):
    """A message was accepted; `at` is when the call began."""

    number: int
    channel: str
    publisher: int
    sequence: int
    at: float


class Confirmed(_Line, tag="conf"):
    """Everything up to `sequence` is confirmed."""

    publisher: int
    channel: str
    sequence: int
    at: float


class Subscribing(_Line, tag="sub"):
    """A subscription was asked for; `subscription` is its number within the log. `slow`: it is read with pauses."""

    subscription: int
    name: str
    pattern: bool
    client: int
    slow: bool
    at: float


class InForce(_Line, tag="force"):
    """`subscribe` has returned."""

    subscription: int
    at: float


class Left(_Line, tag="left"):
    """The application ends a subscription."""

    subscription: int
    at: float


class Got(_Line, tag="got"):
    """A subscription was handed a message; `number` is what its payload carries, 0 if it is none of ours."""

    subscription: int
    at: float
    number: int
    channel: str
    publisher: int
    sequence: int


class Missed(_Line, tag="gap"):
    """A subscription was handed a gap."""

    subscription: int
    at: float
    channel: str
    publisher: int | None
    first: int
    last: int | None
    reason: str


class Shut(_Line, tag="shut"):
    """A subscription ended though the application had not ended it."""

    subscription: int
    why: str
    at: float


class Asked(_Line, tag="ask"):
    """A channel was asked to move."""

    channel: str
    mode: Mode
    servers: tuple[str, ...]
    eager: bool
    at: float


class Phased(_Line, tag="phase"):
    """A channel's entry came to a phase; `mode` and `servers` are those of its newest placement."""

    channel: str
    phase: Phase
    revision: int
    version: int
    mode: Mode
    servers: tuple[str, ...]
    helped: tuple[str, ...]
    at: float


class Dropped(_Line, tag="drop"):
    """The request to move a channel is gone."""

    channel: str
    at: float


class Stayed(_Line, tag="stay"):
    """A move that had not ended when the run did, and why."""

    channel: str
    why: str


class Busy(_Line, tag="busy"):
    """The share of all processors that was in use since the line before, by anybody."""

    share: float
    at: float


class Rose(_Line, tag="rose"):
    """The load rises from now on: on one channel, or on all of them (""). `servers` is how many there are to be."""

    channel: str
    servers: int
    at: float


class Eased(_Line, tag="eased"):
    """The load is over."""

    at: float


class Decided(_Line, tag="decided"):
    """The balancer decided to place channels anew, or to have more servers or fewer. The ratios are those of the
    busiest server: as measured, and as expected afterwards."""

    digest: str
    moves: tuple[tuple[str, Mode, tuple[str, ...], str], ...]
    """Channel, mode, servers, reason."""
    added: int
    drained: tuple[str, ...]
    ratio_before: float
    ratio_after: float
    at: float


class Loaded(_Line, tag="loaded"):
    """What a server sent in the second before, by what it may send, and what it took of a core."""

    server: str
    ratio: float
    cpu_share: float
    at: float


class Members(_Line, tag="members"):
    """Who is in the ring from now on."""

    servers: tuple[str, ...]
    at: float


class Told(_Line, tag="told"):
    """A control message about a channel between a client and an agent, as somebody else heard it. `client` is who
    sent it or was meant by it, `revision` that of the entry it speaks of."""

    word: str
    channel: str
    client: int
    revision: int
    at: float


class PlainSubscribed(_Line, tag="plain"):
    """A plain subscriber stands on one server; `subscription` is its number within the log."""

    subscription: int
    channel: str
    server: str
    at: float


class PlainGot(_Line, tag="plain got"):
    """A plain subscriber was sent a message."""

    subscription: int
    number: int
    forwarded: bool
    at: float


class PlainPublished(_Line, tag="plain pub"):
    """A plain publisher was told that its server has a message; `at` is when it sent it."""

    number: int
    channel: str
    at: float


class GotForeign(_Line, tag="foreign"):
    """A subscription was handed a message of a plain publisher."""

    subscription: int
    at: float
    number: int


class Died(_Line, tag="died"):
    """A server was killed."""

    server: str
    at: float


class Returned(_Line, tag="back"):
    """A server that was killed runs again."""

    server: str
    at: float


class Counted(_Line, tag="count"):
    """How often a corner was met."""

    corner: str
    times: int


class Noted(_Line, tag="note"):
    """What somebody who reads a log wants to know; nothing is judged by it."""

    text: str
    at: float


class Wrong(_Line, tag="wrong"):
    """What an application must not meet: a subscription that never settles, a message that nobody confirms."""

    text: str


class Ended(_Line, tag="end"):
    """The last line of a log whose process came to its end; without it the log is incomplete."""


Record: TypeAlias = (
    Opened
    | Closed
    | Published
    | Confirmed
    | Subscribing
    | InForce
    | Left
    | Got
    | Missed
    | Shut
    | Asked
    | Phased
    | Dropped
    | Stayed
    | Busy
    | Rose
    | Eased
    | Decided
    | Loaded
    | Members
    | Told
    | PlainSubscribed
    | PlainGot
    | PlainPublished
    | GotForeign
    | Died
    | Returned
    | Counted
    | Noted
    | Wrong
    | Ended
)

_encoder: Final = msgspec.json.Encoder()
_decoder: Final[msgspec.json.Decoder[Record]] = msgspec.json.Decoder(Record)


def foreign_payload(number: int) -> bytes:
    """What a plain publisher sends."""
    return b"foreign %d" % number


def foreign_number(payload: bytes) -> int | None:
    """The number in what a plain publisher sent; None if it is anything else."""
    word, _, number = payload.partition(b" ")
    return int(number) if word == b"foreign" and number.isdigit() else None


class Log:
    """A log that is being written. It counts what a run shows of its progress."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = open(path, "wb", buffering=WRITE_BUFFER_BYTES)  # noqa: SIM115 - closed by `end`
        self.messages = 0
        self.deliveries = 0

    def write(self, record: Record) -> None:
        """Adds a line."""
        self._file.write(_encoder.encode(record) + b"\n")
        if type(record) is Got:
            self.deliveries += 1
        elif type(record) is Published:
            self.messages += 1

    def end(self) -> None:
        """Adds the last line and closes the log."""
        self.write(Ended())
        self._file.close()


def read_log(path: Path) -> Iterator[Record]:
    """The lines of a log, in order; a line that cannot be read becomes a `Wrong`."""
    with open(path, "rb") as file:
        while lines := file.readlines(READ_BYTES):
            try:
                yield from _decoder.decode_lines(b"".join(lines))
            except msgspec.DecodeError as error:
                yield Wrong(f"{path.name} holds a line that cannot be read: {error}")
