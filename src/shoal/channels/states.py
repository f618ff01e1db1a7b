"""The state machines of the channel protocol, as tables.

Owns the states and transitions; the diagrams in `docs/protocol-channels.md` are drawn from these tables. The modules
below carry out what happens on a transition.

    link   one client's connection to one server                     (`client.server_link`)
    site   one subscription on one server                            (`client.subscription`)
    lane   one publisher's path to one server for one channel        (`client.outgoing_stream`)
    agent  an agent's connection to its server                       (`agent.core`)
    record the record of one channel on one server                   (`recording.record`)
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, TypeVar

from shoal.rules import rule

ANNOUNCE: Final = rule(
    "beacon",
    "The position of a stream is announced: by its publisher after a burst and on a new server, by agents to servers "
    "that have not heard it.",
)


class LinkState(enum.Enum):
    """A client's connection to a server."""

    DOWN = "down"
    CONNECTING = "connecting"
    GREETING = "greeting"
    USABLE = "usable"
    STALE = "stale"


class SiteState(enum.Enum):
    """A subscription on one server."""

    WAITING = "waiting"
    ASKING = "asking"
    IN_FORCE = "in_force"
    LINGERING = "lingering"
    LEFT = "left"


class LaneState(enum.Enum):
    """A publisher's path to one server for one channel."""

    WAITING = "waiting"
    ASKING = "asking"
    LIVE = "live"
    HELD = "held"
    DROPPED = "dropped"


class AgentState(enum.Enum):
    """An agent's connection to its server."""

    AWAY = "away"
    RESYNCING = "resyncing"
    SERVING = "serving"


class RecordState(enum.Enum):
    """The record of one channel on one server."""

    READING = "reading"
    WRITING = "writing"
    CLOSED = "closed"


State = TypeVar("State", LinkState, SiteState, LaneState, AgentState, RecordState)
Table = Mapping[tuple[State, str], State]

LINK: Final[Table[LinkState]] = {
    (LinkState.DOWN, "wanted"): LinkState.CONNECTING,
    (LinkState.CONNECTING, "opened"): LinkState.GREETING,
    (LinkState.CONNECTING, "lost"): LinkState.DOWN,
    (LinkState.GREETING, "heartbeat"): LinkState.USABLE,
    (LinkState.GREETING, "lost"): LinkState.DOWN,
    (LinkState.USABLE, "heartbeat"): LinkState.USABLE,
    (LinkState.USABLE, "lease over"): LinkState.STALE,
    (LinkState.USABLE, "lost"): LinkState.DOWN,
    (LinkState.STALE, "heartbeat"): LinkState.USABLE,
    (LinkState.STALE, "lost"): LinkState.DOWN,
}

SITE: Final[Table[SiteState]] = {
    (SiteState.WAITING, "link opened"): SiteState.ASKING,
    (SiteState.WAITING, "closed"): SiteState.LEFT,
    (SiteState.ASKING, "answered"): SiteState.IN_FORCE,
    (SiteState.ASKING, "link lost"): SiteState.WAITING,
    (SiteState.ASKING, "closed"): SiteState.LEFT,
    (SiteState.IN_FORCE, "link lost"): SiteState.WAITING,
    (SiteState.IN_FORCE, "moved away"): SiteState.LINGERING,
    (SiteState.IN_FORCE, "closed"): SiteState.LEFT,
    (SiteState.LINGERING, "moved back"): SiteState.IN_FORCE,
    (SiteState.LINGERING, "link lost"): SiteState.LEFT,
    (SiteState.LINGERING, "linger over"): SiteState.LEFT,
    (SiteState.LINGERING, "closed"): SiteState.LEFT,
}

LANE: Final[Table[LaneState]] = {
    (LaneState.WAITING, "link usable"): LaneState.ASKING,
    (LaneState.ASKING, "answered"): LaneState.LIVE,
    (LaneState.ASKING, "link stale"): LaneState.WAITING,
    (LaneState.ASKING, "link lost"): LaneState.WAITING,
    (LaneState.LIVE, "link stale"): LaneState.HELD,
    (LaneState.LIVE, "link lost"): LaneState.WAITING,
    (LaneState.HELD, "link usable"): LaneState.LIVE,
    (LaneState.HELD, "link lost"): LaneState.WAITING,
    (LaneState.WAITING, "moved away"): LaneState.DROPPED,
    (LaneState.ASKING, "moved away"): LaneState.DROPPED,
    (LaneState.LIVE, "moved away"): LaneState.DROPPED,
    (LaneState.HELD, "moved away"): LaneState.DROPPED,
}

AGENT: Final[Table[AgentState]] = {
    (AgentState.AWAY, "server reached"): AgentState.RESYNCING,
    (AgentState.RESYNCING, "all present"): AgentState.SERVING,
    (AgentState.RESYNCING, "resync over"): AgentState.SERVING,
    (AgentState.RESYNCING, "server lost"): AgentState.AWAY,
    (AgentState.SERVING, "server lost"): AgentState.AWAY,
}

RECORD: Final[Table[RecordState]] = {
    (RecordState.READING, "end read"): RecordState.WRITING,
    (RecordState.READING, "closed"): RecordState.CLOSED,
    (RecordState.WRITING, "closed"): RecordState.CLOSED,
}


def step(table: Table[State], state: State, event: str) -> State:
    """The state that follows. An event that the table does not know is a bug of ours, never the peer's."""
    try:
        return table[state, event]
    except KeyError:
        raise AssertionError(f"{type(state).__name__} {state.value} cannot take {event!r}") from None
