"""An application of a scenario: it publishes in bursts, subscribes, reads at its own pace, and sometimes closes its
bus. After that, or after a crash, it starts again.

Owns what an application does with its `Bus`, and records it in the history. The checkers decide which messages it is
owed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

from shoal.bus.client import Bus
from shoal.bus.shell import CLOSE_WAIT_S
from shoal.bus.subscription import Subscription
from shoal.channels.client.router import Router
from shoal.channels.client.subscription import SubscriptionCore
from shoal.errors import BusClosedError, NotConfirmedError, ShoalError, SubscribeTimeoutError, UnreachableError
from shoal.lab.sim.history import PublisherRecord, number_in, payload_of
from shoal.lab.sim.scenarios.channel_run_history import Handed, SubscriberRecord
from shoal.lab.sim.scenarios.gap_witness import witnesses
from shoal.lab.sim.world.node import Node
from shoal.lab.sim.world.process import COORDINATOR_URL, Process
from shoal.message import Gap, Item
from shoal.queues.keyspace.resp import CommandReader
from shoal.wire.envelope import HEADER, HEADER_BYTES, epoch_of, is_envelope

if TYPE_CHECKING:
    from shoal.lab.sim.scenarios.cluster import ChannelScenario

SUBSCRIPTIONS_MAX: Final = 4
TAKE_MAX: Final = 1 << 30
OPEN_RETRY_S: Final = 0.3
"""Pause before an application that could not open its bus tries again."""
SUBSCRIPTIONS: Final = (1, 2, 2, 3)
"""How many subscriptions an application begins with; one of these."""
LEAVES: Final = 0.08
LEAVE_S: Final = (2.0, 15.0)
AWAY_S: Final = (0.05, 0.5)
QUIET_BURST_S: Final = 20.0
"""The share `LEAVES` of the processes closes its bus after `LEAVE_S`, unless it crashes first; the next process starts
`AWAY_S` later. A process publishes once on a quiet channel, within `QUIET_BURST_S`. All but `AWAY_S` is shorter by the
run's pace."""
CLOSE_SLACK_S: Final = 1.0
"""How much longer than the sum of its limits closing a bus may take, because clocks drift and turns take time."""


class Sub:
    """One subscription of the application, and its record."""

    def __init__(self, record: SubscriberRecord, messages: Subscription) -> None:
        self.record = record
        self.messages = messages
        self.kept = False
        """Whether the application does not unsubscribe."""

    @property
    def text(self) -> str:
        """The channel or the pattern."""
        return self.record.name

    def has_ended(self) -> bool:
        """Whether the application has unsubscribed or ended."""
        return self.record.ended_at is not None

    @property
    def core(self) -> SubscriptionCore | None:
        """The router's side, once it is in force."""
        return self.messages.core


class App:
    """One application process."""

    def __init__(self, run: ChannelScenario, node: Node) -> None:
        self.run = run
        self.node = node
        self.random: Random = run.world.rng(f"app/{node.name}")
        self.subs: list[Sub] = []
        self.spoken: set[bytes] = set()
        self.started = False
        self.leaving = False
        """Whether the bus is being closed, or is closed."""
        self.subscriptions_at_close = 0
        """How many subscriptions the last process had when it closed its bus; the next one starts with as many."""
        self.late: list[str] = []
        """Closes that took too long."""
        self.bus: Bus
        self.client = 0
        """The id with which the process began. It may get another one, see `record`."""
        self._record: PublisherRecord
        self.process: Process
        self._sequences: Counter[str] = Counter()
        self._epochs: dict[bytes, int] = {}
        """The newest stream on each channel, where streams end."""
        node.on_crash = self._crashed
        node.on_restart = self.start
        self.start()

    @property
    def slow(self) -> bool:
        """Whether this application reads slowly."""
        return self.run.shape.slow_readers and self.node.name.endswith(("1", "3"))

    @property
    def record(self) -> PublisherRecord:
        """The client as a publisher."""
        self._note_identity()
        return self._record

    def _note_identity(self) -> None:
        """A bus whose identity was revoked continues as another client; the one before counts as crashed."""
        if self.started and self._record.client != self.bus.client_id:
            self._record.crashed, self._record.ended_at = True, self.run.world.now
            self._record = self._new_record(self.bus.client_id)
            self._sequences.clear()

    def _new_record(self, client: int) -> PublisherRecord:
        record = self.run.history.publishers[client] = PublisherRecord(client)
        return record

    @property
    def router(self) -> Router | None:
        """The router of the current process; None while the bus is not open."""
        return self.bus.router if self.started else None

    def start(self) -> None:
        """Starts a new process with a new client id."""
        self.started = self.leaving = False
        self.subs, self.spoken, self._sequences, self._epochs = [], set(), Counter(), {}
        run = self.run
        self.process = run.processes.new(self.node, tap=self)
        self.bus = Bus(COORDINATOR_URL, limits=run.shape.limits, runtime=self.process.runtime, rules=run.rules)
        self.client = 0
        self._record = PublisherRecord(0)
        self.process.begin(self._main(self.bus))

    async def _main(self, bus: Bus) -> None:
        await asyncio.sleep(self.random.uniform(0.0, 1.0))
        while True:
            try:
                await bus.open()
                break
            except ShoalError:
                await asyncio.sleep(OPEN_RETRY_S)
        self.client = bus.client_id
        self._record = self._new_record(self.client)
        self.started = True
        self._begin()

    def after(self, delay_s: float, fn: Callable[..., object], *args: Any) -> None:
        """Calls `fn` later, if this process still runs then."""
        self.process.after(delay_s, fn, *args)

    def _begin(self) -> None:
        for _ in range(self.subscriptions_at_close or self.random.choice(SUBSCRIPTIONS)):
            self._subscribe()
        self.subscriptions_at_close = 0
        for channel in self.run.quiet_channels:
            if self.random.random() < 0.5:
                self.after(self.random.uniform(0.0, QUIET_BURST_S / self.run.pace), self._quiet_burst, channel)
        rng = self.run.world.rng(f"leave/{self.node.name}")
        if rng.random() < LEAVES:
            self.after(rng.uniform(*LEAVE_S) / self.run.pace, self._leave)
        self._live()

    def ring_changed(self) -> None:
        """Some applications fetch the new ring and subscribe by it, while others still publish by the old one."""
        if self.node.running and self.started and self.random.random() < 0.5:
            if self.random.random() < 0.5:
                self.after(0.0, self._fetch_ring)
                self.after(self.random.uniform(0.02, 0.2), self._subscribe)
            else:
                channel = self.random.choice(self.run.channels)
                for _ in range(4):
                    self.after(self.random.uniform(0.0, 0.5), self.burst, channel, 1)

    def _fetch_ring(self) -> None:
        if not self.leaving:
            self.bus.fetch_ring()

    def engaged(self) -> list[bytes]:
        """The channels that this process subscribes to or publishes on."""
        return [sub.text.encode() for sub in self.subs if not sub.record.pattern] + sorted(self.spoken)

    # Publishing

    def _quiet_burst(self, channel: str) -> None:
        """The only time that this process publishes on the channel: nothing later can show that it got lost."""
        if self.run.active and not self.leaving:
            self.run.exercised["quiet burst"] += 1
            self.burst(channel, self.random.randint(1, 3))

    def _live(self) -> None:
        """Publishes, subscribes and unsubscribes as long as applications are active."""
        run, random = self.run, self.random
        if not run.active or self.leaving:
            return
        draw = random.random()
        if draw < 0.75:
            self.burst(random.choice(run.channels), random.randint(1, run.shape.burst_max))
        elif draw < 0.87:
            self._subscribe()
            run.exercised["late joiner"] += 1
        elif self.subs and not (sub := random.choice(self.subs)).kept:
            self._unsubscribe(sub)
        self.after(random.expovariate(1 / run.shape.burst_pause_s), self._live)

    def burst(self, channel: str, count: int) -> None:
        """Publishes several messages at once, and sometimes a few more a moment later."""
        if not self.run.active:
            return
        self.run.exercised["burst"] += 1
        for _ in range(count):
            self._publish(channel)
            if self.random.random() < 0.2:
                self.after(self.random.uniform(0.0, 0.3), self._publish, channel)

    def _publish(self, channel: str, size: int | None = None) -> None:
        if not self.leaving:
            self.spoken.add(channel.encode())
            self.process.loop.create_task(self._publish_confirmed(channel, size))

    async def _publish_confirmed(self, channel: str, size: int | None) -> None:
        """Publishes and waits for the confirmation. Counts sequence numbers as the bus does: from 1 on each channel."""
        history, world = self.run.history, self.run.world
        client = self.record.client
        self._sequences[channel] += 1
        number = history.publish(channel, client, self._sequences[channel], world.now)
        payload = payload_of(number, self.run.shape.payload_bytes if size is None else size)
        try:
            await self.bus.publish(channel, payload, confirm=True)
        except NotConfirmedError:
            self.run.exercised["not confirmed"] += not self.leaving
        else:
            history.confirmed(number, world.now)
            if channel in self.run.quiet_channels:
                self.run.quiet_confirmed(channel)

    # Subscribing

    def _subscribe(self) -> None:
        if len(self.subs) >= SUBSCRIPTIONS_MAX or self.leaving:
            return
        pattern = self.random.random() < 0.25
        self.subscribe(self.run.pattern if pattern else self.random.choice(self.run.subscribable()), pattern)

    def subscribe(self, name: str, pattern: bool = False) -> Sub:
        """Subscribes, and reads until the subscription ends."""
        self.run.exercised["pattern" if pattern else "channel"] += 1
        record = SubscriberRecord(name, pattern, self.client, self.run.world.now)
        messages = self.bus.subscribe(pattern=name) if pattern else self.bus.subscribe(name)
        sub = Sub(record, messages)
        self.subs.append(sub)
        self.run.history.subscribers.append(record)
        self.process.loop.create_task(self._read(sub))
        return sub

    def _unsubscribe(self, sub: Sub) -> None:
        self.subs.remove(sub)
        self._drain(sub)
        sub.record.ended_at = self.run.world.now
        self.process.loop.create_task(sub.messages.aclose())

    async def _read(self, sub: Sub) -> None:
        """Reads until the subscription ends or the bus is closed."""
        try:
            await self._read_all(sub)
        except BusClosedError:
            if not self.leaving:
                raise

    async def _read_all(self, sub: Sub) -> None:
        record, messages, world = sub.record, sub.messages, self.run.world
        try:
            await messages.open()
        except SubscribeTimeoutError:
            self.run.exercised["subscribe timeout"] += 1
            if not sub.has_ended():
                record.ended_at = world.now
                self.subs.remove(sub)
                self._subscribe()
            return
        if sub.has_ended():
            await messages.aclose()
            return
        record.in_force_at = world.now
        while items := await self._take(messages):
            if sub.has_ended():
                return
            record.handed += [self._handed(record, item) for item in items]
            if self.slow:
                await self._read_slowly(sub)

    async def _take(self, messages: Subscription) -> list[Item]:
        """Waits for items, however long the servers are unreachable."""
        while True:
            try:
                return await messages.take(1 if self.slow else TAKE_MAX)
            except UnreachableError:
                self.run.exercised["unreachable"] += 1

    async def _read_slowly(self, sub: Sub) -> None:
        """Takes a few items at a time, with pauses, until the inbox is empty."""
        while not sub.has_ended():
            await asyncio.sleep(self.random.uniform(0.02, 0.4) if self.run.active else 0.01)
            if not self._drain(sub, self.random.randint(1, 6) if self.run.active else TAKE_MAX):
                return

    def _drain(self, sub: Sub, count: int = TAKE_MAX) -> bool:
        """Takes at most `count` items from the inbox; returns whether there may be more."""
        if sub.record.in_force_at is None or sub.has_ended():
            return False
        while count and (item := sub.messages.get_nowait()) is not None:
            sub.record.handed.append(self._handed(sub.record, item))
            count -= 1
        return not count

    def _handed(self, record: SubscriberRecord, item: Item) -> Handed:
        known_to = witnesses(self.run, record, item) if isinstance(item, Gap) else ()
        return Handed(self.run.world.now, item, known_to)

    # The end

    def _leave(self) -> None:
        if self.run.apps_leave():
            self.leaving = True
            self.process.loop.create_task(self._close())

    async def _close(self) -> None:
        """Closes the bus and ends the process. Messages that are not confirmed by then may be lost, as in a crash."""
        run, node, bus, limits = self.run, self.node, self.bus, self.run.shape.limits
        run.world.note("leave", node.name)
        departure = bus.shell.departure
        began_at = run.world.now - node.paused_s
        try:
            await bus.aclose()
            run.exercised["closed"] += 1
        except NotConfirmedError:
            self.record.crashed = True
            run.exercised["closed unconfirmed"] += 1
        run.exercised["lingered"] += departure.waits > 0
        self.record.gave_up = departure.gave_up
        took_s = run.world.now - node.paused_s - began_at
        limit_s = limits.drain_timeout_s + limits.linger_s + 2 * CLOSE_WAIT_S + CLOSE_SLACK_S
        if took_s > limit_s:
            self.late.append(f"{node.name} took {took_s:.3f} s to close its bus at t={run.world.now:.3f}")
        for sub in self.subs:
            self._drain(sub)
        self._ended()
        self.subscriptions_at_close = len(self.subs)
        self.subs = []
        run.world.after(0.0, self._exit, node.incarnation)

    def _exit(self, incarnation: int) -> None:
        """Ends the process, and starts the application again later."""
        if self.node.incarnation == incarnation:
            self.node.on_crash = None
            self.node.crash()
            self.node.on_crash = self._crashed
            rng = self.run.world.rng(f"leave/{self.node.name}")
            self.run.world.after(rng.uniform(*AWAY_S), self.node.restart)

    def _crashed(self) -> None:
        self.record.crashed = True
        self._ended()
        self.run.died("client", self.node.name)

    def _ended(self) -> None:
        now = self.run.world.now
        self.record.ended_at = now
        for sub in self.subs:
            sub.record.ended_at = now
        self.run.count(self)

    def finish(self) -> bool:
        """The end of the run: reads what is left in the inboxes, and returns whether there was anything."""
        before = sum(len(sub.record.handed) for sub in self.subs)
        if self.node.up:
            for sub in self.subs:
                self.process.call(self._drain, sub)
        self.run.count(self)
        return sum(len(sub.record.handed) for sub in self.subs) > before

    # Observing the connections (see `transport.Tap`)

    def wrote(self, peer: str, data: bytes) -> None:
        """Records publishing on a server that has left the ring, which breaks a promise."""
        members = self.run.history.members
        if self.run.shape.idle:
            self._note_streams(data)
        if members and peer not in members:
            for command in CommandReader().read(data):
                if command[0] == b"PUBLISH" and not command[1].startswith(b"__shoal:"):
                    self.run.history.sent(peer, self.record.client, self.run.world.now)

    def _note_streams(self, data: bytes) -> None:
        """Records the streams of messages: a client has several on a channel if it is silent for long."""
        for command in CommandReader().read(data):
            if command[0] == b"PUBLISH" and is_envelope(command[2]) and not command[1].startswith(b"__shoal:"):
                _, flags, _, stream, sequence, _ = HEADER.unpack_from(command[2])
                if not flags:
                    epoch = epoch_of(stream)
                    self.run.exercised["stream ended by silence"] += epoch > self._epochs.get(command[1], epoch)
                    self._epochs[command[1]] = epoch
                    self.run.history.sent_as(number_in(command[2][HEADER_BYTES:]), epoch, sequence)

    def ended(self, peer: str) -> None:
        """A connection has ended: what a server sent on it last may be lost."""
        self._note_identity()
        self.run.history.link_ended(peer, self.client, self.run.world.now)
