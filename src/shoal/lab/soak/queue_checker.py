"""The verdict on a queue soak: was every accepted message processed, once, in order, by one consumer at a time?

Owns the rules by which the logs are judged. It knows nothing about how queues work.

    lost          accepted, and no handler has ended with it
    reordered     a handler began with a message before one ended with an earlier accepted message of the same producer
                  and key
    overlapped    two handlers had messages of one key at the same time
    unexplained   a message came again although its `done` was confirmed, or although its consumer lived, held it and
                  had not given it back

A message comes again with a good reason if its consumer was killed before `done` was confirmed, or had lost the job.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final

import msgspec

from shoal.lab.soak.queue_orders import ACCEPTED, BEGUN, CONFIRMED, ENDED, LOST, UNSURE, Event

TOLD_MAX: Final = 20
"""Violations of a kind that are described; the others are only counted."""

MessageId = tuple[str, int, int]


class Attempt(msgspec.Struct):
    """One handler with one message. `end` is when it was over: it ended, or its consumer was killed."""

    message: MessageId
    consumer: str
    begun: float
    ended: float = math.inf
    confirmed: float = math.inf
    lost: bool = False
    killed: float = math.inf

    @property
    def end(self) -> float:
        """When the handler was over."""
        return min(self.ended, self.killed)


class QueueFindings(msgspec.Struct):
    """The counts, and descriptions of violations."""

    accepted: int = 0
    unsure: int = 0
    processed: int = 0
    repeated: int = 0
    lost: int = 0
    reordered: int = 0
    overlapped: int = 0
    unexplained_duplicates: int = 0
    takeovers_ms: list[float] = []
    violations: list[str] = []

    @property
    def takeover_ms(self) -> float | None:
        """Median time from the death of a consumer until its messages began at another one."""
        return round(median(self.takeovers_ms), 1) if self.takeovers_ms else None


def judge(events: Iterable[Event], kills: Mapping[str, float]) -> QueueFindings:
    """The verdict. `kills` has the time at which each killed client died."""
    accepted: set[MessageId] = set()
    unsure: set[MessageId] = set()
    attempts: dict[MessageId, list[Attempt]] = defaultdict(list)
    for event in sorted(events, key=lambda one: one.at):
        message = event.producer, event.key, event.number
        if event.what == ACCEPTED:
            accepted.add(message)
        elif event.what == UNSURE:
            unsure.add(message)
        elif event.what == BEGUN:
            killed = kills.get(event.client, math.inf)
            attempts[message].append(Attempt(message, event.client, event.at, killed=killed))
        elif event.what in (ENDED, CONFIRMED, LOST):
            _close(attempts[message], event)
    report = QueueFindings(accepted=len(accepted), unsure=len(unsure), takeovers_ms=[], violations=[])
    report.processed = sum(any(one.ended < math.inf for one in tries) for tries in attempts.values())
    report.repeated = sum(len(tries) - 1 for tries in attempts.values())
    report.lost = _tell(
        report, "lost", (_name(message) for message in sorted(accepted) if not _is_done(attempts, message))
    )
    report.reordered = _tell(report, "reordered", _reordered(accepted, attempts))
    report.overlapped = _tell(report, "overlapped", _overlapped(attempts))
    report.unexplained_duplicates = _tell(report, "unexplained duplicate", _unexplained(attempts))
    report.takeovers_ms = [*_takeovers_ms(attempts)]
    return report


def _close(tries: Sequence[Attempt], event: Event) -> None:
    """Notes the end of the newest attempt of this consumer."""
    attempt = next((one for one in reversed(tries) if one.consumer == event.client), None)
    if attempt is None:
        raise ValueError(
            f"{event.client} ended {_name((event.producer, event.key, event.number))} without beginning it"
        )
    if event.what == ENDED:
        attempt.ended = event.at
    elif event.what == CONFIRMED:
        attempt.confirmed = event.at
    else:
        attempt.lost = True


def _is_done(attempts: Mapping[MessageId, Sequence[Attempt]], message: MessageId) -> bool:
    return any(one.ended < math.inf for one in attempts.get(message, ()))


def _reordered(accepted: set[MessageId], attempts: Mapping[MessageId, Sequence[Attempt]]) -> Iterable[str]:
    lanes: dict[tuple[str, int], list[MessageId]] = defaultdict(list)
    for message in accepted | attempts.keys():
        lanes[message[:2]].append(message)
    for messages in lanes.values():
        earlier_ended, earlier = -math.inf, None
        for message in sorted(messages):
            tries = attempts.get(message, ())
            for attempt in tries:
                if attempt.begun < earlier_ended:
                    yield f"{_name(message)} began at {attempt.consumer} before {_name(earlier)} had ended"
            ended = min((one.ended for one in tries), default=math.inf)
            if message in accepted and ended > earlier_ended:
                earlier_ended, earlier = ended, message


def _overlapped(attempts: Mapping[MessageId, Sequence[Attempt]]) -> Iterable[str]:
    keys: dict[int, list[Attempt]] = defaultdict(list)
    for message, tries in attempts.items():
        keys[message[1]] += tries
    for key, held in keys.items():
        held.sort(key=lambda one: one.begun)
        longest = held[0]
        for attempt in held[1:]:
            if attempt.begun < longest.end:
                beside = f"while {longest.consumer} had {_name(longest.message)}"
                yield f"key {key}: {_name(attempt.message)} began at {attempt.consumer} {beside}"
            longest = max(longest, attempt, key=lambda one: one.end)


def _unexplained(attempts: Mapping[MessageId, Sequence[Attempt]]) -> Iterable[str]:
    for message, tries in attempts.items():
        for first, second in itertools.pairwise(tries):
            if first.confirmed < second.begun:
                yield f"{_name(message)} came again to {second.consumer} after {first.consumer} had confirmed it"
            elif not first.lost and first.killed > second.begun:
                yield f"{_name(message)} came again to {second.consumer} while {first.consumer} lived and held it"


def _takeovers_ms(attempts: Mapping[MessageId, Sequence[Attempt]]) -> Iterable[float]:
    for tries in attempts.values():
        for first, second in itertools.pairwise(tries):
            if first.killed < second.begun and first.confirmed == math.inf and first.consumer != second.consumer:
                yield 1000 * (second.begun - first.killed)


def _tell(report: QueueFindings, kind: str, found: Iterable[str]) -> int:
    """Adds descriptions; returns how many there are."""
    count = 0
    for text in found:
        if count < TOLD_MAX:
            report.violations.append(f"{kind}: {text}")
        count += 1
    return count


def _name(message: MessageId | None) -> str:
    return "a message" if message is None else f"message {message[2]} of {message[0]}, key {message[1]}"
