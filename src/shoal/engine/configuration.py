"""A configuration: which processes run the operators of each layer, and how these share lanes, filters and clients.

Owns the division. It depends on names only, so all processes compute the same one, and a filter changes its matcher
only if that matcher comes or goes. Equal filters have one matcher.
"""

from __future__ import annotations

import functools
import zlib
from typing import Final

import msgspec

from shoal.engine.messages import LANES

_MASK: Final = (1 << 64) - 1
ODD: Final = 0x9E3779B97F4A7C15


class Configuration(msgspec.Struct, frozen=True, array_like=True):
    """The processes of each layer."""

    number: int
    access_points: tuple[str, ...]
    matchers: tuple[str, ...]
    exits: tuple[str, ...]

    @property
    def members(self) -> frozenset[str]:
        """All processes with an operator."""
        return frozenset(self.access_points + self.matchers + self.exits)

    @property
    def text(self) -> str:
        """The numbers of access points, matchers and exit points: `1-3-1`."""
        return f"{len(self.access_points)}-{len(self.matchers)}-{len(self.exits)}"

    def access_point_of(self, lane: int) -> str:
        """The access point of a lane: each has an equal share of consecutive lanes."""
        return self.access_points[lane * len(self.access_points) // LANES]

    def lanes_of(self, name: str) -> frozenset[int]:
        """The lanes of an access point."""
        return frozenset(lane for lane in range(LANES) if self.access_point_of(lane) == name)

    def owner(self, wire: bytes) -> str:
        """The matcher of a filter in its wire form."""
        return self.matchers[0] if len(self.matchers) == 1 else _highest(checksum(wire), self.matchers)

    def exit_of(self, client: int) -> str:
        """The exit point of a client."""
        return self.exits[0] if len(self.exits) == 1 else _highest(client, self.exits)


checksum: Final = zlib.crc32
"""What decides which matcher a filter gets."""


def _highest(key: int, names: tuple[str, ...]) -> str:
    """Rendezvous hashing: the name with the highest weight."""
    return max(names, key=lambda name: _mixed(key ^ seed_of(name)))


def _mixed(value: int) -> int:
    value = (value * ODD) & _MASK
    value = ((value ^ (value >> 32)) * ODD) & _MASK
    return value ^ (value >> 29)


@functools.lru_cache(maxsize=4096)
def seed_of(name: str) -> int:
    """What a name adds to the weights of its keys."""
    data = name.encode()
    return zlib.crc32(data) << 32 | zlib.adler32(data)
