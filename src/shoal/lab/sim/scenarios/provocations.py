"""Sequences of faults in which a single rule matters, and which random faults hardly ever produce.

Owns the sequences. Each waits for a situation in which it can begin, causes its faults in order, and gives up if the
run takes another path. They use the faults of `shoal.lab.sim.world.faults`, and end with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from shoal.lab.sim.scenario import BEGIN_S
from shoal.lab.sim.scenarios.app import App
from shoal.lab.sim.world.network import Partition
from shoal.plan.secret_rotation import generations

if TYPE_CHECKING:
    from shoal.lab.sim.scenarios.cluster import ChannelScenario

LOOK_S: Final = 0.1
"""How often a sequence checks whether it can continue."""
BEGIN_LOOK_S: Final = 0.5
"""How often a sequence checks whether it can begin."""
LATE_S_MAX: Final = 6.0
"""How long heartbeats are stuck at most. An agent gives up a connection without replies after 9 s."""
FULL_AFTER_S: Final = (0.0, 3.0)
FULL_S: Final = (1.0, 8.0)
"""When the coordinator's disk is full, and for how long: shorter and longer than a lease."""
ABSENCE_S: Final = 1.5
"""How much longer than `publisher_idle_s` a long absence lasts."""
REPETITION_S: Final = 5.0
"""How long before the end of the faults a message is repeated."""
AGENT_BACK_S_MAX: Final = 3.0
"""How long a sequence waits for an agent that has no connection to its server."""
NEWS_S: Final = (2.0, 2.8)
REVOKED_S: Final = (0.8, 1.2)
"""How long agents do not hear of a new secret, and how long before they do the older one is revoked: the leader needs
two looks at the plan to drop it from the ring and to delete it. Two leases are longer."""
UNAWARE_S: Final = (0.0, 0.5)
UNAWARE_TIMES: Final = 2
"""When and how often each client publishes before it has heard: it hears with the next heartbeat."""


class Provocation:
    """One sequence. `counter` is counted in `exercised` when it is complete."""

    counter: str

    def __init__(self, run: ChannelScenario) -> None:
        self.run = run
        self.random = run.world.rng(self.counter)

    def begin(self) -> None:
        """Begins as soon as the run has what the sequence needs."""
        if self.run.faults.active and not self.try_to_begin():
            self.run.world.after(BEGIN_LOOK_S, self.begin)

    def try_to_begin(self) -> bool:
        """Begins the sequence, if that is possible now."""
        raise NotImplementedError

    def done(self) -> None:
        """The sequence is complete."""
        self.run.exercised[self.counter] += 1
        self.run.world.note("provoked", self.counter)

    def later(self, span: tuple[float, float], fn: Callable[..., object], *args: object) -> None:
        """Calls `fn` after a time within `span`, if faults are still on then."""
        self.run.world.after(self.random.uniform(*span), self._if_active, fn, args)

    def _if_active(self, fn: Callable[..., object], args: tuple[object, ...]) -> None:
        if self.run.faults.active:
            fn(*args)

    def when(
        self, holds: Callable[[], bool], then: Callable[[], None], otherwise: Callable[[], None], within_s: float
    ) -> None:
        """Calls `then` when a condition holds, or `otherwise` after `within_s`."""
        if not self.run.faults.active:
            return
        if holds():
            then()
        elif within_s <= 0:
            otherwise()
        else:
            self.run.world.after(LOOK_S, self.when, holds, then, otherwise, within_s - LOOK_S)

    def apps(self) -> list[App]:
        """The applications that run and have a bus."""
        return [app for app in self.run.apps if app.node.running and app.started and not app.leaving]

    def burst(self, app: App, channel: str, count: int) -> None:
        """An application publishes, if it runs."""
        if app.node.running and app.started:
            app.process.call(app.burst, channel, count)

    def reset_agent(self, server: str) -> None:
        """The agent of a server loses its connections there; its process continues."""
        self.reset(f"agent-{server}", [server])

    def reset(self, node: str, servers: Collection[str]) -> None:
        """A node loses its connections to some servers."""
        for end in self.run.network.ends(node):
            if end.peer.node.name in servers:
                self.run.faults.reset(end)

    def cut_off(self, node: str, servers: Collection[str]) -> Partition:
        """A node loses its connections to some servers. It learns of that, and cannot connect before the partition is
        healed."""
        path = self.run.faults.cut([node], list(servers), one_way=True)
        self.reset(node, servers)
        return path


class ForgottenPublisher(Provocation):
    """A subscriber has no connection to its servers. Meanwhile a client that it does not know publishes and dies, and
    then the agents there lose their connections. When the subscriber is back, only what the agents remember of their
    earlier incarnations names the dead publisher."""

    counter = "publisher dies before the incarnation ends"

    def try_to_begin(self) -> bool:
        """Needs a subscriber, and a client that has not published on its channel."""
        apps = self.apps()
        found = [
            (app, sub, talker)
            for app in apps
            for sub in app.subs
            if not sub.record.pattern and sub.core is not None and sub.core.settled
            for talker in apps
            if talker is not app and sub.text.encode() not in talker.spoken
        ]
        if not found:
            return False
        app, sub, talker = self.random.choice(found)
        assert sub.core is not None
        placed = self.run.book.placement(sub.text.encode()).servers
        servers = list(dict.fromkeys((*sub.core.sites, *placed)))
        faults = self.run.faults
        path = self.cut_off(app.node.name, servers)
        client = talker.record.client
        self.later((0.1, 0.3), self.burst, talker, sub.text, self.random.randint(1, 3))

        def confirmed() -> bool:
            sent = self.run.history.of(sub.text, client)
            return bool(sent) and all(message.confirmed_at is not None for message in sent)

        def die() -> None:
            faults.crash(talker.node)
            for server in placed:
                self.later((0.05, 0.3), self.reset_agent, server)
            self.later((0.5, 1.5), back)

        def back() -> None:
            path.heal()
            self.done()

        self.when(confirmed, die, path.heal, within_s=3.0)
        return True


class RepeatedMessage(Provocation):
    """A subscriber and the agent of its server have no connection to the server. Meanwhile a publisher that both know
    publishes and dies. When the agent is back, another client repeats an earlier message of that publisher, and then
    the subscriber comes back. The agent has heard the stream in this incarnation, but not how far it had come: if it
    vouches for the stream, the subscriber does not doubt it, and the last messages are lost without a gap."""

    counter = "message of a dead publisher is repeated"

    def try_to_begin(self) -> bool:
        """Needs a subscriber with one server, and a publisher of which the stranger has heard a message there. It
        begins late: when agents restart after it, subscribers are told that any publisher may be missing."""
        run, apps = self.run, self.apps()
        if run.world.now < BEGIN_S + run.safety_s - REPETITION_S:
            return False
        found = [
            (app, sub, talker, server)
            for app in apps
            for sub in app.subs
            if not sub.record.pattern and sub.core is not None and sub.core.settled and len(sub.core.sites) == 1
            for server in sub.core.sites
            if run.book.placement(sub.text.encode()).servers == (server,)
            for talker in apps
            if talker is not app and run.stranger.heard_of(server, sub.text, talker.record.client)
        ]
        if not found:
            return False
        app, sub, talker, server = self.random.choice(found)
        agent, client = run.agent_of(server), talker.record.client
        core = agent.agent.core
        if core is None or not agent.node.running:
            return False
        sub.kept = True
        before = core.incarnation
        heard = run.stranger.heard_of(server, sub.text, client)
        away, deaf = self.cut_off(app.node.name, [server]), self.cut_off(agent.node.name, [server])
        self.later((0.1, 0.3), self.burst, talker, sub.text, self.random.randint(1, 3))
        sent = len(run.history.of(sub.text, client))

        def give_up() -> None:
            away.heal()
            deaf.heal()
            self.begin()

        def confirmed() -> bool:
            messages = run.history.of(sub.text, client)
            return len(messages) > sent and all(message.confirmed_at is not None for message in messages)

        def die() -> None:
            run.faults.crash(talker.node)
            deaf.heal()
            self.when(lambda: core.incarnation != before, repeat, give_up, AGENT_BACK_S_MAX)

        def repeat() -> None:
            run.stranger.repeat(server, sub.text, heard)
            self.later((0.4, 0.6), back)

        def back() -> None:
            away.heal()
            self.done()

        self.when(confirmed, die, give_up, within_s=1.5)
        return True


class LateHeartbeats(Provocation):
    """The heartbeats of an agent are stuck on the way to its server, until the server has left the ring. A client that
    hears of no other ring, and has messages for the server, then gets all of them at once."""

    counter = "heartbeats arrive after their lease"

    def try_to_begin(self) -> bool:
        """Needs a client that publishes on a server in the ring, and a network that keeps bytes for that long."""
        run, members = self.run, self.run.history.members
        found = [
            (app, channel, server)
            for app in self.apps()
            for channel in run.channels
            for server in run.book.placement(channel.encode()).publish_servers(app.record.client)
            if channel.encode() in app.spoken and server in members
        ]
        if not found or len(members) < 2:
            return False
        app, channel, server = self.random.choice(found)
        agent = f"agent-{server}"
        self.burst(app, channel, 1)
        late = run.faults.cut([agent], [server], one_way=True)
        others = [name for name in run.names if name != server]
        deaf = run.faults.cut([app.node.name], ["coordinator", *others])
        run.coordinator.mute_leases(agent, run.world.now + LATE_S_MAX)

        def arrive() -> None:
            self.burst(app, channel, 2)
            self.later((0.05, 0.3), late.heal)
            self.later((1.0, 1.5), end)

        def end() -> None:
            self.done()
            give_up()

        def give_up() -> None:
            late.heal()
            deaf.heal()
            run.coordinator.mute_leases(agent, run.world.now)

        self.when(lambda: server not in run.history.members, arrive, give_up, LATE_S_MAX)
        return True


class FullDisk(Provocation):
    """The disk of the coordinator is full for a while: it refuses all writes, and leases run out."""

    counter = "coordinator refuses writes"

    def try_to_begin(self) -> bool:
        """Needs nothing."""
        self.later(FULL_AFTER_S, self._fill)
        return True

    def _fill(self) -> None:
        run = self.run
        run.faults.counts[self.counter] += 1
        run.world.note("full disk")
        run.coordinator.fill_disk(min(run.world.now + self.random.uniform(*FULL_S), BEGIN_S + run.safety_s))


class LongAbsence(Provocation):
    """A subscriber is cut off for longer than agents remember streams."""

    counter = "long absence"

    def try_to_begin(self) -> bool:
        """Needs a subscriber."""
        found = [app for app in self.apps() if any(sub.core is not None and sub.core.settled for sub in app.subs)]
        if not found:
            return False
        app = self.random.choice(found)
        path = self.run.faults.cut([app.node.name], self.run.names)
        self.run.world.after(self.run.shape.limits.publisher_idle_s + ABSENCE_S, path.heal)
        self.done()
        return True


class LateSecret(Provocation):
    """Agents hear of a new secret when the older one has been revoked already, and clients do not reach the
    coordinator. Until agents hear it they tell clients of no new ring. So clients have their old keys only, and go on
    with them until the next heartbeat. An agent that does not have the older secret any more takes their messages for
    false ones."""

    counter = "agents hear of a secret after it was revoked"

    def __init__(self, run: ChannelScenario, rotate: Callable[[], None], revoke: Callable[[], None]) -> None:
        super().__init__(run)
        self._rotate = rotate
        self._revoke = revoke

    def try_to_begin(self) -> bool:
        """Needs applications that publish."""
        run, ring = self.run, self.run.book.ring
        if ring is None or not any(app.spoken for app in self.apps()):
            return False
        news_s = self.random.uniform(*NEWS_S)
        for server in run.names:
            run.coordinator.delay_news(f"agent-{server}", run.world.now + news_s)
        unaware_s = news_s + max(UNAWARE_S)
        run.faults.partition([app.node.name for app in run.apps], ["coordinator"], (unaware_s, unaware_s))
        self._rotate()
        run.world.after(news_s - self.random.uniform(*REVOKED_S), self._revoke)
        run.world.after(news_s, self._speak, max(generations(ring)))
        return True

    def _speak(self, old: int) -> None:
        """Every client publishes, if the older secret was revoked in time."""
        ring = self.run.book.ring
        if ring is None or old in generations(ring) or not self.run.faults.active:
            return
        for app in self.apps():
            for channel in self.run.channels * UNAWARE_TIMES:
                self.later(UNAWARE_S, self.burst, app, channel, 1)
        self.done()
