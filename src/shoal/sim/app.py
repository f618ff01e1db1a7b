"""An application of a scenario: it publishes in bursts, subscribes, reads at its own pace, and starts anew
after a crash.

Owns what an application does and writes into the history. What it is owed is for the checkers to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.channels.subscription import Subscription
from shoal.sim.client_actor import ClientActor
from shoal.sim.history import Handed, PublisherRecord, SubscriberRecord, payload_of
from shoal.sim.node import Node

if TYPE_CHECKING:
    from shoal.sim.scenario import Scenario

EVERYTHING = 1 << 30


class App:
    """One application process: it publishes in bursts, subscribes, reads at its own pace, and starts anew
    after a crash.
    """

    def __init__(self, run: Scenario, node: Node) -> None:
        self.run = run
        self.node = node
        self.random = run.world.rng(f"app/{node.name}")
        self.records: dict[Subscription, SubscriberRecord] = {}
        self.subs: list[Subscription] = []
        self.reading: set[Subscription] = set()
        self.spoken: set[bytes] = set()
        self.actor: ClientActor
        self.record: PublisherRecord
        node.on_crash = self._crashed
        node.on_restart = self.start
        self.start()

    @property
    def slow(self) -> bool:
        """Whether this application reads slowly."""
        return self.run.shape.slow_readers and self.node.name.endswith(("1", "3"))

    def start(self) -> None:
        """A new process with a new identity."""
        run = self.run
        client = run.world.rng("identity").getrandbits(48) | 1
        self.record = run.history.publishers[client] = PublisherRecord(client)
        self.records, self.subs, self.reading, self.spoken = {}, [], set(), set()
        self.actor = ClientActor(
            run.network, self.node, run.coordinator, client, run.verifier, run.shape.limits, run.rules,
            on_publish=lambda server, channel, blob: run.history.sent(server, client, run.world.now),
            on_ready=self._ready, on_confirmed=self._confirmed, named=run.named_clients,
        )  # fmt: skip
        self.node.after(self.random.uniform(0.0, 1.0), self._begin)

    def _begin(self) -> None:
        if not self.actor.started:
            self.node.after(0.1, self._begin)
            return
        for _ in range(self.random.randint(1, 2)):
            self._subscribe()
        for channel in self.run.quiet_channels:
            if self.random.random() < 0.5:
                self.node.after(self.random.uniform(0.0, 20.0), self._quiet_burst, channel)
        self._live()

    def ring_changed(self) -> None:
        """Some hear of a new ring at once and subscribe by it, while others still publish by the old one."""
        if self.node.running and self.actor.started and self.random.random() < 0.5:
            if self.random.random() < 0.5:
                self.actor.fetch()
                self.node.after(self.random.uniform(0.02, 0.2), self._subscribe)
            else:
                channel = self.random.choice(self.run.channels)
                for _ in range(4):
                    self.node.after(self.random.uniform(0.0, 0.5), self._burst, channel, 1)

    def engaged(self) -> list[bytes]:
        """The channels that this process subscribes to or publishes on."""
        return [sub.name for sub in self.subs if not sub.pattern] + sorted(self.spoken)

    def _quiet_burst(self, channel: str) -> None:
        """The only time that this process publishes on the channel: nothing later can show that it got lost."""
        if self.run.active:
            self.run.exercised["quiet burst"] += 1
            self._burst(channel, self.random.randint(1, 3))
            self.run.spoken_once(channel)

    def _live(self) -> None:
        """One thing after another, as long as applications are active."""
        run, random = self.run, self.random
        if not run.active:
            return
        draw = random.random()
        if draw < 0.75:
            self._burst(random.choice(run.channels), random.randint(1, run.shape.burst_max))
        elif draw < 0.87:
            self._subscribe()
            run.exercised["late joiner"] += 1
        elif self.subs:
            self._unsubscribe(random.choice(self.subs))
        self.node.after(random.expovariate(1 / run.shape.burst_pause_s), self._live)

    def _burst(self, channel: str, count: int) -> None:
        self.run.exercised["burst"] += 1
        for _ in range(count):
            self._publish(channel)
            if self.random.random() < 0.2:
                self.node.after(self.random.uniform(0.0, 0.3), self._publish, channel)

    def _publish(self, channel: str, size: int | None = None) -> None:
        history, now = self.run.history, self.run.world.now
        number = history.next_number
        payload = payload_of(number, self.run.shape.payload_bytes if size is None else size)
        self.spoken.add(channel.encode())
        history.publish(channel, self.record.client, 0, now)
        _, sequence = self.actor.publish(channel.encode(), payload, number)
        history.messages[number].sequence = sequence

    def _confirmed(self, token: object) -> None:
        assert isinstance(token, int)
        self.run.history.confirmed(token, self.run.world.now)

    def _subscribe(self) -> None:
        if len(self.subs) >= 4:
            return
        pattern = self.random.random() < 0.25
        name = self.run.pattern if pattern else self.random.choice(self.run.subscribable())
        self.run.exercised["pattern" if pattern else "channel"] += 1
        record = SubscriberRecord(name, pattern, self.record.client, self.run.world.now)
        sub = self.actor.subscribe(name.encode(), pattern)
        self.records[sub] = record
        self.subs.append(sub)
        self.run.history.subscribers.append(record)
        self._ready(sub)

    def _unsubscribe(self, sub: Subscription) -> None:
        self._read(sub, EVERYTHING)
        self.subs.remove(sub)
        self.records[sub].ended_at = self.run.world.now
        self.actor.unsubscribe(sub)

    def _ready(self, sub: Subscription) -> None:
        record = self.records.get(sub)
        if record is None:
            return
        if sub.in_force and record.in_force_at is None:
            record.in_force_at = self.run.world.now
        if not self.slow:
            self._read(sub, EVERYTHING)
        elif sub not in self.reading:
            self.reading.add(sub)
            self.node.after(self._reading_pause_s(), self._read_slowly, sub)

    def _reading_pause_s(self) -> float:
        return self.random.uniform(0.02, 0.4) if self.run.active else 0.01

    def _read_slowly(self, sub: Subscription) -> None:
        self._read(sub, self.random.randint(1, 6) if self.run.active else EVERYTHING)
        if sub.inbox.items:
            self.node.after(self._reading_pause_s(), self._read_slowly, sub)
        else:
            self.reading.discard(sub)

    def _read(self, sub: Subscription, count: int) -> None:
        record = self.records[sub]
        if record.ended_at is not None:
            return
        while sub.inbox.items and count:
            record.handed.append(Handed(self.run.world.now, sub.inbox.take()))
            count -= 1
        if sub.overflowed and sub.inbox.roomy:
            self.actor.consumed(sub)

    def _crashed(self) -> None:
        now = self.run.world.now
        self.record.ended_at, self.record.crashed = now, True
        for sub in self.subs:
            self.records[sub].ended_at = now
        self.run.count(self.actor)
        self.run.died("client", self.node.name)

    def finish(self) -> None:
        """The end of the run: whatever still lies in an inbox is read."""
        for sub in self.subs:
            self._read(sub, EVERYTHING)
        self.run.count(self.actor)
