"""The scenario `engine`: applications emit events and match filters while engines, servers and agents fail.

Owns the participants, the corners and the checks of content matching. Engines, buses and agents are the shipped ones;
which events a filter is owed is decided by `Filter.matches`, never by the index.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec

from shoal.bus.client import Bus
from shoal.bus.event_reader import Matching
from shoal.engine.configuration import Configuration
from shoal.engine.director import Director, Phase, Wanted
from shoal.engine.engine_report import encode_wanted, wanted_key
from shoal.engine.links import orders_channel
from shoal.engine.messages import MAIN, call_channel, lane_channel, lane_of, seat_channel
from shoal.engine.shell import EngineShell
from shoal.engine.subscription_table import SubscriptionTable
from shoal.errors import BusClosedError, ConnectError, EngineUnavailableError, ShoalError, SubscribeError
from shoal.filters.filter import Filter
from shoal.filters.language import parse
from shoal.lab.sim.checkers import Verdict
from shoal.lab.sim.scenario import COMMON, Outcome, Variant
from shoal.lab.sim.scenarios.app import App
from shoal.lab.sim.scenarios.cluster import ChannelScenario
from shoal.lab.sim.scenarios.shape import Shape
from shoal.lab.sim.world.fault_options import FaultOptions
from shoal.lab.sim.world.node import Node
from shoal.lab.sim.world.process import COORDINATOR_URL, Process
from shoal.message import Gap
from shoal.rules import ALL_RULES, Rules

BREAKS: Final = (
    *("roll_first", "settle_last", "in_number", "keep_until_taken", "dedupe_emitter", "present_all", "say_late"),
    *("lease_checked", "answer_in_time", "change_to_both", "ready_first", "parts_of_its_time"),
    *("in_order", "one_copy", "end_first", "marks_aligned", "taken_later"),
    *("fence_instances", "old_state_last"),
)
"""The rules that this scenario tests."""
ENGINES: Final = 4
MATCHERS_MAX: Final = 3
CHANGE_EVERY_S: Final = 0.7
"""About how often another configuration is wanted."""
FILTERS_MAX: Final = 5
RETRY_S: Final = 0.3
LIMITS: Final[dict[str, Any]] = {
    "engine_flight_events_max": 60, "engine_untaken_events_max": 24, "engine_client_grace_s": 5.0,
    "engine_letter_bytes_max": 600, "engine_lease_s": 1.0, "engine_member_silent_s": 0.7, "engine_roll_s": 0.4,
    "engine_join_s_max": 1.5, "engine_change_s_max": 2.0, "engine_slice_filters_max": 2,
    "engine_packed_filters_min": 4,
}  # fmt: skip
"""Small limits, so that they are met."""
SECOND_EXIT: Final = 0.4
SECOND_ACCESS_POINT: Final = 0.4
"""The shares of wishes with a second exit point, and with a second access point."""
WITHOUT: Final = 0.3
"""The share of wishes that leave a process out."""
ENGINE_SLEEPS: Final = 0.5
SLEEP_S: Final = (0.5, 6.0)
"""The share of troubles in which a process sleeps and wakes up as a zombie instead of dying, and for how long."""
HEAD_HIT: Final = 0.5
LOOK_S: Final = 0.02
"""How often the engines are looked at, to count what they do."""
SLOW_EXIT_S: Final = ((0.05, 0.6), (0.05, 0.6), (0.8, 2.0))
"""For how long an exit point sleeps, or is cut off from a server, while a change is prepared: it continues with the
change, or it is silent for so long that the instance ends."""
CUT_S: Final = (0.3, 1.0)
"""For how long a process that dies is cut off from a server, in the variant with cuts; it dies after the first time."""
ZOMBIE_S: Final = (2.0, 4.0)
UNHEARD_S: Final = 1.0
"""For how long a process sleeps in the variant with zombies, and how much longer its successor is not heard."""
REMOVALS_S: Final = 0.2
"""The time from the beginning of a change in which applications remove their filters, in the variant with removals."""
SETTLE_S: Final = 4.0
"""How long an event that was taken may take to a reader that lives."""

CORNERS: Final = {
    "event emitted": "event emitted",
    "event delivered": "event delivered",
    "filter in force": "filter in force",
    "filter removed": "filter removed",
    "two filters of one reader match an event": "several matched",
    "roll called": "roll called",
    "another instance takes over": "take-over",
    "engine crash": "engine crash",
    "engine sleeps past its lease": "engine slept",
    "client late for the roll, or dropped": "gap",
    "no room in flight": "choked",
    "emit waits": "emit waited",
    "repeated event dropped": "repeated event dropped",
    "client crash": "client crash",
    "server crash": "server crash",
    "agent crash": "agent crash",
    "coordinator crash": "coordinator crash",
    "server left the ring": "server left ring",
    "matcher added": "matcher added",
    "matcher removed": "matcher removed",
    "change of configuration given up": "change given up",
    "exit point added": "exit point added",
    "exit point removed": "exit point removed",
    "access point added": "access point added",
    "access point removed": "access point removed",
    "several layers change at once": "several layers",
    "client held a new path until the old one ended": "path held",
    "exit point sleeps while a change is prepared": "exit point slept in a change",
    "exit point is cut off from a server meanwhile": "exit point cut off in a change",
    "member crash": "member crash",
    "member slept": "member slept",
    "filter added during a change": "added during a change",
    "filter removed during a change": "removed during a change",
    "event emitted during a change": "emitted during a change",
    "table of a matcher packed": "table packed",
}
"""Every corner that a campaign must exercise, and its counter."""

_SWAPS: Final[Variant] = {
    "slow_exits": 1.0,
    "swaps": 0.7,
    "engine_trouble_s": 10.0,
    "fixed_faults": {"crashes_per_s": 0.0, "pauses_per_s": 0.0, "partitions_per_s": 0.0, "resets_per_s": 0.02},
}
_REMOVALS: Final[Variant] = {"removals": True, "slow_exits": 0.0, "swaps": 0.0, "engine_trouble_s": 10.0}
_NO_FAULTS: Final = asdict(FaultOptions(resets_per_s=0.001))
_DEATHS: Final[Variant] = {
    "deaths_only": True, "engine_trouble_s": 2.0, "slow_exits": 0.0, "full_disk_share": 0.0,
    "fixed_faults": _NO_FAULTS, "fixed_shape": {"lapses": False},
}  # fmt: skip
_ZOMBIES: Final[Variant] = {"zombies": True, "engine_trouble_s": 3.0, "slow_exits": 0.0, "fixed_faults": _NO_FAULTS}
_CUTS: Final[Variant] = {"cuts": True, "engine_trouble_s": 1.5, "slow_exits": 0.0, "fixed_faults": _NO_FAULTS}
VARIANTS: Final[dict[str, Variant]] = {
    "end_first": _SWAPS,
    "taken_later": _SWAPS,
    "old_state_last": _REMOVALS,
    "roll_first": _DEATHS,
    "settle_last": _CUTS,
    "lease_checked": _ZOMBIES,
}
"""The variant of the scenario in which it soon shows that a rule is broken: exit points change all the time, and the
old ones are late; applications remove their filters while matchers send each other state; only processes of the engine
die; or they and clients are cut off from a server before; or the one that runs all operators sleeps, and neither it nor
a client hears at once that another instance serves. In the same variant the protocol holds."""


@dataclass(slots=True)
class EventRecord:
    """An event that an application emitted. Its payload is its number."""

    number: int
    attributes: dict[str, int]
    at: float
    taken_at: float | None = None


@dataclass(slots=True)
class FilterRecord:
    """A filter of an application, and what its reader got."""

    wanted: Filter
    reader: ReaderRecord
    in_force_at: float
    ended_at: float | None = None


@dataclass(slots=True)
class ReaderRecord:
    """A reader of an application."""

    label: str
    got: list[tuple[float, int, int, int]] = field(default_factory=list)
    """Time, emitter, its sequence number, and the number of the event."""
    gaps: list[float] = field(default_factory=list)


class EngineApp(App):
    """An application that emits events, and has one reader with some filters."""

    run: EngineRun

    def start(self) -> None:
        """Starts a new process."""
        self.filters: dict[str, FilterRecord] = {}
        self.reader: Matching | None = None
        self.reading = ReaderRecord(f"{self.node.name}/{self.node.incarnation}")
        self.emitting = 0
        self.numbers = 0
        super().start()

    def ring_changed(self) -> None:
        """Nothing: the bus follows the ring."""

    def _begin(self) -> None:
        self.process.loop.create_task(self._read_events())
        self._live()

    def _live(self) -> None:
        run, random = self.run, self.random
        if not run.active or self.leaving:
            return
        for _ in range(random.randint(1, run.events_max)):
            if self.emitting < 3 * LIMITS["engine_untaken_events_max"]:
                self.process.loop.create_task(self._emit())
        draw = random.random()
        if self.reader is not None and draw < 0.35 and len(self.filters) < FILTERS_MAX:
            self.process.loop.create_task(self._add())
        elif self.reader is not None and draw < 0.45 and self.filters:
            self.process.loop.create_task(self._remove(random.choice(sorted(self.filters))))
        self.after(random.expovariate(1 / run.shape.burst_pause_s), self._live)

    async def _emit(self) -> None:
        """Emits an event and waits until it is taken."""
        run, world = self.run, self.run.world
        attributes = {"a": self.random.randrange(6), "b": self.random.randrange(3)}
        run.event_count += 1
        record = run.events[run.event_count] = EventRecord(run.event_count, attributes, world.now)
        run.exercised["event emitted"] += 1
        run.exercised["emitted during a change"] += run.changing
        self.emitting += 1
        try:
            await self.bus.emit(attributes, b"%d" % record.number, confirm=True)
            record.taken_at = world.now
        except (BusClosedError, ConnectError, SubscribeError):
            run.exercised["emit gave up"] += 1
        finally:
            self.emitting -= 1

    async def _read_events(self) -> None:
        run, world = self.run, self.run.world
        reader = self.bus.match()
        while self.reader is None:
            try:
                await reader.open()
                self.reader = reader
            except BusClosedError:
                return
            except ShoalError:
                reader = self.bus.match()
                await asyncio.sleep(RETRY_S)
        try:
            async for item in reader:
                if isinstance(item, Gap):
                    run.exercised["gap"] += 1
                    self.reading.gaps.append(world.now)
                else:
                    run.exercised["event delivered"] += 1
                    run.exercised["several matched"] += len(item.matched) > 1
                    number = int(item.payload)
                    self.reading.got.append((world.now, item.publisher, item.sequence, number))
                    run.check_matched(self, number, item.matched)
                if self.slow:
                    await asyncio.sleep(self.random.uniform(0.0, 0.05))
        except BusClosedError:
            if not self.leaving:
                raise

    async def _add(self) -> None:
        run, world, reader = self.run, self.run.world, self.reader
        assert reader is not None
        text = self.random.choice((f"a = {self.random.randrange(6)}", f"b < {self.random.randrange(1, 3)}", "a > 3"))
        name = f"{text} #{world.events_run}"
        wanted = parse(text)
        try:
            run.wanted[name] = wanted
            await reader.add(name, wanted)
        except (BusClosedError, EngineUnavailableError):
            run.exercised["filter not in force in time"] += 1
            return
        run.exercised["filter in force"] += 1
        run.exercised["added during a change"] += run.changing
        self.filters[name] = FilterRecord(wanted, self.reading, world.now)
        run.filters.append(self.filters[name])

    def remove_soon(self, name: str) -> None:
        """Removes a filter, if it is still there."""
        self.process.loop.create_task(self._remove(name))

    async def _remove(self, name: str) -> None:
        record = self.filters.pop(name, None)
        if record is not None and self.reader is not None:
            record.ended_at = self.run.world.now
            self.run.exercised["filter removed"] += 1
            self.run.exercised["removed during a change"] += self.run.changing
            await self.reader.remove(name)

    def _ended(self) -> None:
        for record in self.filters.values():
            record.ended_at = self.run.world.now
        super()._ended()

    def _leave(self) -> None:
        """Applications stay."""

    @property
    def settled(self) -> bool:
        """Whether every event is taken, and everything that has come is read."""
        if not self.started or self.emitting or (self.reader is not None and self.reader.waiting):
            return False
        counts = self.bus.matching
        return counts is None or not (counts.untaken or counts.unread)


class EngineRun(ChannelScenario):
    """One seed of the scenario."""

    calm_s = 3.0
    slow_exits = 0.4
    """How often an exit point sleeps or is cut off while a change is prepared."""
    engine_trouble_s = 3.0
    """About how often a process of the engine dies or sleeps."""
    deaths_only = False
    """Whether processes of the engine die or sleep and nothing else fails. Then no reader misses anything."""
    cuts = False
    """Whether something is cut off from a server before: the process that dies, or a client while a process sleeps."""
    zombies = False
    """Whether the engine is one process, which sleeps; it and a client hear late that another instance serves."""
    removals = False
    """Whether applications remove their filters while a change is prepared."""
    swaps = 0.2
    """The share of wishes that take all operators from the processes with exit points."""

    def __init__(self, seed: int, rules: Rules = ALL_RULES, trace: bool = False, variant: Variant = COMMON) -> None:
        self.events: dict[int, EventRecord] = {}
        self.event_count = 0
        self.filters: list[FilterRecord] = []
        self.wanted: dict[str, Filter] = {}
        self.unmatched: list[str] = []
        self._ids: WeakKeyDictionary[SubscriptionTable, int] = WeakKeyDictionary()
        """Ids of each matcher's table, when it was last looked at: they become fewer when it is packed."""
        self.foreign_parts: set[str] = set()
        self.engines: dict[str, EngineShell] = {}
        self.process_names: set[str] = set()
        """The names of all processes of the engine, dead or alive."""
        self._choked: dict[tuple[str, int], int] = {}
        self._configurations: dict[int, Configuration] = {}
        self._given_up: Counter[int] = Counter()
        self._prepared: set[tuple[int, int]] = set()
        """By instance: the last configuration, and the number of changes that were given up."""
        self.events_max = 3
        super().__init__(seed, rules, trace, variant)

    def make_shape(self, options: FaultOptions) -> Shape:
        """The common shape with small limits of the engine, and without what is particular to channels."""
        shape = super().make_shape(options)
        limits = msgspec.structs.replace(
            shape.limits, **LIMITS, inbox_messages_max=4096, resend_messages_max=4096, drain_timeout_s=20.0
        )
        return replace(shape, limits=limits, clients=min(shape.clients, 5), full=False)

    def make_app(self, node: Node) -> App:
        """An application that emits and matches."""
        return EngineApp(self, node)

    def other_nodes(self) -> list[str]:
        """The engines."""
        names = [f"engine{number}" for number in range(1, ENGINES + 1)]
        for name in names:
            self.participant(name, "engine", self._engine)
        self.participant("operator", "admin", self._operator)
        return [*names, "operator"]

    async def _operator(self, process: Process) -> None:
        """The main task of a process that wants now more, now fewer matchers and exit points."""
        random = self.world.rng("wanted")
        while self.active:
            try:
                async with await process.runtime.coordinator(COORDINATOR_URL, 1.0) as coordinator:
                    while self.active:
                        exits = 2 if random.random() < SECOND_EXIT else 1
                        points = 2 if random.random() < SECOND_ACCESS_POINT else 1
                        names = sorted(self.process_names)
                        without: tuple[str, ...] = ()
                        if names and random.random() < WITHOUT:
                            without = (random.choice(names),)
                        if random.random() < self.swaps and self._configurations:
                            without = self._configurations[max(self._configurations)].exits
                        wanted = Wanted(random.randint(1, MATCHERS_MAX), exits, without, points)
                        if self.zombies:
                            wanted = Wanted()
                        await coordinator.put(wanted_key("main"), encode_wanted(wanted))
                        await asyncio.sleep(random.expovariate(1 / CHANGE_EVERY_S))
            except ShoalError:
                await asyncio.sleep(RETRY_S)

    async def _engine(self, process: Process) -> None:
        """The main task of an engine's process."""
        limits, node = self.shape.limits, process.node
        bus = Bus(COORDINATOR_URL, limits=limits, runtime=process.runtime, rules=self.rules)
        while True:
            try:
                await bus.open()
                break
            except ShoalError:
                await asyncio.sleep(RETRY_S)
        async with await process.runtime.coordinator(COORDINATOR_URL, limits.server_lease_s / 2) as coordinator:
            name = f"{node.name}-{node.incarnation}"
            shell = EngineShell(
                *("main", bus, coordinator, name, limits, self.rules),
                cpu_s=lambda: 0.0,
                thread_s=lambda: 0.0,
                background=process.background,
            )
            self.engines[node.name] = shell
            self.process_names.add(name)
            await shell.run()

    def begin_safety(self) -> None:
        """Looks at the engines from time to time."""
        self._look()

    def _look(self) -> None:
        for head in [shell.head for shell in self.engines.values() if shell.head is not None]:
            if head.director is not None and head.director.has_begun:
                self._look_at_change(head.director)
        for name, operators in [(name, shell.operators) for name, shell in self.engines.items()]:
            if operators is not None and operators.exit_point is not None:
                foreign = operators.exit_point.part_instances - {operators.instance}
                if foreign:
                    self.foreign_parts.add(f"{name} keeps parts of instance {min(foreign)} in {operators.instance}")
            if operators is not None and operators.matcher is not None:
                table, ids = operators.matcher.table, operators.matcher.table.size
                self.exercised["table packed"] += ids < self._ids.get(table, 0)
                self._ids[table] = ids
        for status in [shell.status for shell in self.engines.values()]:
            if status is not None:
                place = (status.name, status.instance)
                self.exercised["choked"] += status.choked - self._choked.get(place, 0)
                self._choked[place] = status.choked
        if self.active:
            self.world.after(LOOK_S, self._look)

    def _look_at_change(self, director: Director) -> None:
        instance, after = director.instance, director.configuration
        before = self._configurations.get(instance)
        if before is None:
            self.exercised["roll called"] += 1
            self.exercised["take-over"] += bool(self._configurations)
            before = after
        layers = (
            ("access point", before.access_points, after.access_points),
            ("matcher", before.matchers, after.matchers),
            ("exit point", before.exits, after.exits),
        )
        for layer, old, new in layers:
            self.exercised[f"{layer} added"] += bool(set(new) - set(old))
            self.exercised[f"{layer} removed"] += bool(set(old) - set(new))
        self.exercised["several layers"] += sum(old != new for _, old, new in layers) > 1
        if director.phase is Phase.PREPARING and director.following is not None:
            place = (instance, director.following.number)
            if place not in self._prepared:
                self._prepared.add(place)
                self._slow_down(after.exits, director.following.exits)
                self._remove_filters()
        given_up = sum(director.given_up.values())
        self.exercised["change given up"] += given_up - self._given_up[instance]
        self._configurations[instance], self._given_up[instance] = after, given_up

    def _remove_filters(self) -> None:
        rng = self.world.rng("removals")
        for app in self.apps if self.removals else ():
            if isinstance(app, EngineApp) and app.started:
                for name in sorted(app.filters):
                    app.after(rng.uniform(0.0, REMOVALS_S), app.remove_soon, name)

    def _slow_down(self, before: tuple[str, ...], after: tuple[str, ...]) -> None:
        """Lets an exit point sleep, one that leaves if there is one: what it has to say is late."""
        rng = self.world.rng("slow exit")
        names = sorted(set(before) - set(after)) or sorted(before)
        if rng.random() >= self.slow_exits or self.network.options.peaceful:
            return
        name = rng.choice(names).rpartition("-")[0]
        if rng.random() < 0.5:
            self.exercised["exit point slept in a change"] += 1
            self.faults.pause(self.network.nodes[name], rng.choice(SLOW_EXIT_S))
        else:
            self.exercised["exit point cut off in a change"] += 1
            self.faults.partition([name], [rng.choice(self.names)], rng.choice(SLOW_EXIT_S))

    @property
    def changing(self) -> bool:
        """Whether a change of configuration is under way."""
        heads = [shell.head for shell in self.engines.values() if shell.head is not None]
        return any(head.director is not None and head.director.following is not None for head in heads)

    def faults_began(self) -> None:
        """The engine that serves dies or sleeps from time to time."""
        super().faults_began()
        if not self.network.options.peaceful:
            self._trouble()

    def _trouble(self) -> None:
        rng: Random = self.world.rng("engines")
        if not self.faults.active:
            return
        self.world.after(rng.expovariate(1 / self.engine_trouble_s), self._trouble)
        if self.zombies:
            self._sleep_unheard(rng)
            return
        serving = [name for name, shell in self.engines.items() if shell.head is not None]
        helping = [name for name, shell in self.engines.items() if shell.operators is not None and shell.head is None]
        if serving and (not helping or rng.random() < HEAD_HIT):
            node, what = self.network.nodes[rng.choice(serving)], "engine"
        elif helping:
            node, what = self.network.nodes[rng.choice(helping)], "member"
        else:
            return
        if rng.random() < ENGINE_SLEEPS:
            self.exercised[f"{what} slept"] += 1
            if self.cuts:
                self.faults.partition([rng.choice(self.apps).node.name], [rng.choice(self.names)], SLEEP_S)
            self.faults.pause(node, SLEEP_S)
        else:
            self.exercised["member crash"] += what == "member"
            if self.cuts:
                self.faults.partition([node.name], [rng.choice(self.names)], CUT_S)
                self.world.after(CUT_S[0], self.faults.crash, node)
            else:
                self.faults.crash(node)

    def _sleep_unheard(self, rng: Random) -> None:
        """Lets the process that serves sleep past its lease. When it wakes up, it still hears a client's lane, but not
        the orders of its successor; nor does the client hear its successor."""
        serving = sorted(name for name, shell in self.engines.items() if shell.head is not None)
        apps = [app for app in self.apps if app.started]
        if not serving or not apps:
            return
        node, app = self.network.nodes[rng.choice(serving)], rng.choice(apps)
        client = app.bus.client_id
        lane, seat, call, orders = (
            set(self.book.placement(channel).servers)
            for channel in (
                *(lane_channel(MAIN, lane_of(client)), seat_channel(MAIN, client)),
                *(call_channel(MAIN), orders_channel(MAIN)),
            )
        )
        sleep_s = rng.uniform(*ZOMBIE_S)
        unheard_s = sleep_s + UNHEARD_S
        self.exercised["engine slept"] += 1
        self.faults.pause(node, (sleep_s, sleep_s))
        for name, servers in ((app.node.name, (seat | call) - lane), (node.name, orders - lane - seat)):
            if servers:
                self.faults.partition([name], sorted(servers), (unheard_s, unheard_s))

    # Checks

    def check_matched(self, app: EngineApp, number: int, names: tuple[str, ...]) -> None:
        """A reader got an event for these filters."""
        event = self.events[number]
        if len(set(names)) < len(names):
            self.unmatched.append(f"{app.node.name} got {event.attributes} twice for one of {names}")
        for name in names:
            if not self.wanted[name].matches(event.attributes):
                self.unmatched.append(f"{app.node.name} got {event.attributes} for {name}")

    def quiet(self) -> bool:
        """Whether all events are taken."""
        apps = [app for app in self.apps if isinstance(app, EngineApp)]
        routers = [app.router for app in self.apps if app.router is not None]
        return (
            not self.changing
            and not any(shell.is_busy for shell in self.engines.values())
            and len(routers) == len(self.apps)
            and all(app.settled for app in apps)
            and all(router.settled and not router.statistics().questions for router in routers)
        )

    def heals(self) -> bool:
        """Whether a client asks for what an exit point has sent it: if that has died, a gap follows."""
        subs = [sub for app in self.apps if app.router is not None for sub in app.router.subscriptions]
        streams = [stream for sub in subs for _, stream in sub.all_streams()]
        return any(stream.has_hole() or stream.doubted_at is not None for stream in streams)

    def finish(self) -> bool:
        """Counts what clients did."""
        for app in self.apps:
            self.count(app)
        return False

    def count(self, app: App) -> None:
        """Adds the counters of an application."""
        super().count(app)
        if app.started and (counts := app.bus.matching) is not None:
            self.exercised["repeated event dropped"] += counts.repeats
            self.exercised["emit waited"] += counts.waits
            self.exercised["path held"] += counts.paths_held

    def recorded(self) -> list[object]:
        """What happened."""
        return [
            [(event.number, event.at, event.taken_at) for event in self.events.values()],
            [(one.in_force_at, one.ended_at, one.reader.got, one.reader.gaps) for one in self.filters],
        ]

    def judge(self) -> Verdict:
        """Every event that a filter in force is owed has come once, in order, or a gap was reported."""
        verdict = Verdict(messages=len(self.events))
        readers = {id(one.reader): one.reader for one in self.filters}
        got: dict[int, set[int]] = {}
        for key, reader in readers.items():
            verdict.deliveries += len(reader.got)
            verdict.gaps_reported += len(reader.gaps)
            got[key] = self._check_order(reader, verdict)
        for text in self.unmatched:
            verdict.violate("unmatched", text)
        for text in sorted(self.foreign_parts):
            verdict.violate("wrong parts", text)
        for one in self.filters:
            self._check_filter(one, got[id(one.reader)], verdict)
        self._check_alarms(readers.values(), verdict)
        self._check_growth(verdict)
        if not self.quiet():
            verdict.violate("unsettled", f"events are not taken at t={self.world.now:.3f}")
        return verdict

    def _check_order(self, reader: ReaderRecord, verdict: Verdict) -> set[int]:
        seen: set[int] = set()
        last: defaultdict[int, int] = defaultdict(int)
        for at, emitter, sequence, number in reader.got:
            if number in seen:
                verdict.duplicated += 1
                verdict.violate("duplicated", f"{reader.label} got {number} again at t={at:.3f}")
            elif sequence < last[emitter]:
                verdict.reordered += 1
                verdict.violate("reordered", f"{reader.label} got {sequence} of {emitter:x} after {last[emitter]}")
            last[emitter] = max(last[emitter], sequence)
            seen.add(number)
        return seen

    def _check_filter(self, one: FilterRecord, got: set[int], verdict: Verdict) -> None:
        gap_at = max(one.reader.gaps, default=-1.0)
        for event in self.events.values():
            if event.taken_at is None or event.at <= one.in_force_at or event.number in got or gap_at >= event.at:
                continue
            if one.ended_at is not None and event.taken_at + SETTLE_S > one.ended_at:
                continue
            if one.wanted.matches(event.attributes):
                verdict.lost += 1
                verdict.violate(
                    "lost",
                    f"{one.reader.label}: event {event.number}, emitted {event.at:.3f}, taken {event.taken_at:.3f}, "
                    f"for {one.wanted} in force {one.in_force_at:.3f}",
                )

    def _check_growth(self, verdict: Verdict) -> None:
        """No matcher has filters that their client has removed."""
        held: Counter[int] = Counter()
        for table in [shell.table for shell in self.engines.values()]:
            if table is not None:
                held.update(table.rows(0, table.size).clients)
        for app in self.apps:
            counts = app.bus.matching if app.started else None
            if counts is not None and held[app.bus.client_id] > counts.filters:
                filters = f"{held[app.bus.client_id]} filters of {app.node.name}, which has {counts.filters}"
                verdict.violate("growth", f"matchers have {filters}")

    def _check_alarms(self, readers: Iterable[ReaderRecord], verdict: Verdict) -> None:
        if self.calm or self.deaths_only:
            for reader in readers:
                for at in reader.gaps:
                    verdict.violate("false alarm", f"{reader.label} got a gap at t={at:.3f} and missed nothing")


def run_seed(seed: int, rules: Rules = ALL_RULES, trace: bool = False, variant: Variant = COMMON) -> Outcome:
    """Runs one seed; the same seed always gives the same outcome."""
    return EngineRun(seed, rules, trace, variant).execute()
