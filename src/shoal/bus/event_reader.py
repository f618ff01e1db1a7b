"""Content matching on a bus: `Bus.match` and `Bus.emit`.

Owns the readers, the waiting of `emit`, and the I/O of this client's conversation with the engine. The protocol is in
`shoal.engine.client`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import msgspec

from shoal.bus.filter_names import FilterNames
from shoal.bus.subscription import BURST_ITEMS, Subscription
from shoal.bus.waiters import fail, resolve
from shoal.engine.client import (
    Arrived,
    Effect,
    EngineClient,
    EventRejected,
    FilterRefused,
    Missed,
    NotAdmitted,
    NowInForce,
    NowTaken,
)
from shoal.engine.messages import (
    MAIN,
    call_channel,
    decode_replies,
    decode_roll,
    lane_channel,
    lane_of,
    pack,
    seat_channel,
)
from shoal.errors import (
    BusClosedError,
    EngineUnavailableError,
    EventError,
    FilterError,
    FilterTooLargeError,
    PayloadTooLargeError,
    ProtocolError,
    ShoalError,
    SubscribeError,
)
from shoal.filters.events import decode_matched_event, encode_event
from shoal.filters.filter import Filter
from shoal.filters.language import parse
from shoal.logs import get_log
from shoal.message import Gap, GivenAttributes, Match, Message
from shoal.rules import Rules

if TYPE_CHECKING:
    from shoal.bus.client import Bus
    from shoal.bus.shell import BusShell

CONVERSATION_BITS: Final = 60
TICK_S: Final = 0.25
PARSED_TOGETHER: Final = 64
"""Filters that are parsed before the bus is served again."""
LETTER_ROOM: Final = 1024
"""Bytes of a letter besides the attributes and the payload of an event."""

_encode: Final = msgspec.msgpack.Encoder().encode
_log: Final = get_log(__name__)


class MatchingStatistics(msgspec.Struct, frozen=True):
    """Counts of a bus that emits or matches."""

    untaken: int
    """Events that the engine has not delivered everywhere yet."""
    waits: int
    """How often `emit` has waited because there were too many of these."""
    repeats: int
    """Events that came again after an engine began again, and were dropped."""
    unread: int
    """Messages of the engine that wait, because a reader is full."""
    filters: int = 0
    """Filters of all readers."""
    paths_held: int = 0
    """How often a new exit point was not heard before the old one had ended."""


class Matching:
    """A reader of events. `async for` yields `Match`, and `Gap` where events may be missing."""

    def __init__(self, matching: BusMatching, where: Filter | None) -> None:
        self._matching = matching
        self._where = where
        self._names = FilterNames()
        self._numbers: dict[str, int] = {}
        self._items: deque[Arrived | Gap] = deque()
        """What has come and was not taken. Names and attributes are looked up when it is taken: until then an event
        takes little memory, and its hundreds of names are still in the processor's cache when the application reads
        them."""
        self._named: deque[Match | Gap] = deque()
        """What came before those, and has its names already because filters have gone since."""
        self._bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: ShoalError | None = None
        self._opened = self._closed = False

    async def open(self) -> Self:
        """Start reading; return when the filter is in force. `async with` does this for you."""
        if self._opened or self._closed:
            raise SubscribeError("this reader was already opened, or closed", do="call match() again for a new one")
        self._opened = True
        self._matching.opened(self)
        try:
            if self._where is None:
                await self._matching.start()
            else:
                await self.add_many({str(self._where): self._where})
        except BaseException:
            await self.aclose()
            raise
        return self

    async def aclose(self) -> None:
        """End the filters; events that have arrived can still be taken."""
        self._closed = True
        self._name_all()
        self._matching.closed(self, list(self._numbers.values()))
        self._names = FilterNames()
        self._numbers.clear()
        self._wake()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # Filters

    async def add(self, name: str, where: str | Filter) -> None:
        """Add a filter under a name; returns when it is in force."""
        _check_name(name)
        await self.add_many({name: where})

    async def add_many(self, filters: Mapping[str, str | Filter]) -> None:
        """Add filters by name; returns when all are in force. Raises FilterError if one is invalid, if the engine
        refuses it, or if its name is used already; then none is added."""
        if not self._opened or self._closed:
            raise _not_open()
        parsed = await self._parse(filters)
        if self._closed:
            raise SubscribeError("this reader was closed meanwhile")
        if known := self._numbers.keys() & parsed.keys():
            raise FilterError(f"this reader has a filter {min(known)!r} already", do="remove it first")
        numbers = self._matching.add(self, parsed.values())
        added = dict(zip(parsed, numbers, strict=True))
        self._numbers.update(added)
        self._names.add(numbers, [*parsed])
        try:
            await self._matching.in_force(numbers)
        except BaseException:
            self._drop(added)
            raise
        if self._closed:
            raise SubscribeError("this reader was closed meanwhile")

    async def _parse(self, filters: Mapping[str, str | Filter]) -> dict[str, Filter]:
        """Parse filters. With many, the bus is served meanwhile."""
        if not isinstance(filters, Mapping):
            raise FilterError(
                f"filters are a mapping of names to filters, not something of type {type(filters).__name__}"
            )
        limits = self._matching.limits
        parsed: dict[str, Filter] = {}
        for name, one in filters.items():
            _check_name(name)
            parsed[name] = one if isinstance(one, Filter) else parse(one, limits)
            if not len(parsed) % PARSED_TOGETHER:
                await asyncio.sleep(0)
        return parsed

    async def remove(self, *names: str) -> None:
        """Remove filters. Raises FilterError if there is none of a name; then none is removed."""
        for name in names:
            _check_name(name)
            if name not in self._numbers:
                raise FilterError(f"this reader has no filter {name!r}")
        self._drop({name: self._numbers[name] for name in names})

    def _drop(self, filters: Mapping[str, int]) -> None:
        """Removes those of some filters that are still there; others were removed meanwhile."""
        self._name_all()
        left = {name: number for name, number in filters.items() if self._numbers.get(name) == number}
        for name, number in left.items():
            del self._numbers[name]
            self._names.drop(number)
        self._matching.remove(list(left.values()))

    @property
    def filters(self) -> list[str]:
        """The names of the filters."""
        return list(self._numbers)

    # Reading

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Match | Gap:
        if not self._opened:
            raise _not_open()
        waiting = self.waiting
        if waiting and not waiting % BURST_ITEMS:  # taking what is there never suspends: other tasks could starve
            await asyncio.sleep(0)
        while not self.waiting:
            if self._closed:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            if self._waiter is not None:
                raise SubscribeError("two tasks read one match() at the same time", do="call match() once per task")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item = self._named.popleft() if self._named else self._with_names(self._items.popleft())
        if type(item) is Match:
            self._bytes -= len(item.payload)
        if not self.is_full:
            self._matching.made_room()
        return item

    async def get(self, timeout: float | None = None) -> Match | Gap:  # noqa: ASYNC109
        """Return the next item. Raises TimeoutError after `timeout` seconds, SubscribeError after `aclose`."""
        try:
            if self.waiting:
                return await self.__anext__()
            async with asyncio.timeout(timeout):
                return await self.__anext__()
        except StopAsyncIteration:
            raise SubscribeError("this reader is closed and empty") from None

    @property
    def waiting(self) -> int:
        """Number of items that have arrived and were not taken."""
        return len(self._items) + len(self._named)

    @property
    def is_full(self) -> bool:
        """Whether the reader must take items before more are read from the engine."""
        limits = self._matching.limits
        return self.waiting >= limits.inbox_messages_max or self._bytes >= limits.inbox_bytes_max

    # Called by BusMatching

    def deliver(self, arrived: Arrived) -> None:
        """An event matches filters of this reader."""
        self._items.append(arrived)
        self._bytes += len(arrived.delivery.payload)
        self._wake()

    def _with_names(self, item: Arrived | Gap) -> Match | Gap:
        if isinstance(item, Gap):
            return item
        event, matched = item.delivery, self._names.of(item.matched)
        attributes = decode_matched_event(event.attributes) or None
        return Match("", event.payload, event.emitter, event.number, event.time_us, attributes, matched=matched)

    def _name_all(self) -> None:
        """Filters are about to be removed: looks up their names for events that have already arrived."""
        while self._items:
            self._named.append(self._with_names(self._items.popleft()))

    def missed(self, reason: str) -> None:
        """Events may be missing here, if the reader has filters."""
        if not self._numbers:
            return
        self._items.append(Gap("", None, 0, None, reason))
        self._wake()

    def fail(self, error: ShoalError) -> None:
        """Nothing more will come."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None:
            resolve(self._waiter)


def _not_open() -> SubscribeError:
    return SubscribeError("this reader is not open", do="enter it: async with bus.match(...) as events")


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise FilterError(f"the name of a filter is text, not something of type {type(name).__name__}")


class _Awaited:
    """Filters that were added together. `done` is resolved when all are in force."""

    __slots__ = ("done", "left")

    def __init__(self, count: int) -> None:
        self.left = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class BusMatching:
    """What a bus needs to emit and match: one conversation with the engine for all readers."""

    def __init__(self, bus: Bus, shell: BusShell, rules: Rules) -> None:
        self._bus = bus
        self._shell = shell
        self.limits = bus.limits
        random = bus.runtime.random
        self._core = EngineClient(bus.limits, lambda: random.getrandbits(CONVERSATION_BITS) | 1, rules)
        self._reader_of: dict[int, Matching] = {}
        """By filter; a reader may have many."""
        self._readers: dict[Matching, None] = {}
        """The readers that are open."""
        self._starting: asyncio.Task[None] | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._call: Subscription | None = None
        self._seat: Subscription | None = None
        self._client = 0
        self._waiting: deque[bytes] = deque()
        """Letters that wait for room in the publish buffer."""
        self._awaited: dict[int, _Awaited] = {}
        self._taken: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._rooms: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._flushing = False
        self._waits = 0
        self._patient: dict[asyncio.Timeout, float] = {}
        """Calls that wait for the engine, and for how long."""
        self._starts_at = 0.0
        """When an engine said last that it starts."""

    # For applications

    def reader(self, where: Filter | None) -> Matching:
        """A new reader."""
        return Matching(self, where)

    @property
    def statistics(self) -> MatchingStatistics:
        """The present counts."""
        unread = self._seat.waiting if self._seat is not None else 0
        core = self._core
        return MatchingStatistics(core.untaken, self._waits, core.repeats, unread, core.filters, core.paths_held)

    async def emit(self, attributes: GivenAttributes, payload: bytes, confirm: bool) -> int:
        """Emit an event; see `Bus.emit`."""
        encoded = encode_event(attributes, self.limits)
        if len(payload) + len(encoded) + LETTER_ROOM > self.limits.payload_bytes_max:
            raise PayloadTooLargeError(
                f"the event has {len(payload) + len(encoded)} bytes, the limit is "
                f"{max(self.limits.payload_bytes_max - LETTER_ROOM, 0)} (payload_bytes_max less {LETTER_ROOM})",
                do="store the payload elsewhere and emit a reference, or raise payload_bytes_max",
            )
        await self.start()
        while not self._core.has_room:
            self._waits += 1
            await self._wait_for_room()
        number = self._core.emit(encoded, payload, int(self._bus.runtime.wall() * 1e6))
        self._soon()
        if confirm:
            done = asyncio.get_running_loop().create_future()
            self._taken.append((number, done))
            await self._answered(done, "the event is not delivered yet; it stays with this client")
        return number

    async def _wait_for_room(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._rooms.append(waiter)
        try:
            await self._answered(waiter, "the engine has not taken earlier events, so this one was not accepted")
        finally:
            with contextlib.suppress(ValueError):  # it is gone if there was room
                self._rooms.remove(waiter)

    async def _answered(self, waiter: asyncio.Future[None], what: str) -> None:
        try:
            async with self._patience(self.limits.drain_timeout_s):
                await waiter
        except TimeoutError:
            raise self._unavailable(what) from None

    @contextlib.asynccontextmanager
    async def _patience(self, seconds: float) -> AsyncIterator[None]:
        """Raises TimeoutError if the engine does not answer in time. The time begins again whenever an engine says that
        it is starting: the first one on a machine compiles its kernels."""
        async with asyncio.timeout(seconds) as patience:
            self._patient[patience] = seconds
            try:
                yield
            finally:
                del self._patient[patience]

    def _engine_starts(self, now: float) -> None:
        if not self._starts_at:
            _log.warning("waiting for an engine that starts; the first start on a machine takes up to a minute")
        self._starts_at = now
        for patience, seconds in self._patient.items():
            if not patience.expired():
                patience.reschedule(now + seconds)

    def _unavailable(self, what: str) -> EngineUnavailableError:
        if any(reader.is_full for reader in self._readers):
            return EngineUnavailableError(
                f"the engine's answers are not read, because a reader of this bus is full: {what}",
                do="take items from the reader meanwhile, or emit with another bus",
            )
        return EngineUnavailableError(
            f"the engine does not answer: {what}",
            do="check `shoal engine status`; a cluster of `shoal up` starts its engine at the first use, unless it was "
            "started with --no-engine; elsewhere `shoal engine run` does",
        )

    # For readers

    def add(self, reader: Matching, filters: Iterable[Filter]) -> list[int]:
        """Add filters of a reader; returns their numbers."""
        numbers = self._core.add(map(self._wire_of, filters))
        for number in numbers:
            self._reader_of[number] = reader
        return numbers

    def _wire_of(self, one: Filter) -> bytes:
        """A filter as it is sent. One that was made with other limits may not fit a letter."""
        wire = _encode(one)
        most = self.limits.engine_letter_bytes_max
        if len(wire) > most:
            raise FilterTooLargeError(f"the filter takes {len(wire)} bytes, more than engine_letter_bytes_max={most}")
        return wire

    async def in_force(self, numbers: list[int]) -> None:
        """Wait until filters are in force."""
        if not numbers:
            return
        awaited = _Awaited(len(numbers))
        self._awaited.update(dict.fromkeys(numbers, awaited))
        try:
            async with self._patience(self.limits.subscribe_timeout_s):
                await self.start()
                self._soon()
                await awaited.done
        except TimeoutError:
            raise self._unavailable("no filter is in force") from None
        finally:
            for number in numbers:
                self._awaited.pop(number, None)

    def opened(self, reader: Matching) -> None:
        """A reader begins."""
        self._readers[reader] = None

    def closed(self, reader: Matching, numbers: list[int]) -> None:
        """A reader ends, with its filters."""
        self._readers.pop(reader, None)
        self.remove(numbers)
        self.made_room()

    def remove(self, numbers: list[int]) -> None:
        """Remove filters."""
        for number in numbers:
            self._reader_of.pop(number, None)
        self._no_longer_awaited(numbers)
        if numbers and not self._closed:
            self._core.remove(numbers)
            self._soon()

    def made_room(self) -> None:
        """A reader has taken something: continue reading."""
        if self._seat is not None and self._seat.waiting:
            self._soon()

    # The conversation

    async def start(self) -> None:
        """Subscribe to what the engine says, once."""
        if self._closed:
            raise BusClosedError()
        starting = self._starting
        if starting is None or (starting.done() and not starting.cancelled() and starting.exception() is not None):
            starting = self._starting = asyncio.create_task(self._start(), name="matching")
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if starting.cancelled() and not (caller is not None and caller.cancelling()):
                raise BusClosedError() from None  # only the end of the bus cancels it
            raise

    async def _start(self) -> None:
        """Does what is left to do: an attempt before may have failed halfway."""
        if self._call is None:
            self._call = await self._bus.listen(call_channel(MAIN), self._soon)
        await self._sit_down()
        self._ticking = asyncio.create_task(self._tick(), name="engine client")
        self._core.hello(asyncio.get_running_loop().time())
        self._soon()

    async def _sit_down(self) -> None:
        """Subscribe to the channel of this client's seat."""
        client = self._bus.client_id
        seat = await self._bus.listen(seat_channel(MAIN, client), self._soon)
        before, self._seat, self._client = self._seat, seat, client
        if before is not None:
            await before.aclose()

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._closed:
            await asyncio.sleep(TICK_S)
            if self._bus.client_id != self._client:
                with contextlib.suppress(ShoalError):
                    await self._sit_down()
                    self._core.missed("this client has another identity", loop.time())
            if not self._waiting:
                self._core.tick(loop.time())
            self._soon()

    def _soon(self) -> None:
        """Work in the next turn of the loop."""
        if not self._flushing and self._seat is not None:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._flushing = False
        if self._closed or self._bus.closed:
            return
        self._read()
        self._execute()
        self._send()

    def _read(self) -> None:
        now = asyncio.get_running_loop().time()
        assert self._seat is not None
        while self._call is not None and (item := self._call.get_nowait()) is not None:
            if isinstance(item, Message):
                with contextlib.suppress(ProtocolError):
                    roll = decode_roll(item.payload)
                    if not roll.instance and not self._core.is_open:
                        self._engine_starts(now)
                    self._core.called(roll, now)
        while not any(reader.is_full for reader in self._readers):
            item = self._seat.get_nowait()
            if item is None:
                break
            if isinstance(item, Message):
                with contextlib.suppress(ProtocolError):
                    self._core.received(decode_replies(item.payload), now, item.publisher)
            elif isinstance(item, Gap):
                self._core.missed(item.reason, now)
            self._execute()

    def _send(self) -> None:
        lane = lane_channel(MAIN, lane_of(self._client))
        while self._waiting or self._take_letters():
            posted = self._bus.post(lane, self._waiting[0])
            if posted is None:
                asyncio.get_running_loop().call_later(TICK_S, self._soon)
                return
            posted.add_done_callback(_ignore)
            self._waiting.popleft()

    def _take_letters(self) -> bool:
        """Takes the next letters of the conversation, once all earlier ones are posted. Letters that a conversation has
        not sent are dropped when another one begins, so their room is bounded while there is no server."""
        self._waiting += self._core.take_letters(asyncio.get_running_loop().time())
        return bool(self._waiting)

    def _execute(self) -> None:
        effects, self._core.effects = self._core.effects, []
        for effect in effects:
            self._act(effect)
        while self._rooms and self._core.has_room:
            resolve(self._rooms.popleft())

    def _act(self, effect: Effect) -> None:
        if isinstance(effect, Arrived):
            if len(self._readers) == 1:  # all filters are its own
                next(iter(self._readers)).deliver(effect)
                return
            by_reader: dict[Matching, list[int]] = {}
            for number in effect.numbers:
                if (found := self._reader_of.get(number)) is not None:
                    by_reader.setdefault(found, []).append(number)
            for reader, numbers in by_reader.items():
                reader.deliver(Arrived(effect.delivery, pack(numbers)))
        elif isinstance(effect, NowTaken):
            while self._taken and self._taken[0][0] <= effect.number:
                resolve(self._taken.popleft()[1])
        elif isinstance(effect, NowInForce):
            self._no_longer_awaited(effect.numbers)
        elif isinstance(effect, FilterRefused):
            self._refuse(effect)
        elif isinstance(effect, Missed):
            for reader in self._readers:
                reader.missed(effect.reason)
        elif isinstance(effect, EventRejected):
            self._reject(effect)
        elif isinstance(effect, NotAdmitted):
            self._fail_waiting(EngineUnavailableError(f"the engine refuses this client: {effect.reason}"))

    def _no_longer_awaited(self, numbers: Iterable[int]) -> None:
        """Filters are in force, or were removed before they were."""
        for number in numbers:
            if (awaited := self._awaited.pop(number, None)) is not None:
                awaited.left -= 1
                if not awaited.left:
                    resolve(awaited.done)

    def _refuse(self, effect: FilterRefused) -> None:
        """The engine refuses a filter. One that was in force may be refused by the next instance, if others have taken
        its room: then its reader ends with the error."""
        error = FilterError(f"the engine refuses the filter: {effect.reason}")
        reader = self._reader_of.pop(effect.number, None)
        if (awaited := self._awaited.pop(effect.number, None)) is not None:
            fail(awaited.done, error)
        elif reader is not None:
            reader.fail(error)

    def _fail_waiting(self, error: ShoalError) -> None:
        """Calls that wait for the engine raise an error."""
        waiting = [one.done for one in dict.fromkeys(self._awaited.values())]
        for waiter in [*waiting, *self._rooms, *(done for _, done in self._taken)]:
            fail(waiter, error)

    def _reject(self, effect: EventRejected) -> None:
        _log.warning("event rejected by the engine", number=effect.number, reason=effect.reason)
        for number, done in self._taken:
            if number == effect.number and not done.done():
                done.set_exception(EventError(effect.reason))

    # Closing

    async def drain(self) -> None:
        """Wait until the engine has taken every event."""
        began = asyncio.get_running_loop().time()
        while self._core.untaken:
            since = max(began, self._starts_at)
            if asyncio.get_running_loop().time() >= since + self.limits.drain_timeout_s:
                left = self._core.untaken
                raise self._unavailable(
                    f"{left} event{'s' * (left > 1)} not delivered within drain_timeout_s, and lost"
                )
            await asyncio.sleep(0.005)

    async def aclose(self) -> None:
        """Leave the engine."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._seat is not None and not self._bus.closed:
            self._core.close()
            self._send()
        self._closed = True
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        error = BusClosedError("the bus was closed; its match() ended with it")
        for reader in self._readers:
            reader.fail(error)
        self._fail_waiting(BusClosedError())


def _ignore(done: asyncio.Future[int]) -> None:
    """A letter is sent again if the engine has not heard it, so its confirmation does not matter."""
    if not done.cancelled():
        done.exception()
