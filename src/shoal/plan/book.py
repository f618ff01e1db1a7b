"""The plan book: the part of the plan that one client or agent holds, and the rule by which it grows newer.

Owns the choice between an entry and the ring. Accepts only what is signed and not older than what it has.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

from shoal.errors import StaleEntryError
from shoal.plan.entry import Entry
from shoal.plan.placement import Placement, at_home
from shoal.plan.ring import Ring, ServerAddress
from shoal.plan.signing import Verifier

_REDUCED: Final = 1 << 31
"""Set in the version of what is left of a placement."""


class PlanBook:
    """A ring and the entries that its holder has met.

    A channel without an entry lives where the ring says, under a version made from the ring's. An entry that lost all
    its servers falls back to that. A placement whose servers have partly left the ring is reduced to those that remain,
    under a version that tells which they are.
    """

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._ring: Ring | None = None
        self._signed_ring = b""
        self._entries: dict[bytes, Entry] = {}
        self._signed_entries: dict[bytes, bytes] = {}

    @property
    def ring(self) -> Ring | None:
        """The newest ring seen."""
        return self._ring

    @property
    def signed_ring(self) -> bytes:
        """The newest ring as it was signed, to pass on."""
        return self._signed_ring

    @property
    def version(self) -> int:
        """The version of the ring, 0 before the first one."""
        return self._ring.version if self._ring else 0

    @property
    def entries(self) -> Mapping[bytes, Entry]:
        """The entries as they were signed, without the ring's corrections."""
        return self._entries

    def accept_ring(self, data: bytes) -> bool:
        """Takes a signed ring; says whether it is news. ForgedEntryError or StaleEntryError if it may not be used."""
        ring = self._verifier.ring(data)
        if ring.version < self.version:
            raise StaleEntryError(f"ring version {ring.version} is older than {self.version}, which is in use")
        if ring.version == self.version:
            return False
        self._ring, self._signed_ring = ring, data
        return True

    def accept_entry(self, data: bytes) -> tuple[bytes, bool]:
        """Takes a signed entry; returns its channel and whether it is news."""
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
        """The channel's entry as it was signed; empty if the ring decides."""
        return self._signed_entries.get(channel, b"")

    def forget_entry(self, channel: bytes) -> None:
        """Drops an entry that has not been used for long; the home's agent will tell it again."""
        self._entries.pop(channel, None)
        self._signed_entries.pop(channel, None)

    def entry(self, channel: bytes) -> Entry | None:
        """The channel's entry as it was signed; None if the ring decides."""
        return self._entries.get(channel)

    def revision(self, channel: bytes) -> int:
        """How new the holder's knowledge of the channel is; 0 if the ring decides."""
        entry = self._entries.get(channel)
        return entry.newness if entry else 0

    def placement(self, channel: bytes) -> Placement:
        """Where publishers of the channel publish, as far as the holder of this book knows."""
        entry = self._entries.get(channel)
        if entry is None:
            return self._at_home(channel)
        for placement in (entry.publishing, *reversed(entry.standing)):
            reduced = self._reduced(placement)
            if reduced is not None:
                return reduced
        return self._at_home(channel)

    def standing(self, channel: bytes) -> tuple[Placement, ...]:
        """The placements that every subscriber of the channel stands by: more than one while it moves."""
        entry = self._entries.get(channel)
        if entry is None:
            return (self._at_home(channel),)
        standing = [reduced for placement in entry.standing if (reduced := self._reduced(placement)) is not None]
        return tuple(standing) or (self._at_home(channel),)

    def _at_home(self, channel: bytes) -> Placement:
        ring = self._require_ring()
        return at_home(ring.version, ring.home(channel))

    def _reduced(self, placement: Placement) -> Placement | None:
        """What the ring has left of a placement; None if that is nothing."""
        ring = self._require_ring()
        alive = tuple(server for server in placement.servers if ring.address(server))
        if len(alive) == len(placement.servers):
            return placement
        return Placement(_reduced_version(placement.version, alive), placement.mode, alive) if alive else None

    def earlier_servers(self, channel: bytes) -> tuple[str, ...]:
        """Where publishers that have not heard of the last changes of the ring may still publish."""
        ring = self._require_ring()
        entry = self._entries.get(channel)
        if entry is None or not all(map(ring.address, entry.servers)):
            return ring.earlier_homes(channel)
        missed = any(server not in members.ids for members in ring.lived_by for server in entry.servers)
        return ring.earlier_homes(channel) if missed else ()

    def address(self, server: str) -> ServerAddress | None:
        """Where a server listens; None if it is not in the ring."""
        return self._ring.address(server) if self._ring else None

    def _require_ring(self) -> Ring:
        if self._ring is None:
            raise StaleEntryError("no ring is known yet: the coordinator has not been asked, or holds none")
        return self._ring


def _reduced_version(version: int, alive: tuple[str, ...]) -> int:
    """A version for what is left of a placement: the same for everybody, and never that of a placement as it was
    signed."""
    return _REDUCED | zlib.crc32(f"{version}/{'/'.join(alive)}".encode())
