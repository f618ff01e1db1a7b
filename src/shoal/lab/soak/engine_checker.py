"""The verdict on an engine soak: did every event reach every reader with a filter that wants it, once and in order?

Owns the rules by which the logs are judged. It knows nothing about how the engine works; what a filter wants is decided
by `AirQuality.wants`, without the index.

    lost          a filter was in force when the event was emitted, it wants the event, its reader was not given the
                  event, or the event did not name the filter, and the reader was not given a gap afterwards
    duplicated    a reader was given an event twice
    reordered     a reader was given an event after a later one of the same emitter
    unmatched     a reader was given an event, with a filter that does not want it, or that is not the reader's
    false alarm   a reader was given a gap, and no event was missing
    recovered     the time from a kill until every reader has been given an event that was emitted after it
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from shoal.lab.air_quality import AirQuality, Reading
from shoal.lab.soak.engine_orders import DELIVERED, EMITTED, GAP, IN_FORCE, REMOVED, Line

TOLD_MAX: Final = 20
"""Violations of a kind that are described; the others are only counted."""
REMOVAL_S: Final = 5.0
"""An event that was emitted this long before a filter was removed may still come, or not."""

EventId = tuple[str, int]


class _Owed(NamedTuple):
    """A filter of a reader, and when its events must arrive and may arrive: when they were emitted between."""

    reader: str
    number: int
    since: float
    must_until: float


class EngineVerdict(msgspec.Struct):
    """The counts, and descriptions of violations."""

    events: int = 0
    deliveries: int = 0
    owed: int = 0
    """Pairs of an event and a filter that must be delivered."""
    lost: int = 0
    missed: int = 0
    """Deliveries that did not come, and were reported by a gap."""
    duplicated: int = 0
    reordered: int = 0
    unmatched: int = 0
    gaps: int = 0
    false_alarms: int = 0
    recovered_s: list[float] = []
    """One for each kill."""
    violations: list[str] = []


def judge(lines: Iterable[Line], city: AirQuality, kills: Sequence[float]) -> EngineVerdict:
    """The verdict. `kills` are the times at which processes of the engine died."""
    emitted: dict[EventId, float] = {}
    filters: dict[tuple[str, int], _Owed] = {}
    given: dict[str, list[Line]] = defaultdict(list)
    gaps: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        if line.what == EMITTED:
            emitted[line.emitter, line.number] = line.at
        elif line.what == IN_FORCE:
            filters[line.client, line.number] = _Owed(line.client, line.number, line.at, math.inf)
            given[line.client]  # a reader to whom nothing came
        elif line.what == REMOVED:
            known = filters[line.client, line.number]
            filters[line.client, line.number] = known._replace(must_until=line.at - REMOVAL_S)
        elif line.what == DELIVERED:
            given[line.client].append(line)
        elif line.what == GAP:
            gaps[line.client].append(line.at)
    verdict = EngineVerdict(events=len(emitted), recovered_s=[], violations=[])
    verdict.deliveries = sum(map(len, given.values()))
    verdict.gaps = sum(map(len, gaps.values()))
    cells: dict[int, list[_Owed]] = defaultdict(list)
    for owed in filters.values():
        cells[city.cell_of(owed.number)].append(owed)
    verdict.duplicated = _tell(verdict, "duplicated", _duplicated(given))
    verdict.reordered = _tell(verdict, "reordered", _reordered(given))
    verdict.unmatched = _tell(verdict, "unmatched", _unmatched(given, city, filters, emitted))
    missing = [*_missing(verdict, given, city, cells, emitted)]
    silent = [one for one in missing if not _is_told(one, gaps[one[1]], emitted)]
    verdict.lost = _tell(
        verdict, "lost", (f"{_name(event)} for filter {of} of {reader}" for event, reader, of in silent)
    )
    verdict.missed = len(missing) - len(silent)
    told = {one[1] for one in missing}
    verdict.false_alarms = sum(len(times) for reader, times in gaps.items() if reader not in told)
    verdict.recovered_s = [*_recovered_s(given, emitted, kills)]
    return verdict


def _duplicated(given: Mapping[str, Sequence[Line]]) -> Iterator[str]:
    for reader, lines in given.items():
        seen: set[EventId] = set()
        for line in lines:
            event = line.emitter, line.number
            if event in seen:
                yield f"{_name(event)} at {reader}"
            seen.add(event)


def _reordered(given: Mapping[str, Sequence[Line]]) -> Iterator[str]:
    for reader, lines in given.items():
        last: dict[str, int] = {}
        for line in lines:
            before = last.get(line.emitter, 0)
            if line.number < before:
                yield f"{_name((line.emitter, line.number))} at {reader}, after number {before}"
            last[line.emitter] = max(before, line.number)


def _unmatched(
    given: Mapping[str, Sequence[Line]],
    city: AirQuality,
    filters: Mapping[tuple[str, int], _Owed],
    emitted: Mapping[EventId, float],
) -> Iterator[str]:
    for reader, lines in given.items():
        for line in lines:
            event = line.emitter, line.number
            if not line.filters or event not in emitted:
                yield f"{_name(event)} at {reader}, which was not emitted or names no filter"
            for number in line.filters:
                if (reader, number) not in filters or not city.wants(number, city.reading(line.number)):
                    yield f"{_name(event)} at {reader}, for filter {number}"


def _missing(
    verdict: EngineVerdict,
    given: Mapping[str, Sequence[Line]],
    city: AirQuality,
    cells: Mapping[int, Sequence[_Owed]],
    emitted: Mapping[EventId, float],
) -> Iterator[tuple[EventId, str, int]]:
    """Events, readers and filters that were owed and have not come; counts what was owed."""
    came = {(reader, line.emitter, line.number): line.filters for reader, lines in given.items() for line in lines}
    for event, at in emitted.items():
        reading: Reading = city.reading(event[1])
        for owed in cells.get(reading[0], ()):
            if owed.since < at < owed.must_until and city.wants(owed.number, reading):
                verdict.owed += 1
                if owed.number not in came.get((owed.reader, *event), ()):
                    yield event, owed.reader, owed.number


def _is_told(missing: tuple[EventId, str, int], gaps: Sequence[float], emitted: Mapping[EventId, float]) -> bool:
    """Whether the reader was given a gap after the event was emitted."""
    return any(at > emitted[missing[0]] for at in gaps)


def _recovered_s(
    given: Mapping[str, Sequence[Line]], emitted: Mapping[EventId, float], kills: Sequence[float]
) -> Iterator[float]:
    """For each kill, the time until every reader was given an event that was emitted after it."""
    firsts = []
    for lines in given.values():
        times = sorted((emitted[event], line.at) for line in lines if (event := (line.emitter, line.number)) in emitted)
        soonest = [math.inf] * (len(times) + 1)
        for at in range(len(times) - 1, -1, -1):
            soonest[at] = min(soonest[at + 1], times[at][1])
        firsts.append(([one[0] for one in times], soonest))
    for kill in kills:
        yield max((soonest[bisect_left(times, kill)] for times, soonest in firsts), default=math.inf) - kill


def _tell(verdict: EngineVerdict, kind: str, found: Iterable[str]) -> int:
    """Adds descriptions; returns how many there are."""
    count = 0
    for text in found:
        if count < TOLD_MAX:
            verdict.violations.append(f"{kind}: {text}")
        count += 1
    return count


def _name(event: EventId) -> str:
    return f"event {event[1]} of {event[0]}"
