"""Sequences of faults in which a single rule decides, and which random faults hardly ever produce.

Owns the sequences. Each waits for a situation in which it can begin, causes its faults in order, and gives up if the
run goes another way. They use the faults of `shoal.lab.sim.world.faults`, and end with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from shoal.lab.sim.scenario import BEGIN_S
from shoal.lab.sim.scenarios.app import App

if TYPE_CHECKING:
    from shoal.lab.sim.scenarios.cluster import ChannelScenario

LOOK_S: Final = 0.1
"""How often a sequence checks whether it can go on."""
BEGIN_LOOK_S: Final = 0.5
"""How often a sequence checks whether it can begin."""
LATE_S_MAX: Final = 6.0
"""How long heartbeats are stuck at most. An agent gives up a connection without replies after 9 s."""
FULL_AFTER_S: Final = (0.0, 3.0)
FULL_S: Final = (1.0, 8.0)
"""When the coordinator's disk is full, and for how long: shorter and longer than a lease."""
ABSENCE_S: Final = 1.5
"""How much longer than `publisher_idle_s` a long absence lasts."""


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
        """The agent of a server loses its connections there; its process goes on."""
        network = self.run.network
        for end in network.ends(f"agent-{server}"):
            if end.peer.node.name == server:
                self.run.faults.reset(end)


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
        path = faults.cut([app.node.name], servers, one_way=True)  # it cannot connect, but learns of the reset
        for end in self.run.network.ends(app.node.name):
            if end.peer.node.name in servers:
                faults.reset(end)
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
