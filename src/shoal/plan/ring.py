"""The hash ring: where a channel lives when the plan does not say otherwise.

Owns the mapping from channel names to home servers. Every client and agent computes the same home from the same
ring, on any machine, in any process: the hash is BLAKE2b, never Python's `hash`.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from typing import Final

import msgspec

POINTS_PER_SERVER: Final = 100
"""Virtual points of each server: enough that shares differ by about a tenth."""


class ServerAddress(msgspec.Struct, frozen=True, array_like=True):
    """A server as clients know it: a short id that never changes, and where it listens."""

    id: str
    host: str
    port: int


class Ring(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """The servers that take channels, under a version that grows with every change of membership."""

    version: int
    servers: tuple[ServerAddress, ...]

    def home(self, channel: bytes) -> str:
        """The id of the server at which the channel lives by default."""
        points, owners = self._points()
        return owners[bisect_right(points, ring_hash(channel)) % len(points)]

    def address(self, server: str) -> ServerAddress | None:
        """Where a server listens; None if it is not a member."""
        return next((member for member in self.servers if member.id == server), None)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the members, in the ring's own order."""
        return tuple(member.id for member in self.servers)

    def _points(self) -> tuple[list[int], list[str]]:
        """The sorted points and their owners, computed once for each ring."""
        cached: tuple[list[int], list[str]] | None = self.__dict__.get("points")
        if cached is None:
            if not self.servers:
                raise ValueError("a ring without servers has no home for any channel")
            pairs = sorted(
                (ring_hash(b"%b#%d" % (member.id.encode(), index)), member.id)
                for member in self.servers
                for index in range(POINTS_PER_SERVER)
            )
            cached = [point for point, _ in pairs], [owner for _, owner in pairs]
            self.__dict__["points"] = cached
        return cached


def ring_hash(data: bytes) -> int:
    """A position on the ring: 64 bits of BLAKE2b."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
