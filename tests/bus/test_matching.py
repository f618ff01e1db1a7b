"""The readers of a bus: filters that are removed early, calls that wait for the engine, and an engine that starts."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from shoal.bus.event_reader import TICK_S, BusMatching
from shoal.engine import messages
from shoal.engine.messages import FromClient, InForce, Open, Remove, Roll, Welcome, decode_letter
from shoal.errors import BusClosedError, EngineUnavailableError, FilterError, FilterTooLargeError, SubscribeError
from shoal.filters import encode_event, parse
from shoal.limits import DEFAULT_LIMITS
from shoal.message import Message
from shoal.rules import ALL_RULES

CLIENT = 7
WAIT_S = 0.3
LIMITS = msgspec.structs.replace(
    DEFAULT_LIMITS, subscribe_timeout_s=WAIT_S, drain_timeout_s=WAIT_S, inbox_messages_max=100
)


class Heard:
    """A subscription to one of Shoal's own channels."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._items: deque[Message] = deque()
        self._wake = wake

    @property
    def waiting(self) -> int:
        return len(self._items)

    def say(self, payload: bytes) -> None:
        self._items.append(Message("", payload, 1, 1, 0))
        self._wake()

    def get_nowait(self) -> Message | None:
        return self._items.popleft() if self._items else None


class Site:
    """A bus without servers, whose engine says what the test says."""

    def __init__(self) -> None:
        self.limits = LIMITS
        self.runtime = SimpleNamespace(random=Random(1), wall=lambda: 1.0)
        self.client_id = CLIENT
        self.closed = False
        self.heard: dict[bytes, Heard] = {}
        self.said: list[FromClient] = []
        self.has_room = True
        """Whether letters can be posted."""
        self.conversation = 0
        self.answers = True
        """Whether subscriptions come into force."""
        self.failing = b""
        """A channel to which subscriptions fail."""
        self.listened: Counter[bytes] = Counter()
        bus: Any = self
        self.matching = BusMatching(bus, bus, ALL_RULES)

    async def listen(self, channel: bytes, wake: Callable[[], None]) -> Heard:
        self.listened[channel] += 1
        if channel == self.failing:
            raise SubscribeError("it fails")
        if not self.answers:
            await asyncio.get_running_loop().create_future()
        self.heard[channel] = Heard(wake)
        return self.heard[channel]

    def post(self, channel: bytes, payload: bytes) -> asyncio.Future[int] | None:
        if not self.has_room:
            return None
        letter = decode_letter(payload)
        for item in letter.items:
            self.said.append(item)
            if isinstance(item, Open):
                self.conversation = item.conversation
        done = asyncio.get_running_loop().create_future()
        done.set_result(1)
        return done

    def reply(self, *items: messages.FromEngine) -> None:
        self.heard[messages.seat_channel("main", CLIENT)].say(messages.encode(list(items)))

    def call(self, roll: Roll) -> None:
        self.heard[messages.call_channel("main")].say(messages.encode(roll))

    def serve(self, *numbers: int) -> None:
        self.reply(Welcome(self.conversation, 1), InForce(self.conversation, list(numbers)))


async def _settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_name_that_is_given_twice_is_removed_once() -> None:
    site = Site()
    reader = await site.matching.reader(None).open()
    adding = asyncio.create_task(reader.add_many({"x": "a = 1", "y": "a = 2"}))
    await _settled()
    site.serve(1, 2)
    await adding
    await reader.remove("x", "x")
    await _settled()
    assert reader.filters == ["y"]
    assert Remove([1]) in site.said
    with pytest.raises(FilterError, match="no filter 'z'"):
        await reader.remove("y", "z")
    assert reader.filters == ["y"]
    await reader.aclose()
    await site.matching.aclose()


async def test_a_filter_that_is_removed_before_it_is_in_force_is_not_awaited() -> None:
    site = Site()
    reader = await site.matching.reader(None).open()
    adding = asyncio.create_task(reader.add_many({"x": "a = 1", "y": "a = 2"}))
    await _settled()
    await reader.remove("x")
    site.serve(2)
    await asyncio.wait_for(adding, WAIT_S / 2)
    assert reader.filters == ["y"]
    await site.matching.aclose()


async def test_a_reader_that_ends_while_it_adds_ends_the_call() -> None:
    site = Site()
    reader = await site.matching.reader(None).open()
    adding = asyncio.create_task(reader.add_many({"x": "a = 1", "y": "a = 2"}))
    await _settled()
    await reader.aclose()
    with pytest.raises(SubscribeError, match="closed meanwhile"):
        await asyncio.wait_for(adding, WAIT_S / 2)
    assert reader.filters == []
    await site.matching.aclose()


async def test_a_bus_that_closes_ends_calls_that_wait_for_the_engine() -> None:
    site = Site()
    reader = await site.matching.reader(None).open()
    adding = asyncio.create_task(reader.add("x", "a = 1"))
    emitting = asyncio.create_task(site.matching.emit({"a": 1}, b"", confirm=True))
    await _settled()
    await site.matching.aclose()
    for call in (adding, emitting):
        with pytest.raises(BusClosedError):
            await asyncio.wait_for(call, WAIT_S / 2)


async def test_a_bus_that_closes_ends_calls_that_wait_for_their_subscription() -> None:
    """They were cancelled, although nobody had cancelled them."""
    site = Site()
    site.answers = False
    reader = site.matching.reader(None)
    opening = asyncio.create_task(reader.open())
    emitting = asyncio.create_task(site.matching.emit({"a": 1}, b"", confirm=True))
    cancelled = asyncio.create_task(site.matching.emit({"a": 1}, b"", confirm=True))
    await _settled()
    cancelled.cancel()
    await site.matching.aclose()
    for call in (opening, emitting):
        with pytest.raises(BusClosedError):
            await asyncio.wait_for(call, WAIT_S / 2)
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    with pytest.raises(BusClosedError):
        await site.matching.emit({"a": 1}, b"", confirm=False)


async def test_a_subscription_that_failed_is_made_again_and_others_are_not() -> None:
    site = Site()
    site.failing = messages.seat_channel("main", CLIENT)
    with pytest.raises(SubscribeError, match="fails"):
        await site.matching.start()
    site.failing = b""
    await site.matching.start()
    assert site.listened == {messages.call_channel("main"): 1, messages.seat_channel("main", CLIENT): 2}
    await site.matching.aclose()


async def test_a_reader_that_is_not_open_says_so() -> None:
    """Reading waited for ever."""
    site = Site()
    reader = site.matching.reader(None)
    for call in (reader.get, reader.__anext__):
        with pytest.raises(SubscribeError, match="not open"):
            await asyncio.wait_for(call(), WAIT_S)
    await reader.aclose()
    with pytest.raises(SubscribeError, match="or closed"):
        await reader.open()


@pytest.mark.parametrize(
    "filters", [None, 5, "a = 1", ["a = 1"], [("x", "a = 1")], {5: "a = 1"}, {None: "a = 1"}, {"x": None}, {"x": 5}]
)
async def test_filters_of_a_wrong_type_are_an_error_and_nothing_is_added(filters: Any) -> None:
    site = Site()
    reader = await site.matching.reader(None).open()
    with pytest.raises(FilterError, match=r"text|mapping"):
        await reader.add_many(filters)
    with pytest.raises(FilterError, match="text"):
        await reader.add(["x"], "a = 1")  # type: ignore[arg-type]
    with pytest.raises(FilterError, match="text"):
        await reader.remove(["x"])  # type: ignore[arg-type]
    assert reader.filters == []
    await site.matching.aclose()


async def test_a_filter_that_does_not_fit_a_letter_is_refused() -> None:
    site = Site()
    reader = await site.matching.reader(None).open()
    most = LIMITS.engine_letter_bytes_max
    large = msgspec.structs.replace(LIMITS, filter_text_bytes_max=2 * most, filter_string_bytes_max=2 * most)
    with pytest.raises(FilterTooLargeError, match="engine_letter_bytes_max"):
        await reader.add_many({"small": "a = 1", "large": parse(f"a = '{'x' * most}'", large)})
    assert reader.filters == []
    assert site.matching.statistics.filters == 0
    await site.matching.aclose()


async def test_emits_that_gave_up_waiting_for_room_leave_nothing_behind() -> None:
    site = Site()
    await site.matching.start()
    await _settled()
    for _ in range(LIMITS.engine_untaken_events_max):
        await site.matching.emit({"a": 1}, b"", confirm=False)
    with pytest.raises(EngineUnavailableError, match="not accepted"):
        await site.matching.emit({"a": 1}, b"", confirm=False)
    assert site.matching.statistics.waits == 1
    assert not site.matching._rooms
    await site.matching.aclose()


async def test_an_engine_that_starts_is_waited_for() -> None:
    site = Site()
    reader = await site.matching.reader(None).open()
    adding = asyncio.create_task(reader.add("x", "a = 1"))
    emitting = asyncio.create_task(site.matching.emit({"a": 1}, b"", confirm=True))
    for _ in range(4):
        await asyncio.sleep(WAIT_S / 2)
        site.call(Roll(0, open=True))
    assert not adding.done()
    assert not emitting.done()
    site.serve(1)
    await adding
    site.reply(messages.Taken(1))
    assert await emitting == 1
    await site.matching.aclose()


async def test_an_engine_that_says_no_more_that_it_starts_is_not_waited_for() -> None:
    site = Site()
    reader = await site.matching.reader(None).open()
    adding = asyncio.create_task(reader.add("x", "a = 1"))
    await _settled()
    site.call(Roll(0, open=True))
    with pytest.raises(EngineUnavailableError):
        await asyncio.wait_for(adding, 2 * WAIT_S)
    await site.matching.aclose()


async def test_letters_that_cannot_be_posted_do_not_pile_up() -> None:
    """Each new instance of the engine gets all filters and events, and a client without a server cannot send them."""
    site = Site()
    await site.matching.start()
    await _settled()
    site.serve()
    await _settled()
    site.has_room = False
    for _ in range(100):
        await site.matching.emit({"a": 1}, b"x" * 1000, confirm=False)
    for instance in range(2, 100):
        site.call(Roll(instance, open=True))
        await _settled()
    assert sum(map(len, site.matching._waiting)) < 2 * 100 * 1100
    site.has_room, site.said = True, []
    await asyncio.sleep(TICK_S + 0.1)
    opened = max(at for at, item in enumerate(site.said) if isinstance(item, Open))
    events = [item.number for item in site.said[opened:] if isinstance(item, messages.Event)]
    assert events == [*range(1, 101)]
    await site.matching.aclose()


async def test_a_filter_in_force_that_the_next_engine_refuses_ends_its_reader() -> None:
    site = Site()
    reader = await site.matching.reader(None).open()
    other = await site.matching.reader(None).open()
    adding = asyncio.create_task(reader.add_many({"x": "a = 1", "y": "a = 2"}))
    await _settled()
    site.serve(1, 2)
    await adding
    site.call(Roll(2, open=True))
    await _settled()
    site.reply(Welcome(site.conversation, 2), messages.Refused(1, "no room"), InForce(site.conversation, [2]))
    with pytest.raises(FilterError, match="no room"):
        await reader.get(timeout=WAIT_S)
    with pytest.raises(TimeoutError):
        await other.get(timeout=0.01)
    await site.matching.aclose()


async def test_a_call_that_waits_for_a_full_reader_says_so() -> None:
    site = Site()
    reader = await site.matching.reader(None).open()
    adding = asyncio.create_task(reader.add("x", "a = 1"))
    await _settled()
    site.serve(1)
    await adding
    for number in range(1, LIMITS.inbox_messages_max + 1):
        site.reply(messages.Delivery(9, number, 0, encode_event({"a": 1}), b"", messages.pack([1])))
    await _settled()
    emitting = asyncio.create_task(site.matching.emit({"a": 1}, b"", confirm=True))
    await _settled()
    site.reply(messages.Taken(1))
    with pytest.raises(EngineUnavailableError, match="a reader of this bus is full"):
        await emitting
    await site.matching.aclose()
