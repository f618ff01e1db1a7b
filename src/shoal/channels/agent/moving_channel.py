"""An agent's state of a channel that has a plan entry, and what the parts of its dispatcher share.

Owns the per-channel state; `dispatcher`, `notices`, `handover` and `report` fill it.
"""

from __future__ import annotations

from typing import Protocol

from shoal.channels import states
from shoal.channels.agent.lane_tags import LaneTags
from shoal.channels.agent.register import Register
from shoal.channels.agent_host import AgentHost
from shoal.channels.recording.recorder import Recorder
from shoal.channels.telemetry.scanner import Scanner
from shoal.plan.book import PlanBook
from shoal.plan.entry import Entry, Phase
from shoal.wire import control


class Counted:
    """The server's last counts of a channel's subscribers, and the number of streams that should be elsewhere."""

    __slots__ = ("behind", "here", "revision", "streams")

    def __init__(self, revision: int, behind: int, here: int, streams: int) -> None:
        self.revision = revision
        self.behind = behind
        self.here = here
        self.streams = streams


class MovingChannel:
    """A channel with an entry."""

    __slots__ = ("_phase", "counted", "handed", "left", "spoken", "told")

    def __init__(self) -> None:
        self._phase: tuple[Phase, int] | None = None
        self.spoken = False
        """Whether a message was heard since the phase began."""
        self.told: dict[int, float] = {}
        """When each subscriber that is behind was last sent a notice."""
        self.left: set[int] = set()
        """Streams that have left this server."""
        self.handed = 0
        """The version of the newest placement to which all streams were handed over."""
        self.counted: Counted | None = None

    def follow(self, entry: Entry) -> None:
        """Takes a newer entry. Within a phase no client needs a second notice."""
        phase = entry.phase, entry.since
        if phase != self._phase:
            self._phase = phase
            self.spoken = False
            self.told.clear()


class DispatchHost(AgentHost, Protocol):
    """The agent that a dispatcher works for."""

    book: PlanBook
    scanner: Scanner
    register: Register
    incarnation: int
    state: states.AgentState
    recorder: Recorder
    tags: LaneTags

    @property
    def complete(self) -> bool:
        """Whether all clients of the server have sent their Present."""

    def tell_client(self, client: int, message: control.FromAgent, number: int = 0) -> None:
        """Publishes a control message to a client of the agent's own server."""
