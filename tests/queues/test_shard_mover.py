"""The mover's core: the calls of a move, one after the other, without stores."""

from __future__ import annotations

from shoal.limits import DEFAULT_LIMITS
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_mover import begin, next_step
from shoal.plan.queue_settings import QueueSettings
from shoal.plan.ring import ServerAddress
from shoal.queues.shard_mover import ShardMover

Q1, Q2 = ServerAddress("q1", "h", 1), ServerAddress("q2", "h", 2)


def prepared() -> QueueEntry:
    entry = begin(QueueEntry(b"orders", 5, 5, QueueSettings(shards=2), (Q1,), (0, 0)), {1: Q2})
    assert entry is not None
    return entry


def following(entry: QueueEntry, mover: ShardMover) -> QueueEntry:
    found, why = next_step(entry, mover.status, lambda _: False, DEFAULT_LIMITS)
    assert found is not None
    assert why is None
    return found


def called(mover: ShardMover) -> tuple[str, bytes, tuple[bytes, ...]]:
    call = mover.next_call()
    assert call is not None
    assert mover.entry is not None
    assert call.arguments[1:3] == [b"5", b"%d" % mover.entry.revision]
    return call.store, call.arguments[0], tuple(call.arguments[3:])


def at_copy() -> tuple[ShardMover, QueueEntry]:
    mover, entry = ShardMover("q2", DEFAULT_LIMITS), prepared()
    mover.observe(entry)
    mover.answered([])
    mover.answered([100, 1000, 10, 0])
    copy = following(entry, mover)
    mover.observe(copy)
    mover.answered([])
    return mover, copy


def test_the_destination_makes_room_looks_at_the_size_and_reports() -> None:
    mover, entry = ShardMover("q2", DEFAULT_LIMITS), prepared()
    assert mover.next_call() is None
    mover.observe(entry)
    store, operation, arguments = called(mover)
    assert (store, operation, arguments[:2]) == ("q2", b"place", (b"6", b"gi"))
    mover.answered([b"1"])
    assert called(mover)[:2] == ("q2", b"drop"), "an earlier copy of the shard is in the way"
    assert mover.status.newness == 0
    mover.answered(1)
    mover.answered(0)
    assert called(mover)[1] == b"place"
    mover.answered([])
    assert called(mover) == ("q1", b"size", (b"1",))
    mover.answered([100, 1000, 10, 0])
    assert mover.status.newness == entry.newness
    assert mover.next_call() is None


def test_a_shard_that_would_stand_still_for_too_long_is_refused_with_the_reason() -> None:
    mover, entry = ShardMover("q2", DEFAULT_LIMITS), prepared()
    mover.observe(entry)
    mover.answered([])
    mover.answered([10**6, 10**9, 10, 0])
    assert mover.status.refused == 6
    assert "1000000 messages" in mover.status.trouble
    assert mover.next_call() is None


def test_pages_are_copied_from_the_cursor_that_the_destination_has() -> None:
    mover, copy = at_copy()
    assert called(mover) == ("q1", b"seal", (b"1", b"6"))
    mover.answered(b"6 1 2 3 4 5 0")
    assert called(mover) == ("q2", b"import", (b"1", b"6", b"6 1 2 3 4 5 0", b"?", b"?"))
    mover.answered(b"1000.0")  # an earlier mover was killed here
    assert called(mover) == ("q1", b"export", (b"1", b"6", b"1000.0"))
    mover.answered([b"end", b"D", b"1", b"2", b"3"])
    assert called(mover)[2][3:] == (b"1000.0", b"end", b"D", b"1", b"2", b"3")
    mover.answered(b"end")
    assert mover.next_call() is None
    assert mover.status.copied == 6
    opened = following(copy, mover)
    mover.observe(opened)
    assert called(mover)[2][:2] == (b"6", b"go")
    mover.answered([])
    assert following(opened, mover).move is None


def test_a_copy_with_another_count_is_refused() -> None:
    mover, _ = at_copy()
    mover.answered(b"6 1 2 3 4 5 0")
    mover.answered(b"miscounted")
    assert mover.status.refused == 6
    assert mover.status.copied == 0


def test_the_source_only_places_and_drops_what_has_moved_away() -> None:
    destination, copy = at_copy()
    source = ShardMover("q1", DEFAULT_LIMITS)
    source.observe(copy)
    assert called(source)[2][1] == b"o."
    source.answered([])
    assert source.next_call() is None
    destination.answered(b"6 1 2 3 4 5 0")
    destination.answered(b"end")
    opened = following(copy, destination)
    source.observe(opened)
    source.observe(copy)  # an older entry changes nothing
    assert called(source)[2][1] == b"og"
    source.answered([b"1"])
    assert source.status.newness == opened.newness, "the move does not wait for the source"
    assert called(source)[1] == b"drop"


def test_a_refusal_of_a_store_that_is_not_the_destination_ends_nothing() -> None:
    mover, entry = ShardMover("q1", DEFAULT_LIMITS), prepared()
    mover.observe(entry)
    mover.refuse("no such queue")
    assert mover.status.refused == 0
    assert called(mover)[1] == b"place"
