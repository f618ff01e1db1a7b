"""The load of rounds with a balancer: even at first, then it rises, on one channel or on all of them.

Owns the shapes and the capacity of the servers that belongs to each: servers are said to send so little that the load
ratios are those of a busy cluster while the machine's processors have room to spare. Messages are large for the same
reason: it is bytes that count.
"""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

from shoal.limits import Limits
from shoal.soak.shape import Channel, Kind, Life, Pace, Shape, Subscriber

PAYLOAD_BYTES: Final = 2000
FRAME_BYTES: Final = 100
"""What a server sends beside the payload, about: the envelope and the words of the protocol."""
PREFIX: Final = "soak.even."
EVERYTHING: Final = "soak.*"
SUBSCRIBER_PROCESSES: Final = 2

HOT: Final = "soak.hot"
HOT_PUBLISHERS: Final = 48
HOT_PER_S: Final = 6.0
HOT_BEFORE_PER_S: Final = 0.5
"""What each publisher of the channel does before it becomes hot."""
HOT_LIVES: Final = (Life.WHOLE, Life.WHOLE, Life.WHOLE, Life.LATE, Life.RESTLESS)
HOT_RATIO: Final = 1.3
"""What the hot channel is by what one server may send."""
EVEN_CHANNELS: Final = 6
"""Other channels, for each server."""
EVEN_PUBLISHERS: Final = 8
EVEN_BUSES: Final = 4
EVEN_PER_S: Final = 12.0

GROWING_CHANNELS: Final = 12
"""For each server at the beginning."""
GROWING_PUBLISHERS: Final = 12
GROWING_BUSES: Final = 12
"""A server sends a message once to each bus, so the subscribers of a channel have different ones."""
GROWING_SUBSCRIBERS: Final = 2
"""For each channel, for all of the time."""
GROWING_OTHERS: Final = (Life.LATE, Life.RESTLESS, Life.LATE, Life.RESTLESS)
GROWING_PER_S: Final = 60.0
"""Publications a second for each server that there is to be."""
GROWING_WEIGHTS: Final = (0.5, 1.5)
BEFORE_RATIO: Final = 0.4
"""What servers carry on the average before the load rises."""
AFTER_RATIO: Final = 0.63
"""The same when it has risen and as many servers are there as there are to be: more than fewer of them would do for."""


class Surge(msgspec.Struct, frozen=True):
    """A load that rises, and the servers that it is meant for."""

    shape: Shape
    channel: str
    """The channel that becomes hot; "" if the load rises on all."""
    servers: int
    """How many there are at first."""
    servers_max: int
    """How many there may be, and are to be in the end."""
    capacity_bytes_per_s: float
    """What each server may send."""


def hot_channel(seed: int, seconds: float, servers: int, limits: Limits) -> Surge:
    """One channel of many publishers becomes larger than a server; the others stay small."""
    even = tuple(
        Channel(f"{PREFIX}{index}", Kind.PACED, (index % EVEN_PUBLISHERS,), None, _pace(EVEN_PER_S, EVEN_PER_S))
        for index in range(EVEN_CHANNELS * servers)
    )
    hot = Channel(
        HOT,
        Kind.PACED,
        tuple(range(EVEN_PUBLISHERS, EVEN_PUBLISHERS + HOT_PUBLISHERS)),
        None,
        _pace(HOT_BEFORE_PER_S, HOT_PER_S),
    )
    names: list[tuple[str, Life, int | None]] = [
        (channel.name, Life.WHOLE, index % EVEN_BUSES) for index, channel in enumerate(even)
    ]
    others = [(HOT, life, None) for life in HOT_LIVES] + [(EVERYTHING, Life.WHOLE, None)]
    shape = _shape(seed, seconds, limits, (*even, hot), EVEN_PUBLISHERS + HOT_PUBLISHERS, [*names, *others])
    sent = HOT_PUBLISHERS * HOT_PER_S * _listeners(shape, HOT)
    return Surge(shape, HOT, servers, servers, _bytes(sent) / HOT_RATIO)


def scale_out(seed: int, seconds: float, servers: int, servers_max: int, limits: Limits) -> Surge:
    """All channels become so busy that it takes all servers that there may be."""
    rng = Random(seed)
    count = GROWING_CHANNELS * servers
    weights = [rng.uniform(*GROWING_WEIGHTS) for _ in range(count)]
    each_per_s = GROWING_PER_S * servers_max / sum(weights)
    before = BEFORE_RATIO * servers / (AFTER_RATIO * servers_max)
    channels = tuple(
        Channel(
            f"{PREFIX}{index}",
            Kind.PACED,
            (index % GROWING_PUBLISHERS,),
            None,
            _pace(before * each_per_s * weight, each_per_s * weight),
        )
        for index, weight in enumerate(weights)
    )
    names: list[tuple[str, Life, int | None]] = [
        (channel.name, Life.WHOLE, (index + turn) % GROWING_BUSES)
        for turn in range(GROWING_SUBSCRIBERS)
        for index, channel in enumerate(channels)
    ]
    others = [(channels[rng.randrange(count)].name, life, None) for life in GROWING_OTHERS]
    pattern = (f"{PREFIX}1*", Life.WHOLE, None)
    shape = _shape(seed, seconds, limits, channels, min(GROWING_PUBLISHERS, count), [*names, *others, pattern])
    sent = sum(
        each_per_s * weight * _listeners(shape, channel.name) for weight, channel in zip(weights, channels, strict=True)
    )
    return Surge(shape, "", servers, servers_max, _bytes(sent) / (AFTER_RATIO * servers_max))


def _pace(before_per_s: float, after_per_s: float) -> Pace:
    return Pace(before_per_s, after_per_s, PAYLOAD_BYTES)


def _bytes(deliveries: float) -> float:
    return deliveries * (PAYLOAD_BYTES + FRAME_BYTES)


def _shape(
    seed: int,
    seconds: float,
    limits: Limits,
    channels: tuple[Channel, ...],
    publishers: int,
    subscribers: list[tuple[str, Life, int | None]],
) -> Shape:
    return Shape(
        seed=seed,
        seconds=seconds,
        limits=limits,
        channels=channels,
        publishers=publishers,
        subscribers=tuple(
            Subscriber(number, name, name.endswith("*"), life, slow=False, bus=bus)
            for number, (name, life, bus) in enumerate(subscribers)
        ),
        subscriber_processes=SUBSCRIBER_PROCESSES,
    )


def _listeners(shape: Shape, channel: str) -> int:
    """How many subscribers hear a channel when all of them are there."""
    return sum(channel.startswith(one.name[:-1]) if one.pattern else channel == one.name for one in shape.subscribers)
