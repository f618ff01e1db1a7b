"""Delays between attempts to reach a server: decorrelated jitter.

Owns the arithmetic of the delay only. The caller waits, and passes the random source, so that a simulation replays the
same delays from the same seed.
"""

from __future__ import annotations

from random import Random


class Backoff:
    """Delays that grow while a server is unreachable and that differ between clients.

    Each delay is drawn uniformly between `reconnect_delay_s_min` and three times the previous one, and capped at
    `reconnect_delay_s_max`. With plain doubling, all clients of a restarted server would reconnect in waves.
    """

    __slots__ = ("_delay_s", "_delay_s_max", "_delay_s_min", "_random")

    def __init__(self, *, reconnect_delay_s_min: float, reconnect_delay_s_max: float, random: Random) -> None:
        if not 0 < reconnect_delay_s_min <= reconnect_delay_s_max:
            raise ValueError(
                "reconnect_delay_s_min must be above 0 and at most reconnect_delay_s_max, "
                f"not {reconnect_delay_s_min} and {reconnect_delay_s_max}"
            )
        self._delay_s_min = reconnect_delay_s_min
        self._delay_s_max = reconnect_delay_s_max
        self._delay_s = reconnect_delay_s_min
        self._random = random

    def next_delay_s(self) -> float:
        """Return the delay before the next attempt, in seconds."""
        drawn = self._random.uniform(self._delay_s_min, 3 * self._delay_s)
        self._delay_s = min(self._delay_s_max, drawn)
        return self._delay_s

    def reset(self) -> None:
        """Start with short delays again; called when a connection works."""
        self._delay_s = self._delay_s_min
