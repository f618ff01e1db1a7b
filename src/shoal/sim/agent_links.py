"""An agent's connections to the other servers in the simulator.

Owns the ear, by which an agent hears the words of another agent, and the wire, on which it passes messages on. Decides
nothing: what is heard and confirmed goes to the core.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from shoal.channels.link import Command
from shoal.errors import ProtocolError
from shoal.sim.link import Endpoint
from shoal.sim.network import Dial
from shoal.wire import control

if TYPE_CHECKING:
    from shoal.sim.agent_actor import AgentActor

RETRY_S: Final = 0.1
RING_RETRY_S: Final = 0.5
"""The same where servers come and go, and some are away for long."""


class _Link(ABC):
    """A connection that is opened again whenever it is lost."""

    def __init__(self, actor: AgentActor, server: str) -> None:
        self.actor = actor
        self.server = server
        self.end: Endpoint | None = None
        self._closed = False
        self._dial: Dial | None = None
        self.dial()

    def dial(self) -> None:
        """Connects to the other server."""
        if not self._closed:
            self._dial = self.actor.network.connect(self.actor.node, self.server, self)

    def close(self) -> None:
        """Ends the connection for good."""
        self._closed = True
        if self._dial is not None:
            self._dial.cancel()
        if self.end is not None:
            self.end.abort()

    @abstractmethod
    def connected(self, end: Endpoint) -> None:
        """The connection stands."""

    @abstractmethod
    def received(self, end: Endpoint, items: list[Any]) -> None:
        """Frames of the other server."""

    def failed(self, reason: str) -> None:
        """Tries again."""
        self.actor.node.after(RING_RETRY_S if self.actor.follows else RETRY_S, self.dial)

    def lost(self, end: Endpoint, reason: str) -> None:
        """Tries again."""
        self.failed(reason)


class Ear(_Link):
    """Listens to the words of another agent on that agent's server."""

    def connected(self, end: Endpoint) -> None:
        """Listens to nothing but words."""
        self.end = end
        end.handler = self
        end.send_all([(b"HELLO", b"3"), (b"PSUBSCRIBE", b"__shoal:wor[d]")])

    def received(self, end: Endpoint, items: list[Any]) -> None:
        """Words of the other agent; whatever else is said there is nobody's word."""
        for item in items:
            if isinstance(item, list) and item[0] == b"pmessage":
                try:
                    word = control.decode(item[3])
                except ProtocolError:
                    continue
                if isinstance(word, control.Word) and word.server == self.server:
                    self.actor.core.lease.heard(word, self.actor.node.clock())


class Wire(_Link):
    """Carries what an agent passes on to another server, and counts the replies."""

    def __init__(self, actor: AgentActor, server: str) -> None:
        self._greeted = False
        super().__init__(actor, server)

    def connected(self, end: Endpoint) -> None:
        """Logs in; the core hears of the connection when the server has answered."""
        self.end, self._greeted = end, False
        end.handler = self
        end.send((b"HELLO", b"3"))

    def send(self, commands: list[Command]) -> None:
        """Sends what the core wants to have published there."""
        if self.end is not None:
            self.end.send_all(list(commands))

    def received(self, end: Endpoint, items: list[Any]) -> None:
        """Replies, in the order of the commands."""
        core, now = self.actor.core, self.actor.node.clock()
        if not self._greeted:
            self._greeted = True
            items = items[1:]
            core.forward_opened(self.server, now)
        if items:
            core.forward_confirmed(self.server, len(items), now)
        self.actor.flush()

    def lost(self, end: Endpoint, reason: str) -> None:
        """What has not been confirmed is the core's to repeat."""
        self.end = None
        self._gone()
        self.failed(reason)

    def close(self) -> None:
        """The core hears of the end here too."""
        super().close()
        self._gone()

    def _gone(self) -> None:
        if self._greeted:
            self._greeted = False
            self.actor.core.forward_lost(self.server, self.actor.node.clock())
            self.actor.flush()
