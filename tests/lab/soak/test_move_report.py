"""The report on moves: their cost, and what plain clients received."""

from __future__ import annotations

from collections import Counter

import msgspec

from shoal.lab.sim.history import Published
from shoal.lab.sim.scenarios.channel_run_history import SubscriberRecord
from shoal.lab.soak.move_report import MoveLogReader
from shoal.lab.soak.round_log import (
    ControlSeen,
    CpuSample,
    EntryChanged,
    MoveRequested,
    MoveUnfinished,
    PlainPublished,
    PlainReceived,
    PlainSubscribed,
    SubscriptionBroken,
)
from shoal.plan.entry import Phase
from shoal.plan.placement import Mode


def test_control_messages_are_counted_for_lazy_and_eager_moves() -> None:
    reader = MoveLogReader()
    for version, eager in ((10, False), (20, True)):
        server = f"s{version}"
        reader.take(MoveRequested("c", Mode.SINGLE, (server,), eager, float(version)))
        reader.take(EntryChanged("c", Phase.END, version + 4, version, Mode.SINGLE, (server,), (), version + 1.0))
    seen = [
        ("notice", 1, 11), ("subscribed", 1, 11), ("hello", 1, 11), ("notice", 2, 11),
        ("notice", 1, 21), ("subscribed", 1, 21), ("left", 3, 22),
        ("hello to publish", 3, 5), ("hello to publish", 3, 21),
        ("hello", 1, 3),
    ]  # fmt: skip
    for message, client, revision in seen:
        reader.take(ControlSeen(message, "c", client, revision, 0.0))
    found = reader.sum_up([])
    assert (found.lazy.moves, found.lazy.clients, found.lazy.messages) == (1, 2, 5)
    assert (found.eager.moves, found.eager.clients, found.eager.messages) == (1, 2, 5)
    assert found.lazy.per_move_and_client == 2.5
    assert found.lazy.by_message == {"notice": 2, "subscribed": 1, "hello": 1}
    assert reader.corners() == {"move single to single": 2, "idle channel moved": 0}
    assert found.idle_notices == 0
    assert (found.asked, found.ended) == (2, 2)


def test_a_notice_about_an_idle_channel_is_counted() -> None:
    reader = MoveLogReader()
    reader.take(MoveRequested("soak.idle.0", Mode.SINGLE, ("s2",), False, 1.0))
    reader.take(EntryChanged("soak.idle.0", Phase.NARROW, 7, 4, Mode.SINGLE, ("s2",), ("s1",), 2.0))
    reader.take(ControlSeen("hello", "soak.idle.0", 1, 7, 2.5))
    assert reader.sum_up([]).idle_notices == 0
    assert reader.corners()["idle channel moved"] == 1
    reader.take(ControlSeen("notice", "soak.idle.0", 1, 7, 3.0))
    assert reader.sum_up([]).idle_notices == 1


def test_plain_subscribers_must_receive_what_was_published_since_they_subscribed() -> None:
    reader = MoveLogReader()
    reader.take(PlainSubscribed(0, "c", "s1", 1.0))
    messages = [Published(number, "c", 7, number, number / 2) for number in range(1, 7)]
    messages.append(Published(99, "other", 7, 1, 3.0))
    for number, forwarded in ((2, False), (4, True), (3, False), (4, False), (6, True)):
        reader.take(PlainReceived(0, number, forwarded, 5.0))
    plain = reader.sum_up(messages).plain
    assert (plain.subscribers, plain.messages, plain.forwarded) == (1, 5, 2)
    assert (plain.lost, plain.duplicates, plain.reordered) == (1, 1, 1)


def test_messages_of_plain_publishers_must_reach_lasting_subscriptions_at_least_once() -> None:
    reader = MoveLogReader()
    for number, at in enumerate((1.0, 2.0, 3.0), 1):
        reader.take(PlainPublished(number, "c", at))
    reader.take(PlainPublished(4, "other", 3.0))
    stays = SubscriberRecord("c", False, 1, 1.4, in_force_at=1.5)
    left = SubscriberRecord("c", False, 1, 1.4, in_force_at=1.5, ended_at=3.5)
    assert reader.judge_foreign(stays, Counter({2: 2, 3: 1})) == 0
    assert reader.judge_foreign(stays, Counter({1: 1, 3: 1})) == 1
    assert reader.judge_foreign(left, Counter()) == 0
    assert msgspec.structs.astuple(reader.sum_up([]).foreign) == (4, 5, 1, 1)


def test_open_moves_and_broken_subscriptions_are_reported() -> None:
    reader = MoveLogReader()
    reader.take(MoveUnfinished("c", "nobody answers"))
    reader.take(SubscriptionBroken(3, "it ended by itself", 1.0))
    found = reader.sum_up([])
    assert found.open == ["c: nobody answers"]
    assert found.subscriptions_closed == 1
    assert found.lazy.per_move_and_client is None


def test_moving_channels_and_saturated_processors_are_known_by_time() -> None:
    reader = MoveLogReader()
    for channel, begin in (("a", 1.0), ("b", 2.0)):
        reader.take(MoveRequested(channel, Mode.SINGLE, ("s2",), False, begin))
        reader.take(EntryChanged(channel, Phase.END, 7, 4, Mode.SINGLE, ("s2",), (), begin + 1.5))
    for at, share in ((0.5, 0.4), (1.0, 0.4), (1.5, 0.95), (2.0, 1.0), (2.5, 0.6), (3.0, 0.9)):
        reader.take(CpuSample(share, at))
    reader.end_moves()
    assert [reader.is_moving(at) for at in (0.9, 1.1, 2.9, 3.6)] == [False, True, True, False]
    assert [reader.is_moving(at, "a") for at in (1.1, 2.9)] == [True, False]
    assert not reader.is_moving(1.1, "c")
    saturated = {(0.6, 0.9), (0.6, 1.2), (0.9, 2.1), (1.2, 1.3), (1.9, 2.4), (2.1, 2.4), (2.4, 2.6)}
    assert {time for time in saturated if not reader.is_saturated(*time)} == {(0.6, 0.9), (2.1, 2.4)}
