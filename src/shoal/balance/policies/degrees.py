"""How many servers a channel should have, and in which mode, from its cost and the servers' capacity.

Owns the arithmetic of replication for the `shoal` policy; no ratio of publications to subscribers is configured.

Load of the busiest of `k` servers:

    all_subscribers    the publications and deliveries of its share of the publishers
    all_publishers     all publications, the deliveries of its share of the subscribers, and all deliveries to patterns

Each client uses one server, chosen by a number that is random from the policy's view. With `n` clients on `k` servers,
the busiest server has about `n/k + sqrt(2 n/k ln k)` of them. A single publisher can therefore not be spread by
all_subscribers, nor a single subscriber by all_publishers, and a few of them only unevenly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal.balance.columns import ALL_PUBLISHERS, ALL_SUBSCRIBERS, SINGLE, Channels, Floats, Ints, Modes, sent_part

SUBSCRIPTION_PER_S: Final = 0.1
"""Cost of one more subscription on a server, in publications per second, for beacons and answers. It decides between
the modes if their loads are equal: more subscriptions (all_subscribers) or more publications.
"""
NEAR: Final = 1.03
"""If no degree is sufficient, degrees within this factor of the best count as equally good."""


@dataclass(frozen=True, slots=True)
class Degrees:
    """A mode and a number of servers for each of some channels."""

    mode: Modes
    degree: Ints


def busiest_part(clients: Ints, degree: int) -> Floats:
    """Return the share of a channel's clients that its busiest server has."""
    clients = np.maximum(clients, 1)
    mean = clients / degree
    busiest = np.maximum(np.ceil(mean), mean + np.sqrt(2.0 * mean * np.log(degree)))
    return np.asarray(np.minimum(1.0, busiest / clients), np.float64)


def size_of_share(channels: Channels, rows: Ints, mode: int, degree: int, capacity: float, cpu: float) -> Floats:
    """Return the load of each channel on its busiest server, as a ratio of such a server."""
    bytes_out, cpu_in, cpu_out = channels.bytes_out[rows], channels.cpu_in[rows], channels.cpu_out[rows]
    if mode == SINGLE or degree == 1:
        return np.maximum(bytes_out / capacity, (cpu_in + cpu_out) / cpu)
    clients = channels.publishers[rows] if mode == ALL_SUBSCRIBERS else channels.subscribers[rows]
    part = busiest_part(clients, degree)
    if mode == ALL_SUBSCRIBERS:
        return np.maximum(bytes_out * part / capacity, (cpu_in + cpu_out) * part / cpu)
    sent = sent_part(part, channels.to_patterns[rows])
    return np.maximum(bytes_out * sent / capacity, (cpu_in + cpu_out * sent) / cpu)


def degrees(channels: Channels, rows: Ints, limit: float, degree_max: int, capacity: float, cpu: float) -> Degrees:
    """Return the smallest number of servers of this capacity on which no share exceeds the limit (a ratio).

    If no number is sufficient, the smallest that is about as good as any. Of two modes with the same number, the one
    with less extra work.
    """
    sizes = np.stack(
        [
            [size_of_share(channels, rows, mode, degree, capacity, cpu) for degree in range(1, degree_max + 1)]
            for mode in (ALL_SUBSCRIBERS, ALL_PUBLISHERS)
        ]
    )
    enough = np.maximum(limit, NEAR * sizes.min(axis=(0, 1)))
    fits = sizes <= enough
    least = np.where(fits.any(axis=1), fits.argmax(axis=1) + 1, degree_max + 1)
    copies, subscriptions = channels.publications[rows], SUBSCRIPTION_PER_S * channels.subscribers[rows]
    publishers_win = (least[1] < least[0]) | ((least[1] == least[0]) & (copies < subscriptions))
    degree = np.minimum(least[0], least[1]).astype(np.int64)
    mode = np.where(publishers_win, ALL_PUBLISHERS, ALL_SUBSCRIBERS)
    return Degrees(np.where(degree == 1, SINGLE, mode).astype(np.int8), degree)


def spread_evenly(channels: Channels, rows: Ints, parts: Floats, degree_max: int) -> Degrees:
    """Return enough servers for one part of a channel each, limited by its clients: at least two per server.

    The mode is the one with more clients to divide, or the one with less extra work; not all_publishers if the extra
    copies for pattern subscribers would cost as much as the channel itself.
    """
    publishers, subscribers = channels.publishers[rows], channels.subscribers[rows]
    fewer_copies = channels.publications[rows] < SUBSCRIPTION_PER_S * subscribers
    publishers_win = (subscribers > publishers) | ((subscribers == publishers) & fewer_copies)
    publishers_win &= channels.to_patterns[rows] * (degree_max - 1) < 1.0
    clients = np.where(publishers_win, subscribers, publishers)
    degree = np.minimum(np.ceil(parts), np.minimum(clients // 2, degree_max)).astype(np.int64).clip(min=1)
    mode = np.where(publishers_win, ALL_PUBLISHERS, ALL_SUBSCRIBERS)
    return Degrees(np.where(degree == 1, SINGLE, mode).astype(np.int8), degree)
