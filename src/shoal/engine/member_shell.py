"""Runs the operators of a process in whatever instance is in force.

Owns their I/O: it follows the orders of the head, listens to lanes, fans and its own channel, posts letters, and shows
several times a second that it lives.

    idle --orders name it--> listens to what its operators need --> joined --orders do not name it--> idle
    any  --orders of a newer instance--> begins again
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from shoal.engine.configuration import Configuration
from shoal.engine.links import (
    TURN_MAX,
    Batch,
    Orders,
    Status,
    ToMember,
    decode_batch,
    decode_orders,
    decode_to_head,
    decode_to_member,
    encode,
    fan_channel,
    head_channel,
    member_channel,
    orders_channel,
)
from shoal.engine.measures import Meter
from shoal.engine.messages import decode_letter, lane_channel, lane_of
from shoal.engine.operators import Operators
from shoal.engine.outbox import Listening, Outbox, Wire
from shoal.errors import ProtocolError, ShoalError
from shoal.filters.index.background import Background
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.message import Gap, Message, Retraction
from shoal.rules import Rules
from shoal.runtime import TIMER_GRAIN_S

STATUS_EVERY_S: Final = 0.2
"""How often a process shows that it lives."""
READ_BYTES_MAX: Final = 1 << 20
"""Letters that are read in one turn."""
READ_ITEMS_MAX: Final = 8192
"""Items of these letters, or little more: small ones take more time than bytes."""
LETTERS_TOLD_S: Final = 1.0
"""How often the log tells of letters that cannot be read."""

_M = TypeVar("_M", Batch, ToMember)
_log: Final = get_log(__name__)


class MemberShell:
    """One process. `told` is called with its status, for a head in the same process."""

    def __init__(
        self,
        engine: str,
        name: str,
        wire: Wire,
        limits: Limits,
        rules: Rules,
        cpu_s: Callable[[], float],
        meter: Meter,
        background: Background,
    ) -> None:
        self._meter = meter
        self._background = background
        self._engine = engine
        self._cpu_s = cpu_s
        self._name = name
        self._wire = wire
        self._limits = limits
        self._rules = rules
        self.told: Callable[[Status], None] | None = None
        self._orders: Orders | None = None
        self.operators: Operators | None = None
        self._outbox: Outbox | None = None
        self._listening: dict[bytes, Listening] = {}
        """What the operators hear, by channel."""
        self._lanes: list[int] = []
        """The lanes that are heard; each is read first at times."""
        self._letters_ignored = 0
        self._letters_told_at = -LETTERS_TOLD_S
        self._joined = 0
        self._shown: tuple[int | str, ...] = ()
        """What the head waits for, as it was last told."""
        self._ordered = asyncio.Event()
        self._awake = asyncio.Event()

    def order(self, orders: Orders) -> None:
        """Orders of the head. Older ones are ignored: a head in the same process also orders directly, and what it has
        published before arrives later."""
        if self._orders is None or orders.newness >= self._orders.newness:
            self._orders = orders
            self._ordered.set()

    async def run(self) -> None:
        """Follows the orders until it is cancelled."""
        orders = await self._wire.listen(orders_channel(self._engine), self._ordered.set)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._show())
                group.create_task(self._follow(orders))
                group.create_task(self._work())
        finally:
            await self._leave()
            with contextlib.suppress(ShoalError):
                await orders.aclose()

    # Orders

    async def _follow(self, listening: Listening) -> None:
        obeyed: Orders | None = None
        while True:
            self._ordered.clear()
            while (item := listening.get_nowait()) is not None:
                if isinstance(item, Message):
                    with contextlib.suppress(ProtocolError):
                        self.order(decode_orders(item.payload))
            if self._orders is not None and self._orders is not obeyed:
                obeyed = self._orders
                await self._obey(obeyed)
            else:
                await self._ordered.wait()

    async def _obey(self, orders: Orders) -> None:
        configurations = [one for one in (orders.configuration, orders.next) if one is not None]
        named = any(self._name in one.members for one in configurations)
        if not named or (self.operators is not None and self.operators.instance != orders.instance):
            await self._leave()
        if not named:
            return
        wanted, lanes = self._channels(configurations)
        try:
            async with asyncio.TaskGroup() as group:
                for channel in sorted(wanted - self._listening.keys()):
                    group.create_task(self._listen(channel))
        except* ShoalError as errors:
            _log.warning("process cannot join the engine", engine=self._engine, why=str(errors.exceptions[0]))
        if not wanted <= self._listening.keys():
            await self._leave()
            return
        now = asyncio.get_running_loop().time()
        operators = self.operators
        if operators is None:
            operators = self.operators = Operators(
                *(self._name, orders, self._limits, now, self._rules, self._meter, self._background)
            )
            self._outbox = Outbox(self._engine, self._wire, operators.confirmed, self._awake.set, self._meter)
            _log.info("process joins the engine", engine=self._engine, instance=orders.instance, name=self._name)
        else:
            operators.arrange(orders, now)
        stamp, lease_s = orders.leases.get(self._name, (0.0, 0.0))
        operators.lease_until = max(operators.lease_until, stamp + lease_s)
        self._joined = configurations[-1].number
        if set(self._lanes) != lanes:
            self._lanes = sorted(lanes)
        self._awake.set()
        for channel in sorted(self._listening.keys() - wanted):
            await self._listening.pop(channel).aclose()

    def _channels(self, configurations: list[Configuration]) -> tuple[set[bytes], set[int]]:
        """What the operators of these configurations hear, and the lanes among it."""
        name, engine = self._name, self._engine
        points = {point for one in configurations for point in one.access_points}
        wanted = {member_channel(engine, name), *(fan_channel(engine, point) for point in points - {name})}
        lanes = {lane for one in configurations for lane in one.lanes_of(name)}
        if lanes:
            wanted.add(head_channel(engine))
            wanted.update(lane_channel(engine, lane) for lane in lanes)
        return wanted, lanes

    async def _listen(self, channel: bytes) -> None:
        self._listening[channel] = await self._wire.listen(channel, self._awake.set)

    async def _leave(self) -> None:
        listening, self._listening = self._listening, {}
        self.operators = self._outbox = None
        self._joined, self._shown = 0, ()
        for one in listening.values():
            with contextlib.suppress(ShoalError):
                await one.aclose()

    # Work

    async def _work(self) -> None:
        """Takes turns: when something has come or was confirmed, and from time to time."""
        while True:
            self._awake.clear()
            if self._turn():
                await asyncio.sleep(0)
                continue
            waits = bool(self._outbox) or (self.operators is not None and self.operators.is_waiting)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01 if waits else 0.1 + TIMER_GRAIN_S):
                    await self._awake.wait()

    def _turn(self) -> bool:
        """Does what there is to do; returns whether there is more."""
        operators, outbox = self.operators, self._outbox
        if operators is None or outbox is None:
            return False
        if len(outbox):
            outbox.post()
            return False
        meter, now = self._meter, asyncio.get_running_loop().time
        began = now()
        meter.begin()
        self._read(operators)
        letters = operators.turn(now())
        fan, links = operators.take_links()
        outbox.fan(fan)
        outbox.links(links)
        outbox.letters(letters)
        meter.end(now() - began)
        settled = operators.take_settled()
        if settled is not None and operators.has_others:
            outbox.head(settled)
        outbox.post()
        self._say_if_awaited()
        return operators.is_busy and not len(outbox)

    def _read(self, operators: Operators) -> None:
        own = member_channel(self._engine, self._name)
        for told in self._messages(own, decode_to_member, operators):
            operators.told(told)
        self._read_lanes(operators)
        self._read_settled(operators)
        left = TURN_MAX
        for source in operators.sources:
            for batch in self._messages(fan_channel(self._engine, source), decode_batch, operators):
                operators.heard(batch)
                left -= batch.work
                if left <= 0:
                    self._awake.set()
                    return

    def _ignore_letter(self, client: int, error: ProtocolError) -> None:
        """Any client can send any number of letters that cannot be read: the log tells of one a second."""
        self._letters_ignored += 1
        now = asyncio.get_running_loop().time()
        if now >= self._letters_told_at + LETTERS_TOLD_S:
            _log.warning("letters ignored", count=self._letters_ignored, client=f"{client:012x}", why=str(error))
            self._letters_ignored, self._letters_told_at = 0, now

    def _read_lanes(self, operators: Operators) -> None:
        """Takes what clients have sent, up to `READ_BYTES_MAX` and `READ_ITEMS_MAX`. The rest waits."""
        size = items = 0
        active = operators.lanes
        for lane in self._lanes:
            listening = self._listening.get(lane_channel(self._engine, lane)) if lane in active else None
            while listening is not None and size < READ_BYTES_MAX and items < READ_ITEMS_MAX:
                item = listening.get_nowait()
                if item is None:
                    break
                items += 1
                if isinstance(item, Message):
                    size += len(item.payload)
                    if lane_of(item.publisher) != lane:  # its conversation would outlive the access point of its lane
                        continue
                    try:
                        letter = decode_letter(item.payload)
                        items += len(letter.items)
                        operators.received(item.publisher, letter, item.sequence)
                    except ProtocolError as error:
                        self._ignore_letter(item.publisher, error)
                elif isinstance(item, Retraction):
                    operators.false_letter(item.publisher)
                elif item.publisher:  # a gap without one tells of publishers that have died
                    operators.missed_letter(item.publisher)
        if size >= READ_BYTES_MAX or items >= READ_ITEMS_MAX:
            self._lanes.append(self._lanes.pop(0))
            self._awake.set()

    def _read_settled(self, operators: Operators) -> None:
        listening = self._listening.get(head_channel(self._engine))
        while listening is not None and (item := listening.get_nowait()) is not None:
            if isinstance(item, Message):  # a hole does no harm: a process tells its status again
                with contextlib.suppress(ProtocolError):
                    settled = decode_to_head(item.payload)
                    if settled.name != self._name:
                        operators.has_settled(settled)

    def _messages(self, channel: bytes, decode: Callable[[bytes], _M], operators: Operators) -> Iterator[_M]:
        """What was said in this instance."""
        listening = self._listening.get(channel)
        while listening is not None and (item := listening.get_nowait()) is not None:
            if isinstance(item, Gap):
                operators.missed(f"a part of what it was told is lost: {item.reason}")
            elif isinstance(item, Message):
                try:
                    message = decode(item.payload)
                except ProtocolError as error:
                    _log.warning("message ignored", engine=self._engine, why=str(error))
                    continue
                if operators.is_of_this(message.instance):
                    yield message

    # Status

    async def _show(self) -> None:
        """Shows that the process lives."""
        while True:
            self._say_status()
            await asyncio.sleep(STATUS_EVERY_S)

    def _say_if_awaited(self) -> None:
        """Tells the head at once what it may wait for."""
        operators, outbox = self.operators, self._outbox
        if operators is not None and outbox is not None:
            awaited = (self._joined, *operators.progress, operators.failed or outbox.failed)
            if awaited != self._shown:
                self._shown = awaited
                self._say_status()

    def _say_status(self) -> None:
        now = asyncio.get_running_loop().time()
        operators, outbox = self.operators, self._outbox
        if operators is None or outbox is None:
            status = Status(self._name, stamp=now, cpu_s=self._cpu_s(), measures=self._meter.read())
        else:
            status = operators.status(self._joined, now, self._cpu_s(), outbox.failed)
        if self.told is not None:
            self.told(status)
            if operators is None or not operators.has_others:
                return
        posted = self._wire.post(head_channel(self._engine), encode(status))
        if posted is not None:
            posted.add_done_callback(forget)


def forget(done: asyncio.Future[int]) -> None:
    """It is said again soon, so it does not matter whether this time was confirmed."""
    if not done.cancelled():
        done.exception()
