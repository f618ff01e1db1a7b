"""The contenders of `shoal bench queue`: systems that take the same messages through the same durable store.

Owns their names, their interface, and the choice by name. The loops around it are in `queue_worker`, the same for all.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Final, Protocol, cast

import msgspec

from shoal.limits import DEFAULT_LIMITS
from shoal.queues.settings import ConsumerSettings

SHOAL: Final = "shoal"
STREAMS: Final = "streams"
DRAMATIQ: Final = "dramatiq"
ARQ: Final = "arq"
PUT_BATCH: Final = DEFAULT_LIMITS.queue_batch_messages_max
TAKE_BATCH: Final = ConsumerSettings().max_in_flight
"""The sizes of batches that a queue uses by itself."""
_MODULES: Final = {name: f"shoal.lab.bench.queue_{name}" for name in (SHOAL, STREAMS, DRAMATIQ, ARQ)}


class QueueWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of one run, and where they go."""

    port: int
    """Of the store, on the loopback interface."""
    queue: str
    messages: int
    keys: int
    payload_bytes: int = 100
    put_batch: int = PUT_BATCH
    """Messages of one put, for systems that can batch."""
    take_batch: int = TAKE_BATCH
    """Messages of one read, or that a consumer holds."""
    consumers: int = 8

    def batches(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """Key and payload of each message. The payload begins with the number of the message."""
        for start in range(0, self.messages, self.put_batch):
            numbers = range(start, min(start + self.put_batch, self.messages))
            yield [(b"key:%07d" % (n % self.keys), b"%010d" % n + b"x" * (self.payload_bytes - 10)) for n in numbers]


Seen = Callable[[bytes], None]
"""Called in the handler of each message, with its payload."""


class QueueSystem(Protocol):
    """A system; the modules `queue_<name>` implement it."""

    async def create(self, load: QueueWorkload) -> None:
        """Make the queue, empty."""

    async def produce(self, load: QueueWorkload) -> None:
        """Put all messages; returns when the store has confirmed all of them."""

    async def consume(self, load: QueueWorkload, seen: Seen) -> None:
        """Process all messages with `load.consumers` consumers; returns when the store has confirmed all of them."""


class PutOne(Protocol):
    """Puts one message; returns when the store has confirmed it."""

    async def __call__(self, payload: bytes) -> None:
        """Put it."""


class TimedSystem(QueueSystem, Protocol):
    """A system whose latency is measured."""

    async def open_put(self, load: QueueWorkload) -> PutOne:
        """A producer of single messages."""


def find(name: str) -> QueueSystem:
    """The contender of this name. Only its own module is imported."""
    return cast(QueueSystem, importlib.import_module(_MODULES[name]))
