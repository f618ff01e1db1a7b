"""What happened in a run of the scenario `queue`, and the checks of it.

Owns the record of puts and jobs, as applications saw them, and the judgment. Uses no code of producers, consumers or
scripts: every message carries a number in its payload, and the store's keys are read as they are.

The promises: an accepted message is processed (lost, starved), messages of a producer and key in order (reordered), by
one consumer at a time (overlapped), which holds the key when a message starts (unowned); a confirmed `done` is final
(redone) and true (stale done, false alarm); an id is accepted once (accepted twice); a dead letter has had its attempts
(early dead letter); the queue stays within its bound (over bound), an empty one keeps nothing but what it must
remember (growth), and statistics count every message that is certainly there (undercounted).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final

from shoal.lab.sim.checkers import Verdict
from shoal.lab.sim.history import number_in
from shoal.plan.queue_settings import QueueSettings
from shoal.queues.keyspace.collections import Hash, Stream, Values
from shoal.queues.queue_state import STATE_FIELDS, unpack_state

ACCEPTED, REFUSED, DUPLICATE, UNKNOWN = "accepted", "refused", "duplicate", "unknown"


@dataclass(slots=True)
class Put:
    """One call of `put`, or one message of `put_many`."""

    number: int
    producer: str
    """The process that put it."""
    key: str
    id: str
    delayed: bool
    called_at: float
    outcome: str = UNKNOWN
    answered_at: float | None = None
    abandoned: bool = False
    """Whether an operator has given it up: with its shard, with all messages, with its queue, or as a dead letter."""


@dataclass(slots=True)
class Start:
    """A message was handed to an application."""

    number: int
    key: str
    consumer: str
    """The process that got it."""
    at: float
    holds: Callable[[], bool]
    """Whether the consumer believes now that it holds the key."""
    ended_at: float | None = None
    """When the application called `done` or `fail`, or its process ended."""
    end: str = ""
    """done, fail, or crash."""
    confirmed_at: float | None = None
    lost: bool = False
    """Whether `done` or `fail` reported that the job is lost."""
    certain: bool = True
    """Whether the consumer's lease had not ended when the job was reported lost."""


@dataclass(slots=True)
class SettingsSpan:
    """Settings of the queue, and the time in which a store may have enforced them."""

    settings: QueueSettings
    since: float
    until: float = inf


@dataclass
class QueueHistory:
    """The record of one run."""

    puts: dict[int, Put] = field(default_factory=dict)
    starts: list[Start] = field(default_factory=list)
    started: set[int] = field(default_factory=set)
    """The numbers of messages that were handed out."""
    violations: list[tuple[str, str]] = field(default_factory=list)
    """Found while the run continued."""
    seen: Counter[str] = field(default_factory=Counter)
    spans: list[SettingsSpan] = field(default_factory=list)
    """What settings the queue had. They overlap while they change."""
    dropped_at: list[float] = field(default_factory=list)
    """When the queue was dropped."""
    removed: set[int] = field(default_factory=set)
    """Messages that were purged, or dropped with the queue or from the dead letters."""
    replays: dict[int, list[float]] = field(default_factory=dict)
    """When a dead letter was put back."""
    replayed: list[list[tuple[int, float]]] = field(default_factory=list)
    """Dead letters of one key that were put back one after the other: number and time."""
    _last: dict[str, Start] = field(default_factory=dict)

    def put(self, producer: str, key: str, id: str, delayed: bool, at: float) -> Put:
        """Record a call; its number goes into the payload."""
        made = Put(len(self.puts) + 1, producer, key, id, delayed, at)
        self.puts[made.number] = made
        return made

    def start(self, number: int, key: str, consumer: str, at: float, holds: Callable[[], bool]) -> Start:
        """Record that a message was handed out, and check that no other consumer holds its key."""
        self.started.add(number)
        if number not in self.puts:
            self.violations.append(("invented", f"{consumer} got a message that was never put"))
        if self.is_abandoned(number):
            started = Start(number, key, consumer, at, holds)
            self.starts.append(started)
            return started
        other = self._last.get(key)
        if other is not None and other.ended_at is None and other.consumer != consumer and other.holds():
            what = f"{key} went to {consumer} at t={at:.3f}, while {other.consumer} held it"
            self.violations.append(("overlapped", what))
        started = self._last[key] = Start(number, key, consumer, at, holds)
        self.starts.append(started)
        return started

    def set_settings(self, settings: QueueSettings, at: float) -> None:
        """The queue gets settings; until `settings_hold`, a store may enforce those before."""
        if not self.spans or self.spans[-1].settings != settings or self.spans[-1].until <= at:
            self.spans.append(SettingsSpan(settings, at))

    def settings_hold(self, at: float) -> None:
        """All stores enforce the newest settings."""
        for span in self.spans[:-1]:
            span.until = min(span.until, at)

    def dropped(self, at: float) -> None:
        """There is no queue any more."""
        self.dropped_at.append(at)
        for span in self.spans:
            span.until = min(span.until, at)

    def limits(self, name: str, since: float, until: float = inf) -> list[float]:
        """The values of a setting that may have been in force in some time."""
        return [getattr(span.settings, name) for span in self.spans if span.since <= until and span.until >= since]

    def remove(self, numbers: Iterable[int]) -> None:
        """An operator has deleted messages. Who holds their keys does not matter any more."""
        for number in numbers:
            self.removed.add(number)
            if (put := self.puts.get(number)) is not None:
                put.abandoned = True
                if (last := self._last.get(put.key)) is not None and last.number == number:
                    del self._last[put.key]

    def surely_stored(self, since: float, attempts_max: float) -> int:
        """How many messages were in the queue from a time until now: accepted before, and neither done nor failed nor
        at their last attempt."""
        starts = Counter(start.number for start in self.starts)
        ended = {start.number for start in self.starts if start.end in ("done", "fail")}
        return sum(
            put.outcome == ACCEPTED
            and not put.abandoned
            and (put.answered_at or since) < since
            and put.number not in ended
            and starts[put.number] < attempts_max
            for put in self.puts.values()
        )

    def abandon(self, concerns: Callable[[str], bool]) -> None:
        """An operator gives up the shards of some keys: what was put before is lost."""
        for put in self.puts.values():
            put.abandoned = put.abandoned or concerns(put.key)
        for key in [key for key in self._last if concerns(key)]:
            del self._last[key]

    def is_abandoned(self, number: int) -> bool:
        """Whether the shard of a message was given up after it was put."""
        put = self.puts.get(number)
        return put is not None and put.abandoned

    def process_ended(self, name: str, at: float) -> None:
        """A process crashed: its jobs ended with it."""
        for start in self.starts:
            if start.consumer == name and start.ended_at is None:
                start.ended_at, start.end = at, "crash"


@dataclass(frozen=True, slots=True)
class StoredQueue:
    """The keys of a queue on the model of a store."""

    values: Values
    prefix: bytes

    def bodies(self) -> Iterator[bytes]:
        """All stored messages, in order per key. Delayed ones begin with their key."""
        for key, value in self.values.items():
            if b":k:" in key and isinstance(value, list):
                yield from value
            elif key.endswith(b":delayed") and isinstance(value, Hash):
                yield from value.fields.values()

    def numbers(self) -> list[int]:
        """The numbers of all stored messages, in order per key."""
        return [number_of(body) for body in self.bodies()]

    def byte_count(self) -> int:
        """The bytes of all stored messages."""
        found = 0
        for name, value in self.values.items():
            if b":k:" in name and isinstance(value, list):
                found += sum(map(len, value))
            elif name.endswith(b":delayed") and isinstance(value, Hash):
                for line in value.fields.values():
                    size, _, rest = line.partition(b":")
                    found += len(rest) - int(size)
        return found

    def key_count(self) -> int:
        """How many keys have messages, not counting delayed ones."""
        return sum(b":k:" in key and isinstance(value, list) for key, value in self.values.items())

    def id_count(self) -> int:
        """How many ids are remembered."""
        return sum(len(value) for key, value in self.values.items() if b":ids:" in key and isinstance(value, dict))

    def delayed_count(self) -> int:
        """How many messages are not due yet."""
        return sum(
            len(value) for name, value in self.values.items() if name.endswith(b":delayed") and isinstance(value, Hash)
        )

    def held(self) -> set[tuple[bytes, bytes]]:
        """The keys that consumers hold, each with its token."""
        found = set()
        for name, value in self.values.items():
            if name.endswith(b":owners") and isinstance(value, Hash):
                for key, line in value.fields.items():
                    owner, token, *_ = line.split()
                    if owner not in (b"-", b"!"):
                        found.add((key, token))
        return found

    def halted(self) -> set[bytes]:
        """The keys that wait for an operator, each behind its shard."""
        value = self.values.get(self.prefix + b"halted")
        return {*value} if isinstance(value, dict) else set()

    def dead(self) -> dict[int, int]:
        """The dead letters: attempts by number."""
        stream = self.values.get(self.prefix + b"dead")
        found = {}
        for _, fields in stream.entries if isinstance(stream, Stream) else ():
            named = dict(zip(fields[::2], fields[1::2], strict=True))
            found[number_of(named[b"body"])] = int(named[b"attempts"])
        return found

    def counted_messages(self) -> int:
        """How many messages the queue says that it holds."""
        state = self.values.get(self.prefix + b"state", b"")
        assert isinstance(state, bytes)
        return dict(zip(STATE_FIELDS, unpack_state(state), strict=True))["messages"] if state else 0

    def leftovers(self) -> Iterator[bytes]:
        """Keys that an empty queue without consumers should not have."""
        kept: Final = (b"conf", b"entry", b"state", b"work", b"dead", b"turns", b"leases", b"waiting", b"shards")
        for key in self.values:
            if not key.startswith(self.prefix):
                continue
            name = key.removeprefix(self.prefix)
            shards = b":ids:" in name or name.endswith(b":dead")
            if name not in kept and not shards and not name.startswith(b"producers:"):
                yield key


def number_of(stored: bytes) -> int:
    """The number in a stored message, which ends with its payload."""
    found = stored.rfind(b";")
    at = found
    while at > 0 and stored[at - 1 : at].isdigit():
        at -= 1
    return number_in(stored[at:])


class QueueCheck:
    """Judges a run."""

    def __init__(self, history: QueueHistory) -> None:
        self._history = history

    def judge(self, stored: list[int], dead: dict[int, int]) -> Verdict:
        """The verdict on everything so far."""
        history, verdict = self._history, Verdict()
        verdict.messages = len(history.puts)
        verdict.deliveries = len(history.starts)
        for kind, text in history.violations:
            self._violate(verdict, kind, text)
        dead = {number: attempts for number, attempts in dead.items() if not history.is_abandoned(number)}
        by_number: dict[int, list[Start]] = defaultdict(list)
        for start in history.starts:
            if not history.is_abandoned(start.number):
                by_number[start.number].append(start)
        self._check_stored(verdict, stored)
        self._check_lost(verdict, by_number, {*stored}, dead)
        self._check_order(verdict)
        self._check_ends(verdict, by_number, {*stored}, dead)
        self._check_ids(verdict)
        self._check_refused(verdict, by_number)
        self._check_replays(verdict)
        for number, attempts in dead.items():
            put, since = history.puts.get(number), history.replays.get(number, [0.0])[-1]
            starts = sum(start.at >= since for start in by_number[number])
            if put is not None and starts < min(history.limits("attempts_max", max(since, put.called_at)), default=0):
                self._violate(verdict, "early dead letter", f"{number} after {starts} starts ({attempts} counted)")
        verdict.seen.update(history.seen)
        return verdict

    def _violate(self, verdict: Verdict, kind: str, text: str) -> None:
        verdict.violate(kind, text)
        verdict.lost += kind in ("lost", "starved")
        verdict.reordered += kind == "reordered"
        verdict.duplicated += kind in ("redone", "accepted twice", "stored twice")

    def _check_stored(self, verdict: Verdict, stored: list[int]) -> None:
        for number, count in Counter(stored).items():
            if count > 1:
                self._violate(verdict, "stored twice", f"{number} is {count} times in the store")
            if number in self._history.removed:
                self._violate(verdict, "resurrected", f"{number} is in the store, but an operator has deleted it")

    def _check_refused(self, verdict: Verdict, starts: dict[int, list[Start]]) -> None:
        for put in self._history.puts.values():
            if put.outcome in (REFUSED, DUPLICATE) and starts[put.number]:
                self._violate(verdict, "refused", f"{put.number} was given out, but its put was refused")

    def _check_replays(self, verdict: Verdict) -> None:
        """Dead letters that were put back one after the other start in this order."""
        for batch in self._history.replayed:
            before, latest = 0, 0.0
            for number, at in batch:
                starts = [start.at for start in self._history.starts if start.number == number and start.at >= at]
                if starts and starts[0] < latest:
                    what = f"{number} was put back after {before}, and started at t={starts[0]:.3f} before it"
                    self._violate(verdict, "reordered", what)
                if starts:
                    before, latest = number, max(latest, starts[0])

    def _check_lost(
        self, verdict: Verdict, starts: dict[int, list[Start]], stored: set[int], dead: dict[int, int]
    ) -> None:
        for put in self._history.puts.values():
            if put.outcome != ACCEPTED or put.abandoned or any(start.end == "done" for start in starts[put.number]):
                continue
            if put.number in stored:
                self._violate(verdict, "starved", f"{put.number} of {put.key}, put at t={put.called_at:.3f}")
            elif put.number not in dead:
                self._violate(verdict, "lost", f"{put.number} of {put.key}, put at t={put.called_at:.3f}")

    def _check_order(self, verdict: Verdict) -> None:
        """A message is handed out for the first time before any later one of its producer and key. It may come again
        after a later one, as long as the end of that one was not confirmed."""
        streams: dict[tuple[str, str], dict[int, list[Start]]] = defaultdict(dict)
        newest: dict[tuple[str, str], int] = defaultdict(int)
        for start in self._history.starts:
            put, replayed = self._history.puts.get(start.number), self._history.replays.get(start.number, [inf])
            if put is None or put.delayed or put.abandoned or start.at >= replayed[0]:
                continue
            stream = put.producer, put.key
            before = streams[stream]
            if start.number in before:
                wrong = any(
                    number > start.number
                    and any(other.end == "done" and (other.confirmed_at or start.at) < start.at for other in others)
                    for number, others in before.items()
                )
            else:
                wrong = newest[stream] > start.number
            if wrong:
                what = f"{start.number} of {put.key} started at t={start.at:.3f}, after {newest[stream]}"
                self._violate(verdict, "reordered", what)
            newest[stream] = max(newest[stream], start.number)
            before.setdefault(start.number, []).append(start)

    def _check_ends(
        self, verdict: Verdict, starts: dict[int, list[Start]], stored: set[int], dead: dict[int, int]
    ) -> None:
        for number, attempts in starts.items():
            for position, start in enumerate(attempts):
                later = attempts[position + 1 :]
                if start.confirmed_at is not None and start.end == "done":
                    if any(other.at > start.confirmed_at for other in later):
                        text = f"{number} was done at t={start.confirmed_at:.3f} and started again"
                        self._violate(verdict, "redone", text)
                    if any(other.consumer != start.consumer and other.at < start.confirmed_at for other in later):
                        text = f"{number} was confirmed to {start.consumer} after another consumer had got it"
                        self._violate(verdict, "stale done", text)
                gone = number not in stored and number not in dead
                if start.lost and start.certain and start.end == "done" and not later and gone:
                    text = f"{start.consumer} was told that {number} is lost, but its done was the last word"
                    self._violate(verdict, "false alarm", text)

    def _check_ids(self, verdict: Verdict) -> None:
        accepted: dict[tuple[str, str], float] = {}
        for put in self._history.puts.values():
            if not put.id or put.outcome != ACCEPTED or put.answered_at is None or put.abandoned:
                continue
            before = accepted.get((put.key, put.id))
            again_s = put.answered_at - before if before is not None else inf
            dropped = before is not None and any(before <= at <= put.answered_at for at in self._history.dropped_at)
            if not dropped and again_s < 0.9 * min(self._history.limits("dedupe_s", before or 0.0, put.answered_at)):
                self._violate(verdict, "accepted twice", f"{put.id} of {put.key}, again as {put.number}")
            accepted[put.key, put.id] = put.called_at
