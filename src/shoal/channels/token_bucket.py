"""A token bucket: a number of tokens at once, and a number a second.

Pure: the time is an argument.
"""

from __future__ import annotations


class TokenBucket:
    """Holds up to `at_once` tokens and gains `per_s` a second. More may be taken than there is; the debt is paid off
    before anything else is taken."""

    __slots__ = ("_at", "at_once", "per_s", "tokens")

    def __init__(self, at_once: float, per_s: float, now: float) -> None:
        self.at_once = at_once
        self.per_s = per_s
        self.tokens = at_once
        self._at = now

    def refill(self, now: float) -> float:
        """Adds what was gained since the last call; returns the tokens."""
        self.tokens = min(self.at_once, self.tokens + self.per_s * max(0.0, now - self._at))
        self._at = now
        return self.tokens

    def take(self, amount: float, now: float) -> bool:
        """Takes an amount if there is any token left; returns whether there was."""
        if self.refill(now) <= 0:
            return False
        self.tokens -= amount
        return True

    def wait_s(self) -> float:
        """How long it takes until there is a token."""
        return max(0.0, (1.0 - self.tokens) / self.per_s)
