"""What a handler raises to say how its job continues, and the pauses between attempts.

Owns `Backoff`, `Retry` and `Dead`. Reads no clock and draws no random numbers: the jitter follows from the message and
the attempt, so tests always see the same pauses.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

from shoal.errors import ConfigError
from shoal.queues.message_format import DELAY_S_MAX

DOUBLINGS_MAX: Final = 64
"""The pause doubles at most this often, so that the power stays a finite number."""


class Dead(Exception):  # noqa: N818  # read as a verdict: raise shoal.Dead("no such customer")
    """Raised by a handler: the job becomes a dead letter at once, with this reason."""


class Retry(Exception):  # noqa: N818  # read as an order: raise shoal.Retry(after=5)
    """Raised by a handler: the job comes again after `after` seconds. It counts as a failed attempt."""

    def __init__(self, reason: str = "", *, after: float = 0.0) -> None:
        if not isinstance(reason, str):  # Retry(5) would come again at once
            raise TypeError(f"the reason is text, not {type(reason).__name__}: write Retry(after=5) for a pause")
        if not 0 <= after < DELAY_S_MAX:  # also true for NaN
            raise ValueError(f"after is a number of seconds from 0 to ten years, not {after!r}")
        super().__init__(reason or f"the handler asked for a retry in {after:g} s")
        self.after = after


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pause before a failed job comes again: `first` seconds, doubled with each attempt, at most `longest`.

    Each pause is shortened by up to the part `jitter`, so that jobs that failed together do not come again together.
    """

    first: float = 1.0
    longest: float = 60.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.longest < DELAY_S_MAX:
            raise ConfigError(
                f"Backoff({self.first!r}, {self.longest!r})",
                do="give two numbers of seconds below ten years, the smaller one first",
            )
        if not 0 <= self.jitter <= 1:
            raise ConfigError(f"the jitter of a Backoff is {self.jitter!r}", do="give a part from 0 to 1")

    def pause_s(self, number: str, attempt: int) -> float:
        """The pause after this attempt (1 is the first) of the message with this number."""
        whole = min(self.longest, self.first * 2.0 ** min(attempt - 1, DOUBLINGS_MAX))
        chance = zlib.crc32(f"{number} {attempt}".encode()) / 2**32
        return whole * (1 - self.jitter * chance)


DEFAULT_BACKOFF: Final = Backoff()
