"""The meter: how much work each client, and all clients together, may ask of an agent.

Owns the token buckets and the refusals. The unit is the work for one Hello, about 40 microseconds. A message is taken
while its client has a token; what it turned out to cost is charged afterwards, so that a client which asked for much
waits until it has been paid for.

The core gives it the client id of a message. Ids are as authentic as the messages that carry them.
"""

from __future__ import annotations

import math
from typing import Final

from shoal.channels.token_bucket import TokenBucket
from shoal.limits import Limits

CLIENTS_MAX: Final = 10_000
"""Clients that are metered one by one; the same number of earlier ones is remembered. A forgotten client begins with a
full bucket, but the limit for all clients holds."""

REFUSE_EVERY_S: Final = 1.0
"""A client is refused at most once in this time."""

REFUSALS_PER_S_MAX: Final = 1000
"""Refusals of all clients in a second."""

RETRY_MS_MAX: Final = 10_000
"""The longest time for which a client is asked to wait."""

GREET_UNITS: Final = 9
"""Added for a Greet: a client sends few, so many are a flood."""

STREAMS_PER_UNIT: Final = 32
"""Streams listed in an Answer for the work of one Hello."""

ITEMS_PER_UNIT: Final = 8
"""Items of a Present that are handled with the work of one Hello."""

STEPS_PER_UNIT: Final = 20_000
"""Steps of matching a pattern that take as long as one Hello."""


class _Client:
    __slots__ = ("bucket", "refused_at")

    def __init__(self, bucket: TokenBucket) -> None:
        self.bucket = bucket
        self.refused_at = -math.inf


class ControlMeter:
    """The quotas of one agent."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._recent: dict[int, _Client] = {}
        self._before: dict[int, _Client] = {}
        self._total = TokenBucket(limits.control_total_at_once_max, limits.control_total_per_s_max, 0.0)
        self._refusals = TokenBucket(REFUSALS_PER_S_MAX, REFUSALS_PER_S_MAX, 0.0)

    def take(self, client: int, now: float) -> bool:
        """Takes one message of a client; returns False if it is over a quota."""
        bucket = self._of(client, now).bucket
        if bucket.refill(now) <= 0 or self._total.refill(now) <= 0:
            return False
        bucket.tokens -= 1
        self._total.tokens -= 1
        return True

    def charge(self, client: int, units: float) -> None:
        """Charges a client whose message was taken for work beyond that of one Hello."""
        known = self._recent.get(client)
        if known is not None:
            known.bucket.tokens -= units
        self._total.tokens -= units

    def retry_ms(self, client: int, now: float) -> int | None:
        """The time for which a client that is over a quota should wait; None if it has been told a moment ago."""
        known = self._of(client, now)
        if now < known.refused_at + REFUSE_EVERY_S or not self._refusals.take(1, now):
            return None
        known.refused_at = now
        wait_s = max(known.bucket.wait_s(), self._total.wait_s(), REFUSE_EVERY_S)
        return min(math.ceil(1000 * wait_s), RETRY_MS_MAX)

    def _of(self, client: int, now: float) -> _Client:
        known = self._recent.get(client)
        if known is None:
            known = self._before.pop(client, None)
            if known is None:
                limits = self._limits
                known = _Client(TokenBucket(limits.control_at_once_max, limits.control_per_s_max, now))
            if len(self._recent) >= CLIENTS_MAX:
                self._before, self._recent = self._recent, {}
            self._recent[client] = known
        return known
