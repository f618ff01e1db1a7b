"""The plan book: the part of the plan that one client or agent knows.

Owns the choice between an entry and the ring. It accepts only signed rings and entries that are not older than the
known ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

from shoal.errors import StaleEntryError
from shoal.plan.entry import Entry
from shoal.plan.placement import BY_THE_RING, Placement, at_home
from shoal.plan.ring import Members, Ring, ServerAddress
from shoal.plan.signature import Verifier

_REDUCED: Final = 1 << 31
"""Set in the version of a reduced placement."""


class PlanBook:
    """A ring and the known entries.

    The ring places a channel without an entry, under a version derived from the ring's. An entry that has lost all its
    servers falls back to that. A placement that has lost some of its servers is reduced to the remaining ones, under a
    version derived from their ids.
    """

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._ring: Ring | None = None
        self._signed_ring = b""
        self._entries: dict[bytes, Entry] = {}
        self._signed_entries: dict[bytes, bytes] = {}

    def with_ring(self) -> PlanBook:
        """Another book with the same ring and no entries."""
        book = PlanBook(self._verifier)
        book._ring, book._signed_ring = self._ring, self._signed_ring
        return book

    @property
    def ring(self) -> Ring | None:
        """The newest known ring."""
        return self._ring

    @property
    def signed_ring(self) -> bytes:
        """The newest ring in its signed form, to pass on."""
        return self._signed_ring

    @property
    def version(self) -> int:
        """The version of the ring, 0 before the first one."""
        return self._ring.version if self._ring else 0

    @property
    def entries(self) -> Mapping[bytes, Entry]:
        """The entries as signed, without corrections by the ring."""
        return self._entries

    def accept_ring(self, data: bytes) -> bool:
        """Takes a signed ring; returns whether it is new. Raises ForgedEntryError or StaleEntryError."""
        ring = self._verifier.ring(data)
        if ring.version < self.version:
            raise StaleEntryError(f"ring version {ring.version} is older than {self.version}, which is in use")
        if ring.version == self.version:
            return False
        self._ring, self._signed_ring = ring, data
        return True

    def accept_entry(self, data: bytes) -> tuple[bytes, bool]:
        """Takes a signed entry; returns its channel and whether it is new. Raises ForgedEntryError or
        StaleEntryError."""
        entry = self._verifier.entry(data)
        known = self._entries.get(entry.unit)
        if known == entry:
            return entry.unit, False
        if known is not None and entry.newness < known.newness:
            raise StaleEntryError(
                f"the entry of channel {entry.unit!r} has revision {entry.newness}, "
                f"older than {known.newness}, which is in use"
            )
        if known is not None and entry.newness == known.newness:
            raise StaleEntryError(
                f"the entry of channel {entry.unit!r} has revision {known.newness}, under which another one is in use"
            )
        self._entries[entry.unit] = entry
        self._signed_entries[entry.unit] = data
        return entry.unit, True

    def signed_entry(self, channel: bytes) -> bytes:
        """The channel's entry in its signed form; empty if the ring decides."""
        return self._signed_entries.get(channel, b"")

    def forget_entry(self, channel: bytes) -> None:
        """Drops an entry that has not been used for long; the home's agent sends it again when needed."""
        self._entries.pop(channel, None)
        self._signed_entries.pop(channel, None)

    def entry(self, channel: bytes) -> Entry | None:
        """The channel's entry as signed; None if the ring decides."""
        return self._entries.get(channel)

    def placing_entry(self, channel: bytes) -> Entry | None:
        """The entry that places the channel; None if the ring decides. It also does after a move that was abandoned
        while the channel was at home: such an entry names the home by an older ring."""
        entry = self._entries.get(channel)
        return None if entry is None or entry.is_home else entry

    def revision(self, channel: bytes) -> int:
        """The revision of the channel's known entry; 0 if the ring decides."""
        entry = self._entries.get(channel)
        return entry.newness if entry else 0

    def placement(self, channel: bytes) -> Placement:
        """The placement that publishers of the channel use, by this book."""
        entry = self.placing_entry(channel)
        if entry is None:
            return self._at_home(channel)
        for placement in (entry.publishing, *reversed(entry.subscribed)):
            reduced = self._reduced(channel, placement)
            if reduced is not None:
                return reduced
        return self._at_home(channel)

    def subscribed(self, channel: bytes) -> tuple[Placement, ...]:
        """The placements at which every subscriber of the channel is subscribed: more than one while it moves."""
        entry = self.placing_entry(channel)
        if entry is None:
            return (self._at_home(channel),)
        subscribed = (self._reduced(channel, placement) for placement in entry.subscribed)
        known = dict.fromkeys(placement for placement in subscribed if placement is not None)
        return tuple(known) or (self._at_home(channel),)

    def _at_home(self, channel: bytes) -> Placement:
        ring = self._require_ring()
        return at_home(ring.version, ring.home(channel))

    def _reduced(self, channel: bytes, placement: Placement) -> Placement | None:
        """The placement, reduced to the servers in the ring; None if there are none. One that was derived from a ring
        follows the ring, as for clients that do not know the entry."""
        ring = self._require_ring()
        if placement.version & BY_THE_RING:
            return self._at_home(channel)
        alive = tuple(server for server in placement.servers if ring.address(server))
        if len(alive) == len(placement.servers):
            return placement
        return Placement(_reduced_version(placement.version, alive), placement.mode, alive) if alive else None

    def earlier_servers(self, channel: bytes) -> tuple[str, ...]:
        """The servers of the ring on which publishers with an outdated ring may still publish, or have published."""
        ring = self._require_ring()
        used = (server for members in ring.lived_by for server in self.used_instead(channel, members))
        return tuple(dict.fromkeys(server for server in used if ring.address(server)))

    def used_instead(self, channel: bytes, members: Members) -> tuple[str, ...]:
        """The servers that publishers with a ring of these members may use instead of the channel's placement: none if
        the ring has all of the entry's servers, else those that are left, or the home if none that they use is."""
        entry = self.placing_entry(channel)
        if entry is None:
            return (members.home(channel),)
        left = tuple(server for server in entry.servers if server in members.ids)
        if len(left) == len(entry.servers):
            return ()
        home = () if not set(entry.publishing.servers).isdisjoint(left) else (members.home(channel),)
        return (*left, *home)

    def address(self, server: str) -> ServerAddress | None:
        """The address of a server; None if it is not in the ring."""
        return self._ring.address(server) if self._ring else None

    def _require_ring(self) -> Ring:
        if self._ring is None:
            raise StaleEntryError("no ring is known yet: the coordinator has not been asked, or holds none")
        return self._ring


def _reduced_version(version: int, alive: tuple[str, ...]) -> int:
    """The version of a reduced placement: the same in every process, and never that of a signed placement."""
    return _REDUCED | zlib.crc32(f"{version}/{'/'.join(alive)}".encode())
