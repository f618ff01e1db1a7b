"""Observes the plan in the scenario `moves`: the moves, their phases, and crashes meanwhile.

Owns the counters of `exercised` about moves. Checks nothing.
"""

from __future__ import annotations

from collections import Counter

from shoal.lab.sim.scenarios.moves_corners import death, pair
from shoal.plan.entry import Entry, Phase
from shoal.plan.placement import Mode, Placement

Kind = tuple[Mode, frozenset[str]]


def kind_of(placement: Placement) -> Kind:
    """Mode and servers of a placement, without its version."""
    return placement.mode, frozenset(placement.servers)


class MovesWatch:
    """Follows the entries as they are written. `seen` holds the counters."""

    def __init__(self, idle: set[bytes]) -> None:
        self.seen: Counter[str] = Counter()
        self.entries: dict[bytes, Entry] = {}
        self.written_at: dict[bytes, float] = {}
        """When each channel's entry reached its phase."""
        self.switches: Counter[bytes] = Counter()
        self._idle = idle
        self._past: dict[bytes, list[Kind]] = {}

    def written(self, entry: Entry, home: Placement, now: float) -> None:
        """An entry was written; `home` is the placement of the channel without one."""
        channel, seen = entry.unit, self.seen
        before = self.entries.get(channel) or Entry(channel, home)
        self.entries[channel] = entry
        if entry.phase is not before.phase or entry.placement != before.placement:
            self.written_at[channel] = now
            seen[f"phase {entry.phase.value}"] += 1
        if entry.placement.version > before.placement.version:
            self._begun(entry, before)
        elif before.phase in (Phase.PREPARE, Phase.WIDEN) and entry.placement != before.placement:
            seen["abort"] += 1
        if entry.phase is Phase.SWITCH and before.phase is not Phase.SWITCH:
            seen[pair(before.publishing.mode, entry.placement.mode)] += 1
            self.switches[channel] += 1

    def _begun(self, entry: Entry, before: Entry) -> None:
        channel, seen = entry.unit, self.seen
        past = self._past.setdefault(channel, [kind_of(before.placement)])
        seen["move"] += 1
        seen["eager move" if entry.eager else "lazy move"] += 1
        seen["idle move"] += channel in self._idle
        seen["second move before the end of the first"] += before.phase is not Phase.END
        seen["back and forth"] += kind_of(entry.placement) in past
        seen["overlapping moves"] += any(
            other.phase is not Phase.END for other in self.entries.values() if other.unit != channel
        )
        past.append(kind_of(entry.placement))

    def past(self, channel: bytes) -> list[Kind]:
        """The placements that a channel has had or was moving to, oldest first."""
        return self._past.get(channel, [])

    def died(self, kind: str, name: str) -> None:
        """A process crashed. Agents and servers count for the moves that involve them, other processes for every
        move."""
        phases = {
            entry.phase
            for entry in self.entries.values()
            if entry.phase is not Phase.END and (kind not in ("agent", "server") or name in entry.servers)
        }
        for phase in phases:
            self.seen[death(kind, phase)] += 1
