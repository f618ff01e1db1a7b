"""The load of rounds with a balancer: even at first, then raised on one channel or on all of them.

Owns the load, and the capacity of servers that fits it. Capacities are so small that load ratios are those of a busy
cluster while the machine's processors are mostly idle. Messages are large for the same reason: the load is counted in
bytes.
"""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

from shoal.lab.soak.load_shape import (
    EVERYTHING,
    Lifetime,
    LoadChannel,
    LoadShape,
    LoadSubscriber,
    PublishPattern,
    PublishRate,
)
from shoal.limits import Limits

PAYLOAD_BYTES: Final = 2000
FRAME_BYTES: Final = 100
"""Approximate size of a delivery without its payload: envelope and protocol."""
PREFIX: Final = "soak.even."
SUBSCRIBER_PROCESSES: Final = 2

HOT: Final = "soak.hot"
HOT_PUBLISHERS: Final = 48
HOT_PER_S: Final = 6.0
HOT_BEFORE_PER_S: Final = 0.5
"""Rate of each publisher of the channel before it becomes hot."""
HOT_LIFETIMES: Final = (Lifetime.WHOLE, Lifetime.WHOLE, Lifetime.WHOLE, Lifetime.LATE, Lifetime.RESTLESS)
HOT_RATIO: Final = 1.3
"""Traffic of the hot channel, divided by the capacity of a server."""
EVEN_CHANNELS: Final = 6
"""Other channels for each server."""
EVEN_PUBLISHERS: Final = 8
EVEN_BUSES: Final = 4
EVEN_PER_S: Final = 12.0

GROWING_CHANNELS: Final = 12
"""Channels for each server at the start."""
GROWING_PUBLISHERS: Final = 12
GROWING_BUSES: Final = 12
"""A server sends a message once to each bus, so the subscribers of a channel use different ones."""
GROWING_SUBSCRIBERS: Final = 2
"""Subscribers of each channel that stay for the whole round."""
GROWING_OTHERS: Final = (Lifetime.LATE, Lifetime.RESTLESS, Lifetime.LATE, Lifetime.RESTLESS)
GROWING_PER_S: Final = 60.0
"""Publications a second for each server at the end."""
GROWING_WEIGHTS: Final = (0.5, 1.5)
BEFORE_RATIO: Final = 0.4
"""Average load ratio of the servers before the load is raised."""
AFTER_RATIO: Final = 0.63
"""Average load ratio after that, with all servers that there may be. Fewer servers would be too few."""


class Surge(msgspec.Struct, frozen=True):
    """A load that is raised, and the servers for it."""

    shape: LoadShape
    channel: str
    """The channel that becomes hot; "" if the load is raised on all channels."""
    servers: int
    """Servers at the start."""
    servers_max: int
    """Servers that there may be, and that the raised load needs."""
    capacity_bytes_per_s: float
    """What each server may send."""


def hot_channel(seed: int, seconds: float, servers: int, limits: Limits) -> Surge:
    """One channel with many publishers becomes too large for a server; the others stay small."""
    even = tuple(
        LoadChannel(
            f"{PREFIX}{index}", PublishPattern.PACED, (index % EVEN_PUBLISHERS,), None, _pace(EVEN_PER_S, EVEN_PER_S)
        )
        for index in range(EVEN_CHANNELS * servers)
    )
    hot = LoadChannel(
        HOT,
        PublishPattern.PACED,
        tuple(range(EVEN_PUBLISHERS, EVEN_PUBLISHERS + HOT_PUBLISHERS)),
        None,
        _pace(HOT_BEFORE_PER_S, HOT_PER_S),
    )
    names: list[tuple[str, Lifetime, int | None]] = [
        (channel.name, Lifetime.WHOLE, index % EVEN_BUSES) for index, channel in enumerate(even)
    ]
    others = [(HOT, lifetime, None) for lifetime in HOT_LIFETIMES] + [(EVERYTHING, Lifetime.WHOLE, None)]
    shape = _shape(seed, seconds, limits, (*even, hot), EVEN_PUBLISHERS + HOT_PUBLISHERS, [*names, *others])
    sent = HOT_PUBLISHERS * HOT_PER_S * _listeners(shape, HOT)
    return Surge(shape, HOT, servers, servers, _bytes(sent) / HOT_RATIO)


def scale_out(seed: int, seconds: float, servers: int, servers_max: int, limits: Limits) -> Surge:
    """All channels become so busy that they need all servers that there may be."""
    rng = Random(seed)
    count = GROWING_CHANNELS * servers
    weights = [rng.uniform(*GROWING_WEIGHTS) for _ in range(count)]
    each_per_s = GROWING_PER_S * servers_max / sum(weights)
    before = BEFORE_RATIO * servers / (AFTER_RATIO * servers_max)
    channels = tuple(
        LoadChannel(
            f"{PREFIX}{index}",
            PublishPattern.PACED,
            (index % GROWING_PUBLISHERS,),
            None,
            _pace(before * each_per_s * weight, each_per_s * weight),
        )
        for index, weight in enumerate(weights)
    )
    names: list[tuple[str, Lifetime, int | None]] = [
        (channel.name, Lifetime.WHOLE, (index + turn) % GROWING_BUSES)
        for turn in range(GROWING_SUBSCRIBERS)
        for index, channel in enumerate(channels)
    ]
    others = [(channels[rng.randrange(count)].name, lifetime, None) for lifetime in GROWING_OTHERS]
    pattern = (f"{PREFIX}1*", Lifetime.WHOLE, None)
    shape = _shape(seed, seconds, limits, channels, min(GROWING_PUBLISHERS, count), [*names, *others, pattern])
    sent = sum(
        each_per_s * weight * _listeners(shape, channel.name) for weight, channel in zip(weights, channels, strict=True)
    )
    return Surge(shape, "", servers, servers_max, _bytes(sent) / (AFTER_RATIO * servers_max))


def _pace(before_per_s: float, after_per_s: float) -> PublishRate:
    return PublishRate(before_per_s, after_per_s, PAYLOAD_BYTES)


def _bytes(deliveries: float) -> float:
    return deliveries * (PAYLOAD_BYTES + FRAME_BYTES)


def _shape(
    seed: int,
    seconds: float,
    limits: Limits,
    channels: tuple[LoadChannel, ...],
    publishers: int,
    subscribers: list[tuple[str, Lifetime, int | None]],
) -> LoadShape:
    return LoadShape(
        seed=seed,
        seconds=seconds,
        limits=limits,
        channels=channels,
        publishers=publishers,
        subscribers=tuple(
            LoadSubscriber(number, name, name.endswith("*"), lifetime, slow=False, bus=bus)
            for number, (name, lifetime, bus) in enumerate(subscribers)
        ),
        subscriber_processes=SUBSCRIBER_PROCESSES,
    )


def _listeners(shape: LoadShape, channel: str) -> int:
    """How many subscribers receive a channel when all of them are there."""
    return sum(channel.startswith(one.name[:-1]) if one.pattern else channel == one.name for one in shape.subscribers)
