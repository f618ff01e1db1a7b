"""The hash ring: the home of every channel without a plan entry.

Owns the mapping from channel names to home servers. Every process computes the same home from the same ring: the hash
is BLAKE2b, not Python's `hash`.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import msgspec
from msgspec.structs import replace

POINTS_PER_SERVER: Final = 100
"""Virtual points per server: with these, shares differ by about a tenth."""


class ServerAddress(msgspec.Struct, frozen=True, array_like=True):
    """The announced address of a server: a short id that never changes, and where it listens.
    `shoal.wire.address_book` knows how to reach it from this process."""

    id: str
    host: str
    port: int
    site: str = ""
    """The data centre or region; empty if there is only one."""
    rack: str = ""
    """The failure domain within a site; empty if unknown."""
    tls: bool = False
    """Whether the server expects TLS."""


RINGS_REMEMBERED: Final = 8
"""Earlier memberships in a ring, so that a client that missed some knows which servers were added and removed."""

RINGS_LIVED_BY: Final = 3
"""Earlier memberships that publishers may still use, because they do not know the last changes."""


class Members(msgspec.Struct, frozen=True, array_like=True):
    """The servers of a ring, and which of them are guests."""

    ids: tuple[str, ...]
    guests: tuple[str, ...] = ()

    @property
    def homes(self) -> tuple[str, ...]:
        """The homes of channels: all members except the guests."""
        return tuple(member for member in self.ids if member not in self.guests)

    def home(self, channel: bytes) -> str:
        """The home of a channel."""
        return _home(self.homes, channel)


class AgentKey(msgspec.Struct, frozen=True, array_like=True):
    """The public keys of the agents for one generation of their secret."""

    generation: int
    signing: bytes
    exchange: bytes


class Ring(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """The servers that hold channels. The version grows with every change of membership.

    `guests` are members that are not homes: they hold only channels that entries place there. So a server can join
    without taking channels from others, and give its channels away before it leaves. `earlier` are the previous
    memberships, newest first. `scheme` is how control messages are authenticated (0: not at all), fixed when the
    cluster is created; `agent_keys` are the public keys of the agents, which scheme 1 needs (see docs/identity.md).
    """

    version: int
    servers: tuple[ServerAddress, ...]
    earlier: tuple[Members, ...] = ()
    guests: tuple[str, ...] = ()
    scheme: int = 0
    lease_ms: int = 0
    """The server lease of the cluster; 0 if unknown, in a ring of format 1."""
    agent_keys: tuple[AgentKey, ...] = ()

    def next(self, servers: tuple[ServerAddress, ...], guests: tuple[str, ...] = ()) -> Ring:
        """The next version of this ring, with other members."""
        earlier = (self.members, *self.earlier)[:RINGS_REMEMBERED]
        return replace(self, version=self.version + 1, servers=servers, earlier=earlier, guests=guests)

    def home(self, channel: bytes) -> str:
        """The id of the channel's home."""
        return _home(self.homes, channel)

    def homes_of(self, channels: Iterable[bytes]) -> list[str]:
        """The homes of many channels."""
        points, owners = _points(self.homes)
        return [owners[bisect_right(points, ring_hash(channel)) % len(points)] for channel in channels]

    @property
    def lived_by(self) -> tuple[Members, ...]:
        """The earlier memberships that a publisher may still use."""
        return self.earlier[:RINGS_LIVED_BY]

    def since(self, known: Ring) -> tuple[Members, ...] | None:
        """The memberships between an older ring and this one; None if some are no longer stored."""
        between = self.version - known.version - 1
        return self.earlier[:between] if between <= len(self.earlier) else None

    def memberships(self, first: int, last: int) -> tuple[Members, ...] | None:
        """The memberships of the ring versions `first` to `last`, this one included; None if some are no longer
        stored."""
        if first > min(last, self.version):
            return ()
        if first < self.version - len(self.earlier):
            return None
        newest_first = (self.members, *self.earlier)
        return newest_first[max(0, self.version - last) : self.version - first + 1]

    def address(self, server: str) -> ServerAddress | None:
        """The address of a server; None if it is not a member."""
        cached: dict[str, ServerAddress] | None = self.__dict__.get("addresses")
        if cached is None:
            cached = self.__dict__["addresses"] = {member.id: member for member in self.servers}
        return cached.get(server)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the members, in ring order."""
        cached: tuple[str, ...] | None = self.__dict__.get("ids")
        if cached is None:
            cached = self.__dict__["ids"] = tuple(member.id for member in self.servers)
        return cached

    @property
    def members(self) -> Members:
        """The current membership."""
        return Members(self.ids, self.guests)

    @property
    def homes(self) -> tuple[str, ...]:
        """The ids of the homes."""
        cached: tuple[str, ...] | None = self.__dict__.get("homes")
        if cached is None:
            cached = self.__dict__["homes"] = self.members.homes
        return cached


def _home(homes: tuple[str, ...], channel: bytes) -> str:
    """The home of a channel among these servers."""
    points, owners = _points(homes)
    return owners[bisect_right(points, ring_hash(channel)) % len(points)]


@lru_cache(maxsize=16)
def _points(members: tuple[str, ...]) -> tuple[list[int], list[str]]:
    """The sorted points of a membership, and their owners."""
    if not members:
        raise ValueError("a ring without servers has no home for any channel")
    pairs = sorted(
        (ring_hash(b"%b#%d" % (member.encode(), index)), member)
        for member in members
        for index in range(POINTS_PER_SERVER)
    )
    return [point for point, _ in pairs], [owner for _, owner in pairs]


def ring_hash(data: bytes) -> int:
    """A position on the ring: 64 bits of BLAKE2b."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
