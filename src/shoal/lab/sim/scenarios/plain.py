"""Plain Redis clients: subscribers that stay on the servers where their channel is placed when the run begins, and
publishers that publish on any server.

Owns what such clients send and receive. They know nothing of Shoal, so they must not notice moves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shoal.lab.sim.history import number_in
from shoal.lab.sim.scenarios.channel_checkers import FOREIGN
from shoal.lab.sim.scenarios.channel_run_history import ChannelRunHistory
from shoal.lab.sim.world.link import LinkEnd
from shoal.lab.sim.world.network import Network
from shoal.queues.keyspace.resp import CommandReader
from shoal.wire import envelope
from shoal.wire.commands import encode_commands

RETRY_S: Final = 0.2
CONFIRM_S: Final = 5.0
"""How long a plain subscriber waits for the reply to its SUBSCRIBE before it connects again."""
PLAIN_SPEECH_S: Final = 0.4
"""Mean time between two messages of a plain publisher."""


class PlainSubscriber:
    """One subscriber, on all servers that the placement required then. `cut_at` is when it first lost a connection;
    nothing is promised to it afterwards."""

    def __init__(self, network: Network, name: str, channel: str, servers: tuple[str, ...]) -> None:
        self.network = network
        self.node = network.nodes[name]
        self.channel = channel
        self.servers = servers
        self.in_force_at: float | None = None
        self.cut_at = float("inf")
        self.heard: set[int] = set()
        self.heard_foreign: set[int] = set()
        self._confirmed: set[str] = set()
        for server in servers:
            self._dial(server)

    def _dial(self, server: str) -> None:
        self.network.connect(self.node, server, _PlainLink(self, server))

    def confirmed(self, server: str) -> None:
        """A server has confirmed the subscription."""
        self._confirmed.add(server)
        if len(self._confirmed) == len(self.servers) and self.in_force_at is None:
            self.in_force_at = self.network.world.now

    def cut(self, server: str) -> None:
        """A connection was lost or could not be made."""
        if self.in_force_at is not None:
            self.cut_at = min(self.cut_at, self.network.world.now)
        self.node.after(RETRY_S, self._dial, server)

    def hear(self, blob: bytes) -> None:
        """A message as Redis delivers it: an envelope, or the payload of a plain client."""
        if envelope.is_envelope(blob):
            if blob[2] & envelope.BEACON:
                return
            if blob[2] & envelope.UNKNOWN_FLAGS:
                return
            blob = blob[envelope.body_at(blob) :]
        if blob.startswith(FOREIGN):
            self.heard_foreign.add(int(blob.removeprefix(FOREIGN)))
        else:
            self.heard.add(number_in(blob))


class _PlainLink:
    """A plain subscriber's connection to one server."""

    def __init__(self, plain: PlainSubscriber, server: str) -> None:
        self.plain = plain
        self.server = server
        self._reader = CommandReader()
        self._settled = False
        """Whether there is nothing to wait for any more."""

    def connected(self, end: LinkEnd) -> None:
        end.handler = self
        end.send(encode_commands([(b"HELLO", b"3"), (b"SUBSCRIBE", self.plain.channel.encode())]))
        self.plain.node.after(CONFIRM_S, self._give_up, end)

    def _give_up(self, end: LinkEnd) -> None:
        """The server may be gone without a word."""
        if not self._settled:
            self._settled = True
            end.abort()
            self.plain.cut(self.server)

    def received(self, end: LinkEnd, data: bytes) -> None:
        for item in self._reader.read(data):
            if isinstance(item, list) and item[0] == b"subscribe":
                self._settled = True
                self.plain.confirmed(self.server)
            elif isinstance(item, list) and item[0] == b"message":
                self.plain.hear(item[2])

    def failed(self, reason: str) -> None:
        self.plain.cut(self.server)

    def lost(self, end: LinkEnd, reason: str) -> None:
        self._settled = True
        self.plain.cut(self.server)


class PlainPublisher:
    """Publishes single messages on one server, on the channels that `choose` returns."""

    def __init__(
        self, network: Network, name: str, server: str, history: ChannelRunHistory, choose: Callable[[str], str | None]
    ) -> None:
        self.network = network
        self.node = network.node(name)
        self.server = server
        self._history = history
        self._choose = choose
        self._random = network.world.rng("plain publishers")
        self._end: LinkEnd | None = None
        self._dial()
        self._speak_later()

    def _dial(self) -> None:
        self.network.connect(self.node, self.server, self)

    def connected(self, end: LinkEnd) -> None:
        """Starts to publish."""
        self._end = end
        end.handler = self
        end.send(encode_commands([(b"HELLO", b"3")]))

    def received(self, end: LinkEnd, data: bytes) -> None:
        """Ignores replies."""

    def failed(self, reason: str) -> None:
        """Tries again."""
        self.node.after(RETRY_S, self._dial)

    def lost(self, end: LinkEnd, reason: str) -> None:
        """Tries again."""
        self._end = None
        self.failed(reason)

    def _speak_later(self) -> None:
        self.node.after(self._random.expovariate(1 / PLAIN_SPEECH_S), self._speak)

    def _speak(self) -> None:
        channel = self._choose(self.server)
        if channel is not None and self._end is not None:
            name = channel.encode()
            number = self._history.foreign_sent(self.server, name, self.network.world.now)
            self._end.send(encode_commands([(b"PUBLISH", name, FOREIGN + b"%d" % number)]))
        self._speak_later()
