"""The counters of an agent.

Owns their names. `core` and its parts count, `metrics` shows the figures.
"""

from __future__ import annotations

import msgspec


class AgentCounters(msgspec.Struct):
    """What an agent has done since its start."""

    greetings: int = 0
    hellos: int = 0
    hellos_deferred: int = 0
    heartbeats: int = 0
    orphan_heartbeats: int = 0
    resyncs: int = 0
    presents: int = 0
    garbage: int = 0
    forged: int = 0
    forwarded: int = 0
    forwarded_dropped: int = 0
    notices: int = 0
    handovers: int = 0
    recorded: int = 0
    record_duplicates: int = 0
    record_gaps: int = 0
    record_healed: int = 0
    record_refused: int = 0
