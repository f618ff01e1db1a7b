"""The source of load windows: the balancer's own fold, or a Spark job that folds the same telemetry.

Owns the switch between the two. A core without I/O: its inputs are the windows of both sources and the time, its result
is the windows to use. The balancer always folds in process too, so that it does not stall with Spark.

    in process --`WARM_WINDOWS` consecutive windows from Spark, each in time--> spark
    spark      --no window within `LATE_S_MAX` of its end, or the job has died--> in process

Every interval is used once, in order, from either source. While Spark is in use, the balancer's own windows are held
until Spark's window of the same interval arrives. After a fall-back the held windows are used next, so none is skipped.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from shoal.load.window import LoadWindow

WARM_WINDOWS: Final = 3
"""Consecutive windows from Spark that must arrive in time before Spark is used."""

WARM_AGAIN_WINDOWS: Final = 10
"""The same after Spark has failed once."""

LATE_S_MAX: Final = 6.0
"""How long after the end of its interval a window from Spark may arrive; after that Spark counts as stalled. It covers
the wait after a server has left: `lateness_s`, the next record of another server, and a micro-batch."""

HELD_MAX: Final = 64
"""The balancer's own windows that are held. Above it the oldest is used; Spark has stalled long before."""


class Way(enum.StrEnum):
    """A source of windows."""

    IN_PROCESS = "in-process"
    SPARK = "spark"


class WindowRoute(msgspec.Struct, frozen=True):
    """The source in use, why, and since when (wall clock)."""

    way: Way
    why: str
    since_s: float


class WindowSource:
    """The switch of one leader. `wanted` is whether windows from Spark are configured."""

    def __init__(self, now_s: float, *, wanted: bool) -> None:
        why = "Spark is not warm yet" if wanted else "Spark is not configured"
        self.route = WindowRoute(Way.IN_PROCESS, why, now_s)
        self._used_until: int | None = None
        self._held: list[LoadWindow] = []
        self._in_time = 0
        self._in_time_until: int | None = None
        self._needed = WARM_WINDOWS

    def step(
        self, own: Iterable[LoadWindow], spark: Iterable[LoadWindow], now_s: float, *, alive: bool | None = None
    ) -> list[LoadWindow]:
        """The windows to use now, in order. `alive` is whether the Spark job is alive; None if that is unknown."""
        found: list[LoadWindow] = []
        self._held += own
        for window in sorted(spark, key=_start):
            self._judge(window, now_s)
            if self.route.way is Way.SPARK:
                found += self._before(window.start_s)
                found += self._use(window)
            elif self._in_time >= self._needed:
                self._switch(Way.SPARK, f"{self._in_time} windows in a row came in time", now_s)
        if self.route.way is Way.SPARK:
            self._watch(now_s, alive)
        if self.route.way is Way.IN_PROCESS:
            found += self._before(None)
        while len(self._held) > HELD_MAX:
            found += self._use(self._held.pop(0))
        return found

    def _judge(self, window: LoadWindow, now_s: float) -> None:
        """Counts consecutive windows from Spark that arrive in time."""
        in_time = now_s - window.end_s <= LATE_S_MAX
        follows = self._in_time_until in (None, window.start_s)
        self._in_time = (self._in_time + 1 if follows else 1) if in_time else 0
        self._in_time_until = window.end_s if in_time else None

    def _watch(self, now_s: float, alive: bool | None) -> None:
        """Falls back to the balancer's own windows if Spark's do not arrive."""
        if alive is False:
            self._fall_back("the Spark job has died", now_s)
            return
        waiting = [window for window in self._held if self._is_new(window)]
        if waiting and now_s - waiting[0].end_s > LATE_S_MAX:
            self._fall_back(f"no window of Spark {LATE_S_MAX:g} s after the end of its interval", now_s)

    def _fall_back(self, why: str, now_s: float) -> None:
        self._needed, self._in_time, self._in_time_until = WARM_AGAIN_WINDOWS, 0, None
        self._switch(Way.IN_PROCESS, why, now_s)

    def _switch(self, way: Way, why: str, now_s: float) -> None:
        self.route = WindowRoute(way, why, now_s)

    def _before(self, start_s: int | None) -> list[LoadWindow]:
        """Uses the held windows of intervals before `start_s`; all of them if it is None."""
        due = sorted((window for window in self._held if start_s is None or window.start_s < start_s), key=_start)
        self._held = [window for window in self._held if start_s is not None and window.start_s >= start_s]
        return [used for window in due for used in self._use(window)]

    def _use(self, window: LoadWindow) -> list[LoadWindow]:
        """The window, unless its interval was already used."""
        if not self._is_new(window):
            return []
        self._used_until = window.end_s
        self._held = [held for held in self._held if self._is_new(held)]
        return [window]

    def _is_new(self, window: LoadWindow) -> bool:
        return self._used_until is None or window.start_s >= self._used_until


def _start(window: LoadWindow) -> int:
    return window.start_s
