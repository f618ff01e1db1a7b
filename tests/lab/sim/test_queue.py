"""The scenario `queue`: it holds, repeats itself, and its checkers notice a broken rule."""

from __future__ import annotations

import pytest
from tests.lab.sim.broken_rules import assert_noticed

from shoal.lab.sim.scenarios.queue import BREAKS, CORNERS, VARIANTS, run_seed
from shoal.lab.sim.scenarios.queue_actions import ACTION_CORNERS
from shoal.lab.sim.scenarios.queue_history import ACCEPTED, QueueCheck, QueueHistory
from shoal.plan.queue_settings import QueueSettings

pytestmark = pytest.mark.xdist_group("sim_queue")
"""Most rules have the same control, which runs once in a worker."""


def test_regressions_hold() -> None:
    """A leader that reads the live stores while the first one joins (13). Shards of a store are abandoned: producers go
    on at a store that keeps its shards (4), also those that a move has sealed (107); the store is back just before its
    shards are abandoned, and clients are connected (497). A consumer joins again after its lease has ended, and the
    reply that says so is lost (55). Dead letters are full, so a worker's error ends the stay of its consumer (605). Two
    runs with other faults."""
    for seed in (4, 9, 13, 19, 55, 107, 497, 605):
        outcome = run_seed(seed)
        assert outcome.verdict.violations == [], seed
        assert outcome.verdict.deliveries > 0
        assert {*outcome.exercised} & {*CORNERS.values()}


def test_what_a_store_brings_back_of_a_dropped_queue_holds() -> None:
    """A queue is dropped while its store is away, or runs without its directory: its clients are sent away when that
    is back (951, 850). The shards of the store were abandoned before (255, 499). Its agent comes late (391). The next
    queue of the name is placed on the store (26), and a shard is to move there already (74)."""
    for seed in (951, 850, 255, 499, 391):
        assert run_seed(seed).verdict.violations == [], seed
    variant = {**VARIANTS["return_check"], "recoveries": 1.0, "operators": 1.0, "fixed_actions": ("drop",)}
    for seed in (26, 74):
        outcome = run_seed(seed, variant=variant)
        assert outcome.verdict.violations == [], seed
        assert outcome.exercised["dropped with an older one"]


def test_the_same_seed_gives_the_same_digest() -> None:
    assert run_seed(0).digest == run_seed(0).digest


def test_what_operators_do_holds() -> None:
    """A shard is about to move to a store that has no queue yet (104). A queue is dropped and created again where
    copies of its shards are left, because the agent was away (117). `lease_s` is made shorter while consumers work
    (156)."""
    for seed in (104, 117, 156):
        outcome = run_seed(seed, variant={"operators": 1.0})
        assert outcome.verdict.violations == [], seed
        assert {*outcome.exercised} & {*ACTION_CORNERS.values()}


CATCHING: dict[str, tuple[int, set[str]]] = {
    "clock_clamp": (0, {"overlapped"}),
    "done_once": (0, {"lost"}),
    "one_owner": (0, {"overlapped"}),
    "producer_sequence": (5, {"redone"}),
    "refused_sequence": (5, {"lost"}),
    "message_ids": (0, {"accepted twice"}),
    "turn_sequence": (5, {"false alarm"}),
    "repair_sequence": (18, {"misreported"}),
    "bound": (0, {"over bound"}),
    "lease_before_takeover": (0, {"overlapped"}),
    "attempts_on_start": (26, {"early dead letter"}),
    "delayed_order": (0, {"lost"}),
    "retry_holds_key": (0, {"starved"}),
    "fencing": (12, {"lost"}),
    "move_seal": (0, {"split"}),
    "move_dedupe": (0, {"accepted twice"}),
    "move_lease": (5, {"starved"}),
    "move_tombstone": (0, {"split"}),
    "safe_put": (0, {"lost"}),
    "wake_poll": (0, {"starved"}),
    "give_at_boundary": (2, {"overlapped"}),
    "lease_before_start": (1, {"unowned"}),
    "move_confirm": (16, {"unowned"}),
    "move_order": (1, {"reordered"}),
    "fresh_places": (0, {"undercounted"}),
    "return_check": (7, {"lost"}),
    "store_opened": (1, {"lost"}),
}
"""For each rule a seed that catches it when it is broken, and what it finds."""


def test_every_rule_of_queues_has_a_seed() -> None:
    assert {*CATCHING} == {*BREAKS}


@pytest.mark.parametrize("name", CATCHING)
def test_a_broken_rule_is_noticed(name: str) -> None:
    seed, found = CATCHING[name]
    assert_noticed(run_seed, name, (seed,), found, VARIANTS)


class Story:
    """A history by hand: one key, numbered messages."""

    def __init__(self) -> None:
        self.history = QueueHistory()
        self.history.set_settings(QueueSettings(attempts_max=2, dedupe_s=100.0), 0.0)
        self.now = 0.0

    def put(self, outcome: str = ACCEPTED, id: str = "") -> int:
        self.now += 1
        put = self.history.put("p", "k", id, False, self.now)
        put.outcome, put.answered_at = outcome, self.now
        return put.number

    def start(self, number: int, consumer: str = "c", end: str = "done", confirmed: bool = True) -> None:
        self.now += 1
        start = self.history.start(number, "k", consumer, self.now, lambda: True)
        if end:
            start.ended_at, start.end = self.now + 0.1, end
            start.confirmed_at = self.now + 0.2 if confirmed else None

    def kinds(self, stored: tuple[int, ...] = (), dead: tuple[int, ...] = ()) -> set[str]:
        verdict = QueueCheck(self.history).judge([*stored], dict.fromkeys(dead, 2))
        return {text.split(":")[0] for text in verdict.violations}


def test_each_violation_is_found_in_a_history_that_has_it_and_none_in_a_good_one() -> None:
    good = Story()
    for number in (good.put(), good.put(id="i"), good.put("refused")):
        if number < 3:
            good.start(number)
    assert good.kinds() == set()

    story = Story()
    story.put()
    assert story.kinds() == {"lost"}
    assert story.kinds(stored=(1,)) == {"starved"}
    assert story.kinds(stored=(1, 1)) == {"starved", "stored twice"}
    assert story.kinds(dead=(1,)) == {"early dead letter"}

    story = Story()
    first, second = story.put(), story.put()
    story.start(second)
    story.start(first)
    assert story.kinds() == {"reordered"}

    story = Story()
    number = story.put()
    story.start(number)
    story.start(number)
    assert story.kinds() == {"redone"}

    story = Story()
    number = story.put()
    story.start(number, "a", end="")
    story.start(number, "b")
    story.history.starts[0].ended_at, story.history.starts[0].end = story.now, "done"
    story.history.starts[0].confirmed_at = story.now + 5
    assert story.kinds() == {"overlapped", "stale done"}

    story = Story()
    story.start(story.put(id="i"))
    story.start(story.put(id="i"))
    assert story.kinds() == {"accepted twice"}

    story = Story()
    story.start(story.put(), confirmed=False)
    story.history.starts[0].lost = True
    assert story.kinds() == {"false alarm"}

    story = Story()
    story.start(7)
    assert "invented" in story.kinds()

    story = Story()
    story.start(story.put("refused"))
    assert story.kinds() == {"refused"}


def test_what_an_operator_has_deleted_is_not_lost_and_does_not_come_back() -> None:
    story = Story()
    number = story.put(id="i")
    story.history.remove([number])
    assert story.kinds() == set()
    assert story.kinds(stored=(number,)) == {"resurrected"}
    story.history.dropped(story.now)
    story.start(story.put(id="i"))
    assert story.kinds() == set(), "the ids of a queue that was dropped do not count for the next one"


def test_dead_letters_that_are_put_back_start_in_order_and_have_their_attempts_again() -> None:
    story = Story()
    first, second = story.put(), story.put()
    for number in (first, first, second, second):
        story.start(number, end="fail")
    assert story.kinds(dead=(first, second)) == set()
    story.history.replays = {first: [story.now], second: [story.now]}
    assert story.kinds(dead=(first, second)) == {"early dead letter"}
    story.history.replayed = [[(first, story.now), (second, story.now)]]
    story.start(second)
    story.start(first)
    assert story.kinds() == {"reordered"}
    story.history.replayed = [[(second, story.now - 2), (first, story.now - 2)]]
    assert story.kinds() == set()


def test_settings_overlap_while_they_change() -> None:
    history = QueueHistory()
    history.set_settings(QueueSettings(messages_max=9), 1.0)
    history.set_settings(QueueSettings(messages_max=4), 2.0)
    history.settings_hold(3.0)
    assert history.limits("messages_max", 2.5, 2.5) == [9, 4]
    assert history.limits("messages_max", 3.5, 3.5) == [4]
    assert history.limits("messages_max", 0.0) == [9, 4]


def test_certainly_stored_messages_are_accepted_before_and_neither_ended_nor_at_their_last_attempt() -> None:
    story = Story()
    waiting, done, crashed, late = (story.put() for _ in range(4))
    story.put("refused")
    story.start(done)
    story.start(crashed, end="crash")
    since = story.history.puts[late].called_at
    assert story.history.surely_stored(since, attempts_max=2) == 2
    assert story.history.surely_stored(since + 0.5, attempts_max=2) == 3
    story.start(crashed, end="crash")
    assert story.history.surely_stored(since, attempts_max=2) == 1
    story.history.abandon(lambda key: True)
    assert story.history.surely_stored(since, attempts_max=2) == 0
    assert story.kinds(stored=(waiting,)) == set()
