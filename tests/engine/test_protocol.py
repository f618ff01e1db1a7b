"""The cores of the engine in a small seeded world: engines die, sleep and come back, letters are late or lost.

What must hold, whatever happens: an event that was emitted while a matching filter was in force arrives once, in its
emitter's order, or its reader gets a gap; an emitter forgets no event before that. Most rules, broken, are caught; all
are in the scenario `engine` of the simulator.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from tests.support.lone_engine import LoneEngine

from shoal.engine import access_point, client
from shoal.engine.client import Arrived, EngineClient, Missed, NowInForce, NowTaken
from shoal.engine.messages import InForce, Roll, Welcome, decode_letter, decode_replies
from shoal.filters import encode_event, parse
from shoal.filters.filter import Filter
from shoal.limits import DEFAULT_LIMITS
from shoal.rules import ALL_RULES, Rules

LIMITS = msgspec.structs.replace(
    DEFAULT_LIMITS,
    engine_roll_s=0.5,
    engine_roll_s_max=2.0,
    engine_client_grace_s=3.0,
    engine_flight_events_max=40,
    engine_untaken_events_max=30,
    engine_letter_bytes_max=400,
)
LEASE_S = 1.0
SECONDS = 20.0
DELAY_S_MAX = 6.0
"""How long a letter is under way at most: the time that a client sleeps, and more."""
_wire = msgspec.msgpack.Encoder()


class Pipe:
    """A stream from one publisher: late, in order. A lost message is followed by a gap."""

    def __init__(self, world: World, heard: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._world = world
        self._heard = heard
        self._lost = lost
        self._at = 0.0

    def send(self, message: Any, done: Callable[[], None] | None = None) -> None:
        world = self._world
        delay = world.random.choice((0.001, 0.01, 0.05, 0.4))
        if done is not None:  # the server has it
            world.at(world.now + delay / 2, done)
        self._at = max(self._at, world.now + delay)
        lost = world.random.random() < world.loss
        world.at(self._at, (lambda: self._lost()) if lost else (lambda: self._heard(message)))


class App:
    """A client that emits and matches."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.core = EngineClient(LIMITS, lambda: world.random.getrandbits(40) | 1, world.rules)
        self.asleep_until = 0.0
        self.filters: dict[int, tuple[Filter, float]] = {}
        """By number: the filter, and since when it is in force."""
        self.unanswered: dict[int, Filter] = {}
        self.got: defaultdict[int, list[int]] = defaultdict(list)
        self.gaps: list[float] = []
        self.emitted: dict[int, tuple[float, dict[str, int]]] = {}
        self.taken: list[tuple[int, float]] = []
        self.inbox: deque[Callable[[], None]] = deque()
        self.lanes: dict[int, Pipe] = {}

    def hear(self, act: Callable[[], None]) -> None:
        self.inbox.append(act)
        self.turn()

    def turn(self) -> None:
        world = self.world
        if world.now < self.asleep_until:
            world.at(self.asleep_until, self.turn)
            return
        while self.inbox:
            self.inbox.popleft()()
        self.core.tick(world.now)
        self.core.hello(world.now)
        self.flush()

    def flush(self) -> None:
        world = self.world
        effects, self.core.effects = self.core.effects, []
        for effect in effects:
            if isinstance(effect, Arrived):
                self.got[effect.delivery.emitter].append(effect.delivery.number)
                world.check_match(self, effect)
            elif isinstance(effect, Missed):
                self.gaps.append(world.now)
            elif isinstance(effect, NowTaken):
                self.taken.append((effect.number, world.now))
            elif isinstance(effect, NowInForce):
                for number in effect.numbers:
                    if number in self.unanswered:
                        self.filters[number] = (self.unanswered.pop(number), world.now)
        for letter in self.core.take_letters(world.now):
            for instance in world.instances:
                instance.lane(self).send(letter)

    def act(self) -> None:
        random, world = self.world.random, self.world
        if world.now >= self.asleep_until:
            for _ in range(random.randrange(4)):
                if self.core.has_room:
                    event = {"a": random.randrange(6), "b": random.randrange(3)}
                    number = self.core.emit(encode_event(event), b"", 0)
                    self.emitted[number] = (world.now, event)
            if random.random() < 0.2 and len(self.filters) + len(self.unanswered) < 6:
                wanted = parse(random.choice((f"a = {random.randrange(6)}", f"b < {random.randrange(1, 3)}", "a > 3")))
                (number,) = self.core.add([_wire.encode(wanted)])
                self.unanswered[number] = wanted
            if random.random() < 0.05 and len(self.filters) > 1:
                number = random.choice([*self.filters])
                self.core.remove([number])
                wanted, since = self.filters.pop(number)
                world.ended.append((self, wanted, since, world.now))
            if random.random() < 0.02 and world.faults:
                self.asleep_until = world.now + random.choice((0.2, 1.0, 4.0))
            self.flush()
        if world.now < SECONDS:
            world.at(world.now + random.expovariate(12), self.act)


class Instance:
    """An engine in a process, with a lease that it may fail to renew in time."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.core = LoneEngine(number, world.serving, LIMITS, world.now, world.rules)
        self.writing = False
        self.core.lease_until = world.lease_until = world.now + LEASE_S
        self.dead = False
        self.asleep_until = 0.0
        self.inbox: deque[Callable[[], None]] = deque()
        self.lanes: dict[App, Pipe] = {}
        self.seats: dict[int, Pipe] = {}
        self.calls: dict[App, Pipe] = {}

    def lane(self, app: App) -> Pipe:
        if app not in self.lanes:
            heard = lambda data: self.hear(lambda: self.core.received(app.number, decode_letter(data)))  # noqa: E731
            self.lanes[app] = Pipe(self.world, heard, lambda: self.hear(lambda: self.core.missed_letter(app.number)))
        return self.lanes[app]

    def seat(self, client: int) -> Pipe:
        if client not in self.seats:
            app, world = self.world.apps[client - 1], self.world
            heard = lambda data: app.hear(lambda: app.core.received(decode_replies(data), world.now))  # noqa: E731
            self.seats[client] = Pipe(world, heard, lambda: app.hear(lambda: app.core.missed("lost", world.now)))
        return self.seats[client]

    def hear(self, act: Callable[[], None]) -> None:
        self.inbox.append(act)
        self.turn()

    def turn(self) -> None:
        world = self.world
        if self.dead:
            return
        if world.now < self.asleep_until:
            world.at(self.asleep_until, self.turn)
            return
        while self.inbox:
            self.inbox.popleft()()
        for post in self.core.turn(world.now):
            group = post.group
            self.seat(post.client).send(post.payload, lambda group=group: self.confirmed(group))  # type: ignore[misc]
        if self.core.wants_to_serve and not self.writing and world.leader is self:
            self.writing = True
            world.serving = self.core.instance
            world.at(world.now + world.random.choice((0.01, 0.3)), lambda: self.hear(self.core.serve))

    def confirmed(self, group: int) -> None:
        if not self.dead:
            self.hear(lambda: self.core.confirmed(group))

    def beat(self) -> None:
        """Renews the lease and calls the roll."""
        world = self.world
        if self.dead:
            return
        if world.now >= self.asleep_until:
            if world.leader is self and world.now < self.core.lease_until:
                self.core.lease_until = world.lease_until = world.now + LEASE_S
            for app in world.apps:
                if app not in self.calls:
                    heard = lambda roll, app=app: app.hear(lambda: app.core.called(roll, world.now))  # noqa: E731
                    self.calls[app] = Pipe(world, heard, lambda: None)
                self.calls[app].send(Roll(self.core.instance, self.core.roll_open))
            self.turn()
            if world.now < SECONDS and world.faults:
                if world.random.random() < 0.06:
                    self.asleep_until = world.now + world.random.choice((0.5, 1.5, 4.0))
                elif world.random.random() < 0.04:
                    self.dead = True
                    return
        world.at(world.now + 0.3, self.beat)


class World:
    """Everything, by seed."""

    def __init__(self, seed: int, rules: Rules = ALL_RULES, faults: bool = True) -> None:
        self.random = Random(seed)
        self.rules = rules
        self.faults = faults
        self.loss = self.random.choice((0.0, 0.0, 0.003)) if faults else 0.0
        self.now = 0.0
        self.lease_until = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.instances: list[Instance] = []
        self.leader: Instance | None = None
        self.serving = 0
        self.ended: list[tuple[App, Filter, float, float]] = []
        self.violations: list[str] = []
        self.apps = [App(self, number) for number in range(1, 5)]

    def at(self, when: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, act))

    def elect(self) -> None:
        """Starts an instance when nobody holds the lease."""
        if self.now >= self.lease_until:
            self.leader = Instance(self, len(self.instances) + 1)
            self.instances.append(self.leader)
            self.leader.beat()
        self.at(self.now + 0.2, self.elect)

    def check_match(self, app: App, arrived: Arrived) -> None:
        emitter = self.apps[arrived.delivery.emitter - 1]
        event = emitter.emitted[arrived.delivery.number][1]
        for number in arrived.numbers:
            wanted = app.unanswered.get(number) or (app.filters[number][0] if number in app.filters else None)
            if wanted is not None and not wanted.matches(event):
                self.violations.append(f"unmatched: {event} for {wanted}")

    def run(self) -> World:
        self.elect()
        for app in self.apps:
            self.at(self.random.random(), app.act)
            self._wake(app)
        while self._events and self.now < SECONDS + 25:
            self.now, _, act = heapq.heappop(self._events)
            if self.now > SECONDS:
                self.faults, self.loss = False, 0.0
            act()
        self._judge()
        return self

    def _wake(self, app: App) -> None:
        app.turn()
        self.at(self.now + 0.25, lambda: self._wake(app))

    def _judge(self) -> None:
        wanted: list[tuple[App, Filter, float, float]] = list(self.ended)
        wanted += [(app, one, since, self.now) for app in self.apps for one, since in app.filters.values()]
        for app in self.apps:
            for client_id, numbers in app.got.items():
                if numbers != sorted(set(numbers)):
                    self.violations.append(f"order: {app.number} got {numbers} of {client_id}")
            if app.core.untaken:
                self.violations.append(f"stuck: {app.core.untaken} events of {app.number} are not taken")
            if app.unanswered:
                self.violations.append(f"stuck: filters of {app.number} are not in force")
        for emitter in self.apps:
            taken = 0
            for number, (at, event) in emitter.emitted.items():
                while taken < len(emitter.taken) and emitter.taken[taken][0] < number:
                    taken += 1
                taken_at = emitter.taken[taken][1] if taken < len(emitter.taken) else self.now
                for app, one, since, until in wanted:
                    owed = since < at and taken_at + DELAY_S_MAX < until and one.matches(event)
                    if owed and number not in app.got[emitter.number] and not any(gap >= at for gap in app.gaps):
                        self.violations.append(f"lost: {number} of {emitter.number} for {app.number}")


def run(seeds: range, rules: Rules = ALL_RULES) -> list[str]:
    return [f"seed {seed}: {text}" for seed in seeds for text in World(seed, rules).run().violations]


def test_nothing_is_lost_doubled_or_reordered() -> None:
    assert run(range(15)) == []  # more in `shoal sim engine`


def test_a_calm_world_has_no_gaps() -> None:
    for seed in range(5):
        world = World(seed, faults=False).run()
        assert world.violations == []
        assert not any(app.gaps for app in world.apps)
        assert sum(len(numbers) for app in world.apps for numbers in app.got.values()) > 100


@pytest.mark.parametrize(
    ("broken", "known"),
    [
        (access_point.IN_NUMBER, 1),
        (client.KEEP_UNTIL_TAKEN, 0),
        (client.DEDUPE, 0),
        (client.PRESENT_ALL, 0),
        (client.SAY_LATE, 0),
    ],
)
def test_a_broken_rule_is_caught(broken: Any, known: int) -> None:
    assert any(World(seed, Rules(broken)).run().violations for seed in (known, *range(100)))


def test_a_filter_that_ended_while_its_client_was_cut_off_counts_for_the_gap() -> None:
    """`sim engine`, seeds 122 and 223: an engine took over and matched events without a client. Its application removed
    the filters before the client heard of it, and added others."""
    core = EngineClient(LIMITS, iter(range(1, 9)).__next__)
    (old,) = core.add([_wire.encode(parse("a = 1"))])
    core.hello(0.0)
    core.received([Welcome(1, 1), InForce(1, [old])], 0.1)
    core.remove([old])
    (new,) = core.add([_wire.encode(parse("a = 2"))])
    core.called(Roll(2, False), 5.0)
    core.effects.clear()
    core.received([Welcome(2, 2, late=True), InForce(2, [new])], 5.1)
    assert [type(effect) for effect in core.effects] == [Missed, NowInForce]
    core.remove([new])
    core.missed("a hole", 5.2)
    assert [type(effect) for effect in core.effects][2:] == [Missed]
    core.received([Welcome(3, 2)], 5.3)  # another conversation with the same engine: nothing is missing
    core.add([_wire.encode(parse("a = 3"))])
    core.called(Roll(3, False), 6.0)
    core.effects.clear()
    core.received([Welcome(4, 3, late=True)], 6.1)
    assert core.effects == []
