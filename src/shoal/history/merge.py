"""Merges rows of several records into one history: each message once, in order, with gaps where messages are missing.

Owns the decision what is a gap. Arrow in, Arrow out, no I/O.

A record holds only what one server's agent heard. A sequence number that it lacks is missing only if no other record
has it either. So gaps are found here, from all rows together: holes in the numbers of a stream, and the gaps that
agents recorded, minus the messages that other records hold. An open gap (its end is unknown) is dropped if the stream
continued or ended.

Messages of one publisher are ordered by sequence number. Publishers are interleaved by their clocks; a clock that steps
back does not change the order of its own messages.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shoal.history.row_selection import take
from shoal.history.table import SCHEMA, dedupe

HOLE: Final = "no record has it"
_TIME: Final = SCHEMA.field("published_at").type

Numbers = npt.NDArray[np.int64]
Stream = tuple[int, int]
"""Publisher and epoch."""


def merge_rows(table: pa.Table) -> pa.Table:
    """The history from all rows of one channel, without stream ends."""
    table = dedupe(table)
    gap_rows = table.filter(table["is_gap"])
    heard = table.filter(pc.invert(table["is_gap"]))
    numbered = pc.greater(heard["publisher"], 0)
    foreign = heard.filter(pc.invert(numbered))
    heard = heard.filter(numbered)
    ends = heard.filter(heard["is_end"])
    heard = heard.filter(pc.invert(heard["is_end"]))
    order = pc.sort_indices(heard, [(name, "ascending") for name in ("publisher", "epoch", "sequence")])
    heard = take(heard, order)
    streams = _Streams(heard, ends)
    claims = [row for row in gap_rows.to_pylist() if row["publisher"] is not None]
    gaps = [*streams.holes(), *streams.missing(claims)]
    gaps += [row for row in gap_rows.to_pylist() if row["publisher"] is None]
    return _in_order(heard, streams.times, foreign, gaps)


class _Streams:
    """The sequence numbers of each stream, sorted, and the time by which each message is ordered."""

    def __init__(self, heard: pa.Table, ends: pa.Table) -> None:
        self._heard = heard
        self._publisher = _column(heard, "publisher")
        self._epoch = _column(heard, "epoch")
        self._sequence = _column(heard, "sequence")
        changes = (self._publisher[1:] != self._publisher[:-1]) | (self._epoch[1:] != self._epoch[:-1])
        bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(heard)] if len(heard) else [0]
        self._spans = {
            (int(self._publisher[begin]), int(self._epoch[begin])): (begin, end) for begin, end in pairwise(bounds)
        }
        self._ends = {
            (row["publisher"], row["epoch"]): row["sequence"]
            for row in ends.select(["publisher", "epoch", "sequence"]).to_pylist()
        }
        self.times = _column(heard, "published_at").copy()
        for begin, end in self._spans.values():
            np.maximum.accumulate(self.times[begin:end], out=self.times[begin:end])

    def holes(self) -> list[dict[str, Any]]:
        """Gaps between two messages of a stream, and between the last message and the end of a stream."""
        jumps = np.flatnonzero(self._sequence[1:] > self._sequence[:-1] + 1)
        same = (self._publisher[jumps + 1] == self._publisher[jumps]) & (self._epoch[jumps + 1] == self._epoch[jumps])
        gaps = [
            self._gap(int(row) + 1, int(self._sequence[row]) + 1, int(self._sequence[row + 1]) - 1)
            for row in jumps[same]
        ]
        for stream, last in self._ends.items():
            begin, end = self._spans.get(stream, (0, 0))
            if end > begin and self._sequence[end - 1] < last:
                gap = self._gap(end - 1, int(self._sequence[end - 1]) + 1, last)
                gaps.append(gap)
        return gaps

    def _gap(self, row: int, first: int, last: int) -> dict[str, Any]:
        """A gap at the place of the message in a row."""
        at = int(self.times[row])
        place = {name: self._heard[name][row].as_py() for name in ("channel", "publisher", "epoch")}
        return {**place, "is_gap": True, "gap_from": first, "gap_to": last, "reason": HOLE, "at": at}

    def missing(self, claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Recorded gaps that no record fills and that are not holes: those before the first message of a stream and
        those after the last one. A number that several agents missed is reported once, with one of their reasons."""
        by_stream: defaultdict[Stream, list[dict[str, Any]]] = defaultdict(list)
        for claim in claims:
            by_stream[claim["publisher"], claim["epoch"]].append({**claim, "gap_from": claim["gap_from"] or 1})
        gaps: list[dict[str, Any]] = []
        for stream, of_stream in by_stream.items():
            of_stream.sort(key=lambda claim: (claim["gap_from"], claim["gap_to"] or 0))
            gaps += [*self._before(stream, of_stream), *self._after(stream, of_stream)]
        return gaps

    def _before(self, stream: Stream, claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
        begin, end = self._spans.get(stream, (0, 0))
        if begin == end:
            return []
        first = int(self._sequence[begin])
        closed = [
            {**claim, "gap_to": min(claim["gap_to"], first - 1)} for claim in claims if claim["gap_to"] is not None
        ]
        return [
            {**self._gap(begin, gap["gap_from"], gap["gap_to"]), "reason": gap["reason"]} for gap in _disjoint(closed)
        ]

    def _after(self, stream: Stream, claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
        begin, end = self._spans.get(stream, (0, 0))
        heard = int(self._sequence[end - 1]) if end > begin else 0
        reported = max(heard, self._ends.get(stream, 0)) if heard else 0
        still_missing = [
            claim
            for claim in claims
            if claim["gap_to"] is not None or (claim["gap_from"] > heard and stream not in self._ends)
        ]
        return _disjoint([{**claim, "gap_from": max(claim["gap_from"], reported + 1)} for claim in still_missing])


def _disjoint(claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Makes the gaps of one stream, sorted by their first number, disjoint. Adjacent gaps with the same reason are
    joined."""
    gaps: list[dict[str, Any]] = []
    reached: int | None = 0
    for claim in claims:
        if reached is None:
            break
        low, high = max(claim["gap_from"], reached + 1), claim["gap_to"]
        if high is not None and high < low:
            continue
        if gaps and low == reached + 1 and gaps[-1]["reason"] == claim["reason"]:
            gaps[-1]["gap_to"] = high
        else:
            gaps.append({**claim, "gap_from": low})
        reached = high
    return gaps


def _in_order(heard: pa.Table, times: Numbers, foreign: pa.Table, gaps: list[dict[str, Any]]) -> pa.Table:
    gaps_at = [gap.pop("at") if "at" in gap else round(gap["published_at"].timestamp() * 1_000_000) for gap in gaps]
    gap_table = pa.Table.from_pylist(gaps, schema=SCHEMA)
    gap_table = gap_table.set_column(
        SCHEMA.get_field_index("published_at"), SCHEMA.field("published_at"), pa.array(gaps_at, pa.int64()).cast(_TIME)
    )
    rows = pa.concat_tables([heard, foreign, gap_table])
    keys = pa.table(
        {
            "at": np.concatenate([times, _column(foreign, "published_at"), np.array(gaps_at, np.int64)]),
            "publisher": pc.fill_null(rows["publisher"], -1),
            "epoch": pc.fill_null(rows["epoch"], 0),
            "sequence": pc.coalesce(rows["sequence"], rows["gap_from"], pa.scalar(0, pa.int64())),
            "number": pc.fill_null(rows["number"], 0),
        }
    )
    return take(rows, pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names]))


def _column(table: pa.Table, name: str) -> Numbers:
    column: Numbers = pc.fill_null(table[name].cast(pa.int64()), 0).to_numpy()
    return column
