"""The record of a run: what was published where and when, and by which client.

Owns the part of the record that all protocols share, and the numbers that identify messages. A protocol adds its own
receivers and events; those of channels are in `shoal.lab.sim.scenarios.channel_run_history`. The record shares no code
with the protocol: the scenario writes a number into each payload, and envelopes are not used.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Published:
    """One message, as its publisher knows it. `unit` is where it was published: a channel, a queue. Times are virtual
    times."""

    number: int
    unit: str
    publisher: int
    sequence: int
    called_at: float
    confirmed_at: float | None = None
    epoch: int = 0
    """Grows with each new stream of the publisher. 0 where a publisher has one stream of a unit, and if the message was
    never sent."""


@dataclass(slots=True)
class PublisherRecord:
    """A client as a publisher; `ended_at` is when it crashed or closed. A client that gave up waiting for confirmations
    when it closed counts as crashed."""

    client: int
    ended_at: float | None = None
    crashed: bool = False
    gave_up: bool = False
    """Whether it closed before it could expect subscribers to have everything."""


class Receiver(Protocol):
    """One subscription or consumer of one application, as the checkers know it."""

    in_force_at: float | None
    """The messages that it wants are owed to it from this time on."""

    @property
    def label(self) -> str:
        """Names it in violations."""

    def reads(self, unit: str) -> bool:
        """Whether it may want messages of a unit."""

    def wants(self, message: Published) -> bool:
        """Whether a message is owed to it once it is in force."""


@dataclass(slots=True)
class Interval:
    """A time span, such as the absence of a crashed server."""

    what: str
    began_at: float
    ended_at: float | None = None


class History:
    """The record of one run."""

    def __init__(self) -> None:
        self.messages: dict[int, Published] = {}
        self.publishers: dict[int, PublisherRecord] = {}

    def publish(self, unit: str, client: int, sequence: int, at: float) -> int:
        """Records a message; returns the number to write into its payload."""
        number = self.next_number
        self.messages[number] = Published(number, unit, client, sequence, at)
        return number

    @property
    def next_number(self) -> int:
        """The number of the next message."""
        return len(self.messages) + 1

    def sent_as(self, number: int, epoch: int, sequence: int) -> None:
        """Records the stream in which a message was first sent, and its number there."""
        message = self.messages[number]
        if not message.epoch:
            message.epoch, message.sequence = epoch, sequence

    def confirmed(self, number: int, at: float) -> None:
        """Records that the publisher got the confirmation of a message."""
        self.messages[number].confirmed_at = at

    def of(self, unit: str, publisher: int) -> list[Published]:
        """The messages of a publisher on a unit, in order."""
        return [message for message in self.messages.values() if (message.unit, message.publisher) == (unit, publisher)]

    def by_unit(self) -> dict[str, list[Published]]:
        """The messages of each unit."""
        found: dict[str, list[Published]] = defaultdict(list)
        for message in self.messages.values():
            found[message.unit].append(message)
        return found


def payload_of(number: int, size: int) -> bytes:
    """A payload that carries its number and, with padding, has at least `size` bytes."""
    return (b"%d;" % number).ljust(size, b".")


def number_in(payload: bytes) -> int:
    """The number in a payload; 0 if there is none."""
    head = payload.split(b";", 1)[0]
    return int(head) if head.isdigit() else 0
