"""Runs the matcher and the exit point of a process that does not have the access point.

Owns the I/O of a member: it follows the orders of the instance that is in force, hears the fan and its own channel, and
shows several times a second that it lives.

    idle --orders name it--> listens to the fan and its own channel --> joined --orders do not name it--> idle
    any  --orders of a newer instance--> begins again
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from shoal.engine.links import (
    TURN_MAX,
    Batch,
    Orders,
    Settled,
    Status,
    ToMember,
    decode_batch,
    decode_orders,
    decode_to_member,
    encode,
    fan_channel,
    head_channel,
    member_channel,
    orders_channel,
)
from shoal.engine.measures import Meter
from shoal.engine.operators import Operators
from shoal.engine.outbox import Listening, Outbox, Wire
from shoal.errors import ProtocolError, ShoalError
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.message import Gap, Message
from shoal.rules import ALL_RULES, Rules
from shoal.runtime import TIMER_GRAIN_S

STATUS_EVERY_S: Final = 0.2
"""How often a process shows that it lives."""

_M = TypeVar("_M", Batch, ToMember)
_log: Final = get_log(__name__)


class MemberShell:
    """One process, as a member of whatever instance is in force. While `leads`, it does nothing: then the process has
    the access point."""

    def __init__(
        self,
        engine: str,
        name: str,
        wire: Wire,
        limits: Limits,
        rules: Rules = ALL_RULES,
        cpu_s: Callable[[], float] = time.process_time,
        meter: Meter | None = None,
    ) -> None:
        self._meter = meter or Meter()
        self._engine = engine
        self._cpu_s = cpu_s
        self._name = name
        self._wire = wire
        self._limits = limits
        self._rules = rules
        self.leads = False
        self._orders: Orders | None = None
        self.operators: Operators | None = None
        self._outbox: Outbox | None = None
        self._fan: Listening | None = None
        self._own: Listening | None = None
        self._joined = 0
        self._settled = 0
        self._awake = asyncio.Event()

    async def run(self) -> None:
        """Follows the orders until it is cancelled."""
        orders = await self._wire.listen(orders_channel(self._engine), self._awake.set)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._show())
                while True:
                    self._awake.clear()
                    await self._follow(orders)
                    if self._turn():
                        await asyncio.sleep(0)
                        continue
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.1 + TIMER_GRAIN_S):
                            await self._awake.wait()
        finally:
            await self._leave()
            with contextlib.suppress(ShoalError):
                await orders.aclose()

    # Orders

    async def _follow(self, listening: Listening) -> None:
        newest: Orders | None = None
        while (item := listening.get_nowait()) is not None:
            if isinstance(item, Message):
                with contextlib.suppress(ProtocolError):
                    orders = decode_orders(item.payload)
                    if newest is None or orders.instance >= newest.instance:
                        newest = orders
        if self.leads:
            await self._leave()
        elif newest is not None and (self._orders is None or newest.instance >= self._orders.instance):
            await self._obey(newest)

    async def _obey(self, orders: Orders) -> None:
        if self.operators is not None and self.operators.instance != orders.instance:
            await self._leave()
        self._orders = orders
        following = orders.next
        wanted = self._name in orders.configuration.members or (
            following is not None and self._name in following.members
        )
        if not wanted:
            await self._leave()
            return
        if self.operators is None:
            try:
                await self._join(orders)
            except ShoalError as error:
                _log.warning("process cannot join the engine", engine=self._engine, why=str(error))
                await self._leave()
                return
        assert self.operators is not None
        self.operators.arrange(orders.configuration, following)
        joined = orders.configuration.number if following is None else following.number
        if joined != self._joined:
            self._joined = joined
            self._post_status()

    async def _join(self, orders: Orders) -> None:
        self._own = await self._wire.listen(member_channel(self._engine, self._name), self._awake.set)
        self._fan = await self._wire.listen(fan_channel(self._engine), self._awake.set)
        operators = Operators(
            *(self._name, orders.instance, orders.configuration, self._limits, self._rules, orders.next, self._meter)
        )
        self.operators = operators
        confirmed = self._confirmation(operators)
        self._outbox = Outbox(self._engine, self._wire, confirmed, self._awake.set, self._meter)
        _log.info("process joins the engine", engine=self._engine, instance=orders.instance, name=self._name)

    def _confirmation(self, operators: Operators) -> Callable[[int], None]:
        def confirmed(group: int) -> None:
            assert operators.exit_point is not None
            operators.exit_point.confirmed(group)

        return confirmed

    async def _leave(self) -> None:
        listening = [one for one in (self._fan, self._own) if one is not None]
        self._fan = self._own = None
        self.operators = self._outbox = None
        self._joined = self._settled = 0
        for one in listening:
            with contextlib.suppress(ShoalError):
                await one.aclose()

    # Work

    def _turn(self) -> bool:
        """Does what there is to do; returns whether there is more."""
        operators, outbox = self.operators, self._outbox
        if operators is None or outbox is None:
            return False
        if len(outbox):
            outbox.post()
            return False
        ready = operators.ready
        meter, now = self._meter, asyncio.get_running_loop().time
        began = now()
        meter.begin()
        self._read(operators)
        operators.work()
        outbox.letters(operators.flush())
        links, operators.links = operators.links, []
        outbox.links(links)
        meter.end(now() - began)
        settled = operators.settled()
        if settled:
            self._settled = settled
            outbox.head(Settled(self._name, operators.instance, settled))
        outbox.post()
        if operators.ready != ready or operators.failed:
            self._post_status()
        return operators.is_busy

    def _read(self, operators: Operators) -> None:
        for told in self._messages(self._own, decode_to_member, operators):
            operators.received(told)
        left = TURN_MAX
        for batch in self._messages(self._fan, decode_batch, operators):
            operators.heard(batch)
            left -= batch.work
            if left <= 0:
                self._awake.set()
                break

    def _messages(
        self, listening: Listening | None, decode: Callable[[bytes], _M], operators: Operators
    ) -> Iterator[_M]:
        """What was said in this instance."""
        assert listening is not None, "a process with operators listens"
        while (item := listening.get_nowait()) is not None:
            if isinstance(item, Gap):
                operators.missed(f"a part of what it was told is lost: {item.reason}")
            elif isinstance(item, Message):
                try:
                    message = decode(item.payload)
                except ProtocolError as error:
                    _log.warning("message ignored", engine=self._engine, why=str(error))
                    continue
                if message.instance == operators.instance:
                    yield message

    async def _show(self) -> None:
        """Shows that the process lives."""
        while True:
            if not self.leads:
                self._post_status()
            await asyncio.sleep(STATUS_EVERY_S)

    def _post_status(self) -> None:
        operators = self.operators
        if operators is None:
            status = Status(self._name, cpu_s=self._cpu_s(), measures=self._meter.read())
        else:
            refused = self._outbox.failed if self._outbox is not None else ""
            status = Status(
                self._name,
                operators.instance,
                self._joined,
                operators.ready,
                self._settled,
                operators.failed or refused,
                0 if operators.matcher is None else len(operators.matcher),
                self._cpu_s(),
                self._meter.read(),
            )
        posted = self._wire.post(head_channel(self._engine), encode(status))
        if posted is not None:
            posted.add_done_callback(forget)


def forget(done: asyncio.Future[int]) -> None:
    """It is said again soon, so it does not matter whether this time was confirmed."""
    if not done.cancelled():
        done.exception()
