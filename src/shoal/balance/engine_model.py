"""The model of an engine: how busy its processes would be, and how long its events would wait, with other numbers.

Owns the model. Pure functions of a measured load.

    work      the cores that a layer would need with one operator: of its busiest operator, divided by `scale`
    busy      of a process: the work of its operators, and the rest of the process
    wait      of a layer: a batch is served in S, and waits as in an M/G/1 queue; the 99th percentile of an exponential
              tail is `TAIL` times the mean, so S * (1 + TAIL * busy / (1 - busy)). Layers add up.

The first process has the access point; matchers and exit points are given to processes from the first one on, as the
director does. Work counts by the clock: where others use the same cores, it takes longer than its CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from shoal.balance.engine_entry import EngineEntry, Layers

SERIAL: Final = 0.15
"""Share of a layer's work that every operator of it does again, such as reading each event. The paper measures 0.10 to
0.20 (Karp-Flatt metric, figure 12)."""
MEMBER_REST: Final = 0.5
"""The rest of a process without the access point, as a share of that of the first process, until it is measured."""
TAIL: Final = math.log(100)
HOPS_MS: Final = 5.0
"""The 99th percentile of what an engine without load takes, about: it is used until it can be measured."""
SATURATED: Final = 0.9
"""A process above this may be all that limits the load: more events come when it has room."""
GROWTH: Final = 1.3
"""By how much more, about."""
BUSY_MAX: Final = 0.98
"""A queue is not modelled above this."""


def scale(operators: int) -> float:
    """The work of each of several operators, as a share of the work of a single one."""
    return SERIAL + (1 - SERIAL) / operators


class Expected(NamedTuple):
    """What the model expects of a configuration: the share of time for which its busiest process is busy, and the wait
    of events."""

    busy: float
    wait_ms_p99: float


@dataclass(frozen=True, slots=True)
class EngineModel:
    """An engine under a load."""

    work: tuple[float, float, float]
    """The work of the layers."""
    head_rest: float
    member_rest: float
    """What processes do besides, with and without the access point."""
    batches_per_s: float
    skips_head: bool
    """Whether the first process has no matcher and no exit point."""
    growth: float = 1.0
    """How much more load there will be."""
    base_ms: float = HOPS_MS
    """The part of the wait that does not depend on the configuration."""

    @property
    def bottleneck(self) -> int:
        """The layer with most work."""
        return self.work.index(max(self.work))

    def expect(self, layers: Layers) -> Expected:
        """What to expect of a configuration."""
        each = [work * scale(count) for work, count in zip(self.work, layers, strict=True)]
        first = 1 if self.skips_head else 0
        places = [range(layers.points), *(range(first, first + count) for count in layers[1:])]
        busy = [self.growth * self.head_rest]
        busy += [self.growth * self.member_rest] * (max(place.stop for place in places) - 1)
        for work, place in zip(each, places, strict=True):
            for at in place:
                busy[at] += self.growth * work
        wait_ms = self.base_ms
        if self.batches_per_s:
            for work, place in zip(each, places, strict=True):
                most = min(max(busy[at] for at in place), BUSY_MAX)
                wait_ms += 1000 * work / self.batches_per_s * (1 + TAIL * most / (1 - most))
        return Expected(max(busy), wait_ms)


def model_of(entry: EngineEntry) -> EngineModel:
    """The model of an engine under its present load."""
    load, layers = entry.load, entry.layers
    members = [process for process in load.processes[1:] if process.matching or process.merging]
    head = load.processes[:1]
    head_rest = sum(process.rest * process.slowdown for process in head)
    rests = [process.rest * process.slowdown for process in members]

    def work(part: str, operators: int) -> float:
        most = max((getattr(process, part) * process.slowdown for process in load.processes), default=0.0)
        return most / scale(operators)

    model = EngineModel(
        work=(work("access", layers.points), work("matching", layers.matchers), work("merging", layers.exits)),
        head_rest=head_rest,
        member_rest=sum(rests) / len(rests) if rests else MEMBER_REST * head_rest,
        batches_per_s=load.batches_per_s,
        skips_head=bool(head) and head[0].name not in entry.usable,
        base_ms=0.0,
    )
    now = model.expect(layers)
    if now.busy >= SATURATED:
        return _with(model, growth=GROWTH, base_ms=HOPS_MS)
    measured = max(0.0, load.wait_ms_p99 - now.wait_ms_p99) if load.batches_per_s else HOPS_MS
    return _with(model, growth=1.0, base_ms=measured)


def _with(model: EngineModel, growth: float, base_ms: float) -> EngineModel:
    return EngineModel(
        *(model.work, model.head_rest, model.member_rest, model.batches_per_s, model.skips_head), growth, base_ms
    )
