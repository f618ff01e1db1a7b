"""A channel's plan entry: its placement, and the phase of its last move.

Owns the meaning of each phase for publishers, subscribers and agents. A move goes through its phases in order, each
under its own revision:

    prepare   the agents involved learn the new placement; nothing changes for clients
    widen     subscribers subscribe at the new servers too
    switch    publishers use the new placement
    narrow    subscribers leave the old servers
    end       no subscriber is left at the old servers

So in every phase all subscribers are subscribed wherever a publisher may publish. A second move before the end of the
first extends the list of earlier placements.

The first field of the encoded entry is the kind of unit (`tag`), so that readers of another kind reject it.
"""

from __future__ import annotations

import enum

import msgspec

from shoal.plan.kinds import CHANNEL
from shoal.plan.placement import BY_THE_RING, Placement, check_servers


class Phase(enum.StrEnum):
    """The phase of a channel's last move."""

    PREPARE = "prepare"
    WIDEN = "widen"
    SWITCH = "switch"
    NARROW = "narrow"
    END = "end"


class Entry(msgspec.Struct, frozen=True, array_like=True, tag=CHANNEL):
    """The plan entry of one channel, the `unit`.

    `placement` is the newest; `earlier` are the previous ones still in use, oldest first, and in `narrow` those that
    subscribers are leaving. `publish` is the version of the placement that publishers use, 0 for the newest. `revision`
    grows with every phase; 0 means the version of the placement. With `eager`, clients that are behind are notified
    immediately, not with their next message. `helped` are servers with subscribers that did not follow: agents forward
    messages there. `since` is the revision at which the phase began.
    """

    unit: bytes
    placement: Placement
    phase: Phase = Phase.END
    earlier: tuple[Placement, ...] = ()
    publish: int = 0
    revision: int = 0
    eager: bool = False
    helped: tuple[str, ...] = ()
    since: int = 0

    @property
    def newness(self) -> int:
        """The revision by which entries of a channel are compared."""
        return self.revision or self.placement.version

    @property
    def is_home(self) -> bool:
        """Whether the channel is at the home that the ring gives it, and no move is under way."""
        return self.phase is Phase.END and bool(self.placement.version & BY_THE_RING)

    @property
    def subscribed(self) -> tuple[Placement, ...]:
        """The placements at which every subscriber is subscribed."""
        if self.phase is Phase.PREPARE:
            return self.earlier
        if self.phase in (Phase.WIDEN, Phase.SWITCH):
            return (*self.earlier, self.placement)
        return (self.placement,)

    @property
    def follows_from(self) -> int:
        """A subscriber that has confirmed this revision or a newer one is not behind; 0 if no subscriber can be
        behind."""
        if self.phase in (Phase.WIDEN, Phase.SWITCH):
            return self.placement.version + 1
        return self.since if self.phase is Phase.NARROW else 0

    @property
    def publishing(self) -> Placement:
        """The placement that publishers use."""
        for placement in self.earlier:
            if placement.version == self.publish:
                return placement
        return self.placement

    @property
    def servers(self) -> tuple[str, ...]:
        """All servers of all placements in use, without repetition."""
        placements = (*self.earlier, self.placement)
        return tuple(dict.fromkeys(server for placement in placements for server in placement.servers))

    @property
    def is_moving(self) -> bool:
        """Whether its last move is still in progress."""
        return self.phase is not Phase.END

    @property
    def stage(self) -> tuple[Phase, int]:
        """The phase, and the revision at which it began. Timeouts restart when it changes."""
        return self.phase, self.since

    def check(self) -> None:
        """Raises ValueError if the entry is inconsistent."""
        check_entry(self)
        for placement in (*self.earlier, self.placement):
            check_servers(placement.mode, placement.servers)


def check_entry(entry: Entry) -> None:
    """Raises ValueError if phase, placements and revisions contradict each other."""
    versions = [placement.version for placement in (*entry.earlier, entry.placement)]
    signed = [version for version in versions if not version & BY_THE_RING]
    if len(set(versions)) != len(versions) or sorted(signed) != signed:
        raise ValueError("the placements of an entry are not in the order of their versions")
    if entry.phase in (Phase.PREPARE, Phase.WIDEN, Phase.SWITCH, Phase.NARROW) and not entry.earlier:
        raise ValueError(f"an entry in phase {entry.phase.value} has no earlier placement")
    if entry.phase is Phase.END and (entry.earlier or entry.helped):
        raise ValueError("an entry whose move has ended has earlier placements or helped servers")
    if entry.phase is not Phase.END and entry.placement.version & BY_THE_RING:
        raise ValueError("a channel cannot move to a placement derived from the ring")
    if entry.publish and entry.publish not in versions:
        raise ValueError("an entry has no placement with the version that publishers should use")
    publishes_new = entry.publishing is entry.placement
    if publishes_new is not (entry.phase in (Phase.SWITCH, Phase.NARROW, Phase.END)):
        raise ValueError(f"in phase {entry.phase.value} publishers cannot use version {entry.publishing.version}")
    if signed and entry.newness < signed[-1]:
        raise ValueError("the revision of an entry is older than its newest placement")
