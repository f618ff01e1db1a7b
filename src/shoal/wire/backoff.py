"""How long to wait before the next attempt to reach a server: decorrelated jitter.

Owns the arithmetic of the delay only. The caller decides when to try again, keeps the clock and hands in the
random source, so that a simulation replays the same delays from the same seed.
"""

from __future__ import annotations

from random import Random


class Backoff:
    """Delays that grow while a server stays away and that differ from one client to the next.

    Each delay is drawn evenly between `reconnect_delay_s_min` and three times the one before, and cut at
    `reconnect_delay_s_max`. So the clients of a server that comes back do not arrive in waves, which they
    would if all of them doubled the same delay.
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
        """The seconds to wait before the next attempt."""
        drawn = self._random.uniform(self._delay_s_min, 3 * self._delay_s)
        self._delay_s = min(self._delay_s_max, drawn)
        return self._delay_s

    def reset(self) -> None:
        """Start small again; called when a connection has proved itself."""
        self._delay_s = self._delay_s_min
