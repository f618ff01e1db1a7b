"""The state machines of the channel protocol, as tables.

Owns the states and transitions; the diagrams in `docs/protocol-channels.md` are drawn from these tables. The modules
below carry out what happens on a transition.

    link   one client's connection to one server                     (`client.server_link`)
    site   one subscription on one server                            (`client.subscription`)
    lane   one publisher's path to one server for one channel        (`client.outgoing`)
    agent  an agent's connection to its server                       (`agent.core`)
    record the record of one channel on one server                   (`recording.record`)
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, TypeVar


class Link(enum.Enum):
    """A client's connection to a server."""

    DOWN = "down"
    CONNECTING = "connecting"
    GREETING = "greeting"
    USABLE = "usable"
    STALE = "stale"


class Site(enum.Enum):
    """A subscription on one server."""

    WAITING = "waiting"
    ASKING = "asking"
    IN_FORCE = "in_force"
    LINGERING = "lingering"
    LEFT = "left"


class Lane(enum.Enum):
    """A publisher's way to one server for one channel."""

    WAITING = "waiting"
    ASKING = "asking"
    LIVE = "live"
    HELD = "held"
    DROPPED = "dropped"


class Agent(enum.Enum):
    """An agent's hold on its server."""

    AWAY = "away"
    CALLING = "calling"
    SERVING = "session"


class Record(enum.Enum):
    """The record of one channel on one server."""

    READING = "reading"
    WRITING = "writing"
    CLOSED = "closed"


State = TypeVar("State", Link, Site, Lane, Agent, Record)
Table = Mapping[tuple[State, str], State]

LINK: Final[Table[Link]] = {
    (Link.DOWN, "wanted"): Link.CONNECTING,
    (Link.CONNECTING, "opened"): Link.GREETING,
    (Link.CONNECTING, "lost"): Link.DOWN,
    (Link.GREETING, "heartbeat"): Link.USABLE,
    (Link.GREETING, "lost"): Link.DOWN,
    (Link.USABLE, "heartbeat"): Link.USABLE,
    (Link.USABLE, "lease over"): Link.STALE,
    (Link.USABLE, "lost"): Link.DOWN,
    (Link.STALE, "heartbeat"): Link.USABLE,
    (Link.STALE, "lost"): Link.DOWN,
}

SITE: Final[Table[Site]] = {
    (Site.WAITING, "link opened"): Site.ASKING,
    (Site.WAITING, "closed"): Site.LEFT,
    (Site.ASKING, "answered"): Site.IN_FORCE,
    (Site.ASKING, "asked again"): Site.ASKING,
    (Site.ASKING, "link lost"): Site.WAITING,
    (Site.ASKING, "closed"): Site.LEFT,
    (Site.IN_FORCE, "asked again"): Site.ASKING,
    (Site.IN_FORCE, "link lost"): Site.WAITING,
    (Site.IN_FORCE, "moved away"): Site.LINGERING,
    (Site.IN_FORCE, "closed"): Site.LEFT,
    (Site.LINGERING, "moved back"): Site.IN_FORCE,
    (Site.LINGERING, "link lost"): Site.LEFT,
    (Site.LINGERING, "linger over"): Site.LEFT,
    (Site.LINGERING, "closed"): Site.LEFT,
}

LANE: Final[Table[Lane]] = {
    (Lane.WAITING, "link usable"): Lane.ASKING,
    (Lane.ASKING, "answered"): Lane.LIVE,
    (Lane.ASKING, "link stale"): Lane.WAITING,
    (Lane.ASKING, "link lost"): Lane.WAITING,
    (Lane.LIVE, "link stale"): Lane.HELD,
    (Lane.LIVE, "link lost"): Lane.WAITING,
    (Lane.HELD, "link usable"): Lane.LIVE,
    (Lane.HELD, "link lost"): Lane.WAITING,
    (Lane.WAITING, "moved away"): Lane.DROPPED,
    (Lane.ASKING, "moved away"): Lane.DROPPED,
    (Lane.LIVE, "moved away"): Lane.DROPPED,
    (Lane.HELD, "moved away"): Lane.DROPPED,
}

AGENT: Final[Table[Agent]] = {
    (Agent.AWAY, "server reached"): Agent.CALLING,
    (Agent.CALLING, "all present"): Agent.SERVING,
    (Agent.CALLING, "call over"): Agent.SERVING,
    (Agent.CALLING, "server lost"): Agent.AWAY,
    (Agent.SERVING, "server lost"): Agent.AWAY,
}

RECORD: Final[Table[Record]] = {
    (Record.READING, "end read"): Record.WRITING,
    (Record.READING, "closed"): Record.CLOSED,
    (Record.WRITING, "closed"): Record.CLOSED,
}


def step(table: Table[State], state: State, event: str) -> State:
    """The state that follows. An event that the table does not know is a bug of ours, never the peer's."""
    try:
        return table[state, event]
    except KeyError:
        raise AssertionError(f"{type(state).__name__} {state.value} cannot take {event!r}") from None
