"""The consumer's core and the sharing of keys, without a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.errors import JobLostError
from shoal.limits import DEFAULT_LIMITS
from shoal.queues.assignment import BACK, FRONT, DelayMeter, Situation, keys_to_give, load_of
from shoal.queues.consumer import ConsumerCore, JobCore
from shoal.queues.settings import ConsumerSettings


class Driver:
    """A consumer, and a store's part of the conversation."""

    def __init__(self, group: list[ConsumerCore] | None = None, **settings: Any) -> None:
        self.core = ConsumerCore(
            "orders", b"c", 1, 10.0, ConsumerSettings(**settings), DEFAULT_LIMITS, group=[] if group is None else group
        )
        self.now = 100.0
        self.counter = 10

    def turn(self) -> list[bytes]:
        words = self.core.turn(self.now)
        assert words is not None
        return words

    def operations(self, words: list[bytes]) -> list[tuple[bytes, ...]]:
        return [tuple(words[at : at + 7]) for at in range(9, len(words), 7)]

    def reply(
        self,
        results: tuple[Any, ...] = (),
        grants: tuple[Any, ...] = (),
        kept: tuple[Any, ...] = (),
        shards: bytes = b"",
        **counts: int,
    ) -> None:
        now = {"joined": 0, "ready": 0, "hungry": 0, "consumers": 1, "owned": 0, "due_ms": -1, "paused": 0, **counts}
        self.core.reply([*now.values(), [*results], [*grants], [*kept], self.counter, shards], self.now)

    def job(self) -> JobCore:
        found = self.core.next_job(self.now)
        assert found is not None
        return found


def grant(key: bytes, number: int, *bodies: bytes, left: int | None = None, suspect: int = 0) -> list[Any]:
    return [b"0", key, b"1.%d" % number, 0, suspect, len(bodies) if left is None else left, [*bodies]]


def test_messages_of_a_key_come_one_after_the_other_and_keys_take_turns() -> None:
    driver = Driver()
    driver.turn()
    driver.reply(grants=(grant(b"a", 1, b"a1", b"a2"), grant(b"b", 2, b"b1")))
    first, second = driver.job(), driver.job()
    assert [first.body, second.body] == [b"a1", b"b1"]
    assert driver.core.next_job(driver.now) is None
    driver.core.done(first, driver.now)
    assert driver.job().body == b"a2"


def test_done_is_counted_from_the_token_and_confirmed_by_the_reply() -> None:
    driver = Driver()
    driver.turn()
    driver.reply(grants=(grant(b"a", 1, b"a1", b"a2"),))
    job = driver.job()
    driver.core.done(job, driver.now)
    words = driver.turn()
    assert driver.operations(words)[0][:5] == (b"D", b"0", b"a", b"1.1", b"1")
    assert driver.core.settled == []
    driver.reply(results=([1, 1],))
    assert driver.core.settled == [job]
    assert job.error is None


def test_a_turn_with_a_lost_reply_is_sent_again_unchanged_and_asks_what_is_held() -> None:
    driver = Driver()
    driver.turn()
    driver.reply(grants=(grant(b"a", 1, b"a1", b"a2"),))
    job = driver.job()
    driver.core.done(job, driver.now)
    first = driver.turn()
    second = driver.job()
    driver.core.done(second, driver.now)
    driver.core.turn_lost(driver.now)
    again = driver.turn()
    assert again[2] == first[2]
    assert driver.operations(again) == driver.operations(first)
    assert again[8] == b"R"
    driver.reply(results=([1, -1],), kept=([b"0", b"a", b"1.1", 0, 0, 1, 1],))
    assert job.settled
    assert not second.settled
    assert driver.operations(driver.turn())[0][4] == b"2"


def test_a_key_that_the_store_does_not_list_is_lost_unless_it_was_pushed_later() -> None:
    driver = Driver()
    driver.turn()
    driver.reply(grants=(grant(b"a", 1, b"a1"),))
    job = driver.job()
    driver.core.disconnected(driver.now)
    assert driver.turn()[8] == b"R"
    driver.core.pushed([b"0", b"b", b"1.11", b"0", b"0", b"1", b"0", b"b1"], driver.now)
    driver.reply(results=([1, -1],))
    assert isinstance(job.error, JobLostError)
    assert driver.job().body == b"b1", "its token is newer than the reply"


def test_a_refused_operation_loses_the_job_and_what_was_fetched() -> None:
    driver = Driver()
    driver.turn()
    driver.reply(grants=(grant(b"a", 1, b"a1", b"a2"),))
    job = driver.job()
    driver.core.done(job, driver.now)
    driver.turn()
    driver.reply(results=([0, 0],))
    assert isinstance(job.error, JobLostError)
    assert driver.core.held == 0


def test_nothing_starts_when_the_lease_may_be_over() -> None:
    driver = Driver()
    driver.turn()
    driver.reply(grants=(grant(b"a", 1, b"a1"),))
    driver.now += 7.0
    assert driver.core.lease_runs(driver.now)
    driver.now += 0.2
    assert driver.core.next_job(driver.now) is None, "two jumps of the store's clock may have ended it"
    assert driver.turn()[8] == b"R"
    driver.reply(kept=([b"0", b"a", b"1.1", 0, 0, 1, 0],))
    assert driver.job().body == b"a1"


def test_a_suspect_message_is_reported_before_it_starts() -> None:
    driver = Driver()
    driver.turn()
    driver.reply(grants=(grant(b"a", 1, b"a1", suspect=1),))
    assert driver.core.next_job(driver.now) is None
    assert driver.operations(driver.turn())[0][0] == b"S"
    driver.reply(results=([1, 1],))
    assert driver.job().body == b"a1"


def test_a_failed_message_releases_its_key() -> None:
    driver = Driver()
    driver.turn()
    driver.reply(grants=(grant(b"a", 1, b"a1", b"a2"),))
    job = driver.job()
    driver.core.fail(job, 2.5, "why", driver.now)
    assert driver.core.next_job(driver.now) is None
    assert driver.operations(driver.turn()) == [(b"F", b"0", b"a", b"1.1", b"0", b"2500", b"why")]
    driver.reply(results=([2, 2],))
    assert job.settled
    assert driver.core.held == 0


def test_a_key_above_the_share_goes_back_between_two_messages() -> None:
    driver = Driver()
    driver.turn()
    driver.reply(grants=(grant(b"a", 1, b"a1", b"a2"), grant(b"b", 2, b"b1")), owned=2)
    job = driver.job()
    driver.now += 2.0
    driver.turn()
    driver.reply(results=([1, 2],), hungry=1, consumers=2, owned=2)
    operations = driver.operations(driver.turn())
    assert [one[0] for one in operations] == [b"G"]
    assert operations[0][2] == b"b", "the key with a running message stays"
    assert job.key.running is job


def test_a_draining_consumer_gives_keys_back_at_once_or_when_their_message_ends() -> None:
    driver = Driver()
    driver.turn()
    driver.reply(grants=(grant(b"a", 1, b"a1", b"a2"), grant(b"b", 2, b"b1")))
    running = driver.job()
    driver.core.drain(driver.now)
    assert driver.core.next_job(driver.now) is None
    words = driver.turn()
    assert words[5] == b"0"  # it takes no more
    assert driver.operations(words) == [
        (b"G", b"0", b"b", b"1.2", b"0", FRONT, b"U"),
        (b"S", b"0", b"a", b"1.1", b"0", b"", b""),
    ]
    driver.core.pushed([b"0", b"c", b"1.11", b"0", b"0", b"1", b"0", b"c1"], driver.now)
    driver.reply(results=([2, 1], [1, 2]))
    assert driver.core.next_job(driver.now) is None
    assert driver.operations(driver.turn()) == [(b"G", b"0", b"c", b"1.11", b"0", FRONT, b"U")]
    driver.reply(results=([2, 1],))
    driver.core.done(running, driver.now)
    assert driver.operations(driver.turn()) == [(b"G", b"0", b"a", b"1.1", b"1", FRONT, b"U")]
    driver.reply(results=([2, 1],))
    assert running.settled
    assert running.error is None
    assert driver.core.held == 0


def test_a_key_that_goes_back_before_its_head_was_handed_out_says_so() -> None:
    """The start of a suspect head is reported first. If the key then goes back, that start must not count."""
    driver = Driver()
    driver.turn()
    driver.reply(grants=(grant(b"a", 1, b"a1"), grant(b"b", 2, b"b1", suspect=1)), owned=2)
    job = driver.job()
    assert [one[0] for one in driver.operations(driver.turn())] == [b"S", b"S"]
    driver.reply(results=([1, 1], [1, 1]), hungry=1, consumers=2, owned=2)
    assert driver.operations(driver.turn()) == [(b"G", b"0", b"b", b"1.2", b"0", b"F", b"U")]
    assert job.key.running is job


def test_the_number_of_fetched_messages_is_bounded() -> None:
    driver = Driver(max_in_flight=3)
    assert driver.turn()[5] == b"3"
    driver.reply(grants=(grant(b"a", 1, b"a1", b"a2", b"a3", left=50),))
    driver.now += 2.0
    assert driver.turn()[5] == b"0"


def test_a_reply_after_the_end_of_the_lease_starts_nothing_until_the_store_says_what_is_held() -> None:
    """The lease had ended, the key was done elsewhere, and a shard that moved to the store brought another lease: the
    reply did not say that the consumer had joined again (`shoal sim queue`, seed 1 of the variant for move_confirm)."""
    driver = Driver()
    driver.turn()
    driver.reply(grants=(grant(b"a", 1, b"a1"),))
    driver.now += 5.0
    driver.turn()
    driver.now += 10.0
    driver.reply()
    assert driver.core.next_job(driver.now) is None
    assert driver.turn()[8] == b"R"
    driver.reply()
    assert driver.core.held == 0
    driver.now += 20.0
    assert driver.turn()[8] == b"R", "the lease is over when it is sent"


def test_a_push_that_comes_after_a_later_reply_is_not_believed() -> None:
    """The key had gone to another consumer and its message was done; then it was started once more."""
    driver = Driver()
    driver.turn()
    driver.counter = 20
    driver.reply()
    driver.core.pushed([b"0", b"a", b"1.14", b"0", b"0", b"1", b"0", b"m"], driver.now)
    assert driver.core.next_job(driver.now) is None
    assert driver.turn()[8] == b"R", "the store says what is held"
    driver.core.pushed([b"0", b"b", b"1.21", b"0", b"0", b"1", b"0", b"m"], driver.now)
    assert driver.job().key.key == b"b"


def test_a_key_that_gets_nothing_because_there_is_no_room_does_not_ask_at_once() -> None:
    """Another turn went out at once, and brought nothing that the next one would not have brought."""
    driver = Driver(max_in_flight=2, key_messages=2)
    driver.turn()
    driver.reply(grants=(grant(b"a", 1, b"a1", b"a2", left=9), grant(b"b", 2, left=9)))
    assert driver.core.turn(driver.now) is None
    job = driver.job()
    driver.core.done(job, driver.now)
    words = driver.operations(driver.turn())
    assert [(word[2], word[6]) for word in words] == [(b"b", b"1"), (b"a", b"0")]


def test_a_key_gets_one_message_although_stalled_jobs_fill_the_room() -> None:
    driver = Driver(max_in_flight=2, key_messages=2)
    driver.turn()
    driver.reply(grants=(grant(b"a", 1, b"a1", b"a2", left=9), grant(b"b", 2, left=9)))
    driver.job()
    driver.now += 0.01
    assert [(word[2], word[6]) for word in driver.operations(driver.turn()) if word[0] == b"D"] == [(b"b", b"1")]


def test_no_more_is_fetched_of_a_key_than_its_quantum_if_others_wait() -> None:
    for ready, wants in ((1, b"2"), (0, b"8")):
        driver = Driver(max_in_flight=8, key_messages=8, quantum_messages=10)
        driver.turn()
        driver.reply(grants=(grant(b"a", 1, *[b"m"] * 8, left=50),), ready=ready, owned=1)
        for _ in range(8):
            driver.core.done(driver.job(), driver.now)
        assert driver.operations(driver.turn())[0][6] == wants


@dataclass
class Key:
    left: int = 5
    served: int = 0
    is_running: bool = False


def given(keys: list[Key], now: Situation, slow: bool = False, **settings: Any) -> list[tuple[int, bytes]]:
    chosen = keys_to_give(keys, now, ConsumerSettings(**settings), slow=slow)
    return [(next(at for at, key in enumerate(keys) if key is one), side) for one, side in chosen]


def test_shares() -> None:
    assert Situation(ready=3, consumers=2, owned=4).share == 4
    assert Situation().share == 0
    keys = [Key() for _ in range(4)]
    assert given(keys, Situation(hungry=0, consumers=2, owned=4)) == []
    assert len(given(keys, Situation(hungry=1, consumers=2, owned=4))) == 2
    assert given(keys, Situation(hungry=1, consumers=2, owned=4, ready=2)) == [], "others can take what is ready"
    running = [Key(is_running=True), Key(is_running=True)]
    assert given(running, Situation(hungry=1, consumers=2, owned=2)) == []


def test_a_served_key_goes_to_the_back_only_if_others_wait() -> None:
    keys = [Key(served=100), Key()]
    assert given(keys, Situation(ready=1, owned=2)) == [(0, BACK)]
    assert given(keys, Situation(ready=0, owned=2)) == []


def test_a_slow_consumer_gives_everything_to_consumers_that_wait() -> None:
    keys = [Key(), Key(is_running=True)]
    assert given(keys, Situation(hungry=1, consumers=2, owned=2), slow=True) == [(0, FRONT), (1, FRONT)]
    assert given(keys, Situation(hungry=0, consumers=2, owned=2), slow=True) == []


def test_the_owner_of_a_hot_key_gives_its_others() -> None:
    keys = [Key(), Key(left=5000), Key()]
    assert sorted(given(keys, Situation(hungry=1, consumers=2, owned=3))) == [(0, FRONT), (2, FRONT)]


def test_delays_count_within_a_window_and_load_weighs_keys() -> None:
    settings = ConsumerSettings(slow_after_s=1.0, slow_delays=3, slow_window_s=10.0)
    meter = DelayMeter(settings)
    for now in (0.0, 5.0, 20.0):
        meter.note(2.0, now)
    assert not meter.is_slow(20.0)
    meter.note(2.0, 12.0)
    meter.note(0.5, 21.0)
    assert meter.delays == 4
    assert meter.is_slow(14.0)
    assert load_of(2.0, 3, 1, settings) == 2.0 * (3 + settings.partition_weight)


# Shards that move


def two_stores() -> tuple[Driver, Driver]:
    """A consumer that holds the key `a` of shard 0 on its first store: a1 runs, a2 waits."""
    group: list[ConsumerCore] = []
    old, new = Driver(group), Driver(group)
    for driver in (old, new):
        driver.turn()
        driver.reply()
        driver.core.disconnected(driver.now)
    old.turn()
    old.reply(grants=(grant(b"a", 11, b"a1", b"a2"),))
    return old, new


def test_a_key_of_a_sealed_shard_starts_nothing_and_goes_on_when_the_new_store_confirms_it() -> None:
    old, new = two_stores()
    job = old.job()
    held_until = old.core._lease_until
    old.now += 3.0
    old.turn()
    old.reply(results=([1, 2],), shards=b"so")
    old.core.done(job, old.now)
    assert old.core.next_job(old.now) is None
    assert old.core.holds(job.key, held_until - 0.1)
    assert not old.core.holds(job.key, held_until + 0.1), "turns after the seal do not extend its lease"
    assert old.operations(old.turn()) == [], "what the application reports waits"
    old.reply(shards=b"so")
    moved = old.core.release_shards([b"0"], old.now)
    assert [key.key for key in moved] == [b"a"]
    new.core.adopt(moved, new.now)
    assert job.key.core is new.core
    assert new.core.next_job(new.now) is None
    words = new.turn()
    assert new.operations(words)[0][:5] == (b"D", b"0", b"a", b"1.11", b"1")
    new.reply(results=([4, 0], [4, 0]), shards=b"ia")
    assert not job.settled
    new.now += 1.0
    words = new.turn()
    assert new.operations(words) == []
    new.reply(shards=b"oa")
    assert new.operations(new.turn())[0][:5] == (b"D", b"0", b"a", b"1.11", b"1")
    new.reply(results=([1, 1], [1, 0]), shards=b"oa")
    assert new.core.settled == [job]
    assert job.error is None
    assert new.job().body == b"a2"


def test_an_operation_on_its_way_is_answered_by_the_old_store() -> None:
    old, new = two_stores()
    job = old.job()
    old.core.done(job, old.now)
    old.turn()
    assert old.core.release_shards([b"0"], old.now) == []
    old.reply(results=([2, 0],), shards=b"mo")  # carried out before the seal: it was the last message
    assert job.settled
    assert job.error is None
    assert old.core.held == 0
    assert new.core.held == 0


def test_a_key_does_not_wait_for_an_old_store_for_longer_than_its_lease() -> None:
    old, new = two_stores()
    job = old.job()
    old.core.done(job, old.now)
    old.turn()
    old.core.turn_lost(old.now)
    assert old.core.release_shards([b"0"], old.now) == []
    (key,) = old.core.release_shards([b"0"], old.now + 10.0)
    assert key.uncertain
    new.core.adopt([key], new.now)
    assert new.operations(new.turn())[0][:5] == (b"D", b"0", b"a", b"1.11", b"1")


def test_two_stores_may_give_the_same_token_to_two_keys() -> None:
    old, new = two_stores()
    new.turn()
    new.reply(grants=(grant(b"b", 11, b"b1"),))
    new.core.adopt(old.core.release_shards([b"0"], old.now), new.now)
    assert new.core.held == 2


def test_a_key_that_one_core_holds_is_not_taken_by_another_that_lists_it() -> None:
    _old, new = two_stores()
    new.core.disconnected(new.now)
    new.turn()
    new.reply(kept=([b"0", b"a", b"1.11", 0, 0, 2, 0],))
    assert new.core.held == 0


def test_a_shard_that_opens_may_bring_keys_whose_grant_was_lost() -> None:
    driver = Driver()
    driver.turn()
    driver.reply(shards=b"io")
    driver.core.disconnected(driver.now)
    driver.turn()
    driver.reply(shards=b"oo")
    assert driver.turn()[8] == b"R"
    driver.reply(kept=([b"0", b"a", b"1.9", 0, 0, 2, 0],))
    assert driver.core.held == 1


def test_stores_share_what_a_consumer_may_hold() -> None:
    group: list[ConsumerCore] = []
    one, two = Driver(group, max_in_flight=4), Driver(group, max_in_flight=4)
    assert one.turn()[5] == b"4"
    assert two.turn()[5] == b"0", "the other turn may bring four"
    one.reply(grants=(grant(b"a", 11, b"a1"),))
    two.reply()
    two.core.disconnected(two.now)
    assert two.turn()[5] == b"3"


def test_a_start_that_was_reported_ahead_does_not_count_if_the_consumer_leaves_before_it() -> None:
    driver = Driver()
    driver.turn()
    driver.reply(grants=(grant(b"a", 1, b"a1", suspect=1),))
    assert driver.operations(driver.turn())[0][0] == b"S"
    driver.reply(results=([1, 1],))
    driver.core.leave(driver.now)
    assert driver.operations(driver.turn()) == [(b"G", b"0", b"a", b"1.1", b"0", b"F", b"U")]
