"""Sequences of faults in which a publisher is silent while the agent of its server restarts, so that it does not answer
the resync.

Owns the sequences. See `shoal.lab.sim.scenarios.provocations`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.channels.agent.core import AgentCore
from shoal.channels.states import AgentState
from shoal.lab.sim.scenario import BEGIN_S
from shoal.lab.sim.scenarios.app import App
from shoal.lab.sim.scenarios.provocations import Provocation
from shoal.plan.book import PlanBook
from shoal.plan.entry import Entry, Phase
from shoal.plan.placement import Mode

if TYPE_CHECKING:
    from shoal.lab.sim.scenarios.moves import MovesRun

SILENT_S: Final = 2.0
"""How long the publisher is silent at most: less than the rest of a lease, so that it may continue at once."""
AGENT_RESTART_S: Final = (0.05, 0.1)
AGENT_DOWN_S: Final = (5.0, 6.0)
"""How long the agent is down: at first it only restarts, later it stays down until its server has left the ring."""
MOVE_S_MAX: Final = 3.0
"""How long the sequence waits for each phase of the move."""
SEQUENCE_S: Final = 10.0
"""How much time the whole sequence needs."""
UNHEARD_S: Final = 5.0
"""How long before the end of the faults a publisher is unheard."""
SUBSCRIBE_S_MAX: Final = 1.5
CONFIRM_S_MAX: Final = 1.0
BACK_S_MAX: Final = 3.0
"""How long the sequence waits for a new subscription, for the confirmation of messages, and for the agent."""


def rests(book: PlanBook, channel: str) -> bool:
    """Whether a channel is on a single server and does not move."""
    entry = book.entry(channel.encode())
    return book.placement(channel.encode()).mode is Mode.SINGLE and (entry is None or entry.phase is Phase.END)


class SilentPublisher(Provocation):
    """A publisher is silent while its channel moves and the agent of the old server restarts: the handover waits for
    it. When subscribers may leave the old server, an application subscribes at the new one only, that agent dies, and
    the publisher continues at the old server. The new subscriber misses a message that was not forwarded. It learns of
    it when the publisher announces the stream, and knows the stream if the handover named it."""

    counter = "publisher is silent in a resync during a move"

    def __init__(self, run: MovesRun) -> None:
        super().__init__(run)
        self.moves = run
        self.channel = ""
        """The channel that moves."""
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
            if rests(run.book, channel)
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
        run.spared.add(self.channel)
        run.operator.request(self.channel, Mode.SINGLE, self._new, eager=True)
        return True

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


class UnheardPublisher(Provocation):
    """A publisher is silent while the agent of its server restarts, so that the agent does not know of it, and an
    application subscribes. Then agent and subscriber lose their connections, and the publisher continues and dies
    before the agent is back. The agent's process has been running since before the subscription began, but it does not
    know all publishers of that time. If it says that it remembers that time, the subscriber reports no gap."""

    counter = "publisher is unheard and dies"

    def __init__(self, run: MovesRun) -> None:
        super().__init__(run)
        self.moves = run
        self._channel = ""

    def try_to_begin(self) -> bool:
        """Needs a publisher of a channel at rest, which is spared from moves until then, and an agent that listens. It
        begins late: when agents restart after it, subscribers are told that any publisher may be missing."""
        run, apps = self.moves, self.apps()
        if not self._channel:
            resting = [name for name in run.channels if name not in run.spared and rests(run.book, name)]
            if resting:
                self._channel = self.random.choice(resting)
                run.spared.add(self._channel)
            return False
        channel = self._channel
        talkers = [app for app in apps if channel.encode() in app.spoken]
        if run.world.now < BEGIN_S + run.safety_s - UNHEARD_S or not rests(run.book, channel) or not talkers:
            return False
        talker = self.random.choice(talkers)
        others = [app for app in apps if app is not talker]
        if not others:
            return False
        app = self.random.choice(others)
        (server,) = run.book.placement(channel.encode()).servers
        if self._core(server) is None:
            return False
        run.sleepers.add(talker.record.client)
        run.faults.pause(talker.node, (SILENT_S, SILENT_S))
        run.faults.crash(run.network.nodes[f"agent-{server}"], AGENT_RESTART_S)
        self.when(
            lambda: self._core(server) is not None,
            lambda: self._subscribe(talker, app, channel, server),
            talker.node.resume,
            SUBSCRIBE_S_MAX,
        )
        return True

    def _core(self, server: str) -> AgentCore | None:
        """The core of a server's agent, if it listens."""
        agent = self.run.agent_of(server)
        core = agent.agent.core if agent.node.running else None
        return core if core is not None and core.state is not AgentState.AWAY else None

    def _subscribe(self, talker: App, app: App, channel: str, server: str) -> None:
        if app.node.running and app.started and not app.leaving:
            app.process.call(app.subscribe, channel)
            sub = app.subs[-1]
            sub.kept = True
            self.when(
                lambda: sub.record.in_force_at is not None,
                lambda: self._lose(talker, app, channel, server),
                talker.node.resume,
                SUBSCRIBE_S_MAX,
            )

    def _lose(self, talker: App, app: App, channel: str, server: str) -> None:
        """Agent and subscriber lose their connections, and the publisher continues."""
        run, client, core = self.run, talker.record.client, self._core(server)
        if core is None:
            talker.node.resume()
            return
        before, sent = core.incarnation, len(run.history.of(channel, client))
        away, deaf = self.cut_off(app.node.name, [server]), self.cut_off(f"agent-{server}", [server])
        talker.node.resume()
        self.burst(talker, channel, 2)

        def confirmed() -> bool:
            messages = run.history.of(channel, client)
            return len(messages) > sent and all(message.confirmed_at is not None for message in messages)

        def give_up() -> None:
            deaf.heal()
            away.heal()

        def die() -> None:
            run.faults.crash(talker.node)
            deaf.heal()
            self.when(lambda: core.incarnation != before, back, give_up, BACK_S_MAX)

        def back() -> None:
            away.heal()
            self.done()

        self.when(confirmed, die, give_up, CONFIRM_S_MAX)
