"""Leads one instance of an engine in the process that holds its lease.

Owns the lease, the director and what is written down. It takes no events: operators are in `member_shell`, in this
process and in others.

    lease --predecessor read--> all joined --> roll --written down that it serves--> serves
    any   --lease not renewed in time, a process died, a letter was refused--> ends
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from shoal.coordination.interface import Coordinator, Lease
from shoal.engine.director import Director, InstanceEndsError, Wanted
from shoal.engine.engine_report import (
    EngineReport,
    MemberReport,
    decode_wanted,
    encode_report,
    report_key,
    serving_key,
    wanted_key,
)
from shoal.engine.event_waits import EventWaits
from shoal.engine.links import Stage, Status, decode_to_head, encode, head_channel, orders_channel
from shoal.engine.load_meter import EngineLoadMeter, Reading
from shoal.engine.member_shell import STATUS_EVERY_S, MemberShell, forget
from shoal.engine.messages import Roll, call_channel
from shoal.engine.outbox import Listening, Wire
from shoal.errors import ConnectError, CoordinatorError, ProtocolError
from shoal.limits import Limits
from shoal.load.engine_load import EngineLoad
from shoal.logs import get_log
from shoal.message import Message
from shoal.rules import ALL_RULES, Rules
from shoal.runtime import TIMER_GRAIN_S

ROLL_EVERY_S: Final = 0.5
"""How often all clients are told which instance is in force."""
REPORT_EVERY_S: Final = 1.0
WANTED_EVERY_S: Final = 0.1
"""How often it is looked up how many operators are wanted."""
RENEWALS: Final = 5
"""How often a lease is extended in the time for which it is given."""
GATHER_S: Final = 2 * STATUS_EVERY_S
"""How long a new instance listens for other processes, if it wants some."""
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
        member: MemberShell,
        limits: Limits,
        rules: Rules = ALL_RULES,
    ) -> None:
        """`asked_at` is the time before the lease was asked for; `member` runs the operators of this process."""
        self._engine = engine
        self._name = name
        self._wire = wire
        self._coordinator = coordinator
        self._lease = lease
        self._limits = limits
        self._rules = rules
        self._member = member
        self._load_meter = EngineLoadMeter()
        self._lease_until = asked_at + lease.ttl_s * (1 - CLOCK_SHARE)
        self.director: Director | None = None
        self._members: Listening | None = None
        self._awake = asyncio.Event()
        self._changed = asyncio.Event()
        self._rated = asked_at, 0, 0.0
        """When events were last counted, how many there were, and how many came in a second."""

    async def run(self) -> None:
        """Leads until the instance ends, with an error that says why."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_lease())
                await self._lead(group)
        finally:
            self._member.told = None
            if self._members is not None:
                with contextlib.suppress(ConnectError):
                    await self._members.aclose()

    async def _lead(self, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        key = serving_key(self._engine)
        stored = await self._coordinator.get(key)
        predecessor = 0 if stored is None else int(stored.value)
        director = self.director = Director(self._name, self._lease.token, predecessor, self._limits, self._rules)
        await self._look_up_wanted(director)
        self._members = await self._wire.listen(head_channel(self._engine), self._awake.set)
        self._member.told = self._told
        if director.wanted != Wanted():
            await asyncio.sleep(GATHER_S)
            self._hear(director)
        configuration = director.begin(loop.time())
        group.create_task(self._order(director))
        while not director.started(loop.time()):
            await self._wait()
            self._hear(director)
        _log.info(
            *("engine calls the roll",),
            engine=self._engine,
            instance=self._lease.token,
            predecessor=predecessor,
            configuration=configuration.text,
        )
        group.create_task(self._call(director))
        self._say_orders(director)
        while not director.roll_is_over():
            await self._wait()
            self._direct(director)
        await self._coordinator.put(key, b"%d" % self._lease.token, fence=self._lease)
        director.serve()
        self._say_orders(director)
        group.create_task(self._watch_wanted(director))
        group.create_task(self._report(director))
        _log.info("engine serves", engine=self._engine, instance=self._lease.token)
        while True:
            await self._wait()
            self._direct(director)

    async def _wait(self) -> None:
        """Until a process has shown itself, or some time is over."""
        self._awake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1 + TIMER_GRAIN_S):
                await self._awake.wait()

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
                    if self.director is not None and self.director.has_begun:
                        self._say_orders(self.director)
            if not held or loop.time() >= self._lease_until:
                raise InstanceEndsError("its lease is over")

    # What others are told

    async def _call(self, director: Director) -> None:
        """Tells all clients which instance is in force."""
        while True:
            roll = Roll(self._lease.token, director.stage < Stage.SERVE)
            self._say(call_channel(self._engine), encode(roll))
            await asyncio.sleep(ROLL_EVERY_S)

    async def _order(self, director: Director) -> None:
        """Tells all processes what they run."""
        while True:
            self._say_orders(director)
            await asyncio.sleep(STATUS_EVERY_S)

    def _say_orders(self, director: Director) -> None:
        director.lease_until = self._lease_until
        orders = director.orders()
        self._member.order(orders)
        self._say(orders_channel(self._engine), encode(orders))

    def _say(self, channel: bytes, payload: bytes) -> None:
        posted = self._wire.post(channel, payload)
        if posted is not None:
            posted.add_done_callback(forget)

    async def _report(self, director: Director) -> None:
        """Writes the counts down from time to time."""
        while True:
            self._changed.clear()  # before the counts are read: a change during the write is written at once
            report = self._make_report(director)
            with contextlib.suppress(CoordinatorError):
                await self._coordinator.put(report_key(self._engine), encode_report(report), fence=self._lease)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_EVERY_S):
                    await self._changed.wait()

    def _make_report(self, director: Director) -> EngineReport:
        now = asyncio.get_running_loop().time()
        layers, statuses = director.configuration, director.statuses(now)
        events = sum(one.events for one in statuses)
        return EngineReport(
            instance=self._lease.token,
            configuration=layers.text,
            phase=director.phase.value,
            clients=sum(one.clients for one in statuses),
            filters=sum(one.filters for one in statuses if one.name in layers.matchers),
            in_flight=sum(one.in_flight for one in statuses),
            events=events,
            events_per_s=self._rate(events, now),
            deliveries=sum(one.deliveries for one in statuses),
            choked=sum(one.choked for one in statuses),
            changes=director.changes,
            last_change_s=director.last_change_s,
            given_up=director.given_up,
            head=self._name,
            access_points=list(layers.access_points),
            matchers=list(layers.matchers),
            exits=list(layers.exits),
            members=[MemberReport(one.name, one.cpu_s, one.filters) for one in statuses],
            load=self._measure(director, statuses, now),
        )

    def _measure(self, director: Director, statuses: list[Status], now: float) -> EngineLoad:
        head_first = sorted(statuses, key=lambda one: one.name != self._name)
        readings = {one.name: Reading(one.cpu_s, one.measures) for one in head_first}
        counts = [EventWaits().counts, *(one.waits for one in statuses if one.waits)]
        waits = [sum(each) for each in zip(*counts, strict=True)]
        layers = director.configuration
        return self._load_meter.measure((director.phase, layers), readings, waits, layers.exits, now)

    def _rate(self, events: int, now: float) -> float:
        """Events a second since the last report that is at least `REPORT_EVERY_S` older."""
        at, before, rate = self._rated
        if now - at >= REPORT_EVERY_S:
            rate = (events - before) / (now - at)
            self._rated = now, events, rate
        return round(rate, 1)

    async def _watch_wanted(self, director: Director) -> None:
        while True:
            await asyncio.sleep(WANTED_EVERY_S)
            with contextlib.suppress(CoordinatorError):
                await self._look_up_wanted(director)

    async def _look_up_wanted(self, director: Director) -> None:
        stored = await self._coordinator.get(wanted_key(self._engine))
        if stored is not None:
            try:
                director.wanted = decode_wanted(stored.value)
            except ProtocolError as error:
                _log.warning("wanted configuration ignored", engine=self._engine, why=str(error))

    # Work

    def _direct(self, director: Director) -> None:
        """Does the next step of a change of configuration."""
        now = asyncio.get_running_loop().time()
        if self._lease_until <= now:
            raise InstanceEndsError("its lease is over")
        self._hear(director)
        before = director.phase
        director.step(now)
        if director.phase is not before:
            following = director.following or director.configuration
            _log.info(
                *("engine changes its configuration",),
                engine=self._engine,
                phase=director.phase.value,
                configuration=following.text,
            )
            self._say_orders(director)
            self._changed.set()

    def _told(self, status: Status) -> None:
        """The operators of this process have shown themselves."""
        assert self.director is not None
        self.director.heard(status, asyncio.get_running_loop().time())
        self._awake.set()

    def _hear(self, director: Director) -> None:
        """Hears the operators of other processes."""
        assert self._members is not None
        now = asyncio.get_running_loop().time()
        while (item := self._members.get_nowait()) is not None:
            if isinstance(item, Message):  # a hole does no harm: a process tells its status again
                with contextlib.suppress(ProtocolError):
                    message = decode_to_head(item.payload)
                    if isinstance(message, Status) and message.name != self._name:
                        director.heard(message, now)
