"""The two micro-benchmarks of the Dynamoth paper's experiment 1: one channel that is too much for one server.

Owns both: one publisher to many subscribers (1a), many publishers to one subscriber (1b). A response time is that of a
delivery, from publisher to server to subscriber: two latency samples.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from shoal.flow.latency import SAMPLES_PER_RESPONSE, Latencies
from shoal.flow.traffic import Traffic

PUBLICATIONS_PER_S: Final = 10.0
"""Of each publisher."""
MESSAGE_BYTES: Final = 200.0
LATENCY_MESSAGES_MAX: Final = 1000
"""Latencies are drawn for at most this many messages a second."""


class OneChannel:
    """A channel with a constant number of publishers and subscribers."""

    def __init__(self, publishers: int, subscribers: int, seconds: int, latencies: Latencies, seed: int) -> None:
        self.names = pa.array([b"c"], pa.binary())
        self.seconds = seconds
        self._publishers = publishers
        self._subscribers = subscribers
        rate = PUBLICATIONS_PER_S * publishers
        messages = min(LATENCY_MESSAGES_MAX, round(rate * subscribers))
        rng = np.random.default_rng([seed, publishers, subscribers])
        self._latency_ms = [latencies.mean_ms(rng, messages, SAMPLES_PER_RESPONSE) for _ in range(seconds)]
        self._publications = np.array([rate])

    def at(self, second: int) -> Traffic:
        """The traffic of a second."""
        return Traffic(
            publications=self._publications,
            publishers=np.array([self._publishers]),
            subscribers=np.array([self._subscribers]),
            message_bytes=MESSAGE_BYTES,
            responses=self._publications * self._subscribers,
            latency_ms=self._latency_ms[second],
            clients=self._publishers + self._subscribers,
        )


def many_subscribers(subscribers: int, seconds: int, latencies: Latencies, seed: int) -> OneChannel:
    """Experiment 1a."""
    return OneChannel(1, subscribers, seconds, latencies, seed)


def many_publishers(publishers: int, seconds: int, latencies: Latencies, seed: int) -> OneChannel:
    """Experiment 1b."""
    return OneChannel(publishers, 1, seconds, latencies, seed)
