"""The turns of a process of the engine: what makes the next one follow at once."""

from __future__ import annotations

import msgspec
from tests.support.lone_engine import LoneEngine

from shoal.engine.messages import Event, FromEngine, Letter, Open, Ready, Taken, decode_replies
from shoal.filters import encode_event
from shoal.limits import DEFAULT_LIMITS

LIMITS = msgspec.structs.replace(DEFAULT_LIMITS, engine_roll_s=0.0)


def said(engine: LoneEngine, now: float) -> list[FromEngine]:
    """What clients are told in a turn; servers confirm it at once."""
    posts = engine.turn(now)
    for post in posts:
        engine.confirmed(post.group)
    return [item for post in posts for item in decode_replies(post.payload)]


def is_busy(engine: LoneEngine) -> bool:
    """Whether the next turn follows at once."""
    return engine.is_busy


def test_an_event_that_no_filter_matches_is_taken_in_the_next_turn_which_follows_at_once() -> None:
    engine = LoneEngine(1, 0, LIMITS, 0.0)
    engine.lease_until = 1e9
    said(engine, 0.0)
    engine.serve()
    said(engine, 0.0)
    engine.received(7, Letter(7, 1, [Open(7), Ready()]))
    said(engine, 1.0)
    said(engine, 1.1)
    assert not is_busy(engine)
    engine.received(7, Letter(7, 1, [Event(1, 0, encode_event({"a": 1}), b"")]))
    assert said(engine, 2.0) == []
    assert is_busy(engine)
    assert said(engine, 2.0) == [Taken(1)]
    assert not is_busy(engine)


def test_a_roll_to_which_no_client_comes_ends_after_engine_roll_s() -> None:
    engine = LoneEngine(1, 0, DEFAULT_LIMITS, 0.0)
    engine.lease_until = 1e9
    engine.turn(0.0)
    engine.turn(DEFAULT_LIMITS.engine_roll_s / 2)
    assert not engine.wants_to_serve
    engine.turn(2 * DEFAULT_LIMITS.engine_roll_s)
    assert engine.wants_to_serve
