"""How far a streaming query is behind, from its progress.

Owns the arithmetic. PySpark 4.3 passes no metrics of Python sources into the progress, but it has the offsets.

    lag(query.lastProgress["sources"][0])
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from shoal.pipeline.source.offsets import NOTHING, ServerOffset, read_offset


class Lag(NamedTuple):
    """How far reading is behind recording."""

    entries: int
    """Entries that exist and were not read. Streams on servers before Redis 7 count as one if they have any."""
    seconds: float
    """The most time between the last entry read of a stream and its newest one."""


def lag(source: Mapping[str, Any]) -> Lag:
    """The lag of a source "shoal", from its part of a query's progress."""
    end, latest = (_offset(source[name]) for name in ("endOffset", "latestOffset"))
    entries, behind_ms = 0, 0
    for server, of_server in latest.items():
        before = end.get(server, NOTHING)
        for name, newest in of_server.streams.items():
            at = before.streams.get(name)
            if at is None:
                entries += before.unread.get(name, 0)
            elif at.id < newest.id:
                entries += at.count_to(newest) or 1
                behind_ms = max(behind_ms, newest.id.ms - at.id.ms)
    return Lag(entries, behind_ms / 1000)


def _offset(value: Any) -> dict[str, ServerOffset]:
    """An offset in a progress: text, or decoded; None before the first batch."""
    found = json.loads(value) if isinstance(value, str) else value
    return read_offset(found) if found else {}
