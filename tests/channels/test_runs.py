"""Frames taken as one run are what they would have been one by one, and nothing else is taken for a run."""

from __future__ import annotations

import struct

from hiredis import PushNotification
from hypothesis import given
from hypothesis import strategies as st
from tests.support.core_driver import STREAM, RouterDriver, blob

from shoal.channels.client.runs import as_run
from shoal.wire import envelope

TILE = b"tile"
OTHER_STREAM = STREAM + (1 << 48)


def push(channel: bytes, data: bytes, kind: bytes = b"message") -> PushNotification:
    return PushNotification([kind, channel, data])


def run(first: int, count: int) -> list[PushNotification]:
    return [push(TILE, blob(STREAM, number, b"%d" % number)) for number in range(first, first + count)]


oddities = st.sampled_from(
    [
        7,
        push(TILE, b"foreign"),
        push(TILE, blob(STREAM, 3, b"again")),
        push(TILE, blob(OTHER_STREAM, 4, b"of another stream")),
        push(TILE, blob(STREAM, 9, b"later")),
        push(b"other", blob(STREAM, 4, b"of another channel")),
        push(TILE, b"1", b"subscribe"),
        PushNotification([b"pmessage", b"t*", TILE, blob(STREAM, 4, b"of a pattern")]),
        push(TILE, envelope.prefix(envelope.ATTRIBUTES, 0, STREAM) + envelope.SUFFIX.pack(4, 0) + b"\x80"),
    ]
)


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 40), oddities, st.booleans()), max_size=3))
def test_a_list_of_frames_does_what_its_frames_do_one_by_one(
    count: int, changes: list[tuple[int, object, bool]]
) -> None:
    frames: list[object] = list(run(2, count))
    for place, oddity, instead in changes:
        place = min(place, len(frames) - 1)
        frames[place : place + instead] = [oddity]
    at_once, one_by_one = RouterDriver(), RouterDriver()
    subs = [driver.subscribe(TILE) for driver in (at_once, one_by_one)]
    for driver in (at_once, one_by_one):
        driver.message("s1", TILE, STREAM, 1, b"1")
    at_once.router.received("s1", frames, at_once.now)
    for frame in frames:
        one_by_one.router.received("s1", [frame], one_by_one.now)
    assert at_once.items(subs[0]) == one_by_one.items(subs[1])
    assert subs[0].inbox.bytes == subs[1].inbox.bytes
    assert subs[0].streams[STREAM].next == subs[1].streams[STREAM].next
    assert at_once.router.counters == one_by_one.router.counters


@given(st.integers(2, 40), st.integers(0, 40), oddities)
def test_a_run_with_anything_else_in_it_is_no_run(count: int, place: int, oddity: object) -> None:
    frames: list[object] = list(run(50, count))
    found = as_run(frames)
    assert found is not None
    assert list(found.payloads()) == [b"%d" % number for number in range(50, 50 + count)]
    frames[min(place, count - 1)] = oddity
    assert as_run(frames) is None


def test_a_run_tells_tag_and_time_of_each_message() -> None:
    (word,) = struct.unpack("<Q", envelope.prefix(0, 1, STREAM)[:8])
    headers = [(word, STREAM, number, 1000 + number, (1 << 64) - number) for number in range(5, 25)]
    found = as_run([push(TILE, envelope.WORDS.pack(*header) + b"x") for header in headers])
    assert found is not None
    assert found.times_us == [time_us for _, _, _, time_us, _ in headers]
    assert list(found.tags) == [field for _, _, _, time_us, tag in headers for field in (tag, time_us)]


def test_a_run_that_does_not_fit_the_inbox_is_taken_one_by_one_up_to_the_brim() -> None:
    driver = RouterDriver()
    sub = driver.subscribe(TILE)
    driver.message("s1", TILE, STREAM, 1, b"1")
    sub.inbox.messages_max = 20
    driver.router.received("s1", list(run(2, 30)), driver.now)
    assert len(sub.inbox.items) == 20
    assert sub.overflowed
