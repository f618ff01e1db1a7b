"""Virtual time: the event queue of one simulated run, and its random numbers.

Owns: the order of events and every random number of a run. Never touches: what the events do.

Invariants:
- Time never goes back; events at the same time run in the order in which they were scheduled.
- Two runs of the same program with the same seed are identical. So neither this module nor code built on it may
  iterate over a set of objects with default hashes, read a real clock or use other random numbers.
- Each named stream of random numbers is independent: an additional draw from one stream does not change another.
"""

from array import array
from asyncio import events
from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

import msgspec

EVENTS_MAX: Final = 5_000_000
"""A run with more events than this counts as endless."""


UNHASHED_MAX: Final = 512
"""Number of trace pieces that are collected before they are hashed."""


def _error_text(value: object) -> str:
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    raise TypeError(f"{type(value).__name__} cannot become part of a digest")


_VALUES: Final = msgspec.msgpack.Encoder(enc_hook=_error_text)


class EventBudgetExceededError(RuntimeError):
    """A run executed too many events, nearly always because events schedule each other without end."""


class Event:
    """A scheduled call. Cancelling it twice or too late does nothing."""

    __slots__ = ("args", "fn", "time")

    def __init__(self, time: float, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.time = time
        self.fn: Callable[..., object] | None = fn
        self.args = args

    def cancel(self) -> None:
        """Cancels the call."""
        self.fn = None
        self.args = ()

    @property
    def pending(self) -> bool:
        """Whether it neither ran nor was cancelled."""
        return self.fn is not None


class World:
    """One simulated run: virtual time in seconds from 0, events, random streams, an optional trace."""

    __slots__ = (
        "_counter",
        "_hash",
        "_queue",
        "_streams",
        "_times",
        "_unhashed",
        "_until",
        "events_max",
        "events_run",
        "now",
        "random",
        "running",
        "seed",
        "trace",
    )

    def __init__(self, seed: int, *, events_max: int = EVENTS_MAX, trace: bool = False) -> None:
        self.seed = seed
        self.now = 0.0
        self.events_max = events_max
        self.events_run = 0
        self.running = False
        """Whether `run` executes events now."""
        self.trace: list[tuple[Any, ...]] | None = [] if trace else None
        self._queue: list[tuple[float, int, Event]] = []
        self._counter = 0
        self._hash = blake2b(digest_size=16)
        self._streams: dict[str, Random] = {}
        self._unhashed: list[bytes] = []
        self._times = array("d")
        """When each of the unhashed pieces was added."""
        self._until = 0.0
        self.random = self.rng("world")

    def rng(self, name: str) -> Random:
        """The random stream of that name; always the same object, seeded by the run's seed and the name."""
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = Random(f"{self.seed}/{name}")
        return stream

    def at(self, time: float, fn: Callable[..., object], *args: Any) -> Event:
        """Run `fn(*args)` at `time`; a time in the past means now, after the events that are already due."""
        if time < self.now:
            time = self.now
        event = Event(time, fn, args)
        self._counter = count = self._counter + 1
        heappush(self._queue, (time, count, event))
        return event

    def after(self, delay_s: float, fn: Callable[..., object], *args: Any) -> Event:
        """Run `fn(*args)` after `delay_s` seconds of virtual time."""
        return self.at(self.now + delay_s, fn, *args)

    def run(self, until: float) -> None:
        """Execute every event up to and including time `until`; afterwards `now` is at least `until`.

        Raises EventBudgetExceededError when the run has executed more than `events_max` events in all.
        """
        outer = events._get_running_loop()
        self.running = True
        try:
            self._run(until)
        finally:
            self.running = False
            events._set_running_loop(outer)  # simulated loops do not reset it
        if until > self.now:
            self.now = until

    def _run(self, until: float) -> None:
        queue = self._queue
        self._until = until
        while queue and queue[0][0] <= until:
            time, _, event = heappop(queue)
            fn = event.fn
            if fn is None:
                continue
            self.now = time
            self.events_run += 1
            if self.events_run > self.events_max:
                raise EventBudgetExceededError(
                    f"seed {self.seed}: more than {self.events_max} events by t={time:.6f} s; next is "
                    f"{getattr(fn, '__qualname__', fn)!r}. Look for events that schedule each other "
                    "without end, or raise events_max."
                )
            event.fn = None
            fn(*event.args)

    def advance(self, time: float) -> bool:
        """Advances to `time` if no event is due by then; returns whether it did. For an event that would schedule
        another one for `time` and can run it right away."""
        queue = self._queue
        if (queue and queue[0][0] <= time) or time > self._until:
            return False
        self.now = time
        self.events_run += 1
        return True

    def note(self, what: str, *details: Any) -> None:
        """Adds a line to the digest, and to the trace if the run keeps one. Details must print the same in each run."""
        if self.trace is not None:
            self.trace.append((self.now, what, *details))
        self.mix(f"{what} {details}".encode())

    def mix(self, data: bytes) -> None:
        """Adds something that happened now to the digest."""
        self._times.append(self.now)
        self._unhashed.append(data)
        if len(self._unhashed) >= UNHASHED_MAX:
            self._hash_pieces()

    def _hash_pieces(self) -> None:
        self._hash.update(self._times)
        self._hash.update(b"".join(self._unhashed))
        del self._times[:]
        self._unhashed.clear()

    def mix_values(self, *values: Any) -> None:
        """Adds values to the digest: those that msgspec can encode, and errors. Sets have no order and are not
        allowed."""
        self.mix(_VALUES.encode(values))

    @property
    def digest(self) -> bytes:
        """A hash of everything added so far, with the times."""
        self._hash_pieces()
        return self._hash.digest()
