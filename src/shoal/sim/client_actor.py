"""A client in the simulator: the shipped router core on simulated connections.

Owns the adapter's part (connecting, sending, timers), as the Bus does in production. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from shoal.channels.context import Confirmed, Connect, Disconnect, FetchRing
from shoal.channels.outgoing import Outgoing
from shoal.channels.router import Router
from shoal.channels.rules import Rules
from shoal.channels.subscription import Subscription
from shoal.limits import Limits
from shoal.plan.book import PlanBook
from shoal.plan.signing import Verifier
from shoal.sim.coordinator import ModelCoordinator
from shoal.sim.link import Endpoint
from shoal.sim.network import Dial, Network
from shoal.sim.node import Node
from shoal.sim.world import Event

RECONNECT_S: Final = (0.05, 0.6)
CLOCK_GRAIN_S: Final = 1e-6
"""Timers fire this much late, so that rounding between clocks cannot make one fire early, again and again."""
HANDSHAKE_REPLIES: Final = 1
HANDSHAKE_TIMEOUT_S: Final = 3.0


class _Line:
    """One connection of a client to a server: dials, logs in, passes frames on."""

    def __init__(self, actor: ClientActor, server: str) -> None:
        self.actor = actor
        self.server = server
        self.end: Endpoint | None = None
        self.dial: Dial | None = None
        self.logged_in = False

    def connected(self, end: Endpoint) -> None:
        self.end = end
        end.handler = self
        end.send((b"HELLO", b"3", *self.actor.name_words))
        self.actor.node.after(HANDSHAKE_TIMEOUT_S, self._check_logged_in)

    def _check_logged_in(self) -> None:
        if not self.logged_in:
            self.hang_up()
            self.actor.line_lost(self)

    def failed(self, reason: str) -> None:
        self.actor.line_lost(self)

    def received(self, end: Endpoint, items: list[Any]) -> None:
        if not self.logged_in:
            self.logged_in = True
            self.actor.line_opened(self)
            items = items[HANDSHAKE_REPLIES:]
        if items:
            self.actor.frames(self, items)

    def lost(self, end: Endpoint, reason: str) -> None:
        self.actor.line_lost(self)

    def hang_up(self) -> None:
        if self.dial is not None:
            self.dial.cancel()
        if self.end is not None:
            self.end.abort()


class ClientActor:
    """One process with one router. `on_publish(server, channel, blob)` sees each PUBLISH as it leaves."""

    def __init__(
        self,
        network: Network,
        node: Node,
        coordinator: ModelCoordinator,
        client: int,
        verifier: Verifier,
        limits: Limits,
        rules: Rules,
        on_publish: Callable[[str, bytes, bytes], None],
        on_ready: Callable[[Subscription], None],
        on_confirmed: Callable[[object], None],
        named: bool = False,
    ) -> None:
        self.network = network
        self.node = node
        self.coordinator = coordinator
        self.router = Router(client, PlanBook(verifier), limits, rules)
        self.on_publish = on_publish
        self.on_ready = on_ready
        self.on_confirmed = on_confirmed
        self.name_words = (b"SETNAME", b"shoal:%012x" % client) if named else ()
        """How servers know the client: where agents look for clients that are gone, it must have a name."""
        self.lines: dict[str, _Line] = {}
        self._random = network.world.rng(f"client/{node.name}")
        self._timer: Event | None = None
        self._timer_at = float("inf")
        self._fetching = False
        self.started = False
        self.fetch()

    # The application's calls

    def publish(self, channel: bytes, payload: bytes, token: object) -> tuple[Outgoing, int]:
        """Publishes and asks for the confirmation."""
        now = self.node.clock()
        out, seq = self.router.publish(channel, payload, None, int(now * 1e6), now)
        self.router.publishing.await_confirm(out, seq, token)
        self.flush()
        return out, seq

    def subscribe(self, name: bytes, pattern: bool) -> Subscription:
        """Begins a subscription."""
        sub = self.router.subscribe(name, pattern, self.node.clock())
        self.flush()
        return sub

    def unsubscribe(self, sub: Subscription) -> None:
        """Ends a subscription."""
        self.router.unsubscribe(sub, self.node.clock())
        self.flush()

    def consumed(self, sub: Subscription) -> None:
        """Says that the application has taken items."""
        self.router.consumed(sub, self.node.clock())
        self.flush()

    def close(self) -> None:
        """Leaves; the caller has drained."""
        self.router.close(self.node.clock())
        self.flush()
        for line in list(self.lines.values()):
            if line.end is not None:
                line.end.close()
        self.lines.clear()

    # The adapter

    def flush(self) -> None:
        """Carries out whatever the router has handed back."""
        router = self.router
        while router.effects or router.dirty or router.ready:
            effects, router.effects[:] = list(router.effects), []
            for effect in effects:
                match effect:
                    case Connect():
                        self.node.after(self._random.uniform(*RECONNECT_S), self._connect, effect.server)
                    case Disconnect():
                        line = self.lines.get(effect.server)
                        if line is not None:
                            line.hang_up()
                            self.line_lost(line)
                    case FetchRing():
                        self.fetch()
                    case Confirmed():
                        self.on_confirmed(effect.token)
            dirty, router.dirty[:] = list(router.dirty), []
            for link in dirty:
                link.dirty = False
                line = self.lines.get(link.server)
                commands, link.outbox = link.outbox, []
                if line is not None and line.end is not None and line.logged_in:
                    for command in commands:
                        if command[0] == b"PUBLISH" and not command[1].startswith(b"__shoal:"):
                            self.on_publish(link.server, command[1], command[2])
                    line.end.send_all(commands)
            ready, router.ready[:] = list(router.ready), []
            for sub in ready:
                sub.notified = False
                self.on_ready(sub)
        self._arm()

    def _arm(self) -> None:
        at = self.router.next_timer()
        if at is None or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.node.at(max(at, self.node.clock()) + CLOCK_GRAIN_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_at = float("inf")
        self.router.timer(self.node.clock())
        self.flush()

    def _connect(self, server: str) -> None:
        link = self.router.context.links.get(server)
        if link is None or server in self.lines or self.router.context.closing:
            return
        line = self.lines[server] = _Line(self, server)
        line.dial = self.network.connect(self.node, server, line)

    def line_opened(self, line: _Line) -> None:
        """A connection is ready for commands."""
        self.router.opened(line.server, self.node.clock())
        self.flush()

    def line_lost(self, line: _Line) -> None:
        """A connection is over, or did not come about."""
        if self.lines.get(line.server) is line:
            del self.lines[line.server]
            self.router.lost(line.server, self.node.clock())
            self.flush()

    def frames(self, line: _Line, items: list[Any]) -> None:
        """Frames of one connection."""
        if self.lines.get(line.server) is line:
            self.router.received(line.server, items, self.node.clock())
            self.flush()

    def fetch(self) -> None:
        """Asks the coordinator for the newest ring."""
        if not self._fetching and not self.router.context.closing:
            self._fetching = True
            self.coordinator.request(self.node, "get", ("plan/ring",), self._fetched)

    def _fetched(self, result: Any) -> None:
        self._fetching = False
        if result is not None and not isinstance(result, Exception):
            self.router.ring(result.value, self.node.clock())
            self.started = True
            self.flush()
        elif not self.started:
            self.node.after(0.3, self.fetch)
