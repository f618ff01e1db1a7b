"""How long a call may take: `socket_timeout` and `socket_connect_timeout`.

Owns their meaning on a cluster. In redis-py they limit one read and one connection attempt; here they limit a whole
call, because the bus retries by itself: a call ends after `socket_timeout`, a call that has to open the cluster first
gets `socket_connect_timeout` in addition. None means no limit but those of the bus.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from redis import exceptions

from shoal.redis.conversion import translated

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


@contextlib.asynccontextmanager
async def limited(seconds: float | None, consequence: str) -> AsyncIterator[None]:
    """Raises redis-py's TimeoutError if the block takes longer, and redis-py's errors instead of Shoal's."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            with translated():
                yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise exceptions.TimeoutError(
            f"no answer within {seconds:g} s: {consequence} (check `shoal status`)"
        ) from error
