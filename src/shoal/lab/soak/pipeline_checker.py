"""The verdict of a pipeline soak: compares what publishers logged with what three jobs wrote.

Owns the definition of what is owed. Pure: Arrow tables and lists in, a report out.

    confirmed   messages whose publication a server confirmed, from the publishers' own log
    lost        those of them that died with a killed server before a job had read them, and that the job's rows report:
                by a gap with their numbers, or by a gap "the server has lost its record" of that server and channel
    owed        confirmed, minus lost
    missing     owed, and not in the rows of the query, or not in the archive
    doubled     an entry twice in rows or archive; a message twice in a window, or in two windows; a number that two
                messages have
    late        owed, in the rows, and in no window: the watermark dropped it

A gap without numbers excuses only messages that were published before the kill, and confirmed after the last entry of
that server and channel that the job has read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.lab.soak.pipeline_orders import ARCHIVED, CLOSING, ROWS, WINDOWS

LAG_US: Final = 2_000_000
"""How much later than it was confirmed an agent may have recorded a message."""
SHOWN_MAX: Final = 10
"""Examples in a violation."""
LOST_RECORD: Final = "the server has lost its record"

Message = tuple[str, int]
"""Channel, and number on it."""


class ConfirmedMessages(msgspec.Struct, frozen=True):
    """A confirmed message: when it was published, and when it was confirmed."""

    published_us: int
    confirmed_us: int


class ServerKill(msgspec.Struct, frozen=True):
    """A server that was killed, and lost its records: when that began, and when it was dead."""

    server: str
    at_us: int
    dead_us: int


class PipelineReport(msgspec.Struct):
    """The verdict."""

    confirmed: int = 0
    owed: int = 0
    rows: int = 0
    archived: int = 0
    counted: int = 0
    windows: int = 0
    gaps: int = 0
    lost_with_server: int = 0
    missing_rows: int = 0
    missing_archived: int = 0
    doubled: int = 0
    dropped_late: int = 0
    violations: list[str] = msgspec.field(default_factory=list)

    @property
    def missing(self) -> int:
        """Owed messages that a job does not have."""
        return self.missing_rows + self.missing_archived


class JobRows:
    """The rows that one job has, as the checker looks at them."""

    def __init__(self, table: pa.Table) -> None:
        self.gaps: list[dict[str, Any]] = []
        self.ids: dict[Message, set[tuple[int, int, int]]] = {}
        self.entries: Counter[tuple[str, str, str]] = Counter()
        self.recorded_us: dict[tuple[str, str], dict[int, int]] = {}
        """By server and channel: when each number was recorded there."""
        names = ("channel", "server", "entry", "publisher", "epoch", "sequence", "payload", "is_gap", "is_end")
        times = table["recorded_at"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        columns = [table[name].to_pylist() for name in names]
        details = zip(*(table[name].to_pylist() for name in ("gap_from", "gap_to", "reason")), strict=True)
        for row, at_us, (first, last, reason) in zip(zip(*columns, strict=True), times, details, strict=True):
            channel, server, entry, publisher, epoch, sequence, payload, is_gap, is_end = row
            if channel == CLOSING:
                continue
            if is_gap:
                gap = {"channel": channel, "server": server, "publisher": publisher, "epoch": epoch}
                self.gaps.append({**gap, "from": first, "to": last, "reason": reason, "at_us": at_us})
                continue
            self.entries[channel, server, entry] += 1
            if not is_end:
                number = int(payload)
                self.ids.setdefault((channel, number), set()).add((publisher, epoch, sequence))
                self.recorded_us.setdefault((server, channel), {})[number] = at_us

    def last_read_us(
        self, kills: Sequence[ServerKill], seen: Container[Message] | None = None
    ) -> dict[tuple[str, str], int]:
        """By server and channel: when the last message was recorded that a job has read of a killed server before that.
        `seen` are the messages that another job has. A message that two servers recorded does not tell which of them
        that job has read."""
        places = Counter((channel, number) for (_, channel), times in self.recorded_us.items() for number in times)

        def is_read(message: Message) -> bool:
            return seen is None or (message in seen and places[message] == 1)

        return {
            (kill.server, channel): max(
                (at for number, at in times.items() if at < kill.at_us and is_read((channel, number))), default=0
            )
            for kill in kills
            for (server, channel), times in self.recorded_us.items()
            if server == kill.server
        }


def read_log(path: Path) -> dict[Message, ConfirmedMessages]:
    """The publishers' log."""
    found: dict[Message, ConfirmedMessages] = {}
    for line in path.read_text().splitlines():
        channel, number, published_us, confirmed_us = line.split()
        found[channel, int(number)] = ConfirmedMessages(int(published_us), int(confirmed_us))
    return found


def check_directory(directory: Path, log: Path, kills: Sequence[ServerKill]) -> PipelineReport:
    """The verdict on the files of a round."""
    rows, archived, windows = (pq.read_table(directory / name) for name in (ROWS, ARCHIVED, WINDOWS))
    return check(read_log(log), rows, archived, windows, kills)


def check(
    confirmed: Mapping[Message, ConfirmedMessages],
    row_table: pa.Table,
    archive_table: pa.Table,
    window_table: pa.Table,
    kills: Sequence[ServerKill],
) -> PipelineReport:
    """The verdict."""
    rows, archive = JobRows(row_table), JobRows(archive_table)
    windows = Counter(
        (channel, int(payload))
        for channel, payloads in zip(
            window_table["channel"].to_pylist(), window_table["payloads"].to_pylist(), strict=True
        )
        if channel != CLOSING
        for payload in payloads
    )
    ids = {message: next(iter(known)) for message, known in (archive.ids | rows.ids).items()}
    report = PipelineReport(
        confirmed=len(confirmed),
        rows=len(rows.ids),
        archived=len(archive.ids),
        counted=len(windows),
        windows=sum(channel != CLOSING for channel in window_table["channel"].to_pylist()),
        gaps=len(rows.gaps),
    )
    lost: set[Message] = set()
    for name, job in (("rows", rows), ("archived", archive)):
        absent = [message for message in confirmed if message not in job.ids]
        read_us = job.last_read_us(kills)
        excused = {m for m in absent if _is_reported(m, confirmed[m], ids, job.gaps, kills, read_us)}
        lost |= excused
        missing = sorted(set(absent) - excused)
        setattr(report, f"missing_{name}", len(missing))
        _complain(report, f"{name}: owed messages are missing", missing)
    report.lost_with_server = len(lost)
    report.owed = len(confirmed) - len(lost)
    read_us = rows.last_read_us(kills, windows)
    late = sorted(
        message
        for message in confirmed
        if message in rows.ids and message not in windows and not _is_unread(message, rows, kills, read_us)
    )
    report.dropped_late = len(late)
    _complain(report, "messages are in no window", late)
    twice = [
        *(entry for job in (rows, archive) for entry, times in job.entries.items() if times > 1),
        *(message for message, times in windows.items() if times > 1),
        *(message for job in (rows, archive) for message, known in job.ids.items() if len(known) > 1),
    ]
    report.doubled = len(twice)
    _complain(report, "doubled", twice)
    return report


def _is_reported(
    message: Message,
    times: ConfirmedMessages,
    ids: Mapping[Message, tuple[int, int, int]],
    gaps: Sequence[dict[str, Any]],
    kills: Sequence[ServerKill],
    read_us: Mapping[tuple[str, str], int],
) -> bool:
    """Whether one of the gaps that a job has read reports a message that it does not have."""
    channel, _ = message
    known = ids.get(message)
    for gap in gaps:
        if gap["channel"] != channel:
            continue
        if gap["publisher"] is not None:
            stream = (gap["publisher"], gap["epoch"])
            if known and known[:2] == stream and (gap["from"] or 1) <= known[2] <= (gap["to"] or known[2]):
                return True
        elif gap["reason"].startswith(LOST_RECORD) and any(
            kill.server == gap["server"]
            and times.published_us < kill.dead_us
            and kill.at_us <= gap["at_us"]
            and times.confirmed_us > read_us.get((kill.server, channel), 0) - LAG_US
            for kill in kills
        ):
            return True
    return False


def _is_unread(
    message: Message, rows: JobRows, kills: Sequence[ServerKill], read_us: Mapping[tuple[str, str], int]
) -> bool:
    """Whether a killed server may have been the only one with a message when the query of windows had not read it. The
    query of rows reads on its own, and may have been faster."""
    channel, number = message
    for kill in kills:
        at_us = rows.recorded_us.get((kill.server, channel), {}).get(number)
        if at_us is not None and read_us.get((kill.server, channel), 0) < at_us < kill.at_us:
            return True
    return False


def _complain(report: PipelineReport, what: str, which: Sequence[object]) -> None:
    if which:
        shown = ", ".join(map(str, which[:SHOWN_MAX]))
        report.violations.append(f"{what}: {len(which)}, for example {shown}")
