"""The monitor: what it asks its server each second, and what becomes of the answers. No server, no clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shoal.channels.agent import monitor as module
from shoal.channels.agent.core import AgentCore
from shoal.channels.agent.monitor import Monitor
from shoal.channels.telemetry.analyzer import Analyzer
from shoal.channels.telemetry.scanner import Scanner
from shoal.limits import Limits
from shoal.load.record import TelemetryRecord, decode
from shoal.load_kinds import KINDS
from shoal.plan.book import PlanBook
from shoal.plan.ring import Ring, ServerAddress
from shoal.plan.signature import Signer, Verifier
from shoal.wire import control
from shoal.wire.envelope import AGENT_CHANNEL, HEADER, HEARTBEAT_CHANNEL, MAGIC, stream_id

LIMITS = Limits()
PEER = b"__shoal:heartbea[t]"
ALICE, BOB = 0xA11CE, 0xB0B


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def observed(channel: bytes, payload: bytes) -> bytes:
    return b">4\r\n$8\r\npmessage\r\n$1\r\n*\r\n" + bulk(channel) + bulk(payload)


def envelope(client: int, sequence: int, payload: bytes) -> bytes:
    return HEADER.pack(MAGIC, 0, 1, stream_id(client, 1), sequence, 0) + payload


def info(out: int = 0, run_id: str = "run1") -> bytes:
    fields = {
        "run_id": run_id,
        "total_net_input_bytes": 0,
        "total_net_output_bytes": out,
        "used_cpu_sys": 0.5,
        "used_cpu_user": 0.25,
        "connected_clients": 3,
        "used_memory": 1000,
    }
    return "".join(f"{name}:{value}\r\n" for name, value in fields.items()).encode()


class Bench:
    """A core with a monitor, and a server that answers what it is told to."""

    def __init__(self) -> None:
        signer = Signer(Signer.generate())
        self.scanner = Scanner(1 << 20)
        book = PlanBook(Verifier(signer.public))
        self.core = AgentCore("s1", 7, self.scanner, book, LIMITS)
        self.core.ring(signer.ring(Ring(1, (ServerAddress("s1", "h", 1),))))
        self.monitor = Monitor(self.core, Analyzer(self.scanner, 10), 1000.0, frozenset({b"*", PEER}), site="")
        self.subscribers: dict[bytes, int] = {}
        self.patterns = 1
        self.clients = [ALICE, BOB]
        self.info = info()
        self.refuse: set[bytes] = set()
        self.commands: list[tuple[bytes, ...]] = []
        self.core.second = 100
        self.core.opened("run1", 0.0)
        self.monitor.opened()
        self.answer()

    def answer(self, now: float = 1.0) -> None:
        """The server answers everything, and what comes of the answers."""
        while self.core.outbox:
            commands = list(self.core.outbox)
            self.core.outbox.clear()
            self.commands += commands
            for command in commands:
                self.core.received(self.reply(command), now)

    def reply(self, command: tuple[bytes, ...]) -> bytes:
        name = b" ".join(command[:2]) if command[0] in (b"PUBSUB", b"CLIENT") else command[0]
        if name in self.refuse:
            return b"-NOPERM no right\r\n"
        answers: dict[bytes, Callable[[], bytes]] = {
            b"PSUBSCRIBE": lambda: b">3\r\n" + bulk(b"psubscribe") + bulk(b"*") + b":1\r\n",
            b"PUBLISH": lambda: b":1\r\n",
            b"PUBSUB NUMPAT": lambda: b":%d\r\n" % self.patterns,
            b"PUBSUB NUMSUB": lambda: (
                b"*%d\r\n" % (2 * len(command[2:]))
                + b"".join(bulk(channel) + b":%d\r\n" % self.subscribers.get(channel, 0) for channel in command[2:])
            ),
            b"CLIENT LIST": lambda: self._verbatim(
                b"".join(b"id=3 addr=x name=shoal:%012x age=1\n" % client for client in self.clients)
            ),
            b"INFO": lambda: self._verbatim(self.info),
            b"XADD": lambda: bulk(b"1-0"),
        }
        return answers[name]()

    @staticmethod
    def _verbatim(text: bytes) -> bytes:
        return b"=%d\r\ntxt:%b\r\n" % (len(text) + 4, text)

    def publish(self, channel: bytes, payload: bytes) -> None:
        self.core.received(observed(channel, payload), 0.5)

    def tell(self, message: control.Control, client: int) -> None:
        self.publish(AGENT_CHANNEL, control.encode(message, client, 1))

    def subscribe(self, client: int, name: bytes, pattern: bool = False) -> None:
        self.tell(control.Hello(1, name, pattern, True, version=1, ring_version=1), client=client)
        self.answer()

    def close(self, second: int = 100) -> TelemetryRecord:
        """Ends a second and returns what was reported about it."""
        self.commands.clear()
        self.monitor.second_over(second, 1.0)
        self.answer(second + 1.0)
        return self.record()

    def record(self) -> TelemetryRecord:
        (command,) = [command for command in self.commands if command[0] == b"XADD"]
        return decode(command[-1], KINDS)

    def asked(self, *heartbeats: bytes) -> list[tuple[bytes, ...]]:
        return [command for command in self.commands if command[: len(heartbeats)] == heartbeats]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def rows(record: TelemetryRecord) -> dict[bytes, dict[str, Any]]:
    return record.tables["channel"].rows()


def test_a_second_is_closed_with_everything_that_the_paper_records(bench: Bench) -> None:
    bench.subscribe(ALICE, b"tile")
    bench.subscribers = {b"tile": 3}
    for sequence in (1, 2):
        bench.publish(b"tile", envelope(BOB, sequence, b"north"))
    row = rows(bench.close())[b"tile"]
    frame = len(observed(b"tile", envelope(BOB, 1, b"north")))
    shorter = len(b">4\r\n$8\r\npmessage\r\n$1\r\n*\r\n") - len(b">3\r\n$7\r\nmessage\r\n")
    assert row["publishers"] == 1
    assert row["publisher_ids"] == [BOB]
    assert row["publications"] == 2
    assert row["subscribers"] == 3
    assert row["subscriber_ids"] == [ALICE]
    assert row["messages_sent"] == 6
    assert row["bytes_in"] == 2 * (HEADER.size + len(b"north"))
    assert row["bytes_out"] == 2 * 3 * (frame - shorter)


def test_the_record_says_which_second_of_which_instance_of_the_agent(bench: Bench) -> None:
    first, second = bench.close(100), bench.close(101)
    assert (first.id.host, first.id.instance, first.id.second) == ("s1", f"{7:016x}", 100)
    assert (second.id.second, second.id.sequence) == (101, first.id.sequence + 1)


def test_load_and_cpu_are_measured_between_two_answers_of_info(bench: Bench) -> None:
    bench.close(100)
    bench.info = info(out=50_000).replace(b"used_cpu_sys:0.5", b"used_cpu_sys:0.75")
    server: dict[str, Any] = {**bench.close(101).host}
    assert server["interval_s"] == 1.0
    assert server["net_output_bytes_per_s"] == 50_000
    assert server["max_out_bytes_per_s"] == 1000
    assert server["load_ratio"] == (50_000 - server["observed_bytes"]) / 1000
    assert server["cpu_share"] == pytest.approx(0.25)


def test_numsub_is_asked_in_pages_and_no_more_than_the_limit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NUMSUB_PAGE_CHANNELS", 3)
    monkeypatch.setattr(module, "NUMSUB_CHANNELS_MAX", 8)
    bench.subscribe(ALICE, b"quiet")
    for number in range(10):
        bench.publish(b"busy%d" % number, b"x")
    bench.subscribers = {b"busy%d" % number: 2 for number in range(10)}
    found = rows(bench.close())
    pages = [len(command) - 2 for command in bench.asked(b"PUBSUB", b"NUMSUB")]
    assert pages == [3, 3, 2]
    assert [found[b"busy%d" % number]["subscribers"] for number in range(10)] == [2] * 8 + [0] * 2
    assert found[b"quiet"]["subscribers"] == 1, "the register counts where the server was not asked"


def test_registered_channels_are_asked_about_when_nothing_came_on_them(bench: Bench) -> None:
    bench.subscribe(ALICE, b"quiet")
    bench.subscribers = {b"quiet": 4}
    assert rows(bench.close())[b"quiet"]["subscribers"] == 4


def test_pattern_subscribers_are_counted_and_foreign_patterns_noticed(bench: Bench) -> None:
    bench.subscribe(ALICE, b"ti*", pattern=True)
    bench.publish(b"tile", b"x")
    bench.patterns = 5
    row = rows(bench.close())[b"tile"]
    assert (row["pattern_subscribers"], row["messages_sent"]) == (1, 1)
    assert bench.monitor.foreign_patterns == 2


def test_clients_without_a_connection_leave_the_register(bench: Bench) -> None:
    bench.subscribe(ALICE, b"tile")
    bench.subscribe(BOB, b"tile")
    bench.clients = [BOB]
    bench.close(100)
    assert set(bench.core.register.clients) == {BOB}
    bench.clients = []
    bench.close(102)
    assert set(bench.core.register.clients) == {BOB}, "not asked every second"
    bench.close(105)
    assert not bench.core.register.clients


def test_a_round_that_is_not_over_goes_on_and_no_second_one_is_begun(bench: Bench) -> None:
    bench.publish(b"tile", b"x")
    bench.monitor.second_over(100, 1.0)
    waiting = len(bench.core.outbox)
    bench.publish(b"tile", b"x")
    bench.monitor.second_over(101, 2.0)
    assert len(bench.core.outbox) == waiting
    bench.answer()
    assert rows(bench.record())[b"tile"]["publications"] == 2
    assert bench.monitor.counters.late == 1


def test_a_lost_connection_ends_the_round(bench: Bench) -> None:
    bench.monitor.second_over(100, 1.0)
    bench.core.lost(1.5)
    bench.monitor.second_over(101, 2.0)
    bench.core.opened("run1", 2.5)
    bench.monitor.opened()
    bench.answer()
    assert bench.close(102).id.second == 102


def test_nothing_is_asked_while_the_server_is_away(bench: Bench) -> None:
    bench.core.lost(1.0)
    bench.monitor.second_over(100, 1.5)
    assert not bench.core.outbox


@pytest.mark.parametrize("refused", [b"PUBSUB NUMSUB", b"PUBSUB NUMPAT", b"CLIENT LIST", b"XADD"])
def test_a_refused_question_leaves_the_rest_as_it_is(bench: Bench, refused: bytes) -> None:
    bench.refuse = {refused}
    bench.publish(b"tile", b"x")
    assert rows(bench.close(100))[b"tile"]["publications"] == 1
    assert bench.monitor.counters.refused == 1
    assert rows(bench.close(101)) == {}


def test_without_info_there_is_no_record_and_the_next_round_is_asked(bench: Bench) -> None:
    bench.refuse = {b"INFO"}
    bench.publish(b"tile", b"x")
    bench.monitor.second_over(100, 1.0)
    bench.answer()
    bench.info = b"nothing:useful\r\n"
    bench.refuse = set()
    bench.monitor.second_over(101, 1.0)
    bench.answer()
    bench.info = info()
    assert rows(bench.close(102))[b"tile"]["publications"] == 1
    assert bench.monitor.counters.refused == 2


def test_silent_streams_are_forgotten_after_publisher_idle_s(bench: Bench) -> None:
    bench.publish(b"tile", envelope(BOB, 1, b""))
    idle = int(LIMITS.publisher_idle_s)
    bench.close(idle - 1)  # it was heard at 1.0 by the loop's clock, which is 1 s ahead of the second
    assert bench.scanner.streams(b"tile").streams
    bench.close(idle + module.FORGET_INTERVAL_S)
    assert not bench.scanner.streams(b"tile").streams
    assert bench.monitor.counters.streams_forgotten == 1


def test_large_records_are_kept_shorter(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.close(100)
    assert bench.asked(b"XADD")[0][4] == b"%d" % module.TELEMETRY_RECORDS_MAX
    monkeypatch.setattr(module, "TELEMETRY_BYTES_MAX", 1)
    bench.close(101)
    bench.close(102)
    assert bench.asked(b"XADD")[0][4] == b"%d" % module.TELEMETRY_RECORDS_MIN


def test_whoever_wants_to_know_is_told_of_each_second(bench: Bench) -> None:
    told: list[int] = []
    bench.monitor.closed = lambda second: told.append(second.second)
    bench.close(100)
    assert told == [100]


def test_the_pattern_of_the_peers_matches_the_heartbeat_channel_alone() -> None:
    from shoal.channels.agent.peers import PEER_PATTERN
    from shoal.wire.glob import glob_match

    assert PEER_PATTERN == PEER
    assert glob_match(PEER_PATTERN, HEARTBEAT_CHANNEL)
    assert not glob_match(PEER_PATTERN, HEARTBEAT_CHANNEL + b"s")
