"""The checkers: each broken promise in a handmade history is found under its name, and a correct history passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.lab.sim.checkers import DeliveryCheck, Verdict
from shoal.lab.sim.history import History, Interval, Published, PublisherRecord, payload_of
from shoal.lab.sim.scenarios.channel_checkers import FOREIGN, Expectations, judge
from shoal.lab.sim.scenarios.channel_run_history import ChannelRunHistory, Handed, Lie, SubscriberRecord
from shoal.message import Gap, Message, Retraction

ALICE, BOB = 0xA11CE, 0xB0B
CHANNEL = "c.1"


class Story:
    """Alice publishes messages 1, 2, 3, ... at times 1.0, 2.0, 3.0, ...; Bob subscribed at 0.5 and reads at once."""

    def __init__(self, count: int = 5, channel: str = CHANNEL) -> None:
        self.history = ChannelRunHistory()
        self.alice = self.history.publishers[ALICE] = PublisherRecord(ALICE)
        self.bob = SubscriberRecord(CHANNEL, False, BOB, called_at=0.4, in_force_at=0.5)
        self.history.subscribers.append(self.bob)
        for sequence in range(1, count + 1):
            number = self.history.publish(channel, ALICE, sequence, float(sequence))
            self.history.confirmed(number, sequence + 0.1)

    def hand(self, *numbers: int, at: float | None = None) -> Story:
        """Bob gets messages, as they were published."""
        for number in numbers:
            published = self.history.messages[number]
            message = Message(published.unit, payload_of(number, 10), ALICE, published.sequence)
            self.bob.handed.append(Handed(published.called_at + 0.2 if at is None else at, message))
        return self

    def report(
        self,
        first: int,
        last: int | None,
        at: float = 9.0,
        publisher: int | None = ALICE,
        known_to: tuple[str, ...] = (),
    ) -> Story:
        """Bob gets a gap."""
        self.bob.handed.append(Handed(at, Gap(CHANNEL, publisher, first, last, "lost"), known_to))
        return self

    def lie(self, sequence: int, at: float = 5.0, *, altered: bool = False) -> Story:
        """Bob gets a message that a stranger published under Alice's name."""
        payload = b"lie %d" % sequence
        self.history.lies[payload] = Lie(payload, CHANNEL, ALICE, sequence, "s1", at, altered)
        self.bob.handed.append(Handed(at, Message(CHANNEL, payload, ALICE, sequence)))
        return self

    def retract(self, sequence: int, at: float = 6.0) -> Story:
        """Bob learns that a message was false."""
        self.bob.handed.append(Handed(at, Retraction(CHANNEL, ALICE, sequence)))
        return self

    def judge(self, *, healable: bool = False, calm: bool = False, finished: bool = True) -> Verdict:
        return judge(self.history, Expectations(healable=healable, calm=calm, finished=finished))


def kinds(verdict: Verdict) -> set[str]:
    return {violation.split(":")[0] for violation in verdict.violations}


# Correct histories


def test_everything_once_and_in_order_is_correct() -> None:
    verdict = Story().hand(1, 2, 3, 4, 5).judge(healable=True, calm=True)
    assert verdict.violations == []
    assert (verdict.messages, verdict.deliveries, verdict.lost, verdict.gaps_reported) == (5, 5, 0, 0)


def test_a_gap_in_place_of_missing_messages_is_correct() -> None:
    verdict = Story().hand(1).report(2, 3).hand(4, 5).judge()
    assert verdict.violations == []
    assert verdict.gaps_reported == 1


def test_messages_from_before_the_subscription_are_not_owed() -> None:
    story = Story()
    story.bob.called_at, story.bob.in_force_at = 2.5, 2.6
    assert story.hand(3, 4, 5).judge(calm=True).violations == []


def test_messages_between_the_call_and_being_in_force_may_or_may_not_arrive() -> None:
    for numbers in ((4, 5), (3, 4, 5)):
        story = Story()
        story.bob.called_at, story.bob.in_force_at = 2.5, 3.5
        assert story.hand(*numbers).judge(calm=True).violations == []


def test_publishers_may_be_interleaved() -> None:
    story = Story(2)
    carol = 0xCA401
    story.history.publishers[carol] = PublisherRecord(carol)
    number = story.history.publish(CHANNEL, carol, 1, 1.5)
    story.hand(1)
    story.bob.handed.append(Handed(2.0, Message(CHANNEL, payload_of(number, 10), carol, 1)))
    assert story.hand(2).judge(calm=True).violations == []


def test_a_pattern_is_owed_its_channels_only() -> None:
    story = Story()
    story.bob.pattern, story.bob.name = True, "d.*"
    assert story.judge().violations == []
    story.bob.name = "c.*"
    assert story.judge().lost == 5


def test_a_subscription_that_ended_is_owed_the_messages_before_its_last_one() -> None:
    story = Story().hand(1, 2, 3)
    story.bob.ended_at = 3.3
    assert story.judge().violations == []


def test_an_open_gap_after_a_death_is_correct() -> None:
    story = Story().hand(1, 2)
    story.history.unwatched.append(Interval("s1", 5.5))
    story.alice.crashed, story.alice.ended_at = True, 5.6
    assert story.report(3, None).judge().violations == []


def test_a_gap_without_a_publisher_covers_only_dead_publishers() -> None:
    story = Story().hand(1, 2).report(1, None, publisher=None)
    story.history.unwatched.append(Interval("s1", 5.5))
    assert kinds(story.judge()) == {"lost"}
    story.alice.crashed, story.alice.ended_at = True, 5.6
    assert story.judge().violations == []


def test_a_gap_without_a_publisher_covers_one_that_closed_later_only_if_it_gave_up() -> None:
    story = Story().hand(1, 2).report(1, None, publisher=None)
    story.history.unwatched.append(Interval("s1", 5.5))
    story.alice.ended_at = 50.0
    assert kinds(story.judge()) == {"lost"}
    story.alice.gave_up = True
    assert story.judge().violations == []


def alarms(verdict: Verdict) -> tuple[int, int]:
    return len(verdict.gaps_false), verdict.gaps_unprovable


def test_a_gap_about_nothing_is_false_if_a_participant_knew_that_and_unprovable_otherwise() -> None:
    story = Story().hand(1, 2, 3, 4, 5)
    story.history.unwatched.append(Interval("s1", 5.5))
    assert alarms(story.report(6, None, known_to=("agent-s1",)).judge()) == (1, 0)
    assert alarms(story.report(0, None, publisher=None).judge()) == (1, 1)
    assert story.judge().violations == []
    story.report(6, None, known_to=("agent-s1",)).report(6, None, known_to=("agent-s1",))
    assert kinds(story.judge()) == {"false gap"}, "several of them are a violation"


def test_a_gap_about_a_missing_message_is_true_whoever_knows_it() -> None:
    story = Story().hand(1, 2, 3).report(4, 5, known_to=("app1",))
    assert alarms(story.judge()) == (0, 0)
    story = Story().hand(1, 2, 3).report(4, None, known_to=("app1",))
    story.history.unwatched.append(Interval("s1", 5.5))
    assert alarms(story.judge()) == (0, 0)


def test_a_gap_about_messages_from_before_the_subscription_is_false() -> None:
    story = Story()
    story.bob.called_at, story.bob.in_force_at = 2.5, 2.6
    for message in story.history.messages.values():
        message.confirmed_at = message.called_at + 0.1
    assert alarms(story.report(1, 2, known_to=("alice",)).hand(3, 4, 5).judge()) == (1, 0)


def test_an_altered_copy_is_excused_if_no_process_knows_the_true_message() -> None:
    story = Story().hand(1, 2, 4, 5, at=5.5).lie(3, at=60.0, altered=True)
    assert "invented" in kinds(story.judge())
    story.history.link_ended("s1", None, 4.0)
    assert "invented" in kinds(story.judge()), "the publisher could have been asked"
    story.alice.crashed, story.alice.ended_at = True, 30.0
    assert "invented" not in kinds(story.judge())
    story.history.links_ended.clear()
    story.history.link_ended("s1", None, 2.0)
    assert "invented" in kinds(story.judge()), "the agent has heard the true message"


def test_what_a_retracted_message_displaced_may_come_late() -> None:
    verdict = Story().hand(1, 2, at=4.0).lie(3).hand(4, 5, at=5.5).retract(3).hand(3, at=7.0).judge()
    assert verdict.violations == []


def test_if_it_was_the_first_of_its_publisher_those_before_it_may_come_late_too() -> None:
    verdict = Story().lie(3).hand(4, 5, at=5.5).retract(3).hand(1, 2, 3, at=7.0).judge()
    assert verdict.violations == []


@pytest.mark.parametrize(
    "story",
    [
        Story().hand(1, at=4.0).lie(3).hand(4, 5, at=5.5).retract(3).hand(2, 3, at=7.0),
        Story().lie(3).hand(4, 5, 1, 2, at=5.5).retract(3).hand(3, at=7.0),
    ],
    ids=["it was not the first", "before the retraction"],
)
def test_otherwise_late_ones_are_reordered(story: Story) -> None:
    assert kinds(story.judge()) == {"reordered"}


def test_foreign_messages_are_not_promised() -> None:
    story = Story().hand(1, 2, 3, 4, 5)
    story.bob.handed.append(Handed(6.0, Message(CHANNEL, FOREIGN + b"1")))
    verdict = story.judge(calm=True)
    assert verdict.violations == []
    assert verdict.seen["foreign message"] == 1


# Broken promises


def lost(story: Story) -> None:
    story.hand(1, 2, 4, 5)


def lost_at_the_end(story: Story) -> None:
    story.hand(1, 2, 3, 4)


def lost_all(story: Story) -> None:
    del story


def lost_though_it_ended(story: Story) -> None:
    story.hand(1, 3)
    story.bob.ended_at = 3.3


def lost_outside_the_gap(story: Story) -> None:
    story.hand(1).report(2, 3).hand(5)


def lost_after_the_open_gap(story: Story) -> None:
    """An open gap covers messages from before its report, and no later ones."""
    story.history.unwatched.append(Interval("s1", 2.5))
    story.hand(1, 2).report(3, None, at=3.5).hand(5)


def duplicated(story: Story) -> None:
    story.hand(1, 2, 2, 3, 4, 5)


def reordered(story: Story) -> None:
    story.hand(1, 3, 2, 4, 5)


def gap_that_was_delivered(story: Story) -> None:
    story.hand(1, 2).report(2, 3).hand(4, 5)


def gap_of_what_never_was(story: Story) -> None:
    story.hand(1, 2, 3, 4, 5).report(6, 7)


def open_gap_without_a_death(story: Story) -> None:
    story.hand(1, 2, 3, 4, 5).report(6, None)


def open_gap_after_a_death_that_was_over(story: Story) -> None:
    story.history.unwatched.append(Interval("s1", 0.1, 0.2))
    story.hand(1, 2, 3, 4, 5).report(6, None)


def invented(story: Story) -> None:
    story.hand(1, 2, 3, 4, 5)
    story.bob.handed.append(Handed(6.0, Message(CHANNEL, payload_of(99, 10), ALICE, 6)))


def invented_garbage(story: Story) -> None:
    story.hand(1, 2, 3, 4, 5)
    story.bob.handed.append(Handed(6.0, Message(CHANNEL, b"whatever")))


def from_another_channel(story: Story) -> None:
    number = story.history.publish("c.2", ALICE, 1, 1.0)
    story.hand(1, 2, 3, 4, 5, number)


def mislabelled_sequence(story: Story) -> None:
    story.hand(1, 2, 3, 4)
    story.bob.handed.append(Handed(6.0, Message(CHANNEL, payload_of(5, 10), ALICE, 6)))


def mislabelled_publisher(story: Story) -> None:
    story.hand(1, 2, 3, 4)
    story.bob.handed.append(Handed(6.0, Message(CHANNEL, payload_of(5, 10), BOB, 5)))


def split(story: Story) -> None:
    story.hand(1, 2, 3, 4, 5)
    story.history.members = {"s1"}
    story.history.sent("s2", ALICE, 3.0)


def unsettled(story: Story) -> None:
    story.bob.in_force_at = None


BROKEN: list[tuple[Callable[[Story], None], str]] = [
    (lost, "lost"),
    (lost_at_the_end, "lost"),
    (lost_all, "lost"),
    (lost_though_it_ended, "lost"),
    (lost_outside_the_gap, "lost"),
    (lost_after_the_open_gap, "lost"),
    (duplicated, "duplicated"),
    (reordered, "reordered"),
    (gap_that_was_delivered, "false gap"),
    (gap_of_what_never_was, "false gap"),
    (open_gap_without_a_death, "false gap"),
    (open_gap_after_a_death_that_was_over, "false gap"),
    (invented, "invented"),
    (invented_garbage, "invented"),
    (from_another_channel, "invented"),
    (mislabelled_sequence, "mislabelled"),
    (mislabelled_publisher, "mislabelled"),
    (split, "split"),
    (unsettled, "unsettled"),
]


@pytest.mark.parametrize(("tell", "kind"), BROKEN, ids=[tell.__name__ for tell, _ in BROKEN])
def test_a_broken_promise_is_found(tell: Callable[[Story], None], kind: str) -> None:
    story = Story()
    tell(story)
    assert kind in kinds(story.judge())


def test_the_counts_match_the_violations() -> None:
    verdict = Story().hand(1, 3, 2, 2).judge()
    assert (verdict.lost, verdict.duplicated, verdict.reordered) == (2, 1, 2)


def test_in_a_calm_world_nothing_comes_early() -> None:
    story = Story()
    story.bob.called_at, story.bob.in_force_at = 2.5, 2.6
    story.hand(2, 3, 4, 5, at=6.0)
    assert story.judge().violations == []
    assert kinds(story.judge(calm=True)) == {"early"}


def test_in_a_calm_world_no_gap_covers_messages_that_were_not_owed() -> None:
    story = Story()
    story.bob.called_at, story.bob.in_force_at = 2.5, 2.6
    story.report(1, 2).hand(3, 4, 5)
    assert story.judge().violations == []
    assert kinds(story.judge(calm=True)) == {"false gap"}


def test_when_everything_can_be_healed_a_gap_of_a_running_publisher_is_wrong() -> None:
    story = Story().hand(1).report(2, 3).hand(4, 5)
    assert kinds(story.judge(healable=True)) == {"unhealed"}
    story.alice.ended_at = 8.0
    assert story.judge(healable=True).violations == [], "it had left before the gap was reported"


def test_the_messages_of_a_dead_publisher_are_owed_only_if_a_server_had_them() -> None:
    story = Story().hand(1, 2, 3, 4)
    story.alice.crashed, story.alice.ended_at = True, 5.2
    story.history.messages[5].confirmed_at = None
    assert story.judge().violations == []
    story.history.messages[5].confirmed_at = 5.1
    assert kinds(story.judge()) == {"lost"}


def test_in_an_unfinished_run_the_last_messages_are_not_owed() -> None:
    story = Story().hand(1, 2)
    assert story.judge(finished=False).violations == []
    story.hand(4)
    assert kinds(story.judge(finished=False)) == {"lost"}


def test_publishing_on_a_member_is_not_a_split() -> None:
    story = Story().hand(1, 2, 3, 4, 5)
    story.history.sent("s1", ALICE, 1.0)
    story.history.members = {"s1"}
    story.history.sent("s1", ALICE, 2.0)
    assert story.judge().violations == []


# Receivers of other protocols


class EvenNumbers:
    """Wants the messages of every unit that have an even number."""

    in_force_at: float | None = 0.5
    label = "even numbers"

    def reads(self, unit: str) -> bool:
        return True

    def wants(self, message: Published) -> bool:
        return message.number % 2 == 0


def test_deliveries_are_checked_by_what_a_receiver_wants() -> None:
    history, verdict = History(), Verdict()
    for sequence in range(1, 7):
        history.publish("queue", ALICE, sequence, float(sequence))
    check = DeliveryCheck(history, history.by_unit(), EvenNumbers(), verdict)
    for number in (2, 6, 2, 3):
        check.take(number, 9.0, payload_of(number, 10))
    assert [violation.split(":")[0] for violation in verdict.violations] == ["duplicated", "reordered", "invented"]
    assert [(message.number, followed) for message, followed in check.missing()] == [(4, True)]


# Streams that end because their publisher is silent

IDLE_S = 8.0


class TwoStreams(Story):
    """Alice publishes 1 and 2 at times 1.0 and 2.0, is silent, and publishes 1 to 3 of a second stream from 20.0 on.
    Bob loses his connection at 0.6."""

    def __init__(self) -> None:
        super().__init__(count=0)
        for epoch, sequence, at in ((1, 1, 1.0), (1, 2, 2.0), (2, 1, 20.0), (2, 2, 21.0), (2, 3, 22.0)):
            number = self.history.publish(CHANNEL, ALICE, 99, at)
            self.history.sent_as(number, epoch, sequence)
            self.history.confirmed(number, at + 0.1)
        self.history.link_ended("s1", BOB, 0.6)

    def absent(self, at: float) -> TwoStreams:
        """Bob is told that he was away for long."""
        gap = Gap(CHANNEL, None, 0, None, "this client was away for longer than agents remember publishers")
        self.bob.handed.append(Handed(at, gap))
        return self

    def judge_idle(self) -> Verdict:
        return judge(self.history, Expectations(healable=False, calm=False, idle_s=IDLE_S))


def test_a_second_stream_counts_from_1() -> None:
    story = TwoStreams()
    story.hand(1, 2, 3, 4, 5)
    assert story.judge_idle().violations == []


def test_the_first_sending_decides_the_stream_of_a_message() -> None:
    story = TwoStreams()
    story.history.sent_as(1, 2, 7)
    assert (story.history.messages[1].epoch, story.history.messages[1].sequence) == (1, 1)


def test_a_gap_of_one_stream_does_not_cover_the_other() -> None:
    story = TwoStreams()
    story.report(1, 2, at=10.0)
    story.hand(5)
    verdict = story.judge_idle()
    assert kinds(verdict) == {"lost"}
    assert verdict.lost == 2, "the first two of the second stream"
    story = TwoStreams()
    story.report(1, 2, at=10.0)
    story.report(1, 2, at=24.0)
    story.hand(5, at=24.0)
    assert story.judge_idle().violations == []


def test_a_long_absence_covers_streams_that_agents_have_forgotten() -> None:
    story = TwoStreams()
    story.absent(15.0)
    story.hand(3, 4, 5)
    verdict = story.judge_idle()
    assert verdict.violations == []
    assert verdict.seen["gap after a long absence"] == 1


def test_a_long_absence_does_not_cover_what_agents_still_remember() -> None:
    story = TwoStreams()
    story.hand(1, 2)
    story.absent(23.0)
    assert kinds(story.judge_idle()) == {"lost"}


def test_a_long_absence_of_a_subscriber_that_was_there_is_false() -> None:
    story = TwoStreams()
    story.history.links_ended.clear()
    story.absent(15.0).hand(1, 2, 3, 4, 5)
    assert "false gap" in kinds(story.judge_idle())
    story = TwoStreams()
    story.absent(4.0).hand(1, 2, 3, 4, 5)
    assert "false gap" in kinds(story.judge_idle())


def test_a_message_of_an_ended_stream_comes_late_only_behind_a_gap() -> None:
    story = TwoStreams()
    story.hand(3, 4, 5)
    story.hand(1, 2, at=25.0)
    assert kinds(story.judge_idle()) == {"reordered"}
    story = TwoStreams()
    story.hand(3, 4, 5)
    story.report(1, 1, at=25.0)
    story.hand(2, at=25.0)
    assert story.judge_idle().violations == []


def test_a_message_that_was_never_sent_is_not_before_the_next_stream() -> None:
    story = TwoStreams()
    story.history.publish(CHANNEL, ALICE, 6, 22.5)
    story.alice.crashed, story.alice.ended_at = True, 23.0
    story.hand(1, 2, 3, 4, 5)
    assert story.judge_idle().violations == []
