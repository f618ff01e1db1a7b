"""The streams that an agent remembers: those of earlier incarnations have a bound, and what does not fit makes answers
incomplete, for the channels concerned and for as long as the streams would have been remembered."""

from __future__ import annotations

import pytest
from tests.channels.observed import FRAME_BYTES_MAX, envelope, observed

from shoal.channels.agent import stream_memory
from shoal.channels.agent.stream_memory import StreamMemory
from shoal.channels.telemetry.scanner import Scanner
from shoal.channels.telemetry.tables import TableLimits

IDLE_S = 100.0


class Scene:
    """A memory whose server publishes what the test says."""

    def __init__(self) -> None:
        self.scanner = Scanner(FRAME_BYTES_MAX)
        self.memory = StreamMemory(self.scanner, IDLE_S)
        self.now = 1000.0
        self.incarnation = 0

    def publish(self, channel: bytes, *clients: int) -> None:
        for client in clients:
            self.scanner.feed(observed(channel, envelope(client << 16, 5)), self.now)
            assert self.scanner.scan() is None

    def lose(self, whole: bool = True) -> None:
        """The connection was lost: another incarnation begins."""
        self.incarnation += 1
        self.memory.begin_incarnation(self.incarnation, self.now, whole)

    def absent(self, name: bytes, pattern: bool = False) -> tuple[list[tuple[bytes, int]], bool]:
        known = self.memory.absent(name, pattern, self.memory.current(name, pattern), self.now)
        return sorted((channel, stream >> 16) for channel, stream in known.streams), known.complete


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_streams_of_earlier_incarnations_are_absent_until_they_are_heard_again(scene: Scene) -> None:
    scene.publish(b"a", 1, 2)
    scene.publish(b"b", 3)
    scene.lose()
    scene.publish(b"a", 2)
    assert scene.absent(b"a") == ([(b"a", 1)], True)
    assert scene.absent(b"[ab]", pattern=True) == ([(b"a", 1), (b"b", 3)], True)
    scene.lose()
    assert scene.absent(b"a") == ([(b"a", 1), (b"a", 2)], True)
    scene.now += IDLE_S + 1
    assert scene.absent(b"a") == ([], True)


def test_an_incarnation_with_unknown_publishers_is_not_remembered(scene: Scene) -> None:
    scene.publish(b"a", 1)
    scene.lose(whole=False)
    scene.lose()
    assert not scene.memory.remembers(1)
    assert scene.memory.remembers(2)
    assert scene.absent(b"a") == ([(b"a", 1)], True), "the streams are"


def test_channels_whose_streams_do_not_fit_are_incomplete_until_they_would_be_forgotten(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_memory, "PREVIOUS_STREAMS_MAX", 5)
    scene.publish(b"flood", *range(1, 5))
    scene.publish(b"tile", 1, 2)
    scene.lose()
    assert scene.absent(b"tile") == ([(b"tile", 1), (b"tile", 2)], True)
    assert scene.absent(b"flood") == ([], False)
    assert not scene.absent(b"*", pattern=True)[1]
    scene.now += IDLE_S + 1
    assert scene.absent(b"flood") == ([], True)
    assert scene.absent(b"*", pattern=True) == ([], True)


def test_older_streams_make_room_for_newer_ones(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_memory, "PREVIOUS_STREAMS_MAX", 3)
    scene.publish(b"old", 1, 2)
    scene.lose()
    scene.publish(b"new", 1, 2)
    scene.lose()
    assert scene.absent(b"new") == ([(b"new", 1), (b"new", 2)], True)
    assert scene.absent(b"old") == ([], False)


def test_with_too_many_incomplete_channels_all_are(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_memory, "PREVIOUS_STREAMS_MAX", 1)
    monkeypatch.setattr(stream_memory, "PREVIOUS_INCOMPLETE_MAX", 1)
    for channel in (b"a", b"b", b"c"):
        scene.publish(channel, 1, 2)
    scene.lose()
    assert scene.absent(b"other") == ([], False)
    scene.now += IDLE_S + 1
    assert scene.absent(b"other") == ([], True)


def test_a_pattern_that_takes_too_many_steps_is_incomplete(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.publish(b"a" * 500, 1)
    scene.publish(b"a" * 501, 1)
    slow = b"*" + b"a" * 400 + b"b"
    assert scene.memory.current(slow, True).complete
    monkeypatch.setattr(stream_memory, "MATCH_STEPS_MAX", 1000)
    known = scene.memory.current(slow, True)
    assert not known.complete
    assert known.steps > 1000


def test_a_full_table_of_channels_hides_nothing_that_is_owed_to_a_new_subscription() -> None:
    scene = Scene()
    scene.scanner = Scanner(FRAME_BYTES_MAX, TableLimits(channels_max=1, streams_per_channel_max=1))
    scene.memory = StreamMemory(scene.scanner, IDLE_S)
    scene.publish(b"a", 1)
    scene.publish(b"b", 1)
    for name, pattern in ((b"c", False), (b"*", True)):
        assert not scene.memory.current(name, pattern).complete
        assert scene.memory.current(name, pattern, fresh=True).complete
    scene.publish(b"a", 2)
    assert not scene.memory.current(b"a", False, fresh=True).complete  # streams are missing
