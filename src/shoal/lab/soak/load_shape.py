"""The load of a round, drawn from a seed: its channels with their placements, publishers and subscribers.

Owns the drawing. Two cores carry the load easily: a subscription to a channel receives about thirty messages a second
on average, whatever the number of subscribers.
"""

from __future__ import annotations

import enum
from random import Random
from typing import Final

import msgspec

from shoal.limits import Limits
from shoal.plan.placement import Mode, Placement

SUBSCRIBERS_PER_CHANNEL: Final = 5
SUBSCRIBERS_PER_PUBLISHER: Final = 12
SUBSCRIBERS_PER_PROCESS: Final = 100
PROCESSES_MAX: Final = 4
PATTERN_EVERY: Final = 10
"""One subscriber of this number has a pattern."""
WIDE_EVERY: Final = 10
"""One pattern of this number matches all channels."""
EVERYTHING: Final = "soak.*"
IDLE_CHANNELS: Final = 2
"""Channels without publishers in a round with moves."""
IDLE_PREFIX: Final = "soak.idle."
PROBE_PREFIX: Final = "soak.probe."
"""Channels that measure pauses of deliveries, one on each server (`pauses`)."""
PROBES_PER_S: Final = 50.0
PROBE_BYTES: Final = 64
BURST_PUBLISHERS: Final = 8
BURST_BUSES: Final = 16
"""Buses that share the subscriptions of a burst: a multiple of the processes, so that each bus is in one process."""
BURST_PROCESSES: Final = 2


class PublishPattern(enum.StrEnum):
    """The pattern of publications on a channel."""

    BURST = "burst"
    STEADY = "steady"
    QUIET = "quiet"
    IDLE = "idle"
    """None. A lazy move of such a channel should cost its subscribers nothing."""
    PULSE = "pulse"
    """A message at least every second; the channels of a burst of moves."""
    PACED = "paced"
    """At a rate that changes when the load is raised (`PublishRate`)."""


class Lifetime(enum.StrEnum):
    """When a subscriber is there."""

    WHOLE = "whole"
    LATE = "late"
    RESTLESS = "restless"
    """It unsubscribes and subscribes again."""


KINDS: Final = (
    PublishPattern.BURST,
    PublishPattern.STEADY,
    PublishPattern.QUIET,
    PublishPattern.BURST,
    PublishPattern.BURST,
)
LIFETIMES: Final = (Lifetime.WHOLE, Lifetime.WHOLE, Lifetime.LATE, Lifetime.RESTLESS)
MODES: Final = (None, None, None, Mode.SINGLE, Mode.ALL_SUBSCRIBERS, None, None, Mode.ALL_PUBLISHERS)
"""Placements of channels, in turn: None leaves a channel to the ring, otherwise the plan has an entry."""


class PublishRate(msgspec.Struct, frozen=True):
    """How often each publisher of a channel publishes, before and after the load is raised, and the message size."""

    before_per_s: float
    after_per_s: float
    payload_bytes: int


class LoadChannel(msgspec.Struct, frozen=True):
    """One channel. `publishers` are numbers; a paced channel has a `pace`."""

    name: str
    kind: PublishPattern
    publishers: tuple[int, ...]
    placement: Placement | None
    pace: PublishRate | None = None


class LoadSubscriber(msgspec.Struct, frozen=True):
    """One subscriber, with one subscription at a time."""

    number: int
    name: str
    pattern: bool
    lifetime: Lifetime
    slow: bool
    bus: int | None = None
    """The number of the bus that it shares with others; None if it has its own."""


class LoadShape(msgspec.Struct, frozen=True):
    """The whole load of a round."""

    seed: int
    seconds: float
    limits: Limits
    channels: tuple[LoadChannel, ...]
    publishers: int
    subscribers: tuple[LoadSubscriber, ...]
    subscriber_processes: int

    def process_of(self, subscriber: LoadSubscriber) -> int:
        """The process of a subscriber. Subscribers with patterns, which receive most, are spread evenly too; those that
        share a bus are in the same process."""
        number = subscriber.number
        if subscriber.bus is not None:
            return subscriber.bus % self.subscriber_processes
        return (number + number // PATTERN_EVERY + number // (PATTERN_EVERY * WIDE_EVERY)) % self.subscriber_processes

    def rng(self, *part: object) -> Random:
        """A random generator for one part of the load, from the seed."""
        return Random("/".join(map(str, (self.seed, *part))))


def draw(seed: int, seconds: float, servers: list[str], subscribers: int, limits: Limits, idle: int = 0) -> LoadShape:
    """The load of a round; `idle` channels in it have subscribers only."""
    rng = Random(seed)
    count = max(len(MODES), subscribers // SUBSCRIBERS_PER_CHANNEL)
    publishers = max(4, subscribers // SUBSCRIBERS_PER_PUBLISHER)
    spoken = tuple(_channel(index, publishers, servers, rng) for index in range(count))
    channels = spoken + tuple(
        LoadChannel(f"{IDLE_PREFIX}{index}", PublishPattern.IDLE, (), None) for index in range(idle)
    )
    return LoadShape(
        seed=seed,
        seconds=seconds,
        limits=limits,
        channels=channels,
        publishers=publishers,
        subscribers=tuple(_subscriber(number, channels, rng) for number in range(subscribers)),
        subscriber_processes=min(PROCESSES_MAX, -(-subscribers // SUBSCRIBERS_PER_PROCESS)),
    )


def with_probes(shape: LoadShape, servers: list[str]) -> LoadShape:
    """The same load with one probe for each server, which has a publisher and a subscriber of its own."""
    pace = PublishRate(PROBES_PER_S, PROBES_PER_S, PROBE_BYTES)
    channels = tuple(
        LoadChannel(
            f"{PROBE_PREFIX}{server}",
            PublishPattern.PACED,
            (shape.publishers + number,),
            Placement(1, Mode.SINGLE, (server,)),
            pace,
        )
        for number, server in enumerate(servers)
    )
    first = len(shape.subscribers)
    subscribers = tuple(
        LoadSubscriber(first + number, channel.name, False, Lifetime.WHOLE, slow=False)
        for number, channel in enumerate(channels)
    )
    return msgspec.structs.replace(
        shape,
        channels=shape.channels + channels,
        publishers=shape.publishers + len(channels),
        subscribers=shape.subscribers + subscribers,
    )


def draw_burst_shape(seed: int, seconds: float, channels: int, limits: Limits) -> LoadShape:
    """The load of a round in which many channels move at once. Each has one publisher and one subscriber, which share
    buses with those of other channels."""
    drawn = tuple(
        LoadChannel(f"soak.{PublishPattern.PULSE}.{index}", PublishPattern.PULSE, (index % BURST_PUBLISHERS,), None)
        for index in range(channels)
    )
    return LoadShape(
        seed=seed,
        seconds=seconds,
        limits=limits,
        channels=drawn,
        publishers=min(BURST_PUBLISHERS, channels),
        subscribers=tuple(
            LoadSubscriber(number, channel.name, False, Lifetime.WHOLE, slow=False, bus=number % BURST_BUSES)
            for number, channel in enumerate(drawn)
        ),
        subscriber_processes=BURST_PROCESSES,
    )


def _channel(index: int, publishers: int, servers: list[str], rng: Random) -> LoadChannel:
    kind = KINDS[index % len(KINDS)]
    chosen = {index % publishers, rng.randrange(publishers)} if index % 2 else {index % publishers}
    mode = MODES[index % len(MODES)]
    placement = None
    if mode is not None:
        width = 1 if mode is Mode.SINGLE else min(len(servers), rng.randint(2, 3))
        placement = Placement(1, mode, tuple(rng.sample(servers, width)))
    return LoadChannel(f"soak.{kind}.{index}", kind, tuple(sorted(chosen)), placement)


def _subscriber(number: int, channels: tuple[LoadChannel, ...], rng: Random) -> LoadSubscriber:
    pattern = number % PATTERN_EVERY == 1
    name = channels[number % len(channels)].name
    if pattern:
        wide = number // PATTERN_EVERY % WIDE_EVERY == 0
        name = EVERYTHING if wide else rng.choice(("soak.quiet.*", "soak.burst.1*", "soak.steady.*", "soak.quiet.*"))
    return LoadSubscriber(number, name, pattern, LIFETIMES[number % len(LIFETIMES)], slow=rng.random() < 0.1)
