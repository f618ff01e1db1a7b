"""Runs one instance of an engine in the process that holds its lease: access point, director, and operators.

Owns the I/O of the head. It makes no decision about events; it only adds the order of its start:

    lease --predecessor read--> members joined --> lanes subscribed --> roll --written down that it serves--> serves
    any   --lease not renewed in time, a member died, a letter was refused--> ends
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from shoal.coordination.interface import Coordinator, Lease
from shoal.engine.director import Director, InstanceEndsError, Wanted
from shoal.engine.engine import Engine
from shoal.engine.engine_report import (
    EngineReport,
    MemberReport,
    decode_wanted,
    encode_report,
    report_key,
    serving_key,
    wanted_key,
)
from shoal.engine.links import (
    Status,
    decode_to_head,
    decode_to_member,
    encode,
    head_channel,
    member_channel,
    orders_channel,
)
from shoal.engine.load_meter import EngineLoadMeter, Reading
from shoal.engine.measures import Meter
from shoal.engine.member_shell import STATUS_EVERY_S, forget
from shoal.engine.messages import LANES, call_channel, decode_letter, lane_channel
from shoal.engine.outbox import Listening, Outbox, Wire
from shoal.errors import ConnectError, CoordinatorError, ProtocolError
from shoal.limits import Limits
from shoal.load.engine_load import EngineLoad
from shoal.logs import get_log
from shoal.message import Gap, Message
from shoal.rules import ALL_RULES, Rules
from shoal.runtime import TIMER_GRAIN_S

ROLL_EVERY_S: Final = 0.5
"""How often all clients are told which instance is in force."""
REPORT_EVERY_S: Final = 1.0
WANTED_EVERY_S: Final = 0.25
"""How often it is looked up how many operators are wanted."""
RENEWALS: Final = 5
"""How often a lease is extended in the time for which it is given."""
GATHER_S: Final = 2 * STATUS_EVERY_S
"""How long a new instance listens for other processes, if it wants some."""
READ_BYTES_MAX: Final = 1 << 20
"""Letters that are read in one turn."""
CLOCK_SHARE: Final = 0.1
"""The share of a lease that is given up, because clocks do not run equally fast."""

_log: Final = get_log(__name__)


class HeadShell:
    """One instance."""

    def __init__(
        self,
        engine: str,
        name: str,
        wire: Wire,
        coordinator: Coordinator,
        lease: Lease,
        asked_at: float,
        limits: Limits,
        rules: Rules = ALL_RULES,
        cpu_s: Callable[[], float] = time.process_time,
        meter: Meter | None = None,
    ) -> None:
        """`asked_at` is the time before the lease was asked for."""
        self._engine = engine
        self._name = name
        self._wire = wire
        self._coordinator = coordinator
        self._lease = lease
        self._limits = limits
        self._rules = rules
        self._cpu_s = cpu_s
        self._meter = meter or Meter()
        self._load_meter = EngineLoadMeter()
        self._lease_until = asked_at + lease.ttl_s * (1 - CLOCK_SHARE)
        self.core: Engine | None = None
        self.director = Director(name, lease.token, limits, rules)
        self._outbox: Outbox | None = None
        self._lanes: list[Listening] = []
        self._members: Listening | None = None
        self._own: Listening | None = None
        self._awake = asyncio.Event()
        self._changed = asyncio.Event()
        self._rated = asked_at, 0, 0.0
        """When events were last counted, how many there were, and how many came in a second."""

    async def run(self) -> None:
        """Serves until the instance ends, with an error that says why."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_lease())
                await self._serve(group)
        finally:
            self.core = None
            for one in (*self._lanes, self._members, self._own):
                if one is not None:
                    with contextlib.suppress(ConnectError):
                        await one.aclose()

    async def _serve(self, group: asyncio.TaskGroup) -> None:
        key = serving_key(self._engine)
        stored = await self._coordinator.get(key)
        predecessor = 0 if stored is None else int(stored.value)
        await self._look_up_wanted()
        self._members = await self._wire.listen(head_channel(self._engine), self._awake.set)
        self._own = await self._wire.listen(member_channel(self._engine, self._name), self._awake.set)
        loop = asyncio.get_running_loop()
        if self.director.wanted != Wanted():
            await asyncio.sleep(GATHER_S)
            self._hear_members(None)
        configuration = self.director.begin(loop.time())
        core = Engine(
            *(self._lease.token, predecessor, self._limits, loop.time(), self._rules, self._name, configuration),
            meter=self._meter,
        )
        core.lease_until = self._lease_until
        self._outbox = Outbox(self._engine, self._wire, core.confirmed, self._awake.set, self._meter)
        self.core = core
        group.create_task(self._order())
        async with asyncio.TaskGroup() as lanes:
            for lane in range(LANES):
                lanes.create_task(self._listen(lane))
        while not self.director.started(loop.time()):
            await asyncio.sleep(TIMER_GRAIN_S)
            self._hear_members(core)
        core.begin_roll(loop.time())
        _log.info(
            *("engine calls the roll",),
            engine=self._engine,
            instance=core.instance,
            predecessor=predecessor,
            configuration=configuration.text,
        )
        group.create_task(self._call(core))
        group.create_task(self._work(core, self._outbox))
        while not core.wants_to_serve:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await self._coordinator.put(key, b"%d" % core.instance, fence=self._lease)
        core.serve()
        self._awake.set()
        group.create_task(self._watch_wanted())
        group.create_task(self._report(core))
        _log.info("engine serves", engine=self._engine, instance=core.instance, clients=core.status().clients)

    async def _listen(self, lane: int) -> None:
        self._lanes.append(await self._wire.listen(lane_channel(self._engine, lane), self._awake.set))

    async def _keep_lease(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._limits.engine_lease_s / RENEWALS)
            asked_at = loop.time()
            held = True
            with contextlib.suppress(CoordinatorError):
                held = await self._coordinator.renew(self._lease)
                if held:
                    self._lease_until = asked_at + self._lease.ttl_s * (1 - CLOCK_SHARE)
                    if self.core is not None:
                        self.core.lease_until = self._lease_until
            if not held or loop.time() >= self._lease_until:
                raise InstanceEndsError("its lease is over")

    # What others are told

    async def _call(self, core: Engine) -> None:
        """Tells all clients which instance is in force."""
        while True:
            self._say(call_channel(self._engine), encode(core.roll()))
            await asyncio.sleep(ROLL_EVERY_S)

    async def _order(self) -> None:
        """Tells all processes what they run."""
        while True:
            self._say_orders()
            await asyncio.sleep(STATUS_EVERY_S)

    def _say_orders(self) -> None:
        self._say(orders_channel(self._engine), encode(self.director.orders()))

    def _say(self, channel: bytes, payload: bytes) -> None:
        posted = self._wire.post(channel, payload)
        if posted is not None:
            posted.add_done_callback(forget)

    async def _report(self, core: Engine) -> None:
        """Writes the counts down from time to time."""
        while True:
            report = self._make_report(core)
            with contextlib.suppress(CoordinatorError):
                await self._coordinator.put(report_key(self._engine), encode_report(report), fence=self._lease)
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_EVERY_S):
                    await self._changed.wait()

    def _make_report(self, core: Engine) -> EngineReport:
        status, director = core.status(), self.director
        now = asyncio.get_running_loop().time()
        layers = director.configuration
        members = [MemberReport(self._name, self._cpu_s(), status.filters)]
        members += [MemberReport(one.name, one.cpu_s, one.filters) for one in director.statuses(now)]
        return EngineReport(
            instance=status.instance,
            configuration=layers.text,
            phase=director.phase.value,
            clients=status.clients,
            filters=sum(one.filters for one in members if one.name in layers.matchers),
            in_flight=status.in_flight,
            events=status.events,
            events_per_s=self._rate(status.events, now),
            deliveries=status.deliveries,
            choked=status.choked,
            changes=director.changes,
            last_change_s=director.last_change_s,
            given_up=director.given_up,
            head=self._name,
            matchers=list(layers.matchers),
            exits=list(layers.exits),
            members=members,
            load=self._measure(core, now),
        )

    def _measure(self, core: Engine, now: float) -> EngineLoad:
        director = self.director
        readings = {self._name: Reading(self._cpu_s(), self._meter.read())}
        readings |= {one.name: Reading(one.cpu_s, one.measures) for one in director.statuses(now)}
        layers = director.configuration
        return self._load_meter.measure((director.phase, layers), readings, core.waits.counts, layers.exits, now)

    def _rate(self, events: int, now: float) -> float:
        """Events a second since the last report that is at least `REPORT_EVERY_S` older."""
        at, before, rate = self._rated
        if now - at >= REPORT_EVERY_S:
            rate = (events - before) / (now - at)
            self._rated = now, events, rate
        return round(rate, 1)

    async def _watch_wanted(self) -> None:
        while True:
            await asyncio.sleep(WANTED_EVERY_S)
            with contextlib.suppress(CoordinatorError):
                await self._look_up_wanted()

    async def _look_up_wanted(self) -> None:
        stored = await self._coordinator.get(wanted_key(self._engine))
        if stored is not None:
            try:
                self.director.wanted = decode_wanted(stored.value)
            except ProtocolError as error:
                _log.warning("wanted configuration ignored", engine=self._engine, why=str(error))

    # Work

    async def _work(self, core: Engine, outbox: Outbox) -> None:
        """Takes turns: when something has come or was confirmed, and from time to time."""
        loop = asyncio.get_running_loop()
        while True:
            self._awake.clear()
            if outbox.failed:
                raise InstanceEndsError(outbox.failed)
            if not len(outbox):
                self._turn(core, outbox)
            outbox.post()
            if core.lease_until <= loop.time():
                raise InstanceEndsError("its lease is over")
            if core.is_busy and not len(outbox):
                await asyncio.sleep(0)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01 if len(outbox) else 0.1 + TIMER_GRAIN_S):
                    await self._awake.wait()

    def _turn(self, core: Engine, outbox: Outbox) -> None:
        now, meter = asyncio.get_running_loop().time, self._meter
        began = now()
        meter.begin()
        if not core.has_backlog:
            self._read_lanes(core)
        self._hear_members(core)
        self._direct(core, now())
        letters = core.turn(now())
        fan, links = core.take_links()
        outbox.fan(fan)
        outbox.links(links)
        outbox.letters(letters)
        meter.end(now() - began)
        if core.operators.failed:
            raise InstanceEndsError(core.operators.failed)

    def _direct(self, core: Engine, now: float) -> None:
        """Does the next step of a change of configuration."""
        director = self.director
        before = director.orders()
        mark = director.step(core.operators.ready, core.is_drained, now)
        core.arrange(director.configuration, director.following)
        if mark is not None:
            core.mark(*mark)
            _log.info(
                *("engine changes its configuration",),
                engine=self._engine,
                step=mark[0].name.lower(),
                configuration=mark[1].text,
            )
        if director.orders() != before:
            self._say_orders()
            self._changed.set()

    def _read_lanes(self, core: Engine) -> None:
        """Takes what clients have sent, up to `READ_BYTES_MAX`. The rest waits for the next turn."""
        size = 0
        for lane in self._lanes:
            while size < READ_BYTES_MAX and (item := lane.get_nowait()) is not None:
                if isinstance(item, Message):
                    size += len(item.payload)
                    try:
                        core.received(item.publisher, decode_letter(item.payload))
                    except ProtocolError as error:
                        _log.warning("letter ignored", client=f"{item.publisher:012x}", why=str(error))
                elif isinstance(item, Gap) and item.publisher:
                    core.missed(item.publisher)
        if size >= READ_BYTES_MAX:
            self._lanes.append(self._lanes.pop(0))  # each lane is first at times
            self._awake.set()

    def _hear_members(self, core: Engine | None) -> None:
        assert self._members is not None
        assert self._own is not None
        now = asyncio.get_running_loop().time()
        while (item := self._members.get_nowait()) is not None:
            if isinstance(item, Message):  # a hole does no harm: a process tells its status again
                with contextlib.suppress(ProtocolError):
                    message = decode_to_head(item.payload)
                    if isinstance(message, Status):
                        self.director.heard(message, now)
                    if core is not None and message.instance == core.instance:
                        core.access_point.settled(message.name, message.settled)
        while (item := self._own.get_nowait()) is not None:
            if core is None:
                continue
            if isinstance(item, Gap):
                core.operators.missed(f"a part of what it was told is lost: {item.reason}")
            elif isinstance(item, Message):
                with contextlib.suppress(ProtocolError):
                    told = decode_to_member(item.payload)
                    if told.instance == core.instance:
                        core.operators.received(told)
