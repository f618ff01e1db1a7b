"""Runs an engine on a bus: its lease, its lanes, its letters and its roll.

Owns the I/O of one process of an engine. It makes no decision about events; it only adds the order of its start:

    standby --lease taken, predecessor read--> lanes subscribed --> roll --written down that it serves--> serves
    any     --lease not renewed in time-----------------------------------------------------------------> standby
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from shoal.coordination.interface import Coordinator, Lease
from shoal.engine.engine import Engine, EngineStatus
from shoal.engine.engine_report import EngineReport, encode_report, lease_name, report_key, serving_key, standby_name
from shoal.engine.exit_point import Post
from shoal.engine.messages import LANES, call_channel, decode_letter, encode, lane_channel, seat_channel
from shoal.errors import ConnectError, CoordinatorError, NotConfirmedError, ProtocolError, ShoalError
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.message import Gap, Item, Message
from shoal.rules import ALL_RULES, Rules
from shoal.runtime import TIMER_GRAIN_S

ROLL_EVERY_S: Final = 0.5
"""How often all clients are told which instance is in force."""
REPORT_EVERY_S: Final = 1.0
RENEWALS: Final = 5
"""How often a lease is extended in the time for which it is given, and how often an engine that stands by tries to take
it over."""
READ_BYTES_MAX: Final = 1 << 20
"""Letters that are read in one turn."""
CLOCK_SHARE: Final = 0.1
"""The share of a lease that is given up, because clocks do not run equally fast."""

_log: Final = get_log(__name__)


class Listening(Protocol):
    """A subscription to one of Shoal's own channels."""

    def get_nowait(self) -> Item | None:
        """Return the next item if there is one."""

    async def aclose(self) -> None:
        """End it."""


class Wire(Protocol):
    """The bus, as an engine uses it."""

    def post(self, channel: bytes, payload: bytes) -> asyncio.Future[int] | None:
        """Publish; return a future for the confirmation, or None while the buffer is full."""

    async def listen(self, channel: bytes, heard: Callable[[], None]) -> Listening:
        """Subscribe; `heard` is called when there are new items."""


class EngineShell:
    """One process of an engine: it serves while it holds the lease, and stands by otherwise."""

    def __init__(
        self, name: str, wire: Wire, coordinator: Coordinator, holder: str, limits: Limits, rules: Rules = ALL_RULES
    ) -> None:
        self._name = name
        self._wire = wire
        self._coordinator = coordinator
        self._holder = holder
        self._limits = limits
        self._rules = rules
        self._served = 0
        """How often this process has served. It is a part of the holder of the lease, so each time is another instance:
        a holder that takes a lease again gets the same token, and clients would not present their filters again."""
        self._lease: Lease | None = None
        self._core: Engine | None = None
        self._lanes: list[Listening] = []
        self._backlog: deque[Post] = deque()
        self._awake = asyncio.Event()
        self._failed: ShoalError | None = None

    @property
    def status(self) -> EngineStatus | None:
        """The counts of the instance that serves; None on standby."""
        return None if self._core is None else self._core.status()

    def abandon_lease(self) -> None:
        """The end of `run` does not release the lease, as if the process had been killed. For tests."""
        self._lease = None

    async def run(self) -> None:
        """Serves or stands by until it is cancelled."""
        while True:
            with contextlib.suppress(CoordinatorError):
                await self._take_lease()
            if self._lease is None:
                await asyncio.sleep(self._limits.engine_lease_s / RENEWALS / 2)
                continue
            try:
                await self._serve(self._lease)
            except* ShoalError as errors:
                why = "; ".join(str(error) for error in errors.exceptions)
                _log.warning("engine stops serving", engine=self._name, why=why)
            finally:
                await self._end()

    async def _take_lease(self) -> None:
        self._asked_at = asyncio.get_running_loop().time()
        take, ttl_s = self._coordinator.acquire, self._limits.engine_lease_s
        self._lease = await take(lease_name(self._name), f"{self._holder}/{self._served}", ttl_s)
        if self._lease is None:
            await take(standby_name(self._name, self._holder), self._holder, ttl_s)

    async def _serve(self, lease: Lease) -> None:
        key = serving_key(self._name)
        stored = await self._coordinator.get(key)
        predecessor = 0 if stored is None else int(stored.value)
        loop = asyncio.get_running_loop()
        core = self._core = Engine(lease.token, predecessor, self._limits, loop.time(), self._rules)
        core.lease_until = self._asked_at + lease.ttl_s * (1 - CLOCK_SHARE)
        self._failed = None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_lease(core, lease))
            async with asyncio.TaskGroup() as lanes:
                for lane in range(LANES):
                    lanes.create_task(self._listen(lane))
            core.begin_roll(loop.time())
            _log.info("engine calls the roll", engine=self._name, instance=core.instance, predecessor=predecessor)
            group.create_task(self._call(core))
            group.create_task(self._work(core))
            while not core.wants_to_serve:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await self._coordinator.put(key, b"%d" % core.instance, fence=lease)
            core.serve()
            self._awake.set()
            group.create_task(self._report(core, lease))
            _log.info("engine serves", engine=self._name, instance=core.instance, clients=core.status().clients)

    async def _listen(self, lane: int) -> None:
        self._lanes.append(await self._wire.listen(lane_channel(self._name, lane), self._awake.set))

    async def _end(self) -> None:
        lanes, self._lanes, self._core = self._lanes, [], None
        lease, self._lease = self._lease, None
        self._served += 1
        self._backlog.clear()
        if lease is not None:
            with contextlib.suppress(CoordinatorError):
                await self._coordinator.release(lease)
        for lane in lanes:
            await lane.aclose()

    async def _keep_lease(self, core: Engine, lease: Lease) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._limits.engine_lease_s / RENEWALS)
            asked_at = loop.time()
            held = True
            with contextlib.suppress(CoordinatorError):
                held = await self._coordinator.renew(lease)
                if held:
                    core.lease_until = asked_at + lease.ttl_s * (1 - CLOCK_SHARE)
            if not held or loop.time() >= core.lease_until:
                raise _NotServingError("its lease is over")

    async def _call(self, core: Engine) -> None:
        """Tells all clients which instance is in force."""
        while True:
            posted = self._wire.post(call_channel(self._name), encode(core.roll()))
            if posted is not None:
                posted.add_done_callback(_forget)
            await asyncio.sleep(ROLL_EVERY_S)

    async def _report(self, core: Engine, lease: Lease) -> None:
        """Writes the counts down from time to time."""
        while True:
            status = core.status()
            report = EngineReport(**{name: getattr(status, name) for name in EngineReport.__struct_fields__})
            with contextlib.suppress(CoordinatorError):
                await self._coordinator.put(report_key(self._name), encode_report(report), fence=lease)
            await asyncio.sleep(REPORT_EVERY_S)

    # Work

    async def _work(self, core: Engine) -> None:
        """Takes turns: when letters have come or were confirmed, and from time to time."""
        loop = asyncio.get_running_loop()
        while True:
            self._awake.clear()
            if self._failed is not None:
                raise self._failed
            if not self._backlog:
                if not core.has_work:
                    self._read(core)
                self._backlog += core.turn(loop.time())
            while self._backlog and self._post(core, self._backlog[0]):
                self._backlog.popleft()
            if core.lease_until <= loop.time():
                raise _NotServingError("its lease is over")
            if core.has_work and not self._backlog:
                await asyncio.sleep(0)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01 if self._backlog else 0.1 + TIMER_GRAIN_S):
                    await self._awake.wait()

    def _read(self, core: Engine) -> None:
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

    def _post(self, core: Engine, post: Post) -> bool:
        confirmation = self._wire.post(seat_channel(self._name, post.client), post.payload)
        if confirmation is None:
            return False
        confirmation.add_done_callback(lambda done: self._confirmed(core, post.group, done))
        return True

    def _confirmed(self, core: Engine, group: int, done: asyncio.Future[int]) -> None:
        """A letter was confirmed. If it was refused, its events are not delivered: the instance ends, and the next one
        gets them from their emitters again."""
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            core.confirmed(group)
        elif isinstance(error, ShoalError):
            self._failed = error if isinstance(error, NotConfirmedError) else _NotServingError(str(error))
        self._awake.set()


class _NotServingError(ConnectError):
    """The instance must not act any more."""


def _forget(done: asyncio.Future[int]) -> None:
    """The roll is called again soon, so it does not matter whether this time was confirmed."""
    if not done.cancelled():
        done.exception()
