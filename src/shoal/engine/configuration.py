"""A configuration: which processes run matchers and exit points, and how filters and clients are divided over them.

Owns the division. It depends on names only, so all processes compute the same one, and a filter changes its matcher
only if that matcher comes or goes. Equal filters have one matcher.
"""

from __future__ import annotations

import functools
import zlib
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

_MASK: Final = (1 << 64) - 1
_ODD: Final = 0x9E3779B97F4A7C15


class Configuration(msgspec.Struct, frozen=True, array_like=True):
    """The processes of each layer. The access point is in the process that holds the engine's lease."""

    number: int
    matchers: tuple[str, ...]
    exits: tuple[str, ...]

    @property
    def members(self) -> frozenset[str]:
        """All processes with a matcher or an exit point."""
        return frozenset(self.matchers + self.exits)

    @property
    def text(self) -> str:
        """The numbers of access points, matchers and exit points: `1-3-1`."""
        return f"1-{len(self.matchers)}-{len(self.exits)}"

    def owner(self, wire: bytes) -> str:
        """The matcher of a filter in its wire form."""
        return self.matchers[0] if len(self.matchers) == 1 else _highest(checksum(wire), self.matchers)

    def owners(self, checksums: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
        """The same for many filters, given `checksum` of each: places in `matchers`."""
        if len(self.matchers) == 1:
            return np.zeros(len(checksums), np.intp)
        weights = [_mixed_all(checksums ^ np.uint64(_seed(name))) for name in self.matchers]
        places: npt.NDArray[np.intp] = np.stack(weights).argmax(axis=0)
        return places

    def exit_of(self, client: int) -> str:
        """The exit point of a client."""
        return self.exits[0] if len(self.exits) == 1 else _highest(client, self.exits)


checksum: Final = zlib.crc32
"""What decides which matcher a filter gets."""


def _highest(key: int, names: tuple[str, ...]) -> str:
    """Rendezvous hashing: the name with the highest weight."""
    return max(names, key=lambda name: _mixed(key ^ _seed(name)))


def _mixed(value: int) -> int:
    value = (value * _ODD) & _MASK
    value = ((value ^ (value >> 32)) * _ODD) & _MASK
    return value ^ (value >> 29)


def _mixed_all(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = values * np.uint64(_ODD)
    values = (values ^ (values >> np.uint64(32))) * np.uint64(_ODD)
    return values ^ (values >> np.uint64(29))


@functools.lru_cache(maxsize=4096)
def _seed(name: str) -> int:
    data = name.encode()
    return zlib.crc32(data) << 32 | zlib.adler32(data)
