"""The messages of an archive in the order of their publication, channel by channel and publisher by publisher.

Owns the order in which an archive is replayed, and the search for missing numbers. Reads a slice of time after the
other, so that an archive of any size fits in memory, and ends with the messages that the archive had at the start.

Within a channel, the messages of one publisher are in the order of their numbers (`shoal.history.merge`). A publisher
whose clock was set back has numbers whose times are out of order, so the last `LOOKAHEAD_US` of a slice wait for the
next one. A clock that was set back by more than that makes later numbers come first; they are counted in `reordered`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.errors import ArchiveError
from shoal.history.archive import ATTEMPTS, read_files
from shoal.history.archive_location import ArchiveLocation
from shoal.history.archive_table import ArchivedFile, open_table
from shoal.history.merge import merge_rows
from shoal.history.row_selection import take
from shoal.history.table import channel_matches
from shoal.pipeline.event_archive import TimeSpan

LOOKAHEAD_US: Final = 60_000_000
"""By how much the clock of a publisher may be set back."""
SLICE_US_MIN: Final = 1_000
SLICE_ROWS: Final = 200_000
"""Rows that are read at once, about: estimated from the rows and times of files."""
AT: Final = "at_us"
"""The column with the time by which a message is ordered: that of its publication, never before an earlier one of its
publisher."""

Stream = tuple[str, int, int]
"""Channel, publisher and epoch."""
Run = tuple[int, int]
"""First and last of consecutive numbers."""


class ArchiveOrder:
    """Tables of messages, in order, each with the column `AT`. `claims` has the recorded gaps that were read."""

    def __init__(self, location: ArchiveLocation, span: TimeSpan, pattern: str | None) -> None:
        self._location = location
        self._pattern = pattern
        files = [file for file in self._files() if file.may_hold(None, *span)]
        self.channels = sorted({file.channel for file in files if file.channel == file.channel_max})
        """The channels that are known from the names of files; files of other programs may have more."""
        self.rows = sum(file.rows for file in files)
        """About how many messages there are: copies, gaps and ends of streams count too."""
        first, last = min((file.from_us for file in files), default=0), max((file.to_us for file in files), default=-1)
        self.span = TimeSpan(max(first, span.from_us or 0), min(last + 1, span.to_us or last + 1))
        """The time of the first and (exclusive) the last message."""
        self.claims: deque[dict[str, Any]] = deque()

    def _files(self) -> list[ArchivedFile]:
        """The files that may have wanted channels, as the archive is now."""
        return [
            file
            for file in open_table(self._location).files
            if self._pattern is None or file.channel != file.channel_max or channel_matches(self._pattern, file.channel)
        ]

    def tables(self, from_us: int | None = None) -> Iterator[pa.Table]:
        """The messages from a time on (None: all), in order."""
        begin, end = self.span.from_us or 0, self.span.to_us or 0
        begin = begin if from_us is None else max(begin, from_us)
        length, waiting, reached = end - begin, None, 0
        while begin < end:
            files = [file for file in self._files() if file.may_hold(None, begin, end)]
            length = _slice_length(files, begin, min(2 * length, end - begin))
            to = min(begin + length, end)
            rows = self._read(begin, to)
            begin = to
            ordered = in_order(rows if waiting is None else pa.concat_tables([waiting, rows]), reached)
            cut = ordered.num_rows
            if begin < end:
                cut = int(np.searchsorted(ordered[AT].to_numpy(), begin - LOOKAHEAD_US))
            waiting = ordered.slice(cut).drop_columns([AT])
            if cut:
                reached = ordered[AT][cut - 1].as_py()
                yield ordered.slice(0, cut)

    def _read(self, from_us: int, to_us: int) -> pa.Table:
        """The messages of a slice, and its gaps into `claims`. Files may be compacted meanwhile: then the table is read
        again."""
        for attempt in range(ATTEMPTS):
            paths = [file.path for file in self._files() if file.may_hold(None, from_us, to_us)]
            try:
                rows = read_files(self._location.filesystem(), paths, from_us=from_us, to_us=to_us)
                break
            except FileNotFoundError as error:
                if attempt + 1 == ATTEMPTS:
                    raise ArchiveError(
                        f"a file of the archive {self._location} is missing: {error}", do="restore a copy of the file"
                    ) from error
        if self._pattern is not None:
            names = [name for name in pc.unique(rows["channel"]).to_pylist() if channel_matches(self._pattern, name)]
            rows = rows.filter(pc.is_in(rows["channel"], pa.array(names, pa.string())))
        other = pc.or_(rows["is_gap"], rows["is_end"])
        columns = ["channel", "publisher", "epoch", "sequence", "is_end", "gap_from", "gap_to", "reason"]
        self.claims.extend(rows.filter(other).select(columns).to_pylist())
        return rows.filter(pc.invert(other))


def _slice_length(files: list[ArchivedFile], begin: int, length: int) -> int:
    """The length of a slice of about `SLICE_ROWS`, at most `length`: it is halved until it fits."""
    while length > SLICE_US_MIN:
        end, rows = begin + length, 0.0
        for file in files:
            shared = min(end, file.to_us + 1) - max(begin, file.from_us)
            rows += file.rows * max(shared, 0) / (file.to_us + 1 - file.from_us)
        if rows <= SLICE_ROWS:
            break
        length = max(length // 2, SLICE_US_MIN)
    return length


def in_order(rows: pa.Table, reached_us: int = 0) -> pa.Table:
    """The messages of any channels in order, each once, with the column `AT`, which begins with `reached_us`."""
    rows = take(rows, pc.sort_indices(rows, [("channel", "ascending")]))
    names = rows["channel"].to_pylist()
    bounds = [place for place in range(1, len(names)) if names[place] != names[place - 1]]
    merged = []
    for begin, end in zip([0, *bounds], [*bounds, len(names)], strict=True):
        history = merge_rows(rows.slice(begin, end - begin))
        history = history.filter(pc.invert(history["is_gap"]))
        times = np.maximum.accumulate(history["published_at"].cast(pa.int64()).to_numpy())
        merged.append(history.append_column(AT, pa.array(np.maximum(times, reached_us), pa.int64())))
    table = pa.concat_tables(merged)
    return take(table, pc.sort_indices(table, [(AT, "ascending"), ("channel", "ascending")]))


class NumberCheck(msgspec.Struct, kw_only=True):
    """Which numbers of each stream came, and from that the gaps. It can be saved, to be continued later."""

    streams: dict[str, dict[str, list[Run]]] = {}
    """Channel to stream (`publisher/epoch`) to the numbers that came, in order."""
    ended: dict[str, dict[str, int]] = {}
    """The last number of streams that have ended."""
    claimed: dict[str, dict[str, list[tuple[int, int | None]]]] = {}
    """Gaps that agents recorded; None: open."""
    interrupted: set[tuple[str, str]] = set()
    """Channels and reasons of recorded gaps of which no publisher is known."""
    reordered: int = 0

    def came(self, stream: Stream, number: int) -> None:
        """A message with a number of a stream comes."""
        runs = self.streams.setdefault(stream[0], {}).setdefault(f"{stream[1]}/{stream[2]}", [])
        if runs and runs[-1][1] + 1 == number:
            runs[-1] = (runs[-1][0], number)
            return
        place = bisect_left(runs, (number + 1, 0))
        if place and number <= runs[place - 1][1]:
            return  # again, after a resume
        self.reordered += place < len(runs)
        if place and number == runs[place - 1][1] + 1:
            runs[place - 1] = (runs[place - 1][0], number)
        else:
            runs.insert(place, (number, number))

    def add_claim(self, row: dict[str, Any]) -> None:
        """Adds a recorded gap, or the end of a stream."""
        channel, stream = row["channel"], f"{row['publisher']}/{row['epoch']}"
        if row["is_end"]:
            self.ended.setdefault(channel, {})[stream] = row["sequence"]
        elif row["publisher"] is None:
            self.interrupted.add((channel, row["reason"]))
        else:
            claims = self.claimed.setdefault(channel, {}).setdefault(stream, [])
            if (claim := (row["gap_from"] or 1, row["gap_to"])) not in claims:
                claims.append(claim)

    def gaps(self) -> tuple[int, int]:
        """The number of gaps, and the number of messages that are known to be missing in them."""
        gaps, missing = len(self.interrupted), 0
        for channel in {*self.streams, *self.claimed}:
            streams, claimed = self.streams.get(channel, {}), self.claimed.get(channel, {})
            for stream in {*streams, *claimed}:
                ended = self.ended.get(channel, {}).get(stream)
                for first, last in _missing(streams.get(stream, []), claimed.get(stream, []), ended):
                    gaps += 1
                    missing += 0 if last is None else last - first + 1
        return gaps, missing


def _missing(runs: list[Run], claimed: list[tuple[int, int | None]], ended: int | None) -> list[tuple[int, int | None]]:
    """The numbers of a stream that are missing, as disjoint ranges: holes between runs and up to the end of the stream,
    and claimed ones that did not come."""
    wanted = [(runs[0][0], ended or runs[-1][1])] if runs else []
    last = max((run[1] for run in runs), default=0)
    is_open = any(to is None and first > last for first, to in claimed) and ended is None
    wanted += [(first, to) for first, to in claimed if to is not None]
    found: list[tuple[int, int | None]] = []
    reached = 0
    for first, to in sorted(wanted):
        at = max(first, reached + 1)
        for begin, end in runs:
            if begin > to:
                break
            if at < begin:
                found.append((at, min(begin - 1, to)))
            at = max(at, end + 1)
        if at <= to:
            found.append((at, to))
        reached = max(reached, to)
    return [*found, (last + 1, None)] if is_open else found
