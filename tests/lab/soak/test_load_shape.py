"""The load of a round: which process each subscriber is in, and the load of a burst."""

from __future__ import annotations

from collections import Counter, defaultdict

from shoal.lab.soak.load_shape import EVERYTHING, PublishPattern, draw, draw_burst_shape
from shoal.limits import DEFAULT_LIMITS


def test_processes_share_subscribers_and_patterns_evenly() -> None:
    shape = draw(1, 60.0, ["s1", "s2"], 200, DEFAULT_LIMITS)
    assert shape.subscriber_processes == 2
    for chosen, share in (
        (shape.subscribers, 80),
        ([one for one in shape.subscribers if one.pattern], 8),
        ([one for one in shape.subscribers if one.name == EVERYTHING], 1),
    ):
        counts = Counter(map(shape.process_of, chosen))
        assert counts.keys() == {0, 1}
        assert min(counts.values()) >= share


def test_every_channel_of_a_burst_has_a_publisher_and_a_subscriber_and_buses_are_shared_within_a_process() -> None:
    shape = draw_burst_shape(1, 10.0, 1000, DEFAULT_LIMITS)
    assert [one.name for one in shape.subscribers] == [channel.name for channel in shape.channels]
    assert all(channel.kind is PublishPattern.PULSE and len(channel.publishers) == 1 for channel in shape.channels)
    assert {number for channel in shape.channels for number in channel.publishers} == set(range(shape.publishers))
    processes: defaultdict[int | None, set[int]] = defaultdict(set)
    for one in shape.subscribers:
        processes[one.bus].add(shape.process_of(one))
    assert len(processes) <= 20
    assert all(len(found) == 1 for found in processes.values())


def test_a_burst_of_few_channels_has_no_idle_publisher() -> None:
    shape = draw_burst_shape(1, 10.0, 3, DEFAULT_LIMITS)
    assert shape.publishers == 3
