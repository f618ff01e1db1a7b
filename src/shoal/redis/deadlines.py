"""How long a call may take: `socket_timeout` and `socket_connect_timeout`.

Owns their meaning on a cluster. In redis-py they limit one read and one connection attempt; here they limit a whole
call, because the bus retries by itself: a call ends after `socket_timeout`, a call that has to open the cluster first
gets `socket_connect_timeout` in addition. None means no limit but those of the bus.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from redis import exceptions

from shoal.errors import ShoalError
from shoal.redis.conversion import redis_error

DEFAULT_S: Final = 5.0
"""redis-py's default of both settings."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The limits of one client's calls."""

    answer_s: float | None
    """`socket_timeout`: the limit of a call on an open cluster, and of `aclose`."""
    connect_s: float
    """`socket_connect_timeout`: how long no server of a subscription may be reachable before its reader is told."""

    @property
    def opening_s(self) -> float | None:
        """The limit of opening the cluster: connecting, and an agent's answer."""
        return None if self.answer_s is None else self.connect_s + self.answer_s


class Deadline:
    """Raises redis-py's TimeoutError if a block takes longer, and redis-py's errors instead of Shoal's."""

    def __init__(self, seconds: float | None, consequence: str) -> None:
        """The consequence is what the caller should know about a call that was not answered in time."""
        self._seconds = seconds
        self._consequence = consequence
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as late:
            raise exceptions.TimeoutError(
                f"no answer within {self._seconds:g} s: {self._consequence} (check `shoal status`)"
            ) from late
        if isinstance(error, ShoalError):
            raise redis_error(error) from error
