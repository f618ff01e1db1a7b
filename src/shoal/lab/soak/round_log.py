"""The logs of a round: the processes of a soak write them, and the checking process reads them.

Owns their format, one JSON array a line. Depends neither on the bus nor on the checkers. A load process logs only what
an application can observe: publishers count their own sequence numbers, from 1 on each channel, and a message is
recognised by the number in its payload.
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


class ClientOpened(_Line, tag="opened"):
    """A publishing client was opened."""

    client: int
    at: float


class ClientClosed(_Line, tag="closed"):
    """A publishing client is about to close."""

    client: int
    at: float


class MessagePublished(_Line, tag="pub"):
    """A message was published; `at` is when the call began."""

    number: int
    channel: str
    publisher: int
    sequence: int
    at: float


class MessageConfirmed(_Line, tag="conf"):
    """All messages up to `sequence` are confirmed."""

    publisher: int
    channel: str
    sequence: int
    at: float


class SubscribeCalled(_Line, tag="sub"):
    """`subscribe` was called. `subscription` is a number within the log; a `slow` one is read with pauses."""

    subscription: int
    name: str
    pattern: bool
    client: int
    slow: bool
    at: float


class SubscribeReturned(_Line, tag="force"):
    """`subscribe` returned: the subscription is in force."""

    subscription: int
    at: float


class Unsubscribed(_Line, tag="left"):
    """The application ended a subscription."""

    subscription: int
    at: float


class MessageReceived(_Line, tag="got"):
    """A subscription received a message; `number` is the one in its payload, 0 if it has none."""

    subscription: int
    at: float
    number: int
    channel: str
    publisher: int
    sequence: int


class GapReceived(_Line, tag="gap"):
    """A subscription received a gap."""

    subscription: int
    at: float
    channel: str
    publisher: int | None
    first: int
    last: int | None
    reason: str


class SubscriptionBroken(_Line, tag="shut"):
    """A subscription ended, but not by the application."""

    subscription: int
    why: str
    at: float


class MoveRequested(_Line, tag="ask"):
    """The move of a channel was requested."""

    channel: str
    mode: Mode
    servers: tuple[str, ...]
    eager: bool
    at: float


class EntryChanged(_Line, tag="phase"):
    """The plan entry of a channel changed; `mode` and `servers` are those of its newest placement."""

    channel: str
    phase: Phase
    revision: int
    version: int
    mode: Mode
    servers: tuple[str, ...]
    helped: tuple[str, ...]
    at: float


class RequestRemoved(_Line, tag="drop"):
    """The request to move a channel was removed."""

    channel: str
    at: float


class MoveUnfinished(_Line, tag="stay"):
    """A move had not ended when the round did, and why."""

    channel: str
    why: str


class CpuSample(_Line, tag="busy"):
    """The share of all processors in use since the last such line, by any process."""

    share: float
    at: float


class LoadRaised(_Line, tag="rose"):
    """The load is raised now, on one channel or on all (""). `servers` is how many servers it needs."""

    channel: str
    servers: int
    at: float


class LoadEnded(_Line, tag="eased"):
    """The load is over."""

    at: float


class DecisionMade(_Line, tag="decided"):
    """The balancer decided to move channels, or to add or drain servers. The ratios are those of the busiest server:
    measured before, and expected after."""

    digest: str
    moves: tuple[tuple[str, Mode, tuple[str, ...], str], ...]
    """Channel, mode, servers, reason."""
    added: int
    drained: tuple[str, ...]
    ratio_before: float
    ratio_after: float
    at: float


class LoadLine(_Line, tag="loaded"):
    """The load ratio of a server in the second before, and its share of a core."""

    server: str
    ratio: float
    cpu_share: float
    at: float


class RingMembers(_Line, tag="members"):
    """The members of the ring from now on."""

    servers: tuple[str, ...]
    at: float


class ControlSeen(_Line, tag="told"):
    """A control message about a channel between a client and an agent, seen by a watcher. `client` is its sender or
    its receiver, `revision` is that of the entry that it is about."""

    message: str
    channel: str
    client: int
    revision: int
    at: float


class PlainSubscribed(_Line, tag="plain"):
    """A plain subscriber has subscribed on one server; `subscription` is its number within the log."""

    subscription: int
    channel: str
    server: str
    at: float


class PlainReceived(_Line, tag="plain got"):
    """A plain subscriber received a message."""

    subscription: int
    number: int
    forwarded: bool
    at: float


class PlainPublished(_Line, tag="plain pub"):
    """A server confirmed a message of a plain publisher; `at` is when it was sent."""

    number: int
    channel: str
    at: float


class ForeignReceived(_Line, tag="foreign"):
    """A subscription received a message of a plain publisher."""

    subscription: int
    at: float
    number: int


class ServerKilled(_Line, tag="died"):
    """A server was killed."""

    server: str
    at: float


class ServerBack(_Line, tag="back"):
    """A killed server runs again."""

    server: str
    at: float


class ServerFrozen(_Line, tag="froze"):
    """A server, its agent or both were frozen."""

    server: str
    at: float


class ServerThawed(_Line, tag="thawed"):
    """A frozen server and its agent continue."""

    server: str
    at: float


class CoordinatorKilled(_Line, tag="away"):
    """The coordinator was killed and is held down."""

    at: float


class CoordinatorBack(_Line, tag="returned"):
    """The coordinator answers again."""

    at: float


class PhaseBegan(_Line, tag="phase began"):
    """From now on there is harmless or hostile traffic beside the load, named after an attack; none if it is empty. If
    `cut`, connections of honest clients are cut meanwhile, which delays messages more than any attack."""

    hostile: bool
    attack: str
    cut: bool
    at: float


class CornerMet(_Line, tag="count"):
    """How often a corner case was met."""

    corner: str
    times: int


class Note(_Line, tag="note"):
    """A comment for readers; the checker ignores it."""

    text: str
    at: float


class Problem(_Line, tag="wrong"):
    """Something that must not happen to an application, such as a subscription that never settles."""

    text: str


class LogEnd(_Line, tag="end"):
    """The last line. A log without it is incomplete: its process did not finish."""


Record: TypeAlias = (
    ClientOpened
    | ClientClosed
    | MessagePublished
    | MessageConfirmed
    | SubscribeCalled
    | SubscribeReturned
    | Unsubscribed
    | MessageReceived
    | GapReceived
    | SubscriptionBroken
    | MoveRequested
    | EntryChanged
    | RequestRemoved
    | MoveUnfinished
    | CpuSample
    | LoadRaised
    | LoadEnded
    | DecisionMade
    | LoadLine
    | RingMembers
    | ControlSeen
    | PlainSubscribed
    | PlainReceived
    | PlainPublished
    | ForeignReceived
    | ServerKilled
    | ServerBack
    | ServerFrozen
    | ServerThawed
    | CoordinatorKilled
    | CoordinatorBack
    | PhaseBegan
    | CornerMet
    | Note
    | Problem
    | LogEnd
)

_encoder: Final = msgspec.json.Encoder()
_decoder: Final[msgspec.json.Decoder[Record]] = msgspec.json.Decoder(Record)


def foreign_payload(number: int) -> bytes:
    """The payload of a plain publisher."""
    return b"foreign %d" % number


def foreign_number(payload: bytes) -> int | None:
    """The number in the payload of a plain publisher; None if it is another payload."""
    word, _, number = payload.partition(b" ")
    return int(number) if word == b"foreign" and number.isdigit() else None


class RoundLog:
    """A log that is being written. It counts messages and deliveries for the progress display."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = open(path, "wb", buffering=WRITE_BUFFER_BYTES)  # noqa: SIM115 - closed by `end`
        self.messages = 0
        self.deliveries = 0

    def write(self, record: Record) -> None:
        """Adds a line."""
        self._file.write(_encoder.encode(record) + b"\n")
        if type(record) is MessageReceived:
            self.deliveries += 1
        elif type(record) is MessagePublished:
            self.messages += 1

    def end(self) -> None:
        """Adds the last line and closes the log."""
        self.write(LogEnd())
        self._file.close()


def read_log(path: Path) -> Iterator[Record]:
    """The lines of a log, in order; a line that cannot be read becomes a `Problem`."""
    with open(path, "rb") as file:
        while lines := file.readlines(READ_BYTES):
            try:
                yield from _decoder.decode_lines(b"".join(lines))
            except msgspec.DecodeError as error:
                yield Problem(f"{path.name} holds a line that cannot be read: {error}")
