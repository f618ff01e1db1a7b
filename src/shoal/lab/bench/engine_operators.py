"""What each operator of an engine costs: the shipped cores with the letters of clients, without a network.

Owns the clock around the operators. An engine that runs all of them in one process shows only their sum.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from shoal.engine.client import EngineClient
from shoal.engine.configuration import Configuration
from shoal.engine.links import Orders, Stage
from shoal.engine.messages import decode_letter, decode_replies
from shoal.engine.operators import Operators
from shoal.filters.events import encode_event
from shoal.filters.language import parse
from shoal.lab.air_quality import AirQuality, attributes
from shoal.limits import DEFAULT_LIMITS

EMITTER, READER = 1, 2
TOGETHER: Final = 256
"""Events that come to an engine together."""
_TIMED: Final = {
    "access_point": ("received", "settled", "tick", "take_batches"),
    "matcher": ("heard", "work"),
    "exit_point": ("heard", "received", "join", "flush", "settled", "confirmed"),
}


class _Clock:
    """Adds up the CPU time of some methods."""

    def __init__(self) -> None:
        self.used_ns = 0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, timed. The items of an iterator are timed too."""

        def timed(*given: Any) -> Any:
            began = time.thread_time_ns()
            found = call(*given)
            if isinstance(found, Iterator):
                found = [*found]  # the work is done when the items are asked for
            self.used_ns += time.thread_time_ns() - began
            return found

        return timed


def operator_costs(filters: int, events: int) -> dict[str, float]:
    """CPU in us of each operator for an event, with this number of filters at one reader."""
    limits = DEFAULT_LIMITS
    city = AirQuality(filters)
    layers = Configuration(1, ("a",), ("a",), ("a",))
    engine = Operators("a", Orders(1, "a", 0, layers, stage=Stage.ROLL), limits, 0.0)
    engine.lease_until = float("inf")
    emitter, reader = (EngineClient(limits, itertools.count(one).__next__) for one in (EMITTER, READER))
    encode = msgspec.msgpack.Encoder().encode
    reader.add(encode(parse(city.filter_text(number), limits)) for number in range(filters))
    for client in (emitter, reader):
        client.hello(0.0)
    _talk(engine, emitter, reader)
    _talk(engine, emitter, reader, at=limits.engine_roll_s_max)
    engine.arrange(Orders(1, "a", 0, layers, stage=Stage.SERVE), limits.engine_roll_s_max)
    _talk(engine, emitter, reader, at=limits.engine_roll_s_max)
    _emit(engine, emitter, reader, city, range(TOGETHER))  # compiles or loads kernels
    clocks = {name: _Clock() for name in _TIMED}
    for name, calls in _TIMED.items():
        operator = getattr(engine, name)
        for call in calls:
            setattr(operator, call, clocks[name].around(getattr(operator, call)))
    for at in range(0, events, TOGETHER):
        _emit(engine, emitter, reader, city, range(at, min(at + TOGETHER, events)))
    deliveries = engine.status(1, 0.0, 0.0).deliveries
    if deliveries < events:
        raise RuntimeError(f"{deliveries} deliveries of {events} events")
    return {name: clock.used_ns / 1000 / events for name, clock in clocks.items()}


def _emit(engine: Operators, emitter: EngineClient, reader: EngineClient, city: AirQuality, numbers: range) -> None:
    for number in numbers:
        emitter.emit(encode_event(attributes(city.reading(number)), DEFAULT_LIMITS), bytes(64), 0)
    _talk(engine, emitter, reader)


def _talk(engine: Operators, emitter: EngineClient, reader: EngineClient, at: float = 0.0) -> None:
    """Letters go to and fro until there are no more."""
    clients = {EMITTER: emitter, READER: reader}
    while True:
        letters = [(number, letter) for number, client in clients.items() for letter in client.take_letters(at)]
        for number, letter in letters:
            engine.received(number, decode_letter(letter))
        posts = engine.turn(at)
        for post in posts:
            clients[post.client].received(decode_replies(post.payload), at)
            engine.confirmed(post.group)
        for client in clients.values():
            client.effects.clear()
        if not letters and not posts and not engine.is_busy:
            return
