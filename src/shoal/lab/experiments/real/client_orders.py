"""Orders to a process of measuring clients, and its reports.

Owns both sets of messages. `shoal.lab.harness` carries them.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from shoal.lab.harness import Ready
from shoal.limits import Limits


class OpenClients(msgspec.Struct, tag=True, frozen=True):
    """The first order, answered with `Ready`: the cluster, the channel, and the message size."""

    url: str
    limits: Limits
    channel: str
    payload_bytes: int
    seed: int
    latencies_ms: list[float]
    """One-way samples, from which latencies are drawn."""


class SetClients(msgspec.Struct, tag=True, frozen=True):
    """How many clients there should be, never fewer than before. Answered with `Ready` when they are there."""

    publishers: int
    subscribers: int


class PublishWindow(msgspec.Struct, tag=True, frozen=True):
    """Each publisher publishes for a time, answered with `WindowPublished`. With `steady` it keeps a fixed rate from a
    random start; otherwise all its times are random."""

    window: int
    seconds: float
    per_s: float
    steady: bool


class CollectWindow(msgspec.Struct, tag=True, frozen=True):
    """Report a window when each subscriber has enough messages, or after `wait_s_max`; answered with
    `WindowCollected`."""

    window: int
    messages: int
    wait_s_max: float


class WindowPublished(msgspec.Struct, tag=True, frozen=True):
    """Report: how many messages the publishers of this process published."""

    messages: int


class WindowCollected(msgspec.Struct, tag=True, frozen=True):
    """Report: what the subscribers of this process received. Delays without and with latency are float32, one for each
    delivery."""

    gaps: int
    delays_ms: bytes
    responses_ms: bytes


ClientOrder: TypeAlias = OpenClients | SetClients | PublishWindow | CollectWindow
ClientReport: TypeAlias = Ready | WindowPublished | WindowCollected

ORDERS: Final[msgspec.json.Decoder[ClientOrder]] = msgspec.json.Decoder(ClientOrder)
REPORTS: Final[msgspec.json.Decoder[ClientReport]] = msgspec.json.Decoder(ClientReport)
