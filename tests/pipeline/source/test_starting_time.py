"""Where reading starts: at a time, and with a warning if nobody records the channel."""

from __future__ import annotations

import logging
import time

import pytest
from tests.pipeline.source.streaming import empty, one, options, table_of, two, write_record
from tests.support.redis_server import RedisServer, free_port

from shoal.errors import ConfigError, ConnectError, PipelineError, TrimmedError
from shoal.pipeline.source.offset_planner import OffsetPlanner
from shoal.pipeline.source.options import SourceOptions, read_options
from shoal.wire.blocking_connection import ask
from shoal.wire.dial import tcp
from shoal.wire.record_entry import MARKS_KEY, encode_marks, record_key

__all__ = ["empty", "one", "two"]

START_MS = 1_793_534_400_000
"""2026-11-01T12:00."""


def rows_since(asked: SourceOptions, *, complete: bool) -> list[tuple[str, int]]:
    """The channels of the rows, and when they were recorded, in milliseconds after the start."""
    planner = OffsetPlanner(asked, complete)
    start = planner.first()
    table = table_of(planner.parts(start, planner.next(start)), asked.kind)
    times = [round(at.timestamp() * 1000) - START_MS for at in table["recorded_at"].to_pylist()]
    return sorted(zip(table["channel"].to_pylist(), times, strict=True))


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("since", [str(START_MS + 5), "2026-11-01T12:00:00.005", "2026-11-01T13:00:00.005+01:00"])
def test_reading_starts_with_what_was_recorded_from_a_time_on(
    one: RedisServer, two: RedisServer, since: str, complete: bool
) -> None:
    write_record(one, b"both", range(START_MS, START_MS + 10))
    write_record(two, b"both", range(START_MS + 8, START_MS + 10))
    write_record(one, b"old", [START_MS])
    asked = options(one, two, kind="channel", startingTimestamp=since)
    expected = [("both", ms) for ms in (5, 6, 7, 8, 8, 9, 9)]
    assert rows_since(asked, complete=complete) == expected


def test_what_is_dropped_after_the_start_is_a_loss(one: RedisServer) -> None:
    write_record(one, b"orders", range(START_MS, START_MS + 10))
    planner = OffsetPlanner(options(one, kind="channel", startingTimestamp=str(START_MS + 5)))
    start = planner.first()
    ask(one.host, one.port, None, None, "XTRIM", record_key(b"orders"), "MAXLEN", 3, dial=tcp)
    with pytest.raises(TrimmedError, match="2 entries were dropped"):
        planner.next(start)


def test_what_was_dropped_before_is_none(one: RedisServer) -> None:
    write_record(one, b"orders", range(START_MS, START_MS + 10))
    ask(one.host, one.port, None, None, "XTRIM", record_key(b"orders"), "MAXLEN", 3, dial=tcp)
    asked = options(one, kind="channel", startingTimestamp=str(START_MS))
    assert [ms for _, ms in rows_since(asked, complete=False)] == [7, 8, 9]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"startingTimestamp": "1", "startingOffsets": "{}"}, "both startingOffsets and startingTimestamp"),
        ({"startingTimestamp": "1", "startingOffsets": "latest"}, "both startingOffsets and startingTimestamp"),
        ({"startingTimestamp": "noon"}, "startingTimestamp: 'noon' is not a time"),
    ],
)
def test_times_that_cannot_be_are_refused(one: RedisServer, given: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        options(one, kind="channel", **given)


def test_a_time_in_the_future_is_refused(one: RedisServer) -> None:
    later = str(int(time.time() * 1000) + 60_000)
    with pytest.raises(ConfigError, match="in the future"):
        OffsetPlanner(options(one, kind="channel", startingTimestamp=later)).first()


def test_every_server_must_say_what_is_new_enough(one: RedisServer) -> None:
    servers = f"s1={one.host}:{one.port},gone={one.host}:{free_port()}"
    asked = read_options({"servers": servers, "kind": "channel", "startingTimestamp": "15m"})
    with pytest.raises(ConnectError, match="gone does not answer"):
        OffsetPlanner(asked).first()
    with pytest.raises(PipelineError, match="gone does not answer"):
        OffsetPlanner(asked, complete=True).first()


@pytest.mark.parametrize(
    ("channel", "marks", "warned"),
    [
        ("orders", [], True),
        ("orders", [b"tile.*"], True),
        ("orders", [b"ord*"], False),
        ("orders.*", [b"orders.eu"], False),
        ("orders.*", [b"*"], False),
    ],
)
def test_a_channel_that_nobody_records_is_warned_of_once(
    one: RedisServer, caplog: pytest.LogCaptureFixture, channel: str, marks: list[bytes], warned: bool
) -> None:
    ask(one.host, one.port, None, None, "SET", MARKS_KEY, encode_marks(marks), dial=tcp)
    planner = OffsetPlanner(options(one, kind="channel", channel=channel))
    with caplog.at_level(logging.WARNING, logger="shoal"):
        start = planner.first()
        planner.next(start)
    assert caplog.text.count("no server records this channel") == warned
    write_record(one, b"orders", [START_MS])
    caplog.clear()
    OffsetPlanner(options(one, kind="channel", channel="ord*")).first()
    assert "no server records" not in caplog.text
