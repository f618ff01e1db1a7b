"""What a seed makes of a round: its channels and where they live, who publishes on them, who subscribes.

Owns the load of a round. It is meant to be carried by two cores with room to spare: on the average a
subscription to a channel hears some thirty messages a second, whatever the number of subscribers.
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
"""One subscriber in so many has a pattern."""
WIDE_EVERY: Final = 10
"""One pattern in so many hears everything."""
EVERYTHING: Final = "soak.*"
IDLE_CHANNELS: Final = 2
"""How many channels of a round with moves nobody publishes on."""
IDLE_PREFIX: Final = "soak.idle."
BURST_PUBLISHERS: Final = 8
BURST_BUSES: Final = 16
"""Buses that share the subscriptions of a burst's channels: a multiple of the processes, so that each is in one."""
BURST_PROCESSES: Final = 2


class Kind(enum.StrEnum):
    """How a channel is published on."""

    BURST = "burst"
    STEADY = "steady"
    QUIET = "quiet"
    IDLE = "idle"
    """Never; a lazy move of such a channel is to cost its subscribers nothing."""
    PULSE = "pulse"
    """A message again and again, never a second apart; the channels of a burst of moves."""
    PACED = "paced"
    """At a rate of its own, which changes when the load rises: see `Pace`."""


class Life(enum.StrEnum):
    """How a subscriber lives."""

    WHOLE = "whole"
    LATE = "late"
    RESTLESS = "restless"


KINDS: Final = (Kind.BURST, Kind.STEADY, Kind.QUIET, Kind.BURST, Kind.BURST)
LIVES: Final = (Life.WHOLE, Life.WHOLE, Life.LATE, Life.RESTLESS)
MODES: Final = (None, None, None, Mode.SINGLE, Mode.ALL_SUBSCRIBERS, None, None, Mode.ALL_PUBLISHERS)
"""Channels in turn: None means that the ring says where it lives, else the plan has an entry."""


class Pace(msgspec.Struct, frozen=True):
    """How often each publisher of a channel publishes, before and after the load rises, and how large messages are."""

    before_per_s: float
    after_per_s: float
    payload_bytes: int


class Channel(msgspec.Struct, frozen=True):
    """One channel; `publishers` are the numbers of those who publish on it. A paced one has a `pace`."""

    name: str
    kind: Kind
    publishers: tuple[int, ...]
    placement: Placement | None
    pace: Pace | None = None


class Subscriber(msgspec.Struct, frozen=True):
    """One subscriber with one subscription at a time."""

    number: int
    name: str
    pattern: bool
    life: Life
    slow: bool
    bus: int | None = None
    """The number of the bus that it shares with others; None if it has one of its own."""


class Shape(msgspec.Struct, frozen=True):
    """All of a round, as load processes are told."""

    seed: int
    seconds: float
    limits: Limits
    channels: tuple[Channel, ...]
    publishers: int
    subscribers: tuple[Subscriber, ...]
    subscriber_processes: int

    def process_of(self, subscriber: Subscriber) -> int:
        """The process that a subscriber lives in. Those with patterns, who hear most, are spread, too; those who share
        a bus are together."""
        number = subscriber.number
        if subscriber.bus is not None:
            return subscriber.bus % self.subscriber_processes
        return (number + number // PATTERN_EVERY + number // (PATTERN_EVERY * WIDE_EVERY)) % self.subscriber_processes

    def rng(self, *who: object) -> Random:
        """Random numbers of their own for everyone, by the seed."""
        return Random("/".join(map(str, (self.seed, *who))))


def draw(seed: int, seconds: float, servers: list[str], subscribers: int, limits: Limits, idle: int = 0) -> Shape:
    """The shape of a round; `idle` channels in it have subscribers only."""
    rng = Random(seed)
    count = max(len(MODES), subscribers // SUBSCRIBERS_PER_CHANNEL)
    publishers = max(4, subscribers // SUBSCRIBERS_PER_PUBLISHER)
    spoken = tuple(_channel(index, publishers, servers, rng) for index in range(count))
    channels = spoken + tuple(Channel(f"{IDLE_PREFIX}{index}", Kind.IDLE, (), None) for index in range(idle))
    return Shape(
        seed=seed,
        seconds=seconds,
        limits=limits,
        channels=channels,
        publishers=publishers,
        subscribers=tuple(_subscriber(number, channels, rng) for number in range(subscribers)),
        subscriber_processes=min(PROCESSES_MAX, -(-subscribers // SUBSCRIBERS_PER_PROCESS)),
    )


def draw_burst_shape(seed: int, seconds: float, channels: int, limits: Limits) -> Shape:
    """The shape of a round in which many channels move at once: each has one publisher and one subscriber, who share
    buses with those of other channels."""
    drawn = tuple(
        Channel(f"soak.{Kind.PULSE}.{index}", Kind.PULSE, (index % BURST_PUBLISHERS,), None)
        for index in range(channels)
    )
    return Shape(
        seed=seed,
        seconds=seconds,
        limits=limits,
        channels=drawn,
        publishers=min(BURST_PUBLISHERS, channels),
        subscribers=tuple(
            Subscriber(number, channel.name, False, Life.WHOLE, slow=False, bus=number % BURST_BUSES)
            for number, channel in enumerate(drawn)
        ),
        subscriber_processes=BURST_PROCESSES,
    )


def _channel(index: int, publishers: int, servers: list[str], rng: Random) -> Channel:
    kind = KINDS[index % len(KINDS)]
    chosen = {index % publishers, rng.randrange(publishers)} if index % 2 else {index % publishers}
    mode = MODES[index % len(MODES)]
    placement = None
    if mode is not None:
        width = 1 if mode is Mode.SINGLE else min(len(servers), rng.randint(2, 3))
        placement = Placement(1, mode, tuple(rng.sample(servers, width)))
    return Channel(f"soak.{kind}.{index}", kind, tuple(sorted(chosen)), placement)


def _subscriber(number: int, channels: tuple[Channel, ...], rng: Random) -> Subscriber:
    pattern = number % PATTERN_EVERY == 1
    name = channels[number % len(channels)].name
    if pattern:
        wide = number // PATTERN_EVERY % WIDE_EVERY == 0
        name = EVERYTHING if wide else rng.choice(("soak.quiet.*", "soak.burst.1*", "soak.steady.*", "soak.quiet.*"))
    return Subscriber(number, name, pattern, LIVES[number % len(LIVES)], slow=rng.random() < 0.1)
