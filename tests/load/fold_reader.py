"""Drives the fold like a reader of streams: records arrive in batches at given times."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from tests.load.telemetry_samples import record, records_to_batch

from shoal.balance.settings import BalanceSettings
from shoal.load.fold import fold
from shoal.load.fold_state import FoldState
from shoal.load.record import TelemetryRecord
from shoal.load.window import LoadWindow
from shoal.load_kinds import KINDS

SETTINGS = BalanceSettings(window_s=2, lateness_s=1.5)

T = 1_000_000
"""A second at which a window begins."""

ONE = {b"c": {"publications": 10, "bytes_out": 100, "subscribers": 3, "publishers": 2, "messages_sent": 30}}


class Reader:
    """Passes records to the fold and keeps the windows."""

    def __init__(self, settings: BalanceSettings = SETTINGS) -> None:
        self.settings = settings
        self.state = FoldState()
        self.windows: list[LoadWindow] = []

    def read(self, now_s: float, *records: TelemetryRecord) -> list[LoadWindow]:
        """Folds records that arrive now."""
        return self.fold(records_to_batch((made, now_s) for made in records), now_s)

    def fold(self, batch: pa.RecordBatch, now_s: float) -> list[LoadWindow]:
        windows, self.state = fold(self.state, batch, now_s, self.settings, KINDS)
        self.windows += windows
        return windows

    def run(self, arrivals: Iterable[tuple[float, TelemetryRecord]]) -> None:
        """Folds records one by one, each at its time."""
        for now_s, made in sorted(arrivals, key=lambda arrival: arrival[0]):
            self.read(now_s, made)

    def window(self, start_s: int) -> LoadWindow:
        """The closed window that starts then."""
        (found,) = (window for window in self.windows if window.start_s == start_s)
        return found


def settled(*hosts: str, settings: BalanceSettings = SETTINGS) -> Reader:
    """A reader that has closed the window before `T` with these hosts, so that they are expected."""
    reader = Reader(settings)
    reader.run((second + 1.1, record(host, second, ONE)) for host in hosts for second in (T - 4, T - 3, T - 2, T - 1))
    reader.windows.clear()
    assert reader.state.closed_until == T
    return reader
