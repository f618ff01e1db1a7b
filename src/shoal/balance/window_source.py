"""Which load windows the balancer goes by: its own, or those that Spark folds of the same telemetry.

Owns the hand-over. A core without I/O: it is handed the windows of both ways and the time, and hands back the windows
to use. The balancer keeps folding in process whatever Spark does, so that nothing stalls with Spark.

    in process --`WARM_WINDOWS` windows of Spark in a row, each in time--> spark
    spark      --no window within `LATE_S_MAX` of its end, or the job has died--> in process

Every interval is used once, in order, whichever way it came. While Spark is in use, our own windows are held back until
Spark's of the same interval has come; on the way back, those that are held come next, so nothing is left out.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

from shoal.load.window import LoadWindow

WARM_WINDOWS: Final = 3
"""Windows of Spark that must come in time, one after the other, before it is used."""

WARM_AGAIN_WINDOWS: Final = 10
"""The same once it has failed."""

LATE_S_MAX: Final = 6.0
"""How long after the end of its interval a window of Spark may come. Later, Spark stalls. When a server has just gone,
the fold waits for it for `lateness_s`, then for the next record of another, and then there is a micro-batch to come."""

HELD_MAX: Final = 64
"""Our own windows that are held back. Beyond, the oldest is used: Spark has stalled long before."""


class Way(enum.StrEnum):
    """Where windows come from."""

    IN_PROCESS = "in-process"
    SPARK = "spark"


class WindowRoute(msgspec.Struct, frozen=True):
    """Which way is in use, why, and since when (wall clock)."""

    way: Way
    why: str
    since_s: float


class WindowSource:
    """The hand-over of one time in the lead. `wanted` says whether anybody asked for windows of Spark."""

    def __init__(self, now_s: float, *, wanted: bool) -> None:
        why = "Spark is not warm yet" if wanted else "nobody asked for Spark"
        self.route = WindowRoute(Way.IN_PROCESS, why, now_s)
        self._used_until: int | None = None
        self._held: list[LoadWindow] = []
        self._in_time = 0
        self._in_time_until: int | None = None
        self._needed = WARM_WINDOWS

    def step(
        self, own: Iterable[LoadWindow], spark: Iterable[LoadWindow], now_s: float, *, alive: bool | None = None
    ) -> list[LoadWindow]:
        """The windows to use now, in order. `alive` is whether the job says that it lives; None: nobody knows."""
        found: list[LoadWindow] = []
        self._held += own
        for window in sorted(spark, key=_start):
            self._judge(window, now_s)
            if self.route.way is Way.SPARK:
                found += self._before(window.start_s)
                found += self._use(window)
            elif self._in_time >= self._needed:
                self._stand(Way.SPARK, f"{self._in_time} windows in a row came in time", now_s)
        if self.route.way is Way.SPARK:
            self._watch(now_s, alive)
        if self.route.way is Way.IN_PROCESS:
            found += self._before(None)
        while len(self._held) > HELD_MAX:
            found += self._use(self._held.pop(0))
        return found

    def _judge(self, window: LoadWindow, now_s: float) -> None:
        """Counts windows of Spark that come in time, one after the other."""
        in_time = now_s - window.end_s <= LATE_S_MAX
        follows = self._in_time_until in (None, window.start_s)
        self._in_time = (self._in_time + 1 if follows else 1) if in_time else 0
        self._in_time_until = window.end_s if in_time else None

    def _watch(self, now_s: float, alive: bool | None) -> None:
        """Goes back to our own windows when Spark's do not come."""
        if alive is False:
            self._fall_back("the Spark job has died", now_s)
            return
        waiting = [window for window in self._held if self._is_new(window)]
        if waiting and now_s - waiting[0].end_s > LATE_S_MAX:
            self._fall_back(f"no window of Spark {LATE_S_MAX:g} s after the end of its interval", now_s)

    def _fall_back(self, why: str, now_s: float) -> None:
        self._needed, self._in_time, self._in_time_until = WARM_AGAIN_WINDOWS, 0, None
        self._stand(Way.IN_PROCESS, why, now_s)

    def _stand(self, way: Way, why: str, now_s: float) -> None:
        self.route = WindowRoute(way, why, now_s)

    def _before(self, start_s: int | None) -> list[LoadWindow]:
        """Uses our own windows that are held, of intervals before a time; all of them if there is none."""
        due = sorted((window for window in self._held if start_s is None or window.start_s < start_s), key=_start)
        self._held = [window for window in self._held if start_s is not None and window.start_s >= start_s]
        return [used for window in due for used in self._use(window)]

    def _use(self, window: LoadWindow) -> list[LoadWindow]:
        """The window, unless its interval was used before."""
        if not self._is_new(window):
            return []
        self._used_until = window.end_s
        self._held = [held for held in self._held if self._is_new(held)]
        return [window]

    def _is_new(self, window: LoadWindow) -> bool:
        return self._used_until is None or window.start_s >= self._used_until


def _start(window: LoadWindow) -> int:
    return window.start_s
