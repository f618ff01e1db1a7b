"""Channels with Zipf loads: few are busy, most are not. Their total load follows a curve.

Owns the loads of up to millions of channels, in columns. The seed gives each channel a random rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shoal.balance.columns import Floats, Ints
from shoal.flow.latency import SAMPLES_PER_RESPONSE, Latencies
from shoal.flow.traffic import Traffic
from shoal.flow.workloads.curves import Curve

LATENCY_MESSAGES = 2000
"""Latencies are drawn for this many messages a second."""


@dataclass(frozen=True, slots=True)
class Zipf:
    """The distribution of loads: the channel of rank `r` has weight `r ** -exponent` in publications."""

    channels: int
    publications_per_s: float
    """Of all channels together, at the busiest moment."""
    exponent: float = 1.0
    subscribers: int = 10
    """Of each channel."""
    publications_each_per_s: float = 3.0
    """Of one publisher; the number of publishers follows from it."""
    message_bytes: float = 200.0


class ZipfChannels:
    """Channels with Zipf loads, scaled by a curve over time."""

    def __init__(self, zipf: Zipf, scale: Curve, latencies: Latencies, seed: int) -> None:
        rng = np.random.default_rng([seed, zipf.channels])
        weights = rng.permutation((np.arange(zipf.channels) + 1.0) ** -zipf.exponent)
        self._zipf = zipf
        self._rates: Floats = weights / weights.sum() * zipf.publications_per_s
        self._subscribers: Ints = np.full(zipf.channels, zipf.subscribers, np.int64)
        self.names = pa.array([b"z%d/%d" % (seed, number) for number in range(zipf.channels)], pa.binary())
        self.seconds = scale.seconds
        self._scale = scale.at(np.arange(self.seconds))
        self._latency_ms = [latencies.mean_ms(rng, LATENCY_MESSAGES, SAMPLES_PER_RESPONSE) for _ in range(self.seconds)]

    def at(self, second: int) -> Traffic:
        """The traffic of a second."""
        rates = self._rates * self._scale[second]
        publishers = np.ceil(rates / self._zipf.publications_each_per_s).astype(np.int64)
        return Traffic(
            publications=rates,
            publishers=publishers,
            subscribers=self._subscribers,
            message_bytes=self._zipf.message_bytes,
            responses=rates,
            latency_ms=self._latency_ms[second],
            clients=int(publishers.sum()),
        )
