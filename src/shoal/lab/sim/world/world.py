"""Virtual time: the queue of events of one simulated run, and its sources of randomness.

Owns: the order in which things happen and every random number of a run. Never touches: what the things are.

Invariants:
- Time never goes back; events at the same time run in the order in which they were scheduled.
- Two runs with one seed and one program are identical. So nothing here (and nothing built on it) may iterate
  over a set of objects with default hashes, look at a real clock or use another source of randomness.
- Each named stream of random numbers is independent: a draw more in one place does not shift another place.
"""

import heapq
from asyncio import events
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from struct import Struct
from typing import Any, Final

import msgspec

EVENTS_MAX: Final = 5_000_000
"""Events that a run may execute before it counts as one that never ends."""


UNHASHED_MAX: Final = 512
"""Pieces of the trace that are gathered before they are hashed."""

_TIME: Final = Struct("<d")


def _error_text(value: object) -> str:
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    raise TypeError(f"{type(value).__name__} cannot become part of a digest")


_VALUES: Final = msgspec.msgpack.Encoder(enc_hook=_error_text)


class EventBudgetExceededError(RuntimeError):
    """A run executed more events than it was allowed: nearly always a loop of events that feed each other."""


class Event:
    """Something scheduled; `cancel()` makes it not happen. Cancelling twice or too late does nothing."""

    __slots__ = ("args", "fn", "time")

    def __init__(self, time: float, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.time = time
        self.fn: Callable[..., object] | None = fn
        self.args = args

    def cancel(self) -> None:
        """Make it not happen."""
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
        self._until = 0.0
        self.random = self.rng("world")

    def rng(self, name: str) -> Random:
        """The random stream of that name; always the same object, seeded by the run's seed and the name."""
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = Random(f"{self.seed}/{name}")
        return stream

    def at(self, time: float, fn: Callable[..., object], *args: Any) -> Event:
        """Run `fn(*args)` at `time`; a time in the past means now, after what is already due now."""
        if time < self.now:
            time = self.now
        event = Event(time, fn, args)
        self._counter += 1
        heapq.heappush(self._queue, (time, self._counter, event))
        return event

    def after(self, delay_s: float, fn: Callable[..., object], *args: Any) -> Event:
        """Run `fn(*args)` after `delay_s` seconds of virtual time."""
        return self.at(self.now + delay_s, fn, *args)

    def run(self, until: float) -> None:
        """Execute every event up to and including time `until`; then it is `until`.

        Raises EventBudgetExceededError when the run has executed more than `events_max` events in all.
        """
        outer = events._get_running_loop()
        self.running = True
        try:
            self._run(until)
        finally:
            self.running = False
            events._set_running_loop(outer)  # simulated loops leave theirs behind
        if until > self.now:
            self.now = until

    def _run(self, until: float) -> None:
        queue = self._queue
        pop = heapq.heappop
        self._until = until
        while queue and queue[0][0] <= until:
            time, _, event = pop(queue)
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
        """Makes it `time`, if nothing is scheduled before then; says whether it did. For an event that would schedule
        another one for `time` and can go on with it right away."""
        queue = self._queue
        if (queue and queue[0][0] <= time) or time > self._until:
            return False
        self.now = time
        self.events_run += 1
        return True

    def next_time(self) -> float | None:
        """When the next event is due, or None if there is none."""
        queue = self._queue
        while queue and queue[0][2].fn is None:
            heapq.heappop(queue)
        return queue[0][0] if queue else None

    def note(self, what: str, *details: Any) -> None:
        """Writes a line into the trace, when the run keeps one. Details must print the same in each run."""
        if self.trace is not None:
            self.trace.append((self.now, what, *details))
        self.mix(f"{what} {details}".encode())

    def mix(self, data: bytes) -> None:
        """Makes something that happened now part of the digest."""
        unhashed = self._unhashed
        unhashed.append(_TIME.pack(self.now))
        unhashed.append(data)
        if len(unhashed) >= UNHASHED_MAX:
            self._hash.update(b"".join(unhashed))
            unhashed.clear()

    def mix_values(self, *values: Any) -> None:
        """The same for values that msgspec can encode, and errors. Sets have no order and must not be among them."""
        self.mix(_VALUES.encode(values))

    @property
    def digest(self) -> bytes:
        """A hash of everything that was mixed in so far, with its times."""
        self._hash.update(b"".join(self._unhashed))
        self._unhashed.clear()
        return self._hash.digest()
