"""The planner of engines: how many matchers and exit points an engine is to have.

Owns the rules. `advise` is a pure function of an engine's entry and the settings:

- It adds operators while a process is busier than `HIGH`, or events wait longer than `engine_latency_ms`, until neither
  is expected: each time the operator that relieves the busiest process most.
- It removes an operator, one at a time, if less than `LOW` is expected of the processes without it, and either a wait
  well below the target or one that is longer by less than the price of an operator.
- It does nothing while the configuration changes, or was measured for too short a time, or was chosen by an operator.

Nothing flaps: what is added is expected to be below `GOAL`, and what is removed leaves less than `LOW`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from shoal.balance.change import HostsWanted, PlannerInput
from shoal.balance.engine_entry import EngineEntry, EngineMove, EngineRequest, Layers, decode_engine_request
from shoal.balance.engine_model import EngineModel, Expected, model_of
from shoal.balance.settings import BalanceSettings
from shoal.plan.kinds import ENGINE

HIGH: Final = 0.75
"""Share of its time above which a process is too busy."""
GOAL: Final = 0.6
"""Share that is expected of the busiest process after operators were added."""
LOW: Final = 0.4
"""Share below which the busiest process must stay when an operator is removed."""
WAIT_LOW: Final = 0.7
"""The same for waits, as a share of the target."""
GAIN_MIN: Final = 0.05
"""The share by which an operator must relieve the busiest process."""
MATCHERS_PER_EXIT: Final = 4
"""The paper's rule of thumb (section 6). It decides between operators that would help equally."""
ALIKE: Final = 0.02
"""Processes are equally busy if the difference is a smaller share."""
MEASURED_S_MIN: Final = 3.0
"""A load that was measured for a shorter time says nothing."""
POINTS_MAX: Final = 1
"""The planner adds no access points: more of them are for very many emitters, and an operator decides."""

HOLDS: Final = "the target holds"
PINNED: Final = "pinned by an operator: `shoal engine scale --auto` releases the numbers"
CHANGING: Final = "the configuration is changing"
MEASURING: Final = "the load was not measured for long enough yet"
SETTLING: Final = "the last change was too recent"
SPARE: Final = "the load needs one operator less"
NO_PROCESS: Final = "no process is free"
NO_HELP: Final = "no other operator would help"
BOTTLENECKS: Final = ("taking events is the bottleneck", "matching is the bottleneck", "merging is the bottleneck")


class Advice(msgspec.Struct, frozen=True):
    """What the planner wants: the configuration `after`, which may be the present one, why, and what it expects of it.
    `missing` processes are needed for more."""

    after: Layers
    reason: str
    figures: dict[str, float]
    missing: int = 0
    ideal: Layers | None = None
    """The configuration that it would want if processes were not missing."""


def advise(entry: EngineEntry, settings: BalanceSettings) -> Advice:
    """What an engine needs under its present load."""
    if entry.is_pinned:
        return Advice(entry.layers, PINNED, {})
    if entry.is_moving or entry.awaits is not None:
        return Advice(entry.layers, CHANGING, {})
    load, layers = entry.load, entry.layers
    if load.window_s < MEASURED_S_MIN:
        return Advice(layers, MEASURING, {})
    model = model_of(entry)
    now = model.expect(layers)
    if now.busy > HIGH or load.wait_ms_p99 > settings.engine_latency_ms:
        advice = _more(entry, model, settings)
    else:
        advice = _less(entry, model, settings)
    steady_s = settings.engine_shrink_s if advice.reason == SPARE else settings.engine_settle_s
    if advice.after != layers and load.steady_s < steady_s:
        return msgspec.structs.replace(advice, after=layers, reason=SETTLING)
    return advice


def _more(entry: EngineEntry, model: EngineModel, settings: BalanceSettings) -> Advice:
    layers, here = entry.layers, len(entry.usable)
    ideal = _relieved(model, layers, settings, settings.engine_operators_max)
    after = _relieved(model, layers, settings, min(settings.engine_operators_max, here))
    missing = max(0, max(ideal) - here)
    if after == layers and not missing:
        less = _less(entry, model, settings)
        return less if less.after != layers else msgspec.structs.replace(less, reason=NO_HELP)
    reason = NO_PROCESS if after == layers else BOTTLENECKS[_added(layers, after)]
    return Advice(after, reason, _figures(entry, model, after, settings), missing, ideal if missing else None)


def _relieved(model: EngineModel, layers: Layers, settings: BalanceSettings, operators_max: int) -> Layers:
    """The configuration that the load needs. A wait that stays above the target, because it has another reason than
    busy processes, is no reason for operators."""
    after = _grown(model, layers, settings, operators_max)
    is_busy = model.expect(layers).busy > HIGH
    return after if is_busy or model.expect(after).wait_ms_p99 <= settings.engine_latency_ms else layers


def _added(before: Layers, after: Layers) -> int:
    """The layer that gets most operators."""
    more = [new - old for old, new in zip(before, after, strict=True)]
    return more.index(max(more))


def _grown(model: EngineModel, layers: Layers, settings: BalanceSettings, operators_max: int) -> Layers:
    """The configuration with as many operators as it needs."""
    while True:
        now = model.expect(layers)
        late = now.wait_ms_p99 > settings.engine_latency_ms
        if now.busy <= GOAL and not late:
            return layers
        found = [
            (expected, one)
            for one in _neighbours(layers, 1, operators_max)
            if _is_worth(now, expected := model.expect(one), late, settings)
        ]
        if not found:
            return layers
        layers = _best(found)


def _best(found: Sequence[tuple[Expected, Layers]]) -> Layers:
    """The configuration with the least busy processes. Among those that are alike, the one nearest to the rule of
    thumb."""
    least = min(expected.busy for expected, _ in found)
    alike = [one for expected, one in found if expected.busy <= least * (1 + ALIKE)]
    return min(alike, key=lambda one: abs(one.matchers - MATCHERS_PER_EXIT * one.exits))


def _is_worth(now: Expected, then: Expected, late: bool, settings: BalanceSettings) -> bool:
    """Whether an operator is worth its price."""
    if now.busy > GOAL and then.busy <= now.busy * (1 - GAIN_MIN):
        return True
    return late and then.wait_ms_p99 <= now.wait_ms_p99 - settings.engine_operator_price


def _less(entry: EngineEntry, model: EngineModel, settings: BalanceSettings) -> Advice:
    least_ms = model.expect(entry.layers).wait_ms_p99 + settings.engine_operator_price
    fitting = [
        (expected, one)
        for one in _neighbours(entry.layers, -1, settings.engine_operators_max)
        if (expected := model.expect(one)).busy <= LOW
        and (expected.wait_ms_p99 <= WAIT_LOW * settings.engine_latency_ms or expected.wait_ms_p99 < least_ms)
    ]
    if not fitting:
        return Advice(entry.layers, HOLDS, _figures(entry, model, entry.layers, settings))
    after = _best(fitting)
    return Advice(after, SPARE, _figures(entry, model, after, settings))


def _neighbours(layers: Layers, step: int, operators_max: int) -> Iterator[Layers]:
    """The configurations with one operator more, or fewer."""
    most = Layers(min(POINTS_MAX, operators_max), operators_max, operators_max)
    for place, count in enumerate(layers):
        if 1 <= count + step <= (most[place] if step > 0 else count):
            yield layers._replace(**{layers._fields[place]: count + step})


def _figures(entry: EngineEntry, model: EngineModel, after: Layers, settings: BalanceSettings) -> dict[str, float]:
    """What a decision rests on."""
    now, then = model.expect(entry.layers), model.expect(after)
    figures = {
        "events_per_s": entry.load.events_per_s,
        "wait_ms_p99": entry.load.wait_ms_p99,
        "target_ms": settings.engine_latency_ms,
        "access_work": model.work[0],
        "matching_work": model.work[1],
        "merging_work": model.work[2],
        "busy": now.busy,
        "busy_expected": then.busy,
        "wait_ms_p99_expected": then.wait_ms_p99,
    }
    return {name: round(value, 4) for name, value in figures.items()}


class EnginePlanner:
    """Plans engines. The engine carries out requests itself, so there is no conductor."""

    kind: Final = ENGINE
    group: Final = ""
    entry_type: Final = EngineEntry

    def read_request(self, data: bytes) -> EngineRequest:
        """The request in `data`; PlanError if it is invalid."""
        return decode_engine_request(data)

    def plan(self, given: PlannerInput) -> Iterator[EngineMove | HostsWanted]:
        """Changes of configurations, and processes to start."""
        for unit, entry in sorted(given.units.entries.items()):
            advice = advise(entry, given.settings)
            if advice.after != entry.layers:
                yield EngineMove(unit, entry.revision, entry.layers, advice.after, advice.reason, advice.figures)
            count = min(advice.missing, entry.startable)
            if count and not given.adding.get(ENGINE):
                yield HostsWanted(ENGINE, count, "", NO_PROCESS, advice.figures)

    def request(self, move: EngineMove, id: str) -> EngineRequest:
        """The request for a change."""
        return EngineRequest(move.unit, id, move.after, move.revision)

    def is_at(self, entry: EngineEntry | None, request: EngineRequest) -> bool:
        """Whether an engine has the numbers that were requested."""
        return entry is not None and entry.layers == request.layers
