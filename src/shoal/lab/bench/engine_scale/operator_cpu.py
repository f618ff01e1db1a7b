"""What matchers and exit points cost in configurations that this machine has no cores for: the shipped cores, without a
network, one after the other in this process.

Owns the clock around them. A matcher has its share of the filters of a load, and gets the batches of the fan in their
wire form; an exit point gets them, and the parts of all matchers. What channels add is measured on real processes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt

from shoal.engine.configuration import Configuration, checksum
from shoal.engine.exit_point import ExitPoint
from shoal.engine.links import Batch, Change, Changes, Events, Found, Part, decode_batch, decode_to_member, encode
from shoal.engine.matcher import Matcher
from shoal.engine.messages import Event, pack, unpack
from shoal.engine.subscription_table import owners
from shoal.lab.bench.engine_scale.load import CLIENTS, EngineWorkload
from shoal.lab.bench.match import frozen_heap
from shoal.limits import DEFAULT_LIMITS

BATCH: Final = 256
EVENTS: Final = {True: 2048, False: 8192}
"""Events that are measured: few, if each matches very many filters."""
HEAD: Final = "head"
"""The process of the access point."""
CHUNK: Final = 2000
REPEATED: Final = 3
"""Measurements of each; medians count."""
PAYLOAD: Final = bytes(64)
_EMITTER: Final = 99


class OperatorCpu:
    """The costs of one load with one number of filters, in us of CPU for an event."""

    def __init__(self, load: EngineWorkload, filters: int, matchers_max: int, exits: Sequence[int]) -> None:
        self._load = load
        events = load.events(filters)
        self._batches = _batches(events.wires[: EVENTS[events.matches(0, 256) > 256 * BATCH]])
        self._count = sum(len(batch.body.events) for batch in self._batches if isinstance(batch.body, Events))
        table = load.first_filters(filters)
        self._wires = [table[number] for number in range(filters)]
        self._checksums = np.array([checksum(wire) for wire in self._wires], np.uint64)
        self.matcher: dict[int, float] = {}
        """By number of matchers: one of them."""
        self.exit_point: dict[tuple[int, int], float] = {}
        """By number of matchers and of exit points: one of the exit points."""
        found: list[list[Found]] = []
        for matchers in range(1, matchers_max + 1):
            cost, parts = self._matcher_us(_configuration(matchers, 1))
            self.matcher[matchers] = cost
            found = found or parts
            for each in exits:
                self.exit_point[matchers, each] = self._exit_us(_configuration(matchers, each), found)

    def _matcher_us(self, configuration: Configuration) -> tuple[float, list[list[Found]]]:
        """The cost of the first matcher, and what it finds."""
        matcher = Matcher(configuration.matchers[0], 1, configuration, DEFAULT_LIMITS)
        mine = np.flatnonzero(owners(configuration, self._checksums) == 0).tolist()
        for client in range(CLIENTS):
            own = [number for number in mine if number % CLIENTS == client]
            for at in range(0, len(own), CHUNK):
                filters = [(number, self._wires[number]) for number in own[at : at + CHUNK]]
                matcher.heard(Batch(1, HEAD, 1, Changes([Change(client, 1, filters, [])])))
        matcher.table.settle()
        matcher.out.clear()
        encoded = [encode(batch) for batch in self._batches]
        _heard(matcher, encoded[:1])
        matcher.out.clear()
        costs = []
        for _ in range(REPEATED):
            with frozen_heap():
                began = time.thread_time_ns()
                parts = _heard(matcher, encoded)
                costs.append((time.thread_time_ns() - began) / 1000 / self._count)
        found: dict[int, list[Found]] = {batch.number: [] for batch in self._batches}
        for part in map(decode_to_member, parts):
            assert isinstance(part, Part)
            found[part.number] += part.found  # it comes in pieces
        return median(costs), [*found.values()]

    def _exit_us(self, configuration: Configuration, found: list[list[Found]]) -> float:
        """The cost of the first exit point, if the matchers together find this."""
        name = configuration.exits[0]
        own = [[one for one in each if configuration.exit_of(one[1]) == name] for each in found]
        by_filter = owners(configuration, self._checksums)
        parts = [
            _parts(configuration.matchers, by_filter, batch.number, each)
            for batch, each in zip(self._batches, own, strict=True)
        ]
        encoded = [encode(batch) for batch in self._batches]
        costs = []
        for _ in range(REPEATED):
            exit_point = ExitPoint(name, 1, configuration, DEFAULT_LIMITS)
            with frozen_heap():
                costs.append(self._deliver_us(exit_point, encoded, parts))
            assert 0 < exit_point.deliveries == sum(map(len, own)), "an exit point delivers what was found for it"
        return median(costs)

    def _deliver_us(self, exit_point: ExitPoint, encoded: list[bytes], parts: list[list[bytes]]) -> float:
        began = time.thread_time_ns()
        for batch, some in zip(encoded, parts, strict=True):
            exit_point.heard(decode_batch(batch))
            for part in map(decode_to_member, some):
                assert isinstance(part, Part)
                exit_point.received(part)
            exit_point.join()
            for post in exit_point.flush():
                exit_point.confirmed(post.group)
            exit_point.settled()
        return (time.thread_time_ns() - began) / 1000 / self._count


def _parts(
    matchers: Sequence[str], by_filter: npt.NDArray[np.int64], number: int, found: Iterable[Found]
) -> list[bytes]:
    """What each matcher says of a batch, given the matcher of each filter."""
    shares: list[list[Found]] = [[] for _ in matchers]
    for place, client, packed in found:
        numbers = np.array(unpack(packed))
        by_matcher = by_filter[numbers]
        for at in sorted(set(by_matcher.tolist())):
            shares[at].append((place, client, pack(numbers[by_matcher == at].tolist())))
    return [encode(Part(1, HEAD, number, name, share, [])) for name, share in zip(matchers, shares, strict=True)]


def _heard(matcher: Matcher, encoded: Iterable[bytes]) -> list[bytes]:
    """A matcher hears batches; its parts in their wire form."""
    parts: list[bytes] = []
    for batch in encoded:
        matcher.heard(decode_batch(batch))
        parts += [encode(message) for _, message in matcher.out]
        matcher.out.clear()
    return parts


def _configuration(matchers: int, exits: int) -> Configuration:
    names = tuple(f"matcher-{number}" for number in range(matchers))
    return Configuration(1, (HEAD,), names, exits_that_share(exits))


def exits_that_share(count: int) -> tuple[str, ...]:
    """Names of exit points among which the clients are divided as evenly as can be."""
    for turn in range(1000):
        names = tuple(f"exit-{turn}-{number}" for number in range(count))
        configuration = Configuration(1, (HEAD,), names, names)
        counts: dict[str, int] = defaultdict(int)
        for client in range(CLIENTS):
            counts[configuration.exit_of(client)] += 1
        if len(counts) == count and max(counts.values()) == -(-CLIENTS // count):
            return names
    raise AssertionError(f"{count} exit points for {CLIENTS} clients")


def _batches(events: Sequence[bytes]) -> list[Batch]:
    made = [(_EMITTER, Event(number, 0, event, PAYLOAD)) for number, event in enumerate(events, 1)]
    return [
        Batch(1, HEAD, number, Events(made[at : at + BATCH])) for number, at in enumerate(range(0, len(made), BATCH), 1)
    ]
