"""An agent's connections to the other servers in the simulator.

Owns the ear, by which an agent hears the words of another agent, and the wire, on which it passes messages on. Decides
nothing: what is heard and confirmed goes to the core.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from shoal.channels.link import Command
from shoal.channels.peers import SILENT_WORDS_MAX
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
    """A connection that is opened again whenever it is lost, or silent though something should come: then it is half
    open, and nobody will ever say so."""

    def __init__(self, actor: AgentActor, server: str, silence_s_max: float) -> None:
        self.actor = actor
        self.server = server
        self.end: Endpoint | None = None
        self._silence_s_max = silence_s_max
        self._heard = 0
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

    @property
    @abstractmethod
    def expects(self) -> bool:
        """Whether the other server should say something."""

    def watch(self, end: Endpoint, heard: int = 0, expected: bool = False) -> None:
        """Drops the connection `end` if nothing came since `heard`, though it was expected; else looks again later."""
        if self.end is not end or self._closed:
            return
        if expected and self._heard == heard:
            end.abort()
            self.lost(end, "silent")
        else:
            self.actor.node.after(self._silence_s_max, self.watch, end, self._heard, self.expects)

    def failed(self, reason: str) -> None:
        """Tries again."""
        self.actor.node.after(RING_RETRY_S if self.actor.follows else RETRY_S, self.dial)

    def lost(self, end: Endpoint, reason: str) -> None:
        """Tries again."""
        self.end = None
        self.failed(reason)


class Ear(_Link):
    """Listens to the words of another agent on that agent's server. As in `peers`, words are always expected."""

    expects = True

    def __init__(self, actor: AgentActor, server: str) -> None:
        super().__init__(actor, server, SILENT_WORDS_MAX * actor.limits.word_interval_s)

    def connected(self, end: Endpoint) -> None:
        """Listens to nothing but words."""
        self.end = end
        end.handler = self
        end.send_all([(b"HELLO", b"3"), (b"PSUBSCRIBE", b"__shoal:wor[d]")])
        self.watch(end)

    def received(self, end: Endpoint, items: list[Any]) -> None:
        """Words of the other agent; whatever else is said there is nobody's word."""
        self._heard += 1
        for item in items:
            if isinstance(item, list) and item[0] == b"pmessage":
                try:
                    word = control.decode(item[3])
                except ProtocolError:
                    continue
                if isinstance(word, control.Word) and word.server == self.server:
                    self.actor.core.lease.heard(word, self.actor.node.clock())


class Wire(_Link):
    """Carries what an agent passes on to another server, and counts the replies. As in `forward_links`, a server that
    owes replies is not waited for without end."""

    def __init__(self, actor: AgentActor, server: str) -> None:
        self._greeted = False
        self._owed = 0
        super().__init__(actor, server, actor.limits.connect_timeout_s)

    @property
    def expects(self) -> bool:
        """Whether the server owes replies."""
        return self._owed > 0

    def connected(self, end: Endpoint) -> None:
        """Logs in; the core hears of the connection when the server has answered."""
        self.end, self._greeted, self._owed = end, False, 1
        end.handler = self
        end.send((b"HELLO", b"3"))
        self.watch(end)

    def send(self, commands: list[Command]) -> None:
        """Sends what the core wants to have published there."""
        if self.end is not None:
            self._owed += len(commands)
            self.end.send_all(list(commands))

    def received(self, end: Endpoint, items: list[Any]) -> None:
        """Replies, in the order of the commands."""
        core, now = self.actor.core, self.actor.node.clock()
        self._heard += 1
        self._owed -= len(items)
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
