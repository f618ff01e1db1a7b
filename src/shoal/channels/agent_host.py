"""The agent as its parts see it: its counters, and the interface that recorder and dispatcher share.

Owns the names of the counters and the common part of the interface. `agent.core` implements it; the recorder and the
dispatcher each extend it with their own needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from shoal.channels.timers import Timers
from shoal.limits import Limits
from shoal.wire.commands import Command

ReplyHandler: TypeAlias = Callable[[Any, float], None]
"""Takes the server's reply to a command, and the time."""


class AgentCounters(msgspec.Struct):
    """What an agent has done since its start. `metrics` shows the figures."""

    greetings: int = 0
    hellos: int = 0
    hellos_deferred: int = 0
    heartbeats: int = 0
    orphan_heartbeats: int = 0
    resyncs: int = 0
    presents: int = 0
    garbage: int = 0
    unauthentic: int = 0
    outdated: int = 0
    claims_refused: int = 0
    enrolments: int = 0
    enrolments_refused: int = 0
    renewals: int = 0
    """Clients that got their key of a newer generation of the agents' secret."""
    introductions: int = 0
    forged: int = 0
    oversized: int = 0
    control_unread: int = 0
    not_looked_up: int = 0
    over_quota: int = 0
    answers_incomplete: int = 0
    forwarded: int = 0
    forwarded_dropped: int = 0
    refuted: int = 0
    notices: int = 0
    handovers: int = 0
    recorded: int = 0
    record_duplicates: int = 0
    record_gaps: int = 0
    record_healed: int = 0
    record_refused: int = 0
    record_trims: int = 0


class AgentHost(Protocol):
    """The agent that a recorder or a dispatcher works for."""

    server: str
    limits: Limits
    timers: Timers
    counters: AgentCounters

    def ask(self, command: Command, handler: ReplyHandler | None = None) -> None:
        """Sends a command to the agent's own server; `handler` gets the reply."""

    def live_streams(self, channel: bytes) -> Sequence[tuple[int, int, float]]:
        """The streams of a channel that have not ended: id, last sequence number, and seconds of quiet at least."""

    def streams(self, channel: bytes) -> Mapping[int, int]:
        """The streams of a channel, each with its last sequence number (see `ENDED`)."""
