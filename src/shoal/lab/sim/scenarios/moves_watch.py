"""What the scenario `moves` sees of the plan: which moves there are, how far they have come, who dies meanwhile.

Owns the counters of `exercised` that are about moves. Judges nothing.
"""

from __future__ import annotations

from collections import Counter

from shoal.lab.sim.scenarios.moves_corners import death, pair
from shoal.plan.entry import Entry, Phase
from shoal.plan.placement import Mode, Placement

Kind = tuple[Mode, frozenset[str]]


def kind_of(placement: Placement) -> Kind:
    """What a placement is, whatever its version."""
    return placement.mode, frozenset(placement.servers)


class MovesWatch:
    """Follows the entries as they are written. `seen` counts what was met."""

    def __init__(self, idle: set[bytes]) -> None:
        self.seen: Counter[str] = Counter()
        self.entries: dict[bytes, Entry] = {}
        self.written_at: dict[bytes, float] = {}
        """When the phase of the channel's entry was reached."""
        self.switches: Counter[bytes] = Counter()
        self._idle = idle
        self._past: dict[bytes, list[Kind]] = {}

    def written(self, entry: Entry, home: Placement, now: float) -> None:
        """An entry has come; `home` is where the channel lives without one."""
        channel, seen = entry.channel, self.seen
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
        channel, seen = entry.channel, self.seen
        past = self._past.setdefault(channel, [kind_of(before.placement)])
        seen["move"] += 1
        seen["eager move" if entry.eager else "lazy move"] += 1
        seen["idle move"] += channel in self._idle
        seen["second move before the end of the first"] += before.phase is not Phase.END
        seen["back and forth"] += kind_of(entry.placement) in past
        seen["overlapping moves"] += any(
            other.phase is not Phase.END for other in self.entries.values() if other.channel != channel
        )
        past.append(kind_of(entry.placement))

    def past(self, channel: bytes) -> list[Kind]:
        """The placements that a channel has had or was meant to have, oldest first."""
        return self._past.get(channel, [])

    def died(self, kind: str, name: str) -> None:
        """Somebody is gone. Agents and servers count in moves that concern them, all others in every move."""
        phases = {
            entry.phase
            for entry in self.entries.values()
            if entry.phase is not Phase.END and (kind not in ("agent", "server") or name in entry.servers)
        }
        for phase in phases:
            self.seen[death(kind, phase)] += 1
