"""The verdict of a pipeline soak: what is owed, what a gap excuses, and what counts as missing, doubled or late."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

from shoal.history.table import SCHEMA
from shoal.lab.soak.pipeline_checker import LOST_RECORD, ConfirmedMessages, PipelineReport, ServerKill, check

SECOND = 1_000_000
CONFIRMED = {("a", number): ConfirmedMessages(number * SECOND, number * SECOND + 1000) for number in range(1, 11)}
KILL = ServerKill("s1", 8 * SECOND + 500_000, 8 * SECOND + 600_000)


def row(number: int, server: str = "s1", **more: Any) -> dict[str, Any]:
    """A message that was recorded when it was published."""
    at = dt.datetime.fromtimestamp(number, dt.UTC)
    return {
        "channel": "a",
        "server": server,
        "entry": f"{number * 1000}-0",
        "number": number,
        "recorded_at": at,
        "publisher": 7,
        "epoch": 1,
        "sequence": number,
        "published_at": at,
        "payload": b"%d" % number,
        "is_gap": False,
        "is_end": False,
        **more,
    }


def gap(reason: str, at: float = 9.0, **more: Any) -> dict[str, Any]:
    """A gap without numbers."""
    empty = {"entry": f"{at * 1000:.0f}-0", "publisher": None, "epoch": None, "sequence": None, "payload": None}
    return {
        **row(1),
        **empty,
        "recorded_at": dt.datetime.fromtimestamp(at, dt.UTC),
        "is_gap": True,
        "reason": reason,
        **more,
    }


def verdict(
    rows: list[dict[str, Any]],
    archive: list[dict[str, Any]] | None = None,
    windows: list[int] | None = None,
    kills: tuple[ServerKill, ...] = (),
) -> PipelineReport:
    """The report on these rows; archive and windows have the same messages unless given."""
    counted = [int(one["payload"]) for one in rows if not one["is_gap"]] if windows is None else windows
    window_table = pa.table({"channel": ["a"], "payloads": [[b"%d" % number for number in counted]]})
    row_table, archive_table = (
        pa.Table.from_pylist(found, schema=SCHEMA) for found in (rows, rows if archive is None else archive)
    )
    return check(CONFIRMED, row_table, archive_table, window_table, kills)


def everything() -> list[dict[str, Any]]:
    return [row(number) for number in range(1, 11)]


def test_all_that_was_confirmed_is_owed() -> None:
    report = verdict(everything())
    assert (report.owed, report.missing, report.doubled, report.dropped_late) == (10, 0, 0, 0)
    assert not report.violations


def test_a_message_that_a_job_does_not_have_is_missing_from_it() -> None:
    report = verdict(everything()[:-1], archive=everything())
    assert (report.owed, report.missing_rows, report.missing_archived) == (10, 1, 0)
    assert "('a', 10)" in report.violations[0]


def test_a_message_in_two_records_is_read_once_but_an_entry_twice_is_doubled() -> None:
    copy = row(3, server="s2", entry="3001-0")
    assert verdict([*everything(), copy], windows=[*range(1, 11)]).doubled == 0
    again = [*everything(), row(3)]
    assert verdict(again, archive=everything(), windows=[*range(1, 11)]).doubled == 1


def test_a_message_that_is_counted_twice_or_published_twice_is_doubled() -> None:
    assert verdict(everything(), windows=[*range(1, 11), 4]).doubled == 1
    again = row(4, entry="4001-0", sequence=40)
    assert verdict([*everything(), again], archive=everything(), windows=[*range(1, 11)]).doubled == 1


def test_a_message_that_was_read_and_is_in_no_window_was_late() -> None:
    assert verdict(everything(), windows=[*range(1, 10)]).dropped_late == 1


def test_a_gap_with_numbers_excuses_those() -> None:
    rest = [one for one in everything() if one["sequence"] not in (5, 6)]
    told = gap("refused", publisher=7, epoch=1, gap_from=5, gap_to=5)
    report = verdict([*rest, told], archive=everything(), windows=[one["sequence"] for one in rest])
    assert (report.owed, report.lost_with_server, report.missing_rows) == (9, 1, 1)


def test_a_lost_record_excuses_what_the_job_had_not_read_when_the_server_was_killed() -> None:
    lost = gap(f"{LOST_RECORD} up to here")
    read = [row(number) for number in (1, 2, 3, 4, 5, 9, 10)]
    report = verdict([*read, lost], archive=everything(), kills=(KILL,))
    assert (report.owed, report.lost_with_server, report.missing) == (7, 3, 0)


def test_a_lost_record_excuses_nothing_else() -> None:
    lost = gap(f"{LOST_RECORD} up to here")
    early = [row(number) for number in range(1, 11) if number != 2]  # the job had read later entries of that server
    assert verdict([*early, lost], archive=everything(), kills=(KILL,)).missing == 1
    late = [row(number) for number in range(1, 10)]  # published after the kill
    assert verdict([*late, lost], archive=everything(), kills=(KILL,)).missing == 1
    unread = [row(number) for number in (1, 2, 3, 4, 5, 9, 10)]
    assert verdict([*unread, lost], archive=everything()).missing == 3  # no server was killed
    elsewhere = gap(f"{LOST_RECORD} up to here", server="s2")
    assert verdict([*unread, elsewhere], archive=everything(), kills=(KILL,)).missing == 3
    assert verdict(unread, archive=everything(), kills=(KILL,)).missing == 3  # nothing reports it


def test_windows_need_not_have_what_their_query_had_not_read_of_a_killed_server() -> None:
    counted = [number for number in range(1, 11) if number not in (7, 8)]
    assert verdict(everything(), windows=counted, kills=(KILL,)).dropped_late == 0
    counted = [number for number in range(1, 11) if number != 6]
    assert verdict(everything(), windows=counted, kills=(KILL,)).dropped_late == 1


def test_a_copy_on_another_server_does_not_tell_what_a_query_has_read_of_the_killed_one() -> None:
    copied = [*everything(), row(8, server="s2", entry="8001-0")]
    counted = [number for number in range(1, 11) if number not in (6, 7)]  # 8 came from s2
    assert verdict(copied, windows=counted, kills=(KILL,)).dropped_late == 0
