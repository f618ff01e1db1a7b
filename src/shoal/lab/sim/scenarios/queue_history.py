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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from shoal.lab.sim.checkers import Verdict
from shoal.queues.keyspace.collections import Hash, Stream, Values

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
    """Whether an operator gave up the shard of its key after the call."""


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


@dataclass
class QueueHistory:
    """The record of one run."""

    puts: dict[int, Put] = field(default_factory=dict)
    starts: list[Start] = field(default_factory=list)
    started: set[int] = field(default_factory=set)
    """The numbers of messages that were handed out."""
    violations: list[tuple[str, str]] = field(default_factory=list)
    """Found while the run went on."""
    seen: Counter[str] = field(default_factory=Counter)
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

    def surely_stored(self, since: float, attempts_max: int) -> int:
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

    def numbers(self, read: Callable[[bytes], int]) -> list[int]:
        """The numbers of all stored messages, in order per key; `read` finds the number in a stored message."""
        found = []
        for key, value in self.values.items():
            if b":k:" in key and isinstance(value, list):
                found += [read(body) for body in value]
            elif key.endswith(b":delayed") and isinstance(value, Hash):
                found += [read(line) for line in value.fields.values()]
        return found

    def dead(self, read: Callable[[bytes], int]) -> dict[int, int]:
        """The dead letters: attempts by number."""
        stream = self.values.get(self.prefix + b"dead")
        found = {}
        for _, fields in stream.entries if isinstance(stream, Stream) else ():
            named = dict(zip(fields[::2], fields[1::2], strict=True))
            found[read(named[b"body"])] = int(named[b"attempts"])
        return found

    def counted_messages(self) -> int:
        """How many messages the queue says that it holds."""
        state = self.values.get(self.prefix + b"state", b"")
        assert isinstance(state, bytes)
        return int(state.split()[3]) if state else 0

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


class QueueCheck:
    """Judges a run."""

    def __init__(self, history: QueueHistory, attempts_max: int, dedupe_s: float) -> None:
        self._history = history
        self._attempts_max = attempts_max
        self._dedupe_s = dedupe_s

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
        for number, attempts in dead.items():
            if len(by_number[number]) < self._attempts_max:
                text = f"{number} after {len(by_number[number])} starts ({attempts} counted)"
                self._violate(verdict, "early dead letter", text)
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
            put = self._history.puts.get(start.number)
            if put is None or put.delayed or put.abandoned:
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
            if before is not None and put.answered_at - before < self._dedupe_s * 0.9:
                self._violate(verdict, "accepted twice", f"{put.id} of {put.key}, again as {put.number}")
            accepted[put.key, put.id] = put.called_at
