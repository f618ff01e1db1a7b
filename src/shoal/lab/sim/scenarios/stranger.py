"""A stranger on the cluster's servers: a client without Shoal, with another version of it, or a hostile one.

Owns the bad input of a simulated run: foreign messages on application channels, garbage, forgeries and messages of
other versions on every internal channel. None of it may do any harm.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from shoal.lab.sim.scenarios.channel_checkers import FOREIGN
from shoal.lab.sim.world.link import LinkEnd
from shoal.lab.sim.world.network import Network
from shoal.plan.placement import Mode, Placement
from shoal.plan.ring import Ring, ServerAddress
from shoal.plan.signature import Signer
from shoal.wire import control
from shoal.wire.commands import encode_commands
from shoal.wire.envelope import (
    AGENT_CHANNEL,
    HEARTBEAT_CHANNEL,
    UNKNOWN_FLAGS,
    beacon,
    inbox_channel,
    peer_channel,
    prefix,
    stream_id,
)

PAUSE_S: Final = 0.7


class Stranger:
    """Connects to one server after another and publishes bad input."""

    def __init__(
        self,
        network: Network,
        servers: list[str],
        clients: Callable[[], list[int]],
        channels: list[str],
        active: Callable[[], bool],
        on_foreign: Callable[[str, bytes, float], int],
    ) -> None:
        self.network = network
        self.node = network.node("stranger")
        self.servers = servers
        self.clients = clients
        self.channels = channels
        self.active = active
        self.on_foreign = on_foreign
        self.random: Random = network.world.rng("stranger")
        self._forger = Signer(self.random.randbytes(32))
        self._connect()

    def _connect(self) -> None:
        self.network.connect(self.node, self.random.choice(self.servers), self)

    def connected(self, end: LinkEnd) -> None:
        """Publishes a few messages, then moves on to another server."""
        end.handler = self
        if self.active():
            speeches = [(b"PUBLISH", *self._speech(end.peer.node.name)) for _ in range(3)]
            end.send(encode_commands([(b"HELLO", b"3"), *speeches]))
            self.node.after(PAUSE_S, self._leave, end)

    def _leave(self, end: LinkEnd) -> None:
        end.close()
        self._connect()

    def failed(self, reason: str) -> None:
        """Tries another server."""
        self.node.after(PAUSE_S, self._connect)

    def lost(self, end: LinkEnd, reason: str) -> None:
        """Does nothing: after its pause it connects to another server."""

    def received(self, end: LinkEnd, data: bytes) -> None:
        """Ignores replies."""

    def _speech(self, server: str) -> tuple[bytes, bytes]:
        random = self.random
        clients = self.clients()
        client = random.choice(clients) if clients else 0
        inbox, peer = inbox_channel(client), peer_channel(client)
        channel = random.choice(self.channels).encode()
        match random.randrange(8):
            case 0:
                return channel, FOREIGN + b"%d" % self.on_foreign(server, channel, self.network.world.now)
            case 1:
                where = random.choice((inbox, peer, AGENT_CHANNEL, HEARTBEAT_CHANNEL))
                return where, random.randbytes(random.randrange(60))
            case 2:
                return inbox, self._forgery(client, channel)
            case 3:
                return AGENT_CHANNEL, control.encode(control.Resend(channel, b"?"), client)
            case 4:
                return peer, control.encode(control.Resend(channel, random.randbytes(40)), client)
            case 5:
                return AGENT_CHANNEL, self._of_another_version(client)
            case 6:
                return channel, prefix(UNKNOWN_FLAGS, 1, stream_id(client, 1)) + random.randbytes(30)
            case _:
                return channel, beacon(1, 0, 0, 9, 0)

    def _of_another_version(self, client: int) -> bytes:
        """A control message of format 1, or of a version that does not exist yet."""
        greet = control.encode(control.Greet(1, 1), client, self.random.getrandbits(60))
        if self.random.random() < 0.5:
            return b"\xf5C" + greet[control.HEAD_BYTES :]
        return greet[:2] + b"\x09" + greet[3:]

    def _forgery(self, client: int, channel: bytes) -> bytes:
        """A ring or an entry that the cluster did not sign."""
        here = self.random.choice(self.servers)
        ring = self._forger.ring(Ring(999, (ServerAddress(here, here, 1),)))
        entry = self._forger.entry(channel, Placement(999, Mode.SINGLE, (here,)))
        if self.random.random() < 0.5:
            return control.encode(control.Welcome(here, 1, 1, 1, 60_000, 999, ring), client, 1)
        answer = control.Answer(here, channel, 1, 999, entry, b"", True, True, 1, 0, 1, [], [])
        return control.encode(answer, client, 1)
