"""Replay: every archived message once more, in order, on time, continued after a stop, and never by accident into what
it came from."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.archives import make_archive, message
from tests.support.records import BOB, NOON_US

from shoal import cli
from shoal.errors import CheckpointError, ConfigError
from shoal.history.archive_location import ArchiveLocation
from shoal.history.archive_table import open_table
from shoal.message import Attributes
from shoal.pipeline import archive_order, replay
from shoal.pipeline.archive_order import ArchiveOrder, NumberCheck
from shoal.pipeline.event_archive import ALWAYS, TimeSpan
from shoal.pipeline.replay import ChannelTarget, Checkpoint, Pace, Replay, ReplayPlan, ReplayState, first_state

ALICE = 0xA11CE
SECOND_US = 1_000_000


class ListTarget:
    """Collects what is published. `stop_after`: cancels the replay after so many messages; what it had not confirmed
    by then counts as published all the same."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.messages: list[tuple[bytes, bytes, Attributes]] = []
        self.confirmed = 0
        self._stop_after = stop_after

    def name(self, channel: str) -> bytes:
        return channel.encode()

    async def publish(self, name: bytes, payload: bytes, attributes: Attributes) -> None:
        self.messages.append((name, payload, attributes))
        if len(self.messages) == self._stop_after:
            raise ConnectionResetError("the process dies here")

    async def confirm(self) -> None:
        self.confirmed = len(self.messages)

    def ids(self) -> list[Any]:
        return [attributes["shoal_id"] for _, _, attributes in self.messages]


def opened(archive: Path, span: TimeSpan = ALWAYS, pattern: str | None = None) -> ArchiveOrder:
    return ArchiveOrder(ArchiveLocation.of(archive), span, pattern)


def order_of(archive: Path, **more: Any) -> list[tuple[str, int, int]]:
    rows = [row for table in opened(archive, **more).tables() for row in table.to_pylist()]
    return [(row["channel"], row["publisher"], row["sequence"]) for row in rows]


def two_channels(count: int = 300) -> list[dict[str, Any]]:
    """Messages of two publishers on two channels, a second apart, from two servers, with copies, and Bob's clock is set
    back by half a minute in the middle."""
    rows = []
    for n in range(1, count + 1):
        back_us = 30 * SECOND_US if n > count // 2 else 0
        rows.append(message("orders.eu", BOB, n, NOON_US + n * SECOND_US - back_us, attributes='{"n": 1}'))
        rows.append(message("orders.us", ALICE, n, NOON_US + n * SECOND_US + 1, server="s2"))
        if n % 7 == 0:
            rows.append({**rows[-2], "server": "s2", "entry": f"7-{n}"})
    return rows


def plan_of(archive: Path) -> ReplayPlan:
    return ReplayPlan(archive=str(archive), channel=None, since=None, until=None, to="replay.*")


async def run(archive: Path, target: ListTarget, folder: Path | None = None, pace: Pace | None = None) -> ReplayState:
    plan, checkpoint, order = plan_of(archive), Checkpoint(folder), opened(archive)
    state = checkpoint.read(plan) or first_state(plan, order.span)
    await Replay(order, target, pace or Pace(None), state, checkpoint).run(lambda state, share: None)
    return state


def test_each_message_comes_once_and_in_the_order_of_its_publisher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make_archive(tmp_path / "a", two_channels())
    whole = order_of(archive)
    monkeypatch.setattr(archive_order, "SLICE_ROWS", 40)
    for found in (whole, order_of(archive)):
        for channel, publisher in (("orders.eu", BOB), ("orders.us", ALICE)):
            assert [n for name, id, n in found if (name, id) == (channel, publisher)] == list(range(1, 301))
    assert [n for name, _, n in order_of(archive, pattern="*.us")] == list(range(1, 301))
    span = TimeSpan(NOON_US + 10 * SECOND_US, NOON_US + 20 * SECOND_US)
    assert [n for name, _, n in order_of(archive, span=span) if name == "orders.us"] == list(range(10, 20))


def test_a_clock_that_is_set_back_by_more_than_the_lookahead_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_order, "SLICE_ROWS", 1)
    hour_us = 3600 * SECOND_US
    rows = [message("orders.eu", BOB, n, NOON_US + n + (hour_us if n < 3 else 0)) for n in range(1, 5)]
    state = asyncio.run(run(make_archive(tmp_path / "a", rows), ListTarget()))
    assert (state.messages, state.numbers.reordered, state.numbers.gaps()) == (4, 2, (0, 0))


async def test_a_replay_that_dies_is_continued_with_the_same_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "CHECKPOINT_S", 0.0)
    monkeypatch.setattr(replay, "ROWS", 50)
    archive = make_archive(tmp_path / "a", two_channels())
    (tmp_path / "c").mkdir()
    first, second, whole = ListTarget(stop_after=333), ListTarget(), ListTarget()
    with pytest.raises(ConnectionResetError):
        await run(archive, first, tmp_path / "c")
    state = await run(archive, second, tmp_path / "c")
    await run(archive, whole)
    assert first.ids()[: first.confirmed] + second.ids() == whole.ids()
    assert len(whole.ids()) == len(set(whole.ids())) == 600
    assert 200 < first.confirmed < 333
    assert (state.messages, state.resumed, state.done) == (600, 1, True)
    assert second.confirmed == len(second.messages)
    assert state.numbers.gaps() == (0, 0)
    name, payload, attributes = whole.messages[0]
    assert (name, payload, attributes) == (b"orders.eu", b"m1", {"n": 1, "shoal_id": f"orders.eu/{BOB:012x}/1/1"})


async def test_a_checkpoint_of_another_replay_is_refused(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "a", two_channels(3))
    await run(archive, ListTarget(), tmp_path)
    other = ReplayPlan(archive=str(archive), channel="orders.eu", since=None, until=None, to="replay.*")
    with pytest.raises(CheckpointError, match="is of another replay: name another --checkpoint"):
        Checkpoint(tmp_path).read(other)
    (tmp_path / "replay.json").write_text("{")
    with pytest.raises(CheckpointError, match="is damaged"):
        Checkpoint(tmp_path).read(plan_of(archive))


async def test_messages_are_due_at_the_times_of_their_publication_by_the_speed(tmp_path: Path) -> None:
    pace = Pace(10.0)
    assert pace.due(NOON_US, 50.0) == pytest.approx(50.0)
    assert pace.due(NOON_US + 20 * SECOND_US, 50.1) == pytest.approx(52.0)
    assert Pace(None).due(NOON_US + 20 * SECOND_US, 50.1) == 50.1
    rows = [message("orders.eu", BOB, n, NOON_US + n * SECOND_US) for n in (1, 2)]
    pace, began = Pace(5.0), asyncio.get_running_loop().time()
    await run(make_archive(tmp_path / "a", rows), ListTarget(), pace=pace)
    assert asyncio.get_running_loop().time() - began >= 0.2
    assert (pace.late_ms(0.99) or 0) >= 0
    assert Pace(None).late_ms(0.5) is None


def test_slices_have_about_the_same_number_of_rows(tmp_path: Path) -> None:
    day_us = 86_400 * SECOND_US
    rows = [message("quiet", BOB, n, NOON_US + n * day_us) for n in range(1, 30)]
    rows += [message("busy", ALICE, n, NOON_US + 20 * day_us + n * SECOND_US) for n in range(1, 2000)]
    files = open_table(ArchiveLocation.of(make_archive(tmp_path / "a", rows))).files
    whole = 30 * day_us
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive_order, "SLICE_ROWS", 100)
        quiet = archive_order._slice_length(list(files), NOON_US, whole)
        busy = archive_order._slice_length(list(files), NOON_US + 20 * day_us, whole)
    assert 10 * day_us < quiet < 20.1 * day_us
    assert 45 * SECOND_US < busy <= 105 * SECOND_US


def claim(stream: tuple[str, int | None, int], **more: Any) -> dict[str, Any]:
    row = {"channel": stream[0], "publisher": stream[1], "epoch": stream[2], "sequence": None, "is_end": False}
    return {**row, "gap_from": None, "gap_to": None, "reason": "away", **more}


def test_gaps_are_numbers_that_did_not_come() -> None:
    bob, silent = ("orders.eu", BOB, 1), ("orders.eu", ALICE, 1)
    check = NumberCheck()
    for number in (3, 4, 5, 9, 10):
        check.came(bob, number)
    assert check.gaps() == (1, 3)
    check.add_claim(claim(bob, gap_from=4, gap_to=7))  # 4 and 5 came from another server, 6 to 8 are missing already
    assert check.gaps() == (1, 3)
    check.add_claim(claim(bob, gap_from=1, gap_to=2))  # before the first one that came
    assert check.gaps() == (2, 5)
    check.add_claim(claim(bob, gap_from=11))  # open
    assert check.gaps() == (3, 5)
    check.add_claim(claim(bob, is_end=True, sequence=12))  # now it is known: 11 and 12
    assert check.gaps() == (3, 7)
    check.add_claim(claim(silent, gap_from=1, gap_to=1))
    check.add_claim(claim(silent, gap_from=1, gap_to=1))  # read again by a replay that was continued
    check.add_claim(claim(("orders.eu", None, 0), reason="recording was interrupted"))
    assert check.gaps() == (5, 8)


def test_numbers_with_many_holes_are_counted_in_little_time() -> None:
    check, stream = NumberCheck(), ("orders.eu", BOB, 1)
    for number in range(1, 200_000, 2):
        check.came(stream, number)
    assert check.gaps() == (99_999, 99_999)
    check.came(stream, 4)
    check.came(stream, 4)
    assert (check.reordered, check.gaps()) == (1, (99_998, 99_998))


def test_recorded_channels_are_not_fed_back_by_accident() -> None:
    bus: Any = None
    target = ChannelTarget(bus, "replay.*", [b"orders.*"])
    assert target.name("orders.eu") == b"replay.orders.eu"
    assert target.name("a\\xff") == b"replay.a\xff"
    assert ChannelTarget(bus, "one", [b"orders.*"]).name("orders.eu") == b"one"
    with pytest.raises(ConfigError, match=r"orders.eu would be replayed into orders.eu, which is recorded"):
        ChannelTarget(bus, "*", [b"orders.*"]).name("orders.eu")
    assert ChannelTarget(bus, "*", [b"orders.*"], into_recorded=True).name("orders.eu") == b"orders.eu"
    with pytest.raises(ConfigError, match=r"--to is '\*\*'"):
        ChannelTarget(bus, "**", [])


def test_bad_input_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = str(make_archive(tmp_path / "a", two_channels(3)))
    for words, complaint in (
        ([], "no archive given: give --archive PATH, or set archive_dir"),
        (["--archive", str(tmp_path / "none")], "there is no archive at"),
        (
            ["--archive", archive, "--speed", "fast"],
            "--speed is 'fast': give a factor above 0, such as 1 or 10, or max",
        ),
        (["--archive", archive, "--speed", "0"], "--speed is '0'"),
        (["--archive", archive, "--channel", "deals"], "has no messages of channels that match 'deals' in that time"),
        (["--archive", archive, "--since", "1s"], "has no messages in that time: give another time"),
        (["--archive", str(make_archive(tmp_path / "e", []))], "has no messages in that time"),
    ):
        assert cli.main(["pipeline", "replay", *words]) == 1
        assert complaint in capsys.readouterr().err


def test_a_replay_that_is_done_has_nothing_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = make_archive(tmp_path / "a", two_channels(3))
    asyncio.run(run(archive, ListTarget(), tmp_path))
    words = ["--archive", str(archive), "--checkpoint", str(tmp_path), "--json"]
    assert cli.main(["pipeline", "replay", *words]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["messages"], facts["messages_now"], facts["resumed"]) == (6, 0, 1)
