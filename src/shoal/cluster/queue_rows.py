"""Queues in the last telemetry records of their stores, for `shoal top` and `shoal status`.

Owns how the figures of a queue's shards and stores are added up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from shoal.plan.kinds import QUEUE
from shoal.plan.shard_names import read_shard_name

if TYPE_CHECKING:
    from shoal.load.record import TelemetryRecord

STALE_S: Final = 5.0
"""Age from which a record counts as outdated."""


class QueueRow(msgspec.Struct, frozen=True):
    """A queue on all its stores in their last seconds."""

    queue: str
    stores: tuple[str, ...]
    messages: int
    oldest_s: float
    """Age of the message that is next."""
    held: int
    """Keys that consumers hold, or whose head has failed."""
    ready: int
    consumers: int
    dead: int
    halted: int
    puts_per_s: float
    dones_per_s: float


def queue_rows(records: Iterable[TelemetryRecord], queues_max: int | None = None) -> tuple[QueueRow, ...]:
    """The queues in the last records of stores, those with most messages first, at most `queues_max` (None: all)."""
    found: dict[str, QueueRow] = {}
    for record in records:
        interval_s = record.host["interval_s"] or 1.0
        seen: set[str] = set()
        for unit, row in record.tables[QUEUE].rows().items():
            name = read_shard_name(unit)
            if name is None:
                continue
            queue = name[0].decode()
            before = found.get(queue) or QueueRow(queue, (), 0, 0.0, 0, 0, 0, 0, 0, 0.0, 0.0)
            first = queue not in seen  # some figures are those of the queue on this store, the same in all its rows
            seen.add(queue)
            found[queue] = QueueRow(
                queue,
                (*before.stores, record.id.host) if first else before.stores,
                before.messages + row["messages"],
                round(max(before.oldest_s, row["oldest_s"]), 3),
                before.held + row["held"],
                before.ready + row["ready"],
                max(before.consumers, row["consumers"]),
                before.dead + (row["dead"] if first else 0),
                before.halted + (row["halted"] if first else 0),
                before.puts_per_s + row["puts"] / interval_s,
                before.dones_per_s + row["dones"] / interval_s,
            )
    return tuple(sorted(found.values(), key=lambda row: (-row.messages, -row.puts_per_s, row.queue))[:queues_max])
