"""What an experiment and its processes of measuring clients say to each other: lines of JSON, one order, one answer.

Owns the words.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from shoal.limits import Limits

LINE_BYTES_MAX: Final = 1 << 26


class Begin(msgspec.Struct, tag=True, frozen=True):
    """The first word: the cluster, the channel, and what a message is."""

    url: str
    limits: Limits
    channel: str
    payload_bytes: int
    seed: int
    latencies_ms: list[float]
    """One-way samples, from which latency is drawn."""


class Join(msgspec.Struct, tag=True, frozen=True):
    """So many clients should be there from now on; answered when they are."""

    publishers: int
    subscribers: int


class Publish(msgspec.Struct, tag=True, frozen=True):
    """Each publisher publishes for so long: at a steady rate that begins at a moment of chance, or at moments that all
    are of chance."""

    window: int
    seconds: float
    per_s: float
    steady: bool


class Collect(msgspec.Struct, tag=True, frozen=True):
    """What came of a window, when each subscriber has so many messages, or when this has taken too long."""

    window: int
    messages: int
    wait_s_max: float


Order: TypeAlias = Begin | Join | Publish | Collect


class Done(msgspec.Struct, frozen=True):
    """The answer to everything. `delays_ms` and `responses_ms` (with latency) are float32, one for each delivery."""

    messages: int = 0
    deliveries: int = 0
    gaps: int = 0
    delays_ms: bytes = b""
    responses_ms: bytes = b""
