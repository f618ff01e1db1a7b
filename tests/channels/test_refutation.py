"""What agents refute, subscribers take back: nothing false stays, nothing true is lost, and there is no gap."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hiredis import PushNotification
from tests.support.core_driver import AGENT, OTHER, SIGNER, STREAM, RouterDriver, channel_at

from shoal.channels.client.incoming_stream import CLAIMS_MAX, TAGS_MAX
from shoal.channels.client.subscription import RIVAL_BYTES_MAX, RIVALS_MAX, SubscriptionCore
from shoal.limits import DEFAULT_LIMITS
from shoal.message import Gap, Item, Message, Retraction
from shoal.plan.placement import BY_THE_RING, Mode, Placement
from shoal.wire import control, envelope
from shoal.wire.envelope import BEACON, FINAL, FORWARDED, HEADER
from shoal.wire.identity import AgentSecret
from shoal.wire.lane_tag import TAG_AT, covered_end, mark_of

TILE = b"tile"
FAR = 1 << 60
TRUE, FALSE, FALSER = 1, 2, 3
"""Tags. Routers cannot check them; the script plays the agent that can."""
SECRET = AgentSecret(1, bytes(32))


class Scene(RouterDriver):
    """A router with a key, and copies of messages with the tags that the script wants."""

    def __init__(self, servers: tuple[str, ...] = ("s1",), **more: Any) -> None:
        super().__init__(servers, secret=SECRET, **more)
        self.marks: dict[tuple[int, int, int], int] = {}

    def copy(
        self, sequence: int, tag: int = TRUE, payload: bytes = b"", server: str = "s1", flags: int = 0, **more: Any
    ) -> None:
        """A copy of a number arrives; its payload tells which."""
        stream, channel = more.get("stream", STREAM), more.get("channel", TILE)
        time_us = int(more.get("quiet_s", 0.0) * envelope.US_PER_S)
        header = HEADER.pack(envelope.MAGIC, flags, BY_THE_RING | 1, stream, sequence, time_us)
        body = payload or (b"%d" if tag == TRUE else b"%d!") % sequence
        if flags & BEACON:
            body = sequence.to_bytes(8, "little")
        blob = header[:TAG_AT] + tag.to_bytes(8, "little") + body
        self.marks[stream, sequence, tag] = mark_of(blob[: covered_end(blob)])
        self.push(server, channel, blob, more.get("pattern"))

    def refute(self, *copies: tuple[int, int], server: str = "s1", stream: int = STREAM, channel: bytes = TILE) -> None:
        """The agent names false copies by number and tag."""
        named = [(stream, number, self.marks.get((stream, number, tag), 0)) for number, tag in copies]
        self.heartbeat(server, refuted=[(channel, named)])

    def resend(self, sequence: int) -> None:
        """The publisher sends a message again."""
        header = HEADER.pack(envelope.MAGIC, 0, BY_THE_RING | 1, STREAM, sequence, 0)
        self.reply(control.Resend(TILE, header + b"%d" % sequence))

    def reply(self, message: control.Resend | control.Healed) -> None:
        """The publisher answers the last request."""
        self.tell("s1", message, max(self.router._receiver._requests))

    def takes(self, sub: SubscriptionCore) -> list[bytes]:
        """What the application finds, in short."""
        return [short(item) for item in self.items(sub)]


def short(item: Item) -> bytes:
    match item:
        case Message():
            return item.payload
        case Retraction():
            assert (item.channel, item.publisher) == ("tile", OTHER)
            return b"-%d" % item.sequence
        case Gap():
            return b"gap %d-%d" % (item.first, item.last or 0)


def subscribed(**more: Any) -> tuple[Scene, SubscriptionCore]:
    """A subscription that has got 1 and 2."""
    scene = Scene(**more)
    scene.servers["s1"].streams[TILE, STREAM] = 0
    sub = scene.subscribe(TILE)
    scene.copy(1)
    scene.copy(2)
    assert scene.takes(sub) == [b"1", b"2"]
    return scene, sub


def let_gaps_come(scene: Scene) -> None:
    scene.advance(2 * DEFAULT_LIMITS.gap_timeout_s)


# Claims


def test_a_message_far_ahead_is_forgotten_and_leaves_no_gap() -> None:
    scene, sub = subscribed()
    scene.copy(FAR, FALSE)
    assert sub.doubts()
    scene.refute((FAR, FALSE))
    assert not sub.doubts()
    let_gaps_come(scene)
    scene.copy(3)
    assert scene.takes(sub) == [b"3"]


def test_a_beacon_far_ahead_is_forgotten_and_leaves_no_gap() -> None:
    scene, sub = subscribed()
    scene.copy(FAR, FALSE, flags=BEACON)
    scene.refute((FAR, FALSE))
    let_gaps_come(scene)
    scene.copy(3)
    assert scene.takes(sub) == [b"3"]


def test_a_true_claim_of_the_same_number_stays() -> None:
    scene, sub = subscribed()
    scene.copy(4, FALSE, flags=BEACON)
    scene.copy(4, TRUE, flags=BEACON)
    scene.refute((4, FALSE))
    assert sub.doubts() == [f"tile of {STREAM:x} misses 3 to 4"]


def test_a_false_end_of_a_stream_is_forgotten() -> None:
    scene, sub = subscribed()
    scene.copy(2, FALSE, flags=BEACON | FINAL)
    assert sub.streams[STREAM].final
    scene.refute((2, FALSE))
    assert not sub.streams[STREAM].final


def test_a_false_beacon_about_old_messages_hides_no_gap() -> None:
    """It says that all messages up to a number are older than the subscription."""
    scene, sub = subscribed()
    scene.servers["s1"].streams[TILE, STREAM] = 4
    scene.copy(4, TRUE)
    scene.copy(3, FALSE, flags=BEACON, quiet_s=60.0)
    scene.refute((3, FALSE))
    let_gaps_come(scene)
    assert scene.takes(sub) == [b"gap 3-3", b"4"]


def test_an_unnoticed_beacon_about_old_messages_hides_no_message() -> None:
    """The agent is away. The publisher does not answer, but it may go on."""
    scene, sub = subscribed()
    scene.servers["s1"].silent = True
    scene.copy(FAR, FALSE, flags=BEACON, quiet_s=60.0)
    let_gaps_come(scene)
    scene.copy(3)
    assert scene.takes(sub) == [b"3"]


def test_a_stream_that_only_a_false_beacon_announced_is_forgotten() -> None:
    """Otherwise it would be in doubt when its server is lost, and become a gap of a publisher that has long ended."""
    scene = Scene()
    sub = scene.subscribe(TILE)
    scene.copy(0, FALSE, flags=BEACON)
    assert STREAM in sub.streams
    scene.refute((0, FALSE))
    assert STREAM not in sub.streams


def test_a_stream_that_a_true_beacon_announced_too_stays() -> None:
    scene = Scene()
    sub = scene.subscribe(TILE)
    for tag in (FALSE, TRUE):
        scene.copy(0, tag, flags=BEACON)
    scene.refute((0, FALSE))
    scene.copy(2)
    assert sub.doubts() == [f"tile of {STREAM:x} misses 1 to 2"]


def test_a_message_with_the_number_0_is_none() -> None:
    scene = Scene()
    sub = scene.subscribe(TILE)
    scene.copy(0, FALSE)
    assert (scene.counters.garbage, STREAM in sub.streams) == (1, False)


def test_a_false_message_is_retracted_after_its_stream_has_begun_again_before_it() -> None:
    scene = Scene()
    sub = scene.subscribe(TILE)
    scene.copy(FAR, FALSE)
    scene.copy(FAR + 1, FALSE)
    scene.copy(1)
    scene.refute((FAR, FALSE))
    scene.refute((FAR + 1, FALSE))
    scene.copy(2)
    seen = scene.takes(sub)
    assert sorted(seen[:2]) == [b"%d!" % number for number in (FAR, FAR + 1)]
    assert sorted(seen[2:]) == [b"-%d" % FAR, b"-%d" % (FAR + 1), b"1", b"2"]


def test_claims_are_bounded_and_the_highest_true_one_stays() -> None:
    scene, sub = subscribed()
    scene.copy(4, TRUE, flags=BEACON)
    for number in range(CLAIMS_MAX + 9):
        scene.copy(FAR + number, FALSE, flags=BEACON)
    assert len(sub.streams[STREAM].claims) == CLAIMS_MAX
    for number in range(CLAIMS_MAX + 9):
        scene.refute((FAR + number, FALSE))
    assert sub.streams[STREAM].last < FAR
    scene.copy(5, TRUE, flags=BEACON)
    assert sub.doubts() == [f"tile of {STREAM:x} misses 3 to 5"]


def test_a_publisher_that_has_not_come_so_far_ends_a_claim() -> None:
    scene, sub = subscribed()
    scene.copy(FAR, FALSE)
    scene.advance(2 * DEFAULT_LIMITS.heal_delay_s)
    (heal,) = scene.told("s1", OTHER, control.Heal)[:1]
    scene.reply(control.Healed(TILE, STREAM, 1, 2, 2, heal.first))
    assert not sub.doubts()
    let_gaps_come(scene)
    assert scene.takes(sub) == []


def test_a_message_that_came_after_the_question_is_not_denied_by_its_answer() -> None:
    scene, sub = subscribed()
    scene.copy(4)
    scene.advance(2 * DEFAULT_LIMITS.heal_delay_s)
    (heal,) = scene.told("s1", OTHER, control.Heal)[:1]
    scene.copy(6)
    scene.reply(control.Healed(TILE, STREAM, 1, 4, 4, heal.first))
    assert sub.streams[STREAM].last == 6


def test_a_true_number_below_a_false_claim_is_not_denied_if_it_came_after_the_question() -> None:
    scene, sub = subscribed()
    scene.copy(FAR, FALSE)
    scene.advance(2 * DEFAULT_LIMITS.heal_delay_s)
    (heal,) = scene.told("s1", OTHER, control.Heal)[:1]
    scene.copy(4)
    scene.reply(control.Healed(TILE, STREAM, 1, 2, 2, heal.first))
    assert sub.streams[STREAM].last == 4
    assert list(sub.streams[STREAM].held) == [4]


def test_a_held_message_is_forgotten_and_the_true_one_takes_its_place() -> None:
    scene, sub = subscribed()
    scene.copy(4, FALSE)
    scene.copy(4)
    scene.refute((4, FALSE))
    scene.copy(3)
    assert scene.takes(sub) == [b"3", b"4"]


# Delivered messages


def test_the_next_number_is_retracted_and_the_true_one_is_delivered_when_it_comes() -> None:
    scene, sub = subscribed()
    scene.copy(3, FALSE)
    scene.refute((3, FALSE))
    assert scene.takes(sub) == [b"3!", b"-3"]
    let_gaps_come(scene)
    scene.copy(3)
    scene.copy(4)
    assert scene.takes(sub) == [b"3", b"4"]
    assert scene.counters.retracted == 1


def test_a_true_message_that_came_second_takes_the_place_at_once() -> None:
    scene, sub = subscribed()
    scene.copy(3, FALSE)
    scene.copy(3)
    scene.copy(4)
    scene.refute((3, FALSE))
    assert scene.takes(sub) == [b"3!", b"4", b"-3", b"3"]
    scene.copy(3)
    assert scene.takes(sub) == []


def test_a_second_copy_that_is_false_is_dropped() -> None:
    scene, sub = subscribed()
    scene.copy(2, FALSE)
    scene.refute((2, FALSE))
    let_gaps_come(scene)
    assert scene.takes(sub) == []
    assert not sub.rivals


def test_of_several_copies_the_true_one_is_left() -> None:
    scene, sub = subscribed()
    scene.copy(3, FALSE)
    scene.copy(3, FALSER)
    scene.copy(3)
    scene.refute((3, FALSE))
    scene.refute((3, FALSER))
    assert scene.takes(sub) == [b"3!", b"-3", b"3!", b"-3", b"3"]
    scene.copy(4, FALSE)
    scene.copy(4, FALSER)
    scene.copy(4)
    scene.refute((4, FALSE), (4, FALSER))
    assert scene.takes(sub) == [b"4!", b"-4", b"4"]


def test_a_replaced_message_that_did_not_come_is_asked_for() -> None:
    scene, sub = subscribed()
    scene.copy(3, FALSE)
    scene.copy(4)
    scene.refute((3, FALSE))
    scene.advance(2 * DEFAULT_LIMITS.heal_delay_s)
    assert scene.told("s1", OTHER, control.Heal)[0] == control.Heal(TILE, STREAM, 3, 3, 3)
    scene.resend(3)
    scene.reply(control.Healed(TILE, STREAM, 1, 4, 4, 3))
    assert scene.takes(sub) == [b"3!", b"4", b"-3", b"3"]
    assert not sub.doubts()
    scene.copy(5)
    assert scene.takes(sub) == [b"5"]


def test_a_replaced_message_that_its_publisher_does_not_have_is_a_gap() -> None:
    scene, sub = subscribed()
    scene.copy(3, FALSE)
    scene.copy(4)
    scene.servers["s1"].streams[TILE, STREAM] = 4
    scene.refute((3, FALSE))
    let_gaps_come(scene)
    assert scene.takes(sub) == [b"3!", b"4", b"-3", b"gap 3-3"]
    assert not sub.doubts()


def test_a_run_of_false_messages_is_taken_back_to_the_last_true_one() -> None:
    scene, sub = subscribed()
    for number in (3, 4, 5):
        scene.copy(number, FALSE)
    scene.refute((4, FALSE))
    scene.refute((3, FALSE), (5, FALSE))
    assert scene.takes(sub) == [b"3!", b"4!", b"5!", b"-4", b"-3", b"-5"]
    let_gaps_come(scene)
    scene.copy(3)
    assert scene.takes(sub) == [b"3"]


def test_a_refutation_names_one_copy_on_one_server() -> None:
    scene = Scene(("s1", "s2"))
    scene.router.entry(_entry("s1", "s2"), scene.now)
    scene.servers["s1"].streams[TILE, STREAM] = 0
    sub = scene.subscribe(TILE)
    scene.copy(1)
    scene.copy(2)
    scene.items(sub)
    scene.refute((2, FALSE))
    scene.refute((2, TRUE), server="s2")
    scene.refute((2, TRUE), channel=b"other")
    scene.refute((2, TRUE), stream=STREAM + 1)
    assert scene.takes(sub) == []


def test_without_a_key_refutations_are_ignored() -> None:
    driver = RouterDriver()
    driver.servers["s1"].streams[TILE, STREAM] = 0
    sub = driver.subscribe(TILE)
    driver.message("s1", TILE, STREAM, 1, b"1")
    driver.heartbeat("s1", refuted=[(TILE, [(STREAM, 1, 0)])])
    assert driver.payloads(sub) == [b"1"]


def test_runs_are_remembered_too() -> None:
    scene, sub = subscribed()

    def frames(first: int, last: int, tag: int) -> list[Any]:
        heads = [HEADER.pack(envelope.MAGIC, 0, BY_THE_RING | 1, STREAM, n, 0) for n in range(first, last + 1)]
        blobs = [head[:TAG_AT] + tag.to_bytes(8, "little") + b"r" for head in heads]
        for number, blob in enumerate(blobs, first):
            scene.marks[STREAM, number, tag] = mark_of(blob[:40])
        return [PushNotification([b"message", TILE, blob]) for blob in blobs]

    scene.feed("s1", *frames(3, 20, TRUE))
    scene.feed("s1", *frames(21, 40, FALSE))
    scene.items(sub)
    scene.refute((20, FALSE), (21, FALSE), (30, FALSE))
    assert scene.takes(sub) == [b"-21", b"-30"]
    scene, sub = subscribed()
    scene.feed("s1", *frames(3, 3 + 2 * TAGS_MAX, FALSE))
    scene.items(sub)
    scene.refute((3, FALSE), (4 + TAGS_MAX, FALSE), (3 + 2 * TAGS_MAX, FALSE))
    assert scene.takes(sub) == [b"-%d" % (4 + TAGS_MAX), b"-%d" % (3 + 2 * TAGS_MAX)]


def test_the_last_numbers_are_remembered_and_no_more_than_twice_as_many() -> None:
    scene, sub = subscribed()
    for number in range(3, 4 * TAGS_MAX):
        scene.copy(number, FALSE)
        stream = sub.streams[STREAM]
        assert len(stream.tags) // 2 + len(stream.older) <= 2 * TAGS_MAX
    scene.items(sub)
    scene.refute((4 * TAGS_MAX - TAGS_MAX, FALSE), (5, FALSE))
    assert scene.takes(sub) == [b"-%d" % (3 * TAGS_MAX)]


def test_a_gap_does_not_blur_which_number_had_which_tag() -> None:
    scene, sub = subscribed()
    scene.copy(5, FALSE)
    scene.servers["s1"].streams[TILE, STREAM] = 5
    let_gaps_come(scene)
    assert scene.takes(sub) == [b"gap 3-4", b"5!"]
    scene.refute((3, FALSE), (4, FALSE), (2, FALSE))
    assert scene.takes(sub) == []
    scene.refute((5, FALSE))
    assert scene.takes(sub) == [b"-5"]


def test_messages_of_several_servers_are_told_apart() -> None:
    scene = Scene(("s1", "s2"))
    scene.router.entry(_entry("s1", "s2"), scene.now)
    for here in scene.servers.values():
        here.streams[TILE, STREAM] = 0
    sub = scene.subscribe(TILE)
    for number, server in ((1, "s1"), (2, "s2"), (3, "s2"), (4, "s1")):
        scene.copy(number, TRUE if number % 2 else FALSE, server=server)
    scene.items(sub)
    scene.refute((2, FALSE), (1, TRUE), server="s2")
    scene.refute((4, FALSE), (3, TRUE), server="s1")
    assert scene.takes(sub) == [b"-2", b"-4"]


def _entry(*servers: str) -> bytes:
    return SIGNER.entry(TILE, Placement(1, Mode.ALL_SUBSCRIBERS, servers))


# Unknown streams


def test_a_made_up_stream_is_forgotten() -> None:
    scene, sub = subscribed()
    made_up = envelope.stream_id(OTHER, 77)
    scene.copy(9, FALSE, stream=made_up)
    assert made_up in sub.streams
    scene.refute((9, FALSE), stream=made_up)
    assert scene.takes(sub) == [b"9!", b"-9"]
    assert made_up not in sub.streams


def test_a_stream_that_was_met_by_a_false_message_begins_with_its_first_true_one() -> None:
    for first, flags in ((FAR, 0), (FAR, BEACON), (9, 0)):
        scene = Scene()
        sub = scene.subscribe(TILE)
        scene.copy(first, FALSE, flags=flags)
        scene.servers["s1"].streams[TILE, STREAM] = 7
        scene.copy(5)
        scene.copy(6)
        scene.refute((first, FALSE))
        scene.copy(7)
        assert [item for item in scene.takes(sub) if not item.endswith(b"!")][-3:] == [b"5", b"6", b"7"]
        let_gaps_come(scene)
        assert scene.takes(sub) == []


def divided() -> tuple[Scene, SubscriptionCore]:
    """A subscription on two servers, of which one is away. On the other one a false beacon has introduced a stream."""
    scene = Scene(("s1", "s2"))
    scene.router.entry(_entry("s1", "s2"), scene.now)
    sub = scene.subscribe(TILE)
    scene.servers["s2"].reachable = False
    scene.lose("s2")
    scene.copy(FAR, FALSE, flags=BEACON)
    return scene, sub


def test_a_stream_that_an_agent_has_listed_outlives_the_false_beacon_that_introduced_it() -> None:
    scene, sub = divided()
    scene.servers["s2"].streams[TILE, STREAM] = 3
    scene.servers["s2"].reachable = True
    scene.advance(1.0)
    scene.refute((FAR, FALSE))
    assert sub.doubts() == [f"tile of {STREAM:x} misses 1 to 3"]
    let_gaps_come(scene)
    assert scene.takes(sub) == [b"gap 1-3"]


def test_messages_before_the_first_that_was_heard_since_are_still_expected() -> None:
    scene, sub = divided()
    scene.copy(3)
    scene.refute((FAR, FALSE))
    assert sub.doubts() == [f"tile of {STREAM:x} misses 1 to 3"]


def test_a_stream_of_which_only_an_agent_has_told_is_expected_from_its_first_number() -> None:
    """It was met by a false message on an unbroken connection, and went on while the subscription was away."""
    scene = Scene()
    sub = scene.subscribe(TILE)
    scene.copy(9, FALSE)
    scene.servers["s1"].streams[TILE, STREAM] = 3
    scene.lose("s1")
    scene.advance(1.0)
    scene.refute((9, FALSE))
    assert sub.doubts() == [f"tile of {STREAM:x} misses 1 to 3"]


def test_true_messages_behind_a_false_first_one_are_not_delivered_again() -> None:
    scene = Scene()
    sub = scene.subscribe(TILE)
    scene.copy(3, FALSE)
    scene.copy(2)
    scene.copy(3)
    scene.copy(4)
    scene.refute((3, FALSE))
    assert scene.takes(sub) == [b"3!", b"4", b"-3", b"2", b"3"]
    scene.copy(5)
    assert scene.takes(sub) == [b"5"]


# Before a subscription is in force


def test_a_false_message_before_the_subscription_is_in_force_is_dropped() -> None:
    scene = Scene()
    scene.subscribe(b"another")
    scene.servers["s1"].silent = True
    sub = scene.subscribe(TILE)
    scene.copy(FAR, FALSE)
    scene.refute((FAR, FALSE))
    scene.servers["s1"].silent = False
    scene.servers["s1"].streams[TILE, STREAM] = 4
    scene.advance(2 * DEFAULT_LIMITS.hello_retry_s)
    scene.copy(5)
    let_gaps_come(scene)
    assert scene.takes(sub) == [b"5"]


def test_a_flood_before_the_subscription_is_in_force_does_not_raise_its_baseline() -> None:
    scene = Scene(limits=msgspec.structs.replace(DEFAULT_LIMITS, held_messages_max=8))
    scene.servers["s1"].silent = True
    sub = scene.subscribe(TILE)
    for number in range(20):
        scene.copy(FAR + number, FALSE)
    scene.servers["s1"].silent = False
    scene.servers["s1"].streams[TILE, STREAM] = 4
    scene.refute(*((FAR + number, FALSE) for number in range(20)))
    scene.advance(2 * DEFAULT_LIMITS.hello_retry_s)
    scene.copy(5)
    assert scene.takes(sub) == [b"5"]


def test_a_copy_of_a_message_that_did_not_fit_before_the_subscription_is_in_force_is_not_taken() -> None:
    """No agent lists the stream, so it is met by what was passed over."""
    scene = Scene(limits=msgspec.structs.replace(DEFAULT_LIMITS, held_messages_max=2))
    scene.servers["s1"].silent = True
    sub = scene.subscribe(TILE)
    for number in (1, 2, 3):
        scene.copy(number)
    scene.servers["s1"].silent = False
    scene.advance(2 * DEFAULT_LIMITS.hello_retry_s)
    scene.copy(2, payload=b"altered")
    for number in (1, 2):
        scene.resend(number)
    assert scene.takes(sub) == [b"1", b"2", b"3"]


# Filters and patterns


def test_a_message_that_the_application_did_not_want_is_not_retracted() -> None:
    scene, sub = subscribed()
    sub.apply_filter(lambda attributes: False)
    scene.copy(3, FALSE)
    scene.refute((3, FALSE))
    assert scene.takes(sub) == []
    assert sub.streams[STREAM].next == 3


def test_patterns_are_told_too() -> None:
    scene = Scene()
    scene.servers["s1"].streams[TILE, STREAM] = 0
    sub = scene.subscribe(b"ti*", pattern=True)
    scene.copy(1, FALSE, pattern=b"ti*")
    scene.refute((1, FALSE))
    scene.copy(1, pattern=b"ti*")
    first, second, third = scene.items(sub)
    assert second == Retraction("tile", OTHER, 1, "ti*")
    assert [item.payload for item in (first, third) if isinstance(item, Message)] == [b"1!", b"1"]


# More than an agent can name


def test_what_an_agent_could_not_name_is_found_by_asking_it() -> None:
    scene, sub = subscribed()
    for number in (3, 4, 9):
        scene.copy(number, FALSE)
    scene.servers["s1"].streams[TILE, STREAM] = 2
    scene.heartbeat("s1", overflow=[TILE])
    scene.advance(1.0)
    assert scene.takes(sub) == [b"3!", b"4!", b"-3", b"-4"]
    assert not sub.doubts()
    scene.copy(3)
    let_gaps_come(scene)
    assert scene.takes(sub) == [b"3"]
    assert not scene.router._subscriber.reviews


def test_another_false_copy_does_not_take_the_place_of_one_that_asking_has_found() -> None:
    scene, sub = subscribed()
    for tag in (FALSE, FALSER):
        scene.copy(3, tag)
    scene.servers["s1"].streams[TILE, STREAM] = 2
    scene.heartbeat("s1", overflow=[TILE])
    scene.advance(1.0)
    assert scene.takes(sub) == [b"3!", b"-3"]
    scene.copy(3)
    assert scene.takes(sub) == [b"3"]


def test_what_came_after_the_question_or_from_elsewhere_is_not_false() -> None:
    scene = Scene(("s1", "s2"))
    scene.router.entry(_entry("s1", "s2"), scene.now)
    for here in scene.servers.values():
        here.streams[TILE, STREAM] = 2
    sub = scene.subscribe(TILE)
    scene.copy(3, server="s2")
    scene.servers["s1"].silent = True
    scene.heartbeat("s1", overflow=[b""])
    scene.advance(1.0)
    (hello,) = [hello for hello in scene.heard("s1", control.Hello) if not hello.fresh]
    scene.copy(4, server="s1")
    scene.tell("s1", scene.servers["s1"].answer(hello), hello.nonce)
    assert scene.takes(sub) == [b"3", b"4"]


def test_a_message_that_came_after_the_question_is_not_false_below_a_false_claim() -> None:
    scene, sub = subscribed()
    scene.servers["s1"].streams[TILE, STREAM] = 2
    scene.copy(FAR, FALSE)
    scene.servers["s1"].silent = True
    scene.heartbeat("s1", overflow=[TILE])
    scene.advance(0.6)
    (hello,) = [hello for hello in scene.heard("s1", control.Hello) if not hello.fresh]
    scene.copy(3)
    scene.tell("s1", scene.servers["s1"].answer(hello), hello.nonce)
    let_gaps_come(scene)
    assert scene.takes(sub) == [b"3"]


def test_an_answer_of_another_incarnation_or_a_full_table_says_nothing() -> None:
    for change in ({"incarnation": 2}, {"complete": False}):
        scene, sub = subscribed()
        scene.copy(3)
        scene.servers["s1"].streams[TILE, STREAM] = 2
        vars(scene.servers["s1"]).update(change)
        scene.heartbeat("s1", overflow=[TILE], incarnation=1)
        scene.advance(1.0)
        assert scene.takes(sub) == [b"3"]


def test_rivals_are_bounded() -> None:
    scene, sub = subscribed()
    for number in range(3, 3 + RIVALS_MAX + 9):
        scene.copy(number)
        scene.copy(number, FALSE)
    assert len(sub.rivals) == RIVALS_MAX
    for number in range(500, 506):
        scene.copy(number - 500 + 3 + RIVALS_MAX, FALSER, bytes(RIVAL_BYTES_MAX // 2))
    assert sub.rival_bytes <= RIVAL_BYTES_MAX
    assert sub.rival_bytes == sum(len(message.payload) for message in sub.rivals.values())


def introduced_unheard() -> tuple[Scene, SubscriptionCore]:
    """A false message has introduced a stream. The agent listens since then: it knows neither."""
    scene = Scene()
    sub = scene.subscribe(TILE)
    scene.copy(FAR, FALSE)
    scene.servers["s1"].incarnation = 9
    scene.heartbeat("s1")
    assert scene.takes(sub) == [b"%d!" % FAR]
    scene.copy(7)
    return scene, sub


def test_a_lower_number_than_an_unheard_one_that_introduced_a_stream_is_a_question_to_the_publisher() -> None:
    scene, sub = introduced_unheard()
    scene.advance(1.0)
    scene.reply(control.Healed(TILE, STREAM, 1, 7, 7, FAR + 1))
    assert scene.takes(sub) == [b"-%d" % FAR, b"7"]
    let_gaps_come(scene)
    assert scene.takes(sub) == []


def test_a_lower_number_than_an_unheard_one_is_an_open_gap_if_nobody_answers() -> None:
    scene, sub = introduced_unheard()
    scene.copy(8)
    let_gaps_come(scene)
    assert scene.takes(sub) == [b"gap 7-0"]


def test_an_agent_that_lists_the_lower_number_does_not_answer_for_the_publisher() -> None:
    scene, sub = introduced_unheard()
    assert scene.takes(sub) == []
    scene.servers["s1"].streams[TILE, STREAM] = 7
    scene.lose("s1")
    let_gaps_come(scene)
    assert scene.takes(sub) == [b"gap 7-0"]


def ended_unheard() -> tuple[Scene, SubscriptionCore]:
    """A false beacon has introduced a stream, and told that it ended before the subscription began. The agent listens
    since then, and the stream begins."""
    scene = Scene()
    sub = scene.subscribe(TILE)
    scene.copy(FAR, FALSE, flags=BEACON | FINAL, quiet_s=99.0)
    assert sub.streams[STREAM].final
    scene.servers["s1"].incarnation = 9
    scene.heartbeat("s1")
    scene.copy(1)
    return scene, sub


def test_a_lower_number_than_an_unheard_end_of_a_stream_is_a_question_to_the_publisher() -> None:
    scene, sub = ended_unheard()
    scene.advance(1.0)
    scene.reply(control.Healed(TILE, STREAM, 1, 1, 1, FAR + 1))
    assert scene.takes(sub) == [b"1"]
    scene.copy(2)
    let_gaps_come(scene)
    assert scene.takes(sub) == [b"2"]


def test_a_lower_number_than_an_unheard_end_of_a_stream_is_an_open_gap_if_the_publisher_does_not_answer() -> None:
    scene, sub = ended_unheard()
    scene.copy(2)
    let_gaps_come(scene)
    assert scene.takes(sub) == [b"gap 1-0"]


def test_a_lower_number_than_one_that_an_agent_has_heard_changes_nothing() -> None:
    scene = Scene()
    sub = scene.subscribe(TILE)
    scene.copy(9)
    scene.servers["s1"].streams[TILE, STREAM] = 9
    scene.copy(7)
    let_gaps_come(scene)
    assert scene.takes(sub) == [b"9"]
    assert scene.counters.rechecks == 1
    scene.router._receiver.doubt(sub, sub.channels[TILE], sub.streams[STREAM], scene.now)
    let_gaps_come(scene)
    assert scene.takes(sub) == [b"gap 10-0"], "a repeated message makes no later gap wider"


def test_a_lower_number_than_one_that_an_agent_has_not_heard_takes_its_place() -> None:
    """The agent has named the false one, but not to this subscriber, which was away then."""
    scene = Scene()
    sub = scene.subscribe(TILE)
    scene.copy(FAR, FALSE)
    scene.servers["s1"].streams[TILE, STREAM] = 8
    for number in (7, 8):
        scene.copy(number)
    scene.advance(1.0)
    assert scene.takes(sub) == [b"%d!" % FAR, b"-%d" % FAR, b"7", b"8"]


def test_after_a_rotation_an_agent_that_began_later_does_not_mean_the_copy_that_came_before() -> None:
    """Another client has repeated a true message, and the agent has only the newer secret."""
    for rotated, taken in ((False, [b"-2"]), (True, [])):
        scene, sub = subscribed()
        context = scene.router._context
        if rotated:
            context.key = AgentSecret(2, bytes(32)).client(context.client)
        scene.servers["s1"].incarnation = 9
        scene.heartbeat("s1")
        scene.refute((2, TRUE))
        assert scene.takes(sub) == taken


# Doubts


def in_doubt() -> tuple[Scene, SubscriptionCore]:
    """A subscription that has got 1 and 2, and does not know whether there were more."""
    scene, sub = subscribed()
    scene.router._receiver.doubt(sub, sub.channels[TILE], sub.streams[STREAM], scene.now)
    return scene, sub


def test_a_repeated_message_or_beacon_does_not_end_a_doubt() -> None:
    scene, sub = in_doubt()
    scene.copy(2)
    scene.copy(2, flags=BEACON)
    let_gaps_come(scene)
    assert scene.takes(sub) == [b"gap 3-0"]


def test_an_unheard_message_that_another_client_repeats_only_delays_the_gap() -> None:
    scene, sub = in_doubt()
    scene.copy(3)
    scene.advance(1.1 * DEFAULT_LIMITS.gap_timeout_s)
    assert scene.takes(sub) == [b"3"]
    scene.advance(DEFAULT_LIMITS.gap_timeout_s)
    assert scene.takes(sub) == [b"gap 4-0"]


def test_a_publisher_is_asked_about_a_doubt_that_outlives_a_gap() -> None:
    scene, sub = subscribed()
    scene.servers["s1"].streams[TILE, STREAM] = 4
    scene.copy(4)
    scene.advance(DEFAULT_LIMITS.gap_timeout_s)
    scene.router._receiver.doubt(sub, sub.channels[TILE], sub.streams[STREAM], scene.now)
    taken: list[bytes] = []
    while not taken:
        scene.advance(0.1)
        taken = scene.takes(sub)
    assert taken == [b"gap 3-3", b"4"]
    asked = max(scene.router._receiver._requests)
    scene.advance(1.0)
    assert max(scene.router._receiver._requests) > asked


def test_the_answer_of_the_publisher_ends_a_doubt() -> None:
    scene, sub = in_doubt()
    scene.advance(1.0)
    scene.reply(control.Healed(TILE, STREAM, 1, 2, 2, 3))
    assert not sub.doubts()
    let_gaps_come(scene)
    assert scene.takes(sub) == []


def test_a_stream_in_doubt_that_ends_has_no_gap() -> None:
    scene, sub = in_doubt()
    scene.copy(2, flags=BEACON | FINAL)
    let_gaps_come(scene)
    assert scene.takes(sub) == []
    assert not sub.doubts()


def test_a_false_end_does_not_end_a_doubt() -> None:
    scene, sub = in_doubt()
    scene.copy(2, FALSE, flags=BEACON | FINAL)
    scene.refute((2, FALSE))
    let_gaps_come(scene)
    assert scene.takes(sub) == [b"gap 3-0"]


def test_an_older_beacon_does_not_undo_the_end_of_a_stream() -> None:
    scene, sub = subscribed()
    scene.copy(2, flags=BEACON | FINAL)
    scene.copy(0, flags=BEACON)
    assert sub.streams[STREAM].final
    scene.copy(3, flags=BEACON)
    assert not sub.streams[STREAM].final


def test_what_came_before_an_agent_began_to_listen_is_not_judged_by_its_list() -> None:
    scene, sub = subscribed()
    for number in (3, 4, 5):
        scene.copy(number)
    scene.servers["s1"].incarnation = 9
    scene.servers["s1"].streams.clear()
    scene.heartbeat("s1")
    scene.copy(6, flags=FORWARDED)
    scene.heartbeat("s1", overflow=[TILE])
    scene.advance(1.0)
    assert scene.counters.rechecks == 1
    assert scene.takes(sub) == [b"3", b"4", b"5", b"6", b"-6"]


def test_what_came_before_the_subscription_was_in_force_is_not_judged_by_the_list_of_a_later_incarnation() -> None:
    scene = Scene()
    scene.subscribe(b"another")
    scene.servers["s1"].silent = True
    sub = scene.subscribe(TILE)
    scene.copy(1)
    scene.servers["s1"].incarnation = 9
    scene.heartbeat("s1")
    scene.servers["s1"].silent = False
    scene.advance(2 * DEFAULT_LIMITS.hello_retry_s)
    assert scene.takes(sub) == [b"1"]
    scene.copy(2, FALSE)
    scene.heartbeat("s1", overflow=[TILE])
    scene.advance(1.0)
    assert scene.counters.rechecks == 1
    assert scene.takes(sub) == [b"2!", b"-2"]


def test_the_same_holds_for_what_came_before_the_subscription_was_in_force() -> None:
    scene = Scene(("s1", "s2"))
    scene.router.entry(_entry("s1", "s2"), scene.now)
    scene.servers["s1"].streams[TILE, STREAM] = 2
    scene.servers["s2"].silent = True
    sub = scene.subscribe(TILE)
    for number in (3, 4):
        scene.copy(number)
    scene.servers["s1"].incarnation = 9
    scene.servers["s1"].streams.clear()
    scene.heartbeat("s1")
    scene.servers["s2"].silent = False
    scene.advance(5.0)
    assert sub.in_force
    scene.heartbeat("s1", overflow=[TILE])
    scene.advance(1.0)
    assert scene.counters.rechecks == 1
    assert scene.takes(sub) == [b"3", b"4"]


def test_what_came_before_a_subscription_left_a_server_is_not_judged_by_the_list_of_a_later_incarnation() -> None:
    """The agent begins again while another subscription of the client is on its server, and not this one."""
    scene = Scene(("s1", "s2"))
    scene.subscribe(channel_at(scene.ring, "s1"))
    _place(scene, 1, "s1")
    sub = scene.subscribe(TILE)
    scene.copy(1)
    _place(scene, 2, "s2")
    scene.advance(2 * DEFAULT_LIMITS.linger_s)
    assert list(sub.sites) == ["s2"]
    scene.servers["s1"].incarnation = 9
    scene.heartbeat("s1")
    _place(scene, 3, "s1")
    scene.copy(2, FALSE)
    scene.heartbeat("s1", overflow=[TILE])
    scene.advance(1.0)
    assert scene.counters.rechecks == 1
    assert scene.takes(sub) == [b"1", b"2!", b"-2"]


def _place(scene: Scene, version: int, server: str) -> None:
    """The channel moves to a server."""
    scene.router.entry(SIGNER.entry(TILE, Placement(version, Mode.SINGLE, (server,))), scene.now)
    scene.play()


@pytest.mark.parametrize("listed", [{}, {(TILE, STREAM): 1}], ids=["not listed", "an old message was repeated"])
def test_a_stream_that_was_quiet_until_its_agent_forgot_it_is_not_judged_by_the_list(listed: dict[Any, int]) -> None:
    scene, sub = subscribed()
    scene.advance(DEFAULT_LIMITS.publisher_idle_s)
    scene.servers["s1"].streams = listed
    scene.copy(3, FALSE)
    scene.heartbeat("s1", overflow=[TILE])
    scene.advance(1.0)
    assert scene.takes(sub) == [b"3!", b"-3"]


def test_the_same_holds_after_a_time_in_which_the_client_was_suspended() -> None:
    scene, sub = subscribed()
    scene.advance(1.0)
    scene.now += DEFAULT_LIMITS.publisher_idle_s
    scene.servers["s1"].streams.clear()
    scene.copy(3)
    scene.advance(0)
    scene.copy(4, FALSE)
    scene.heartbeat("s1", overflow=[TILE])
    scene.advance(1.0)
    assert scene.takes(sub) == [b"3", b"4!", b"-4"]


def test_a_stream_that_never_began_is_forgotten() -> None:
    """Another client made it up while no agent could refute it. Its supposed publisher may have gone by the time at
    which the connection is lost: the stream must not become a gap then."""
    scene, sub = subscribed()
    scene.lose("s1")
    scene.advance(0)
    scene.copy(7, FALSE, stream=STREAM + 5)
    scene.advance(0.1)
    (nonce,) = [nonce for nonce, ask in scene.router._receiver._requests.items() if ask.stream == STREAM + 5]
    scene.tell("s1", control.Healed(TILE, STREAM + 5, 0, 0, 0, 1), nonce)
    assert [stream.stream for _, stream in sub.all_streams()] == [STREAM]


def test_a_stream_that_a_false_message_introduced_begins_again_when_its_publisher_has_not_come_that_far() -> None:
    """The agent was away and names nothing. The true messages seemed to be older than the subscription."""
    scene = Scene()
    sub = scene.subscribe(TILE)
    scene.servers["s1"].complete = False
    for number in (FAR, FAR + 2):
        scene.copy(number, FALSE)
    for number in (7, 8):
        scene.copy(number)
    scene.advance(0.1)
    assert scene.takes(sub) == [b"%d!" % FAR]
    scene.reply(control.Healed(TILE, STREAM, 1, 9, 9, FAR + 1))
    assert scene.takes(sub) == [b"-%d" % FAR, b"7", b"8"]
    assert sub.doubts() == [f"tile of {STREAM:x} misses 9 to 9"]


# A subscriber that was away


def returning(**more: Any) -> tuple[Scene, SubscriptionCore]:
    """A subscription that has got 1 and 2 and comes back; 3 and 4 were published meanwhile."""
    scene, sub = subscribed(**more)
    scene.lose("s1")
    scene.servers["s1"].streams[TILE, STREAM] = 4
    scene.advance(0)
    return scene, sub


def test_what_was_published_meanwhile_is_taken_from_its_publisher_only() -> None:
    scene, sub = returning()
    scene.copy(3, payload=b"altered")
    scene.copy(4, payload=b"altered")
    scene.copy(5)
    assert scene.takes(sub) == []
    scene.advance(2 * DEFAULT_LIMITS.heal_delay_s)
    scene.resend(3)
    scene.resend(4)
    assert scene.takes(sub) == [b"3", b"4", b"5"]
    scene.copy(6)
    assert scene.takes(sub) == [b"6"]


def test_what_comes_before_the_answer_waits_for_it() -> None:
    scene, sub = subscribed()
    scene.lose("s1")
    scene.servers["s1"].silent = True
    scene.servers["s1"].streams[TILE, STREAM] = 3
    scene.advance(0)
    scene.copy(3, payload=b"altered")
    scene.copy(4)
    assert scene.takes(sub) == []
    scene.servers["s1"].silent = False
    scene.advance(2 * DEFAULT_LIMITS.hello_retry_s)
    scene.resend(3)
    assert scene.takes(sub) == [b"3", b"4"]


def test_a_false_message_that_waits_for_the_answer_is_dropped() -> None:
    """The agent may answer when it has stopped to name the message."""
    scene, sub = subscribed()
    scene.lose("s1")
    scene.servers["s1"].silent = True
    scene.servers["s1"].streams[TILE, STREAM] = 2
    scene.advance(0)
    scene.copy(3, FALSE)
    scene.refute((3, FALSE))
    scene.copy(3)
    scene.servers["s1"].silent = False
    scene.advance(2 * DEFAULT_LIMITS.hello_retry_s)
    assert scene.takes(sub) == [b"3"]


def test_what_an_agent_names_before_it_has_answered_a_greeting_is_false_too() -> None:
    scene, sub = subscribed()
    scene.copy(3, FALSE)
    named = [(STREAM, 3, scene.marks[STREAM, 3, FALSE])]
    scene.heartbeat("s1", refuted=[(TILE, named)], instance=AGENT + 1)
    assert scene.takes(sub) == [b"3!", b"-3"]


def test_too_much_before_the_answer_is_asked_for_later() -> None:
    scene, sub = subscribed(limits=msgspec.structs.replace(DEFAULT_LIMITS, held_messages_max=2))
    scene.lose("s1")
    scene.servers["s1"].silent = True
    scene.advance(0)
    for number in (3, 4, 5, 6):
        scene.copy(number)
    scene.servers["s1"].silent = False
    scene.servers["s1"].streams[TILE, STREAM] = 2
    scene.advance(2 * DEFAULT_LIMITS.hello_retry_s)
    scene.resend(3)
    scene.resend(4)
    assert scene.takes(sub) == [b"3", b"4", b"5", b"6"]


def test_a_copy_of_what_had_no_room_is_not_taken_when_there_is_room() -> None:
    """The true message was dropped, and its publisher is asked. Its copy is the next plain message of the stream."""
    scene, sub = subscribed(limits=msgspec.structs.replace(DEFAULT_LIMITS, inbox_messages_max=4))
    for number in range(3, 8):
        scene.copy(number)
    assert scene.takes(sub) == [b"3", b"4", b"5", b"6"]
    scene.router.consumed(sub, scene.now)
    for _ in range(2):
        scene.copy(7, payload=b"altered")
    assert scene.takes(sub) == []
    scene.advance(0.1)
    scene.resend(7)
    scene.copy(8)
    assert scene.takes(sub) == [b"7", b"8"]


def test_a_message_that_had_no_room_is_asked_for_when_a_false_one_was_delivered_in_its_place() -> None:
    """The false one came from another server, when there was room again. It took the number, and with it the knowledge
    that the true message exists; that must come back when it is refuted."""
    scene = Scene(("s1", "s2"), limits=msgspec.structs.replace(DEFAULT_LIMITS, inbox_messages_max=4))
    scene.router.entry(_entry("s1", "s2"), scene.now)
    for here in scene.servers.values():
        here.streams[TILE, STREAM] = 0
    sub = scene.subscribe(TILE)
    for number in range(1, 6):
        scene.copy(number)
    assert scene.takes(sub) == [b"1", b"2", b"3", b"4"]
    scene.router.consumed(sub, scene.now)
    scene.copy(5, FALSE, server="s2")
    scene.refute((5, FALSE), server="s2")
    assert scene.takes(sub) == [b"5!", b"-5"]
    scene.advance(2 * DEFAULT_LIMITS.heal_delay_s)
    scene.resend(5)
    assert scene.takes(sub) == [b"5"]


def test_a_copy_of_a_later_message_that_had_no_room_is_not_taken_either() -> None:
    """It was dropped behind a hole, so only its claim is known."""
    scene, sub = subscribed(limits=msgspec.structs.replace(DEFAULT_LIMITS, inbox_messages_max=4))
    for number in (3, 4, 5, 6, 9):
        scene.copy(number)
    assert scene.takes(sub) == [b"3", b"4", b"5", b"6"]
    scene.router.consumed(sub, scene.now)
    scene.copy(7)
    scene.copy(8)
    for _ in range(2):
        scene.copy(9, payload=b"altered")
    assert scene.takes(sub) == [b"7", b"8"]
    scene.advance(0.1)
    scene.resend(9)
    assert scene.takes(sub) == [b"9"]


def test_nor_when_a_false_message_is_held_in_its_place() -> None:
    """The altered copy must not become the second copy that takes the place of the false one."""
    scene, sub = subscribed(limits=msgspec.structs.replace(DEFAULT_LIMITS, inbox_messages_max=4))
    for number in (3, 4, 5, 6, 9):
        scene.copy(number)
    assert scene.takes(sub) == [b"3", b"4", b"5", b"6"]
    scene.router.consumed(sub, scene.now)
    scene.copy(9, FALSE)
    scene.copy(9, payload=b"altered")
    scene.refute((9, FALSE))
    scene.copy(7)
    scene.copy(8)
    assert scene.takes(sub) == [b"7", b"8"]
    scene.advance(0.1)
    scene.resend(9)
    assert scene.takes(sub) == [b"9"]


def test_nor_when_a_false_message_was_delivered_in_its_place() -> None:
    scene, sub = subscribed(limits=msgspec.structs.replace(DEFAULT_LIMITS, inbox_messages_max=4))
    for number in (3, 4, 5, 6, 9):
        scene.copy(number)
    assert scene.takes(sub) == [b"3", b"4", b"5", b"6"]
    scene.router.consumed(sub, scene.now)
    scene.copy(9, FALSE)
    scene.copy(7)
    scene.copy(8)
    assert scene.takes(sub) == [b"7", b"8", b"9!"]
    scene.copy(9, payload=b"altered")
    scene.refute((9, FALSE))
    assert scene.takes(sub) == [b"-9"]
    scene.advance(0.1)
    scene.resend(9)
    assert scene.takes(sub) == [b"9"]


def test_a_copy_does_not_replace_a_held_message_that_waits_for_room() -> None:
    """The inbox is not full any more, but not half empty either, so held messages still wait."""
    scene, sub = subscribed(limits=msgspec.structs.replace(DEFAULT_LIMITS, inbox_messages_max=4))
    for number in (3, 4, 5, 7):
        scene.copy(number)
    scene.copy(6)
    taken = sub.inbox.take()
    scene.router.consumed(sub, scene.now)
    scene.copy(7, payload=b"altered")
    assert [short(taken), *scene.takes(sub)] == [b"3", b"4", b"5", b"6"]
    scene.router.consumed(sub, scene.now)
    assert scene.takes(sub) == [b"7"]


def test_a_stream_of_which_nothing_is_true_is_never_in_doubt() -> None:
    scene = Scene(("s1", "s2"))
    scene.router.entry(_entry("s1", "s2"), scene.now)
    sub = scene.subscribe(TILE)
    made_up = envelope.stream_id(OTHER, 77)
    scene.copy(FAR, FALSE, stream=made_up)
    scene.copy(3, FALSE, stream=made_up, flags=BEACON)
    assert made_up in sub.streams
    scene.router._receiver.doubt(sub, sub.channels[TILE], sub.streams[made_up], scene.now)
    scene.refute((FAR, FALSE), (3, FALSE), stream=made_up)
    assert made_up not in sub.streams
    let_gaps_come(scene)
    assert scene.takes(sub) == []


# Where an agent has no room to list all streams


def joined_where_tables_are_full(**more: Any) -> tuple[Scene, SubscriptionCore]:
    """A new subscription; the agent had no room for the stream, which has come as far as 4."""
    scene = Scene(**more)
    if len(scene.servers) > 1:
        scene.router.entry(_entry(*scene.servers), scene.now)
    scene.servers["s1"].complete = False
    sub = scene.subscribe(TILE)
    assert scene.takes(sub) == [b"gap 0-0"]
    scene.advance(DEFAULT_LIMITS.heal_delay_s)
    return scene, sub


def healed(first: int, last: int) -> control.Healed:
    """The publisher still has everything from `first`, and has published `last`."""
    return control.Healed(TILE, STREAM, first, last, last, first)


def test_an_altered_copy_by_which_an_unlisted_stream_is_met_is_not_taken() -> None:
    scene, sub = joined_where_tables_are_full()
    scene.copy(2, payload=b"altered")
    scene.advance(2 * DEFAULT_LIMITS.heal_delay_s)
    assert scene.takes(sub) == []
    scene.resend(2)
    assert scene.takes(sub) == [b"2"]
    scene.copy(3, payload=b"altered")
    scene.copy(4, payload=b"altered")
    assert scene.takes(sub) == [], "the publisher has not told yet how far it has come"


def test_nor_behind_the_hole_that_is_asked_for_because_the_subscription_has_several_servers() -> None:
    scene, sub = joined_where_tables_are_full(servers=("s1", "s2"))
    scene.copy(2, payload=b"altered")
    scene.advance(2 * DEFAULT_LIMITS.heal_delay_s)
    scene.resend(1)
    assert scene.takes(sub) == [b"1"]
    scene.resend(2)
    assert scene.takes(sub) == [b"2"]


def test_when_the_publisher_has_told_how_far_it_has_come_later_messages_are_taken_as_they_come() -> None:
    scene, sub = joined_where_tables_are_full()
    scene.copy(5)
    assert scene.takes(sub) == []
    scene.advance(2 * DEFAULT_LIMITS.heal_delay_s)
    scene.resend(5)
    scene.reply(healed(5, 5))
    scene.copy(6)
    scene.copy(7)
    scene.copy(7, payload=b"altered")
    assert scene.takes(sub) == [b"5", b"6", b"7"]
    let_gaps_come(scene)
    assert scene.takes(sub) == []


def test_what_comes_while_the_publisher_is_asked_is_asked_for_too() -> None:
    scene, sub = joined_where_tables_are_full()
    scene.copy(5)
    scene.advance(2 * DEFAULT_LIMITS.heal_delay_s)
    scene.copy(6)
    scene.resend(5)
    scene.reply(healed(5, 5))
    scene.copy(6, payload=b"altered")
    assert scene.takes(sub) == [b"5"]
    scene.advance(2 * DEFAULT_LIMITS.heal_delay_s)
    scene.resend(6)
    scene.copy(7)
    assert scene.takes(sub) == [b"6", b"7"]


def test_a_message_of_a_publisher_that_does_not_answer_is_a_gap() -> None:
    scene, sub = joined_where_tables_are_full()
    scene.copy(5)
    let_gaps_come(scene)
    assert scene.takes(sub) == [b"gap 5-5"]


def test_a_listed_stream_is_taken_as_it_comes() -> None:
    scene = Scene()
    scene.servers["s1"].complete = False
    scene.servers["s1"].streams[TILE, STREAM] = 4
    sub = scene.subscribe(TILE)
    scene.copy(3, payload=b"altered")
    scene.copy(5)
    assert scene.takes(sub) == [b"gap 0-0", b"5"]


def test_a_subscriber_that_comes_back_takes_no_copies_of_an_unlisted_stream() -> None:
    scene, sub = subscribed()
    scene.lose("s1")
    scene.servers["s1"].complete = False
    scene.servers["s1"].streams.clear()
    scene.advance(0)
    scene.takes(sub)
    scene.copy(3, payload=b"altered")
    scene.advance(2 * DEFAULT_LIMITS.heal_delay_s)
    scene.resend(3)
    scene.reply(healed(3, 4))
    scene.copy(4, payload=b"altered")
    assert scene.takes(sub) == [b"3"]
    scene.advance(2 * DEFAULT_LIMITS.heal_delay_s)
    scene.resend(4)
    scene.copy(5)
    assert scene.takes(sub) == [b"4", b"5"]


def test_what_did_not_fit_before_the_agent_has_answered_is_asked_for() -> None:
    """The agent has not heard it when it answers."""
    scene, sub = subscribed(limits=msgspec.structs.replace(DEFAULT_LIMITS, held_messages_max=2))
    scene.servers["s1"].streams[TILE, STREAM] = 2
    scene.lose("s1")
    scene.servers["s1"].silent = True
    scene.advance(0)
    for number in (3, 4, 5):
        scene.copy(number)
    scene.servers["s1"].silent = False
    scene.advance(2 * DEFAULT_LIMITS.hello_retry_s)
    scene.resend(3)
    assert scene.takes(sub) == [b"3", b"4", b"5"]


def test_beacons_that_displace_messages_before_the_agent_has_answered_hide_none() -> None:
    scene, sub = subscribed(limits=msgspec.structs.replace(DEFAULT_LIMITS, held_messages_max=2))
    scene.servers["s1"].streams[TILE, STREAM] = 2
    scene.lose("s1")
    scene.servers["s1"].silent = True
    scene.advance(0)
    scene.copy(3)
    for _ in range(3):
        scene.copy(2, flags=BEACON)
    scene.servers["s1"].silent = False
    scene.advance(2 * DEFAULT_LIMITS.hello_retry_s)
    assert sub.doubts() == [f"tile of {STREAM:x} misses 3 to 3"]


def test_a_publisher_that_was_asked_before_the_agent_answered_does_not_bound_its_stream() -> None:
    """It may have published since, before the subscription was there again."""
    scene, sub = subscribed()
    scene.copy(4)
    scene.advance(2 * DEFAULT_LIMITS.heal_delay_s)
    asked = max(scene.router._receiver._requests)
    scene.lose("s1")
    scene.servers["s1"].complete = False
    scene.servers["s1"].streams.clear()
    scene.advance(0)
    header = HEADER.pack(envelope.MAGIC, 0, BY_THE_RING | 1, STREAM, 3, 0)
    scene.tell("s1", control.Resend(TILE, header + b"3"), asked)
    scene.tell("s1", healed(3, 4), asked)
    scene.copy(5, payload=b"altered")
    assert [item for item in scene.takes(sub) if not item.startswith(b"gap")] == [b"3", b"4"]


def test_a_false_message_by_which_an_unlisted_stream_is_met_hides_no_true_one() -> None:
    scene, sub = joined_where_tables_are_full()
    scene.copy(5, FALSE)
    for number in range(6, 8 + CLAIMS_MAX):
        scene.copy(number)
    scene.refute((5, FALSE))
    scene.advance(2 * DEFAULT_LIMITS.heal_delay_s)
    for number in range(6, 8 + CLAIMS_MAX):
        scene.resend(number)
    assert scene.takes(sub) == [b"%d" % number for number in range(6, 8 + CLAIMS_MAX)]


def test_nor_do_two_false_ones() -> None:
    scene, sub = joined_where_tables_are_full()
    scene.copy(5, FALSE)
    scene.copy(FAR, FALSE)
    scene.refute((5, FALSE))
    scene.copy(7)
    scene.refute((FAR, FALSE))
    scene.advance(2 * DEFAULT_LIMITS.heal_delay_s)
    scene.resend(7)
    assert scene.takes(sub) == [b"7"]
    let_gaps_come(scene)
    assert scene.takes(sub) == []


def test_an_answer_about_a_stream_that_has_begun_again_since_says_nothing() -> None:
    """The agent was asked when the stream seemed to be far ahead. True messages came before it answered."""
    scene = Scene()
    sub = scene.subscribe(TILE)
    scene.copy(FAR, FALSE, flags=BEACON, quiet_s=60.0)
    scene.copy(2)
    here = scene.servers["s1"]
    here.mute = True
    scene.advance(0.1)
    scene.refute((FAR, FALSE))
    for number in (3, 4):
        scene.copy(number)
    here.mute = False
    scene.advance(1.0)
    assert scene.takes(sub) == [b"2", b"3", b"4"]
