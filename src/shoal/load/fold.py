"""The fold: telemetry records in, closed load windows out.

Owns when a record counts, for which second, and when a window is closed. Pure: `(state, batch) -> (windows, state)`,
with the time as an argument and event time from the records; the same in process, on Spark and in the simulator.

    record --duplicate, garbage--> dropped
           --host's clock corrected--> seconds that it covers --closed, or in the future--> late, early: dropped
                                                              --else--> pending
    pending --every expected host has reported its end, or `lateness_s` has passed--> closed window

- A record of second `s` whose `interval_s` is about `n` covers `n` seconds, and each gets an equal part: from `s` on,
  because an agent that is behind closes two seconds at once and names the first. If that would end after its arrival,
  it covers the seconds up to `s`: an agent that was paused reports everything since then with its first second.
- Of two records of one host for one second only one counts, because both describe the same traffic. The causes are two
  instances of the agent (the old one was not dead yet), a clock that was set back, or a record that covers several
  seconds. The order of preference: measured over a known time (an instance's first record covers part of a second),
  names the second itself, higher sequence (the longer-running instance), higher instance id, later record.
- A host is expected in a window if it was in one of the `EXPECTED_WINDOWS` before, or had a record for one of them that
  was in time although the window had closed. Windows do not wait for a host whose records are dropped. While no host is
  expected, windows wait for `lateness_s`.
- An interval without any record gives no window.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import Final, Protocol

import msgspec
import pyarrow as pa

from shoal.errors import ProtocolError
from shoal.load.fold_state import NEVER_S, FoldState, HostMemory, Piece, Rank, RecordKey
from shoal.load.kinds import Kinds
from shoal.load.reports import Arrival, TelemetryReport, arrivals, read_report
from shoal.load.window import LoadWindow
from shoal.load.window_sum import sum_up

EXPECTED_WINDOWS: Final = 3
"""For how many windows the fold waits for a silent host."""

EARLY_S_MAX: Final = 2.0
"""How long after its arrival the second of a record may end, by the corrected clock."""

REACH_S_MAX: Final = 0.5
"""How far after its arrival a record of several seconds may end and still count from its second on."""

RECORD_S_MAX: Final = 60
"""Seconds for which one record counts: the last ones that it covers."""

PENDING_S_MAX: Final = 120
"""Seconds in open windows. Above it the oldest window is closed even if it is incomplete."""

HOSTS_MAX: Final = 10_000
"""Hosts that are remembered. Records of further hosts are refused."""

HOST_SILENT_S_MAX: Final = 60.0
"""After this time without a record a host is forgotten."""

RECENT_RECORDS_MAX: Final = 64
"""Records of each host that are remembered to detect duplicates: more than a correction of a clock can repeat."""


class WindowTimes(Protocol):
    """The length of windows, and how long they wait. `BalanceSettings` implements it."""

    @property
    def window_s(self) -> int:
        """The length of a window, in whole seconds."""

    @property
    def lateness_s(self) -> float:
        """How long after its end a window waits for late records."""


def fold(
    state: FoldState, batch: pa.RecordBatch | pa.Table, now_s: float, times: WindowTimes, kinds: Kinds
) -> tuple[list[LoadWindow], FoldState]:
    """The windows that a batch (see `shoal.load.reports`) and the time close, oldest first, and the new state."""
    state = state.copy()
    if state.closed_until == NEVER_S:
        state.closed_until = _aligned(now_s - PENDING_S_MAX, times)
    found, garbage = arrivals(batch, now_s)
    state.counters.garbage += garbage
    for host, of_host in groupby(sorted(found, key=_host), _host):
        _take(state, host, list(of_host), times, kinds)
    return _close(state, now_s, times, kinds), state


def _host(arrival: Arrival) -> str:
    return arrival.id.host


def _aligned(at_s: float, times: WindowTimes) -> int:
    """The start of the window that contains a time."""
    return math.floor(at_s / times.window_s) * times.window_s


def _take(state: FoldState, host: str, found: list[Arrival], times: WindowTimes, kinds: Kinds) -> None:
    """Adds the records of one host."""
    known = state.hosts.get(host)
    if known is None and len(state.hosts) >= HOSTS_MAX:
        state.counters.refused += len(found)
        return
    memory = known or HostMemory()
    recent: dict[RecordKey, None] = dict.fromkeys(memory.recent)
    news: list[tuple[Arrival, TelemetryReport]] = []
    for arrival in found:
        key = (arrival.id.instance, arrival.id.second, arrival.id.sequence)
        if key in recent:
            state.counters.duplicates += 1
            continue
        try:
            news.append((arrival, read_report(arrival, kinds)))
        except ProtocolError:
            state.counters.garbage += 1
            continue
        recent[key] = None
    state.counters.rows += sum(batch.num_rows for _, report in news for batch in report.units.values())
    if not news:
        return
    clock = memory.clock.observe((arrival.arrived_s, arrival.arrived_s - arrival.id.second - 1) for arrival, _ in news)
    reported_until, present_until = memory.reported_until, memory.present_until
    for arrival, report in news:
        end = _place(state, arrival, report, clock.shift_s)
        reported_until = max(reported_until, end)
        if end <= state.closed_until and arrival.arrived_s < end + times.lateness_s:
            present_until = max(present_until, end)
    state.hosts[host] = HostMemory(
        clock=clock,
        recent=tuple(recent)[-RECENT_RECORDS_MAX:],
        reported_until=reported_until,
        present_until=present_until,
        heard_at=max(memory.heard_at, news[-1][0].arrived_s),
    )


def _place(state: FoldState, arrival: Arrival, report: TelemetryReport, shift_s: int) -> int:
    """Adds a record to the seconds that it covers; returns the end of the last one, `NEVER_S` if the record is
    early."""
    named = arrival.id.second + shift_s
    if named + 1 > arrival.arrived_s + EARLY_S_MAX:
        state.counters.early += 1
        return NEVER_S
    covered_s = report.host.covered_s
    length = max(1, round(covered_s))
    end = named + (length if named + covered_s <= arrival.arrived_s + REACH_S_MAX else 1)
    first = max(end - min(length, RECORD_S_MAX), state.closed_until)
    if first >= end:
        state.counters.late += 1
        return end
    state.counters.taken += 1
    host = arrival.id.host
    for second in range(first, end):
        _, instance, own_second, sequence = arrival.id
        rank: Rank = (report.host.measured, second == named, sequence, instance, own_second)
        pieces = state.pending.setdefault(second, {})
        rival = pieces.get(host)
        state.counters.overlapping += rival is not None
        if rival is None or rival.rank < rank:
            pieces[host] = Piece(rank, 1 / length, report)
    return end


def _close(state: FoldState, now_s: float, times: WindowTimes, kinds: Kinds) -> list[LoadWindow]:
    """Closes the windows that are due, oldest first, and forgets silent hosts."""
    length = times.window_s
    windows: list[LoadWindow] = []
    while state.pending:
        start = min(state.pending) // length * length
        end = start + length
        if not _is_due(state, start, end, now_s, times):
            break
        window = sum_up(start, end, state.pending, kinds)
        seconds = [state.pending.pop(second, {}) for second in range(start, end)]
        for host in set().union(*seconds) & state.hosts.keys():
            state.hosts[host] = msgspec.structs.replace(state.hosts[host], present_until=end)
        state.closed_until = end
        state.counters.windows += 1
        windows.append(window)
    state.closed_until = max(state.closed_until, _aligned(now_s - times.lateness_s, times))
    for host in [host for host, memory in state.hosts.items() if now_s - memory.heard_at > HOST_SILENT_S_MAX]:
        del state.hosts[host]
    return windows


def _is_due(state: FoldState, start: int, end: int, now_s: float, times: WindowTimes) -> bool:
    """Whether the oldest open window must be closed."""
    if now_s >= end + times.lateness_s or len(state.pending) > PENDING_S_MAX:
        return True
    since = start - EXPECTED_WINDOWS * times.window_s
    expected = [memory.reported_until for memory in state.hosts.values() if memory.present_until > since]
    return bool(expected) and min(expected) >= end
