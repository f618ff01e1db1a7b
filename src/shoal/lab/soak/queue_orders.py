"""Orders to the processes of a queue soak, their reports, and the lines of their logs.

Owns all three. Each process appends to a log of its own, one line for each event, before and after everything that can
be interrupted: `kill -9` cuts the log at some line, and the checker knows what was on its way.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic
from typing import Final, TypeAlias

import msgspec

from shoal.lab.harness import Stop

QUEUE: Final = "soak"

SENT, ACCEPTED, REFUSED, UNSURE = "sent", "accepted", "refused", "unsure"
"""Events of a producer: a put has begun, and how it ended. `UNSURE`: the message may have been stored."""
BEGUN, ENDED, CONFIRMED, LOST = "begun", "ended", "confirmed", "lost"
"""Events of a consumer: the handler begins and ends, `done` was confirmed, or the job was not held any more."""


class StartProducer(msgspec.Struct, tag=True, frozen=True):
    """Put numbered messages of `keys` keys, in order per key, until `Stop`."""

    url: str
    name: str
    log: str
    keys: int
    per_s: float
    seed: int


class StartConsumer(msgspec.Struct, tag=True, frozen=True):
    """Take and process jobs until `Stop`."""

    url: str
    name: str
    log: str
    seed: int


class ClientStatus(msgspec.Struct, tag=True, frozen=True):
    """Number of messages put or processed. `ended`: no more will come."""

    messages: int
    ended: bool = False


Order: TypeAlias = StartProducer | StartConsumer | Stop
ORDERS: Final = msgspec.json.Decoder(Order)
REPORTS: Final = msgspec.json.Decoder(ClientStatus)


class Event(msgspec.Struct, frozen=True):
    """One line of a log. The message is number `number` of a producer and key; `at` is the machine's monotonic clock,
    which all processes share."""

    what: str
    client: str
    producer: str
    key: int
    number: int
    at: float


class EventLog:
    """Appends events to a file, each with one unbuffered write."""

    def __init__(self, path: Path, client: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._client = client

    def write(self, what: str, producer: str, key: int, number: int) -> None:
        """Notes an event that happens now."""
        os.write(self._file, f"{what} {self._client} {producer} {key} {number} {monotonic():.6f}\n".encode())


def read_events(path: Path) -> list[Event]:
    """The events in a log. A line that a kill has cut is left out."""
    found = []
    for line in path.read_text().split("\n")[:-1]:
        what, client, producer, key, number, at = line.split(" ")
        found.append(Event(what, client, producer, int(key), int(number), float(at)))
    return found


def encode_payload(producer: str, key: int, number: int) -> bytes:
    """The payload of a message."""
    return f"{producer} {key} {number}".encode()


def decode_payload(payload: bytes) -> tuple[str, int, int]:
    """Producer, key and number of a message."""
    producer, key, number = payload.decode().split(" ")
    return producer, int(key), int(number)
