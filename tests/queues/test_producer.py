"""The producer's core: batches, and what becomes of messages."""

from __future__ import annotations

import msgspec

from shoal.errors import AlreadyAcceptedError, QueueFullError, QueueUnavailableError, TooManyIdsError, TooManyKeysError
from shoal.limits import DEFAULT_LIMITS
from shoal.queues.producer import CAREFUL_BATCHES, Outgoing, ProducerCore

LIMITS = msgspec.structs.replace(DEFAULT_LIMITS, queue_batch_messages_max=3, queue_batch_bytes_max=100)


def producer() -> ProducerCore:
    return ProducerCore("orders", b"p", 1, LIMITS)


def message(body: bytes = b"m", waits: bool = False, key: bytes = b"k", shard: int = 0) -> Outgoing:
    return Outgoing(shard, key, b"", 0, body, waits, give_up_at=10.0)


def bodies(arguments: list[bytes] | None) -> list[bytes]:
    if arguments is None:
        return []
    return arguments[5::2] if arguments[3] else arguments[6::5]


def test_one_batch_is_on_its_way_and_it_is_bounded_by_number_and_bytes() -> None:
    core = producer()
    core.add([message(b"%d" % n) for n in range(4)])
    assert bodies(core.next_batch(0.0)) == [b"0", b"1", b"2"]
    assert core.next_batch(0.0) is None
    core.answered(b"AAA", 3, 0.0)
    core.add([message(b"x" * 90), message(b"y" * 200)])
    assert bodies(core.next_batch(0.0)) == [b"3", b"x" * 90]
    core.answered(b"AA", 5, 0.0)
    assert bodies(core.next_batch(0.0)) == [b"y" * 200], "a batch has at least one message"


def test_a_batch_is_sent_again_under_its_number_until_its_time_is_over() -> None:
    core = producer()
    core.add([message()])
    first = core.next_batch(0.0)
    again, decided = core.lost(9.0)
    assert again == first
    assert decided == []
    again, decided = core.lost(10.0)
    assert again is None
    assert isinstance(decided[0].outcome, QueueUnavailableError)
    core.add([message()])
    later = core.next_batch(10.0)
    assert later is not None
    assert first is not None
    assert later[2] != first[2], "a batch that was given up does not lend its number"


def test_each_letter_has_its_error_and_a_message_behind_a_refused_one_has_the_same() -> None:
    core = producer()
    core.add([message(), message(), message()])
    core.next_batch(0.0)
    decided = core.answered(b"DKB", 7, 0.0)
    assert [type(one.outcome) for one in decided] == [AlreadyAcceptedError, TooManyKeysError, TooManyKeysError]
    core.add([message(key=b"a"), message(key=b"b"), message(key=b"a")])
    core.next_batch(0.0)
    decided = core.answered(b"KIB", 7, 0.0)
    assert [type(one.outcome) for one in decided] == [TooManyKeysError, TooManyIdsError, TooManyKeysError]


def test_messages_that_wait_for_room_keep_their_place_and_are_not_sent_at_once() -> None:
    core = producer()
    core.add([message(b"a"), message(b"b", waits=True), message(b"c", waits=True)])
    core.add([message(b"d")])
    core.next_batch(0.0)
    (accepted,) = core.answered(b"AFB", 30, 0.0)
    assert accepted.outcome is True
    assert core.next_batch(0.0) is None
    at = core.next_at
    assert at is not None
    assert bodies(core.next_batch(at)) == [b"b", b"c", b"d"]
    core.answered(b"FBB", 30, 9.0)
    again = core.next_at
    assert again is not None
    assert again - 9.0 > at, "the pause grows"
    core.next_batch(again)
    decided = core.answered(b"FB", 30, 10.0)
    assert [type(one.outcome) for one in decided] == [QueueFullError] * 2, "their time is over"
    assert core.idle


def test_messages_of_a_shard_that_is_not_open_are_given_back_in_order_with_those_behind_them() -> None:
    core = producer()
    core.add([message(b"a", shard=1), message(b"b"), message(b"c", shard=1), message(b"d"), message(b"e", shard=1)])
    core.next_batch(0.0)
    assert core.has_shard(1)
    decided = core.answered(b"MAM", 7, 0.0)
    assert [one.body for one in decided] == [b"b"]
    assert [one.body for one in core.moved] == [b"a", b"c", b"e"]
    core.moved.clear()
    assert not core.has_shard(1)
    assert bodies(core.next_batch(0.0)) == [b"d"]


def test_a_batch_that_the_store_cannot_accept_as_a_whole_comes_again_in_its_order_under_its_number() -> None:
    core = producer()
    core.add([message(b"1", shard=2), message(b"2", shard=1), message(b"3", shard=2)])
    grouped = core.next_batch(0.0)
    assert grouped is not None
    assert grouped[3] == bytes((1, 1, 2, 2))
    assert bodies(grouped) == [b"2", b"1", b"3"], "messages of a shard are together"
    assert core.answered(b"", 30, 0.0) == []
    assert not core.idle
    single = core.next_batch(0.0)
    assert single is not None
    assert single[3] == b""
    assert single[2] == grouped[2], "a grouped one that arrives late is known by its number"
    assert bodies(single) == [b"1", b"2", b"3"]
    decided = core.answered(b"AFB", 30, 0.0)
    assert [one.body for one in decided if one.outcome is True] == [b"1"]
    for left in range(CAREFUL_BATCHES, -1, -1):
        core.add([message()])
        words = core.next_batch(0.0)
        assert words is not None
        assert bool(words[3]) == (left == 0), "groups are tried again later"
        core.answered(b"A", 1, 0.0)
