"""The quotas of resending: one page at a time for each asker and stream, and bytes per second by asker and in total.

Owns the quotas. A request over a quota is not answered; the asker repeats it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from shoal.channels.token_bucket import TokenBucket
from shoal.limits import Limits

ASKERS_MAX: Final = 1000
"""Askers that are metered one by one; the same number of earlier ones is remembered. The limit for all holds anyway."""
PAGES_MAX: Final = 4096
"""Pages that are remembered, so that they are not sent twice."""
MESSAGE_BYTES_MIN: Final = 1024
"""A smaller message counts as one of this size, because it is as much work."""
REPEAT_SHARE: Final = 0.5
"""The same page is sent again to an asker after this share of `heal_retry_s` at the soonest."""


Range: TypeAlias = tuple[int, int]
"""First and last number of a request."""


class HealMeter:
    """The quotas of one publisher."""

    def __init__(self, limits: Limits) -> None:
        self._per_s = limits.heal_bytes_per_s_max
        self._repeat_s = REPEAT_SHARE * limits.heal_retry_s
        total = limits.heal_total_bytes_per_s_max
        self._total = TokenBucket(total, total, 0.0)
        self._recent: dict[int, TokenBucket] = {}
        self._before: dict[int, TokenBucket] = {}
        self._pages: dict[tuple[int, int], tuple[Range, float]] = {}

    def allow(self, asker: int, stream: int, asked: Range, now: float) -> bool:
        """Whether a page of the messages that were asked for may be sent."""
        page = self._pages.get((asker, stream))
        if page is not None and page[0] == asked and now < page[1] + self._repeat_s:
            return False
        return self._of(asker, now).refill(now) > 0 and self._total.refill(now) > 0

    def sent(self, asker: int, stream: int, asked: Range, page: Sequence[bytes], now: float) -> None:
        """A page of messages is sent."""
        self._pages.pop((asker, stream), None)
        self._pages[asker, stream] = asked, now
        if len(self._pages) > PAGES_MAX:
            del self._pages[next(iter(self._pages))]
        size = sum(max(MESSAGE_BYTES_MIN, len(message)) for message in page)
        self._of(asker, now).tokens -= size
        self._total.tokens -= size

    def _of(self, asker: int, now: float) -> TokenBucket:
        known = self._recent.get(asker)
        if known is None:
            known = self._before.pop(asker, None) or TokenBucket(self._per_s, self._per_s, now)
            if len(self._recent) >= ASKERS_MAX:
                self._before, self._recent = self._recent, {}
            self._recent[asker] = known
        return known
