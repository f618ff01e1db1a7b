"""The sequence of faults in which it decides that a handover waits for every client of the old server.

Owns the sequence. A publisher is silent while its channel moves and the agent of the old server restarts. When
subscribers may leave the old server, an application subscribes at the new one only, that agent dies, and the publisher
goes on at the old server. The new subscriber misses a message that was not forwarded, and notices only if the agents
of the new server know the stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.lab.sim.scenarios.app import App
from shoal.lab.sim.scenarios.provocations import Provocation
from shoal.plan.entry import Entry, Phase
from shoal.plan.placement import Mode

if TYPE_CHECKING:
    from shoal.lab.sim.scenarios.moves import MovesRun

SILENT_S: Final = 2.0
"""How long the publisher is silent at most: less than the rest of a lease, so that it may go on at once."""
AGENT_RESTART_S: Final = (0.05, 0.1)
AGENT_DOWN_S: Final = (5.0, 6.0)
"""How long the agent is down: at first it only restarts, later it stays down until its server has left the ring."""
MOVE_S_MAX: Final = 3.0
"""How long the sequence waits for each phase of the move."""
SEQUENCE_S: Final = 10.0
"""How much time the whole sequence needs."""


class SilentPublisher(Provocation):
    """See above."""

    counter = "publisher is silent in a resync during a move"

    def __init__(self, run: MovesRun) -> None:
        super().__init__(run)
        self.moves = run
        self.channel = ""
        """The channel that moves. No other move of it is requested."""
        self._old: tuple[str, ...] = ()
        self._new: tuple[str, ...] = ()
        self._publisher: App | None = None
        self._phase = Phase.END

    def try_to_begin(self) -> bool:
        """Needs a channel at rest on a single server, and a publisher there that does not subscribe to it."""
        run, ring, apps = self.moves, self.moves.book.ring, self.apps()
        found = [
            (app, channel)
            for channel in run.channels
            if self._rests(channel)
            for app in apps
            if channel.encode() in app.spoken and not any(sub.record.reads(channel) for sub in app.subs)
        ]
        if not found or ring is None or run.operator is None:
            return False
        self._publisher, self.channel = self.random.choice(found)
        self._old = run.book.placement(self.channel.encode()).servers
        others = [server for server in ring.ids if server not in self._old]
        if not others:
            return False
        self._new = (self.random.choice(others),)
        run.operator.request(self.channel, Mode.SINGLE, self._new, eager=True)
        return True

    def _rests(self, channel: str) -> bool:
        entry = self.run.book.entry(channel.encode())
        placed = self.run.book.placement(channel.encode())
        return placed.mode is Mode.SINGLE and (entry is None or entry.phase is Phase.END)

    def entry_written(self, entry: Entry) -> None:
        """Follows the move of the channel."""
        publisher = self._publisher
        if publisher is None or entry.unit != self.channel.encode() or not self.run.faults.active:
            return
        if entry.placement.servers != self._new:
            self._publisher = None  # another move
        elif entry.phase is Phase.SWITCH and self._phase is not Phase.SWITCH:
            self._fall_silent(publisher)
        elif entry.phase is Phase.NARROW and self._phase is Phase.SWITCH:
            self._subscribe(publisher)
        self._phase = entry.phase

    def _fall_silent(self, publisher: App) -> None:
        self.moves.sleepers.add(publisher.record.client)
        self.run.faults.pause(publisher.node, (SILENT_S, SILENT_S))
        for server in self._old:
            self.run.faults.crash(self.run.network.nodes[f"agent-{server}"], AGENT_RESTART_S)

    def _subscribe(self, publisher: App) -> None:
        """Subscribers may leave the old server: one subscribes that was never there."""
        apps = [app for app in self.apps() if app is not publisher]
        strange = [app for app in apps if self.channel.encode() not in app.engaged()] or apps
        if strange:
            app = self.random.choice(strange)
            app.process.call(app.subscribe, self.channel)
            record = app.subs[-1].record
            self.when(lambda: record.in_force_at is not None, lambda: self._go_on(publisher), lambda: None, MOVE_S_MAX)

    def _go_on(self, publisher: App) -> None:
        for server in self._old:
            self.run.faults.crash(self.run.network.nodes[f"agent-{server}"], AGENT_DOWN_S)
        publisher.node.resume()
        self.burst(publisher, self.channel, 2)
        self.done()
