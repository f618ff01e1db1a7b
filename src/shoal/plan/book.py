"""The plan book: the part of the plan that one client or agent holds, and the rule by which it grows newer.

Owns the choice between an entry and the ring. Accepts only what is signed and not older than what it has.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.errors import StaleEntryError
from shoal.plan.placement import Mode, Placement
from shoal.plan.ring import Ring, ServerAddress
from shoal.plan.signing import Verifier


class PlanBook:
    """A ring and the entries that its holder has met.

    A channel without an entry lives where the ring says, under the ring's version. An entry whose servers have
    partly left the ring is reduced to those that remain, and one that lost them all falls back to the ring: both
    under the ring's version, which is the newer one.
    """

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._ring: Ring | None = None
        self._signed_ring = b""
        self._entries: dict[bytes, Placement] = {}
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
    def entries(self) -> Mapping[bytes, Placement]:
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
        known = self._entries.get(entry.channel)
        if known is not None and entry.placement.version < known.version:
            raise StaleEntryError(
                f"the entry of channel {entry.channel!r} has version {entry.placement.version}, "
                f"older than {known.version}, which is in use"
            )
        if known == entry.placement:
            return entry.channel, False
        if known is not None and entry.placement.version == known.version:
            raise StaleEntryError(
                f"the entry of channel {entry.channel!r} has version {known.version}, under which another one is in use"
            )
        self._entries[entry.channel] = entry.placement
        self._signed_entries[entry.channel] = data
        return entry.channel, True

    def signed_entry(self, channel: bytes) -> bytes:
        """The channel's entry as it was signed; empty if the ring decides."""
        return self._signed_entries.get(channel, b"")

    def forget_entry(self, channel: bytes) -> None:
        """Drops an entry that has not been used for long; the home's agent will tell it again."""
        self._entries.pop(channel, None)
        self._signed_entries.pop(channel, None)

    def placement(self, channel: bytes) -> Placement:
        """Where the channel lives, as far as the holder of this book knows."""
        ring = self._require_ring()
        entry = self._entries.get(channel)
        if entry is None:
            return Placement(ring.version, Mode.SINGLE, (ring.home(channel),))
        alive = tuple(server for server in entry.servers if ring.address(server))
        if len(alive) == len(entry.servers):
            return entry
        if not alive:
            return Placement(ring.version, Mode.SINGLE, (ring.home(channel),))
        return Placement(ring.version, entry.mode, alive)

    def earlier_servers(self, channel: bytes) -> tuple[str, ...]:
        """Where publishers that have not heard of the last changes of the ring may still publish."""
        ring = self._require_ring()
        entry = self._entries.get(channel)
        if entry is None or not all(map(ring.address, entry.servers)):
            return ring.earlier_homes(channel)
        missed = any(server not in members for members in ring.earlier for server in entry.servers)
        return ring.earlier_homes(channel) if missed else ()

    def address(self, server: str) -> ServerAddress | None:
        """Where a server listens; None if it is not in the ring."""
        return self._ring.address(server) if self._ring else None

    def _require_ring(self) -> Ring:
        if self._ring is None:
            raise StaleEntryError("no ring is known yet: the coordinator has not been asked, or holds none")
        return self._ring
