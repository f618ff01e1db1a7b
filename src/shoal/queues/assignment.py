"""Which consumer holds which keys: the rules by which a consumer shares, without any I/O.

Owns the arithmetic of shares, loads and delays. Every consumer applies it to its own keys, with the counts that each
turn returns; no process assigns keys to others. The store grants keys; here a consumer decides which ones to give back.

- The share of a consumer is an equal part of all keys with work, rounded up. The store grants no more than that.
- A consumer that holds more gives keys back while another one waits for work.
- A key goes back only between two messages, so no message is ever at two consumers.
- A key that was served for a whole quantum goes to the end of the line if other keys wait; until then it stays, as a
  block of messages does in the paper.
- A consumer with several long delays in a row gives its keys to consumers that wait, and rests. It stays a member.
- The owner of a hot key gives its other keys to consumers that wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from shoal.queues.settings import ConsumerSettings

FRONT, BACK = b"F", b"B"


class Situation(NamedTuple):
    """The counts of a queue, as a turn returns them."""

    ready: int = 0
    """Keys that no consumer holds."""
    hungry: int = 0
    """Other consumers that wait for work."""
    consumers: int = 1
    owned: int = 0
    """Keys that consumers hold."""

    @property
    def share(self) -> int:
        """The most keys that one consumer should hold."""
        return -(-(self.owned + self.ready) // max(self.consumers, 1))


class Holding(Protocol):
    """A key that this consumer holds."""

    @property
    def is_running(self) -> bool:
        """Whether the application has a message of it."""

    @property
    def left(self) -> int:
        """Messages of it in the store."""

    @property
    def served(self) -> int:
        """Messages done since the key was granted."""


def load_of(service_s: float, messages: int, keys: int, settings: ConsumerSettings) -> float:
    """The load of a consumer: the least loaded one gets the next key. Keys weigh more than messages, because a key
    cannot be divided."""
    return service_s * (messages + settings.partition_weight * keys)


def keys_to_give(
    keys: Iterable[Holding], now: Situation, settings: ConsumerSettings, *, slow: bool
) -> Iterator[tuple[Holding, bytes]]:
    """Yield the keys that go back, and whether to the front or the back of the ready keys. A key with a running message
    is included: it goes back when that message ends."""
    held = list(keys)
    given = set()
    if now.ready > 0:
        for key in held:
            if key.served >= settings.quantum_messages:
                given.add(id(key))
                yield key, BACK
    if now.hungry == 0:
        return
    others = [key for key in held if id(key) not in given]
    if slow:
        yield from ((key, FRONT) for key in others)
        return
    hot = max(others, key=lambda key: key.left, default=None)
    if hot is not None and hot.left >= settings.hot_messages and len(others) > 1:
        surplus = len(others) - 1
    else:
        surplus = len(others) - now.share if now.ready == 0 else 0
    idle = [key for key in reversed(others) if not key.is_running and key is not hot]
    if surplus > len(idle) and hot is not None and not hot.is_running and len(others) > 1 and surplus < len(others):
        idle.append(hot)
    yield from ((key, FRONT) for key in idle[: max(surplus, 0)])


class DelayMeter:
    """Counts the long delays of one consumer, and how long its messages take."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self._delays: deque[float] = deque(maxlen=settings.slow_delays)
        self.delays = 0
        """All delays so far."""
        self.service_s = 0.0
        """Mean duration of the last messages."""

    def note(self, took_s: float, now: float) -> None:
        """A message took this long."""
        self.service_s = took_s if not self.service_s else 0.8 * self.service_s + 0.2 * took_s
        if took_s > self._settings.slow_after_s:
            self.delays += 1
            self._delays.append(now)

    def is_slow(self, now: float) -> bool:
        """Whether there were too many delays in a short time."""
        full = len(self._delays) == self._settings.slow_delays
        return full and now - self._delays[0] <= self._settings.slow_window_s

    def forget(self) -> None:
        """Start counting delays again."""
        self._delays.clear()
