"""Placements: the servers of a channel, and which of them a client uses.

Owns the three modes. It does not decide when a channel moves.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec


class Mode(enum.StrEnum):
    """How the servers of a placement share the channel."""

    SINGLE = "single"
    ALL_SUBSCRIBERS = "all_subscribers"
    ALL_PUBLISHERS = "all_publishers"


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """The servers of one channel, and the version of this placement."""

    version: int
    mode: Mode
    servers: tuple[str, ...]

    def subscribe_servers(self, client: int) -> tuple[str, ...]:
        """Where this client subscribes: on all servers, except for all_publishers, where one is enough."""
        return (self._own(client),) if self.mode is Mode.ALL_PUBLISHERS else self.servers

    def publish_servers(self, client: int) -> tuple[str, ...]:
        """Where this client publishes: on one server, except for all_publishers, where every server needs a copy."""
        return self.servers if self.mode is Mode.ALL_PUBLISHERS else (self._own(client),)

    def _own(self, client: int) -> str:
        """The server of this client. Client ids are random, so clients spread evenly."""
        return self.servers[client % len(self.servers)]


BY_THE_RING: Final = 1 << 30
"""Set in the version of a placement derived from the ring. Placements of entries never have it, so the two cannot be
confused."""


def at_home(ring_version: int, home: str) -> Placement:
    """The placement of a channel without an entry."""
    return Placement(BY_THE_RING | ring_version, Mode.SINGLE, (home,))


def check_servers(mode: Mode, servers: tuple[str, ...]) -> None:
    """Raises ValueError for an impossible placement: no server, a server twice, several servers for `single`."""
    if not servers:
        raise ValueError("a placement needs at least one server")
    if len(set(servers)) != len(servers):
        raise ValueError(f"a placement names a server twice: {', '.join(servers)}")
    if mode is Mode.SINGLE and len(servers) > 1:
        raise ValueError(f"a single placement has one server, not {len(servers)}")
