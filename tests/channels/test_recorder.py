"""Recording: every message of a marked channel is in the record once, and what the recorder missed is healed or is a
gap; channels without a mark cost nothing."""

from __future__ import annotations

from typing import Any

import msgspec
from hiredis import PushNotification, ReplyError
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.core_driver import OTHER, SIGNER, STREAM, AgentDriver, blob, ring

from shoal.channels.recording.budget import RecordBudget
from shoal.channels.recording.record import STREAMS_EVERY
from shoal.channels.recording.recorder import OPENING_MAX
from shoal.channels.recording.writer import ENTRIES_MIN
from shoal.limits import DEFAULT_LIMITS, Limits
from shoal.wire import control, envelope
from shoal.wire.commands import Command
from shoal.wire.envelope import HEADER, peer_channel, stream_id
from shoal.wire.record_entry import INDEX_KEY, WRITER_KEY, RecordedGap, RecordedMessage, read_entry, record_key

ORDERS = b"orders.eu"
RING = SIGNER.ring(ring(3, ("s1", "s2")))
LIMITS = msgspec.structs.replace(DEFAULT_LIMITS, heal_page_messages=4)


class Store:
    """The keys of a server, as far as records need them."""

    def __init__(self) -> None:
        self.streams: dict[bytes, list[tuple[bytes, list[bytes]]]] = {}
        self.index: set[bytes] = set()
        self.refuses = False
        self.writer: bytes | None = None
        self.connections = 0
        self.clock_ms = 1000

    def execute(self, command: Command) -> Any:
        match command:
            case (b"CLIENT", b"ID"):
                return self.connections
            case (b"GET", key):
                assert key == WRITER_KEY
                return self.writer
            case (b"SET", key, value) if key == WRITER_KEY:
                self.writer = value
            case (b"CLIENT", b"KILL", *_):
                return 1
            case (b"SADD", key, channel):
                assert key == INDEX_KEY
                if self.refuses:
                    return ReplyError("OOM command not allowed")
                news = channel not in self.index
                self.index.add(channel)
                return int(news)
            case (b"SMEMBERS", key):
                assert key == INDEX_KEY
                return sorted(self.index)
            case (b"XREVRANGE", key, end, b"-", b"COUNT", count):
                entries = self.streams.get(key, [])[::-1]
                if end != b"+":
                    before = int(end[1:].partition(b"-")[0])
                    entries = [entry for entry in entries if int(entry[0].partition(b"-")[0]) < before]
                return [list(entry) for entry in entries[: int(count)]]
            case (b"XADD", key, b"MAXLEN", b"~", _, b"*", *fields):
                if self.refuses:
                    return ReplyError("OOM command not allowed")
                self.clock_ms += 1
                self.streams.setdefault(key, []).append((b"%d-0" % self.clock_ms, fields))
                return b"%d-0" % self.clock_ms
        return None

    def said(self, channel: bytes = ORDERS) -> list[Any]:
        return [read_entry(fields)[1] for _, fields in self.streams.get(record_key(channel), [])]

    def numbers(self, channel: bytes = ORDERS, stream: int = STREAM) -> list[int]:
        return [m.sequence for m in self.said(channel) if isinstance(m, RecordedMessage) and m.stream == stream]

    def gaps(self, channel: bytes = ORDERS) -> list[RecordedGap]:
        return [gap for gap in self.said(channel) if isinstance(gap, RecordedGap)]


class Driver(AgentDriver):
    """An agent on a server that keeps records."""

    def __init__(
        self,
        store: Store,
        *,
        instance: int = 77,
        marks: tuple[bytes, ...] = (b"orders.*",),
        limits: Limits = LIMITS,
    ) -> None:
        super().__init__(limits=limits, instance=instance)
        self.store = store
        self.core.ring(RING)
        for mark in marks:
            self.core.mark(mark, True)
        self.open()

    def play(self, clients: int | None = 0) -> None:
        while self.core.outbox:
            commands, self.core.outbox = self.core.outbox, []
            for command in commands:
                self.commands.append(command)
                match command:
                    case (b"PUBLISH", channel, data):
                        self.hear_own(channel, data)
                        self.receive(1)
                    case (b"PUBSUB", b"NUMSUB", channel):
                        self.receive([channel, clients or 0])
                    case (b"PSUBSCRIBE" | b"SUBSCRIBE", *_):
                        pass
                    case _:
                        self.receive(self.store.execute(command))

    def publish(self, *numbers: int, stream: int = STREAM) -> None:
        for number in numbers:
            self.hear(ORDERS, blob(stream, number, b"x"))

    def resend(self, *numbers: int, floor: int, first: int, stream: int = STREAM) -> None:
        """What a publisher answers to a question of the recorder."""
        for number in numbers:
            self._tell(control.Resend(ORDERS, blob(stream, number, b"x")))
        self._tell(control.Healed(ORDERS, stream, floor, 0, 0, first))

    def _tell(self, message: control.Control) -> None:
        own = peer_channel(self.core.client)
        self.receive(PushNotification([b"message", own, control.encode(message, OTHER)]))
        self.play()

    def asked(self) -> list[tuple[int, int]]:
        return [(heal.first, heal.last) for heal in self.take(peer_channel(OTHER), control.Heal)]


def test_a_marked_channel_is_recorded_and_others_are_not() -> None:
    store = Store()
    driver = Driver(store)
    driver.publish(1, 2, 3)
    driver.hear(b"tile", blob(STREAM, 1, b"x"))
    assert store.numbers() == [1, 2, 3]
    assert store.index == {ORDERS}
    assert not store.gaps()
    assert driver.core.counters.recorded == 3


def test_a_record_is_settled_when_the_server_has_answered_its_writes() -> None:
    driver = Driver(Store())
    driver.publish(1)
    settled = [driver.core.recorder.settled]
    driver.receive(PushNotification([b"pmessage", b"*", ORDERS, blob(STREAM, 2, b"x")]))
    assert driver.core.counters.recorded == 2
    settled.append(driver.core.recorder.settled)  # the write is on its way, and a crash of the server may take it
    driver.play()
    settled.append(driver.core.recorder.settled)
    assert settled == [True, False, True]


def test_an_entry_holds_the_whole_message() -> None:
    store = Store()
    driver = Driver(store)
    body = envelope.encode_attributes({"volume": 7}, LIMITS) + b"north"
    driver.hear(ORDERS, HEADER.pack(envelope.MAGIC, envelope.ATTRIBUTES, 3, STREAM, 1, 123) + body)
    message = store.said()[-1]
    assert (message.stream, message.sequence, message.time_us) == (STREAM, 1, 123)
    assert message.split() == ({"volume": 7}, b"north")


def test_without_marks_nothing_is_asked_or_watched() -> None:
    driver = Driver(Store(), marks=())
    driver.publish(1, 2)
    assert not any(command[0] in (b"SMEMBERS", b"XADD", b"SADD", b"SUBSCRIBE") for command in driver.commands)
    assert driver.core.scanner.scan() is None


def test_copies_are_recorded_once() -> None:
    store = Store()
    driver = Driver(store)
    driver.publish(1, 2, 2, 1, 3)
    driver.hear(ORDERS, envelope.forwarded(blob(STREAM, 3, b"x")))
    driver.publish(5, 4, 4)
    assert store.numbers() == [1, 2, 3, 5, 4]
    assert driver.core.counters.record_duplicates == 4


def test_a_plain_message_is_recorded_where_it_was_published() -> None:
    store = Store()
    driver = Driver(store)
    driver.hear(ORDERS, b"by redis-cli")
    driver.hear(ORDERS, envelope.forwarded(b"by redis-cli, elsewhere"))
    (message,) = [said for said in store.said() if isinstance(said, RecordedMessage)]
    assert (message.stream, message.split()) == (0, (None, b"by redis-cli"))


def test_a_mark_that_is_taken_away_ends_the_record() -> None:
    store = Store()
    driver = Driver(store)
    driver.publish(1)
    driver.core.mark(b"orders.*", False)
    driver.publish(2, 3)
    assert store.numbers() == [1]


def test_a_mark_that_is_taken_away_while_records_are_opened_harms_no_other() -> None:
    """More channels than are opened at once, and none of the answers has come when the mark goes."""
    driver = Driver(Store())
    answers: list[Command] = []
    driver.play = lambda clients=0: None  # type: ignore[method-assign]
    for number in range(2 * OPENING_MAX):
        driver.hear(b"orders.%d" % number, blob(STREAM, 1, b"x"))
    answers, driver.core.outbox = driver.core.outbox, []
    driver.core.mark(b"orders.*", False)
    del driver.play
    for command in answers:
        driver.receive(driver.store.execute(command))
    driver.play()
    driver.core.mark(b"orders.eu", True)
    driver.play()
    driver.publish(1, 2)
    assert driver.store.numbers() == [1, 2]


def test_a_channel_is_listed_as_soon_as_the_server_takes_it() -> None:
    store = Store()
    store.refuses = True
    driver = Driver(store)
    driver.publish(1)
    assert store.index == set()
    store.refuses = False
    driver.publish(2)
    driver.advance(2)
    assert store.index == {ORDERS}
    assert store.numbers() == [2]
    assert [(gap.first, gap.last) for gap in store.gaps()] == [(1, 1)]


def test_a_stream_that_began_before_the_mark_is_not_missing_from_the_record() -> None:
    store = Store()
    driver = Driver(store, marks=())
    driver.publish(1, 2, 3)
    driver.core.mark(b"orders.*", True)
    driver.publish(4)
    assert store.numbers() == [4]
    assert not store.gaps()


def test_a_restarted_agent_goes_on_and_asks_for_what_it_missed() -> None:
    store = Store()
    Driver(store).publish(1, 2, 3)
    driver = Driver(store, instance=78)
    assert [gap.stream for gap in store.gaps()] == [0]
    driver.publish(6)
    driver.advance(LIMITS.heal_delay_s)
    assert driver.asked() == [(4, 5)]
    driver.resend(4, 5, floor=1, first=4)
    assert sorted(store.numbers()) == [1, 2, 3, 4, 5, 6]
    driver.advance(60)
    assert [gap.stream for gap in store.gaps()] == [0]


def test_a_recorder_that_dies_before_it_has_healed_leaves_that_to_the_next() -> None:
    store = Store()
    Driver(store).publish(1, 2, 3)
    Driver(store, instance=78).publish(7, 8)
    assert store.numbers() == [1, 2, 3, 7, 8], "it had not asked yet"
    third = Driver(store, instance=79)
    third.advance(LIMITS.heal_delay_s)
    assert third.asked() == [(4, 6)]
    third.resend(4, 5, 6, floor=1, first=4)
    third.publish(9)
    assert store.numbers() == [1, 2, 3, 7, 8, 4, 5, 6, 9]
    third.advance(60)
    assert third.asked() == []
    assert not [gap for gap in store.gaps() if gap.stream]


def test_what_one_recorder_has_healed_or_given_up_is_not_asked_for_by_the_next() -> None:
    store = Store()
    Driver(store).publish(1, 2, 3)
    second = Driver(store, instance=78)
    second.publish(7, 8)
    second.advance(LIMITS.heal_delay_s)
    second.resend(floor=5, first=4)
    second.resend(5, 6, floor=5, first=5)
    assert store.numbers() == [1, 2, 3, 7, 8, 5, 6]
    third = Driver(store, instance=79)
    third.publish(9)
    third.advance(60)
    assert third.asked() == []
    assert store.numbers() == [1, 2, 3, 7, 8, 5, 6, 9]
    assert [(gap.first, gap.last) for gap in store.gaps() if gap.stream] == [(4, 4)]


def test_what_a_publisher_has_no_more_is_a_gap() -> None:
    store = Store()
    Driver(store).publish(1)
    driver = Driver(store, instance=78)
    driver.tell(control.Present(1, 1, 0, 1, [], [], [(ORDERS, STREAM, 9)]), client=OTHER)
    driver.advance(LIMITS.heal_delay_s)
    assert driver.asked() == [(2, 5)]
    driver.resend(4, 5, floor=4, first=2)
    driver.resend(4, 5, 6, 7, floor=4, first=4)
    driver.resend(8, 9, floor=4, first=8)
    assert sorted(store.numbers()) == [1, 4, 5, 6, 7, 8, 9]
    assert [(gap.first, gap.last) for gap in store.gaps() if gap.stream] == [(2, 3)]


def test_a_publisher_that_is_silent_after_an_absence_is_an_open_gap() -> None:
    store = Store()
    Driver(store).publish(1, 2)
    driver = Driver(store, instance=78)
    driver.advance(LIMITS.gap_timeout_s + 2)
    assert [(gap.stream, gap.first, gap.last) for gap in store.gaps() if gap.stream] == [(STREAM, 3, 0)]


def test_old_messages_and_beacons_that_another_client_repeats_do_not_hide_an_open_gap() -> None:
    store = Store()
    Driver(store).publish(1, 2)
    driver = Driver(store, instance=78)
    driver.publish(2)
    driver.hear(ORDERS, envelope.beacon(3, STREAM, 2, 2, 0))
    driver.advance(LIMITS.gap_timeout_s + 2)
    assert [(gap.stream, gap.first, gap.last) for gap in store.gaps() if gap.stream] == [(STREAM, 3, 0)]


def test_a_publisher_that_ended_before_an_absence_is_not_missed() -> None:
    store = Store()
    driver = Driver(store)
    driver.publish(1, 2)
    driver.hear(ORDERS, envelope.beacon(3, STREAM, 2, 2, 0, final=True))
    driver = Driver(store, instance=78)
    driver.advance(LIMITS.gap_timeout_s + 2)
    assert not [gap for gap in store.gaps() if gap.stream]


def test_a_publisher_that_began_during_an_absence_is_asked_from_the_first_message_on() -> None:
    store = Store()
    Driver(store).publish(1)
    newcomer = stream_id(0xC0DE, 1)
    driver = Driver(store, instance=78)
    driver.publish(3, stream=newcomer)
    driver.tell(control.Present(1, 1, 0, 1, [], [], [(ORDERS, newcomer, 3)]), client=0xC0DE)
    driver.advance(LIMITS.heal_delay_s)
    (heal,) = driver.take(peer_channel(0xC0DE), control.Heal)
    assert (heal.first, heal.last) == (1, 2)


def test_an_agent_that_was_lost_before_its_first_writing_was_away_too() -> None:
    store = Store()
    store.index.add(ORDERS)
    Driver(store)
    (gap,) = store.gaps()
    assert (gap.stream, gap.since_ms) == (0, 0)
    assert gap.reason.startswith("recording was interrupted")


def test_what_a_server_refuses_to_write_is_a_gap_when_it_writes_again() -> None:
    store = Store()
    driver = Driver(store)
    driver.publish(1)
    store.refuses = True
    driver.publish(2, 3)
    store.refuses = False
    driver.publish(4)
    driver.advance(2)
    assert store.numbers() == [1, 4]
    assert [(gap.stream, gap.first, gap.last) for gap in store.gaps()] == [(STREAM, 2, 3)]
    assert driver.core.counters.record_refused == 2


def test_a_lost_connection_is_an_absence_too() -> None:
    store = Store()
    driver = Driver(store)
    driver.publish(1, 2)
    driver.core.lost(driver.now)
    driver.open("run one")
    driver.publish(4)
    driver.advance(LIMITS.heal_delay_s)
    assert driver.asked() == [(3, 3)]


def test_the_connection_that_wrote_before_is_ended_before_the_end_of_a_record_is_read() -> None:
    store = Store()
    store.connections = 4
    driver = Driver(store)
    driver.publish(1, 2)
    assert store.writer == b"4"
    driver.core.lost(driver.now)
    store.connections = 9
    driver.commands.clear()
    driver.core.opened("run one", driver.now)
    driver.publish(3)  # heard before the server has answered anything
    kill = (b"CLIENT", b"KILL", b"ID", b"4", b"TYPE", b"pubsub", b"SKIPME", b"yes")
    reads = [index for index, command in enumerate(driver.commands) if command[0] == b"XREVRANGE"]
    assert driver.commands.index(kill) < min(reads)
    assert store.writer == b"9"


def test_a_record_that_the_server_has_lost_is_told_though_nothing_more_is_heard() -> None:
    store = Store()
    driver = Driver(store)
    driver.publish(1, 2)
    store.streams.clear()
    store.index.clear()
    driver.core.lost(driver.now)
    driver.open("another run")
    assert [gap.reason for gap in store.gaps()] == ["the server has lost its record up to here"]
    assert store.index == {ORDERS}
    driver.publish(3)
    assert store.numbers() == [3]
    assert len(store.gaps()) == 1


def test_a_corrupt_entry_harms_nobody() -> None:
    store = Store()
    Driver(store).publish(1, 2)
    store.streams[record_key(ORDERS)].append((b"5000-0", [b"n", b"x", b"m", b"garbage"]))
    driver = Driver(store, instance=78)
    driver.publish(3)
    assert driver.core.counters.garbage == 1
    entries = store.streams[record_key(ORDERS)]
    numbers = [read_entry(fields)[0] for _, fields in entries if fields[1] != b"x"]
    assert numbers == list(range(1, len(entries)))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.integers(1, 300)), min_size=1, max_size=4))
def test_every_number_is_recorded_or_in_a_gap(incarnations: list[tuple[int, bool, int]]) -> None:
    """Lives of an agent, each after an absence in which the publisher went on; it has the last `keeps` messages."""
    store = Store()
    sequence = 0
    for incarnation, (missed, heals, said) in enumerate(incarnations):
        sequence += missed if incarnation else 0
        driver = Driver(store, instance=100 + incarnation)
        for _ in range(said):
            sequence += 1
            driver.publish(sequence)
        for _ in range(60):
            driver.advance(LIMITS.heal_retry_s)
            for first, last in driver.asked():
                if heals:
                    driver.resend(*range(first, last + 1), floor=1, first=first)
        numbers = store.numbers()
        missing = {n for gap in store.gaps() if gap.stream for n in range(gap.first, gap.last + 1)}
        assert len(numbers) == len(set(numbers))
        assert {*numbers} | missing == {*range(1, sequence + 1)}
        assert not {*numbers} & missing
    ends = [said for said in store.said() if isinstance(said, list)]
    assert len(ends) >= sum(said for _, _, said in incarnations) // (STREAMS_EVERY + 2)


# The room for all records


def test_records_share_the_room_of_their_server() -> None:
    limits = msgspec.structs.replace(DEFAULT_LIMITS, recorded_bytes_max=400, recorded_total_bytes_max=1000)
    budget = RecordBudget(limits)
    assert budget.share_bytes == 400, "one record alone is bounded by its own limit"
    assert not budget.add([b"a", b"b"])
    assert budget.add([b"c"]), "four parts"
    assert budget.share_bytes == 250
    assert not budget.add([b"d", b"a"])
    assert budget.add([b"e"])
    assert budget.share_bytes == 125
    assert budget.records * budget.share_bytes <= 1000
    assert budget.others([b"a", b"c"]) == [b"b", b"d", b"e"]
    budget.reset()
    assert budget.share_bytes == 400


@given(st.integers(1, 5000))
def test_all_shares_fit_the_room(records: int) -> None:
    budget = RecordBudget(DEFAULT_LIMITS)
    budget.add(b"%d" % number for number in range(records))
    assert budget.records * budget.share_bytes <= DEFAULT_LIMITS.recorded_total_bytes_max


def test_earlier_records_are_trimmed_when_others_need_room() -> None:
    """Also those that nothing is written to any more."""
    store = Store()
    store.index.add(b"old")
    limits = msgspec.structs.replace(LIMITS, recorded_bytes_max=16_000_000, recorded_total_bytes_max=16_000_000)
    driver = Driver(store, limits=limits)
    for number in range(1, 10):
        for sequence in range(1, 50):
            driver.hear(b"orders.%d" % number, blob(STREAM, sequence, b"x" * 2000))
    trims = {command[1]: int(command[4]) for command in driver.commands if command[0] == b"XTRIM"}
    assert trims.keys() >= {record_key(b"orders.1"), record_key(b"old")}
    assert all(entries >= ENTRIES_MIN for entries in trims.values())
    kept = {command[1]: int(command[4]) for command in driver.commands if command[0] == b"XADD"}  # the last of each
    assert kept[record_key(b"orders.9")] * 2000 * 10 <= 16_000_000, "ten records fit"
    assert trims[record_key(b"orders.1")] < kept[record_key(b"orders.1")], "the share has become smaller"
    assert driver.core.counters.record_trims > 0
