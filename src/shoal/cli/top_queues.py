"""Stores and queues in `shoal top`: the last second of each store, and the queues with most messages.

Owns reading the stores from the plan, the rows and their tables. `shoal.cli.top` shows them beside the servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.cli.output import age_text, count_text, plural, share_text, short_count, size_text
from shoal.cli.top_balance import table
from shoal.cluster.queue_rows import QueueRow
from shoal.errors import CoordinatorError, ForgedEntryError
from shoal.plan.kinds import QUEUE
from shoal.plan.ring import ServerAddress

if TYPE_CHECKING:
    from rich.console import RenderableType

    from shoal.coordination.interface import Coordinator
    from shoal.load.record import TelemetryRecord
    from shoal.plan.signature import Verifier


class StoreRow(msgspec.Struct, frozen=True):
    """A store's last recorded second. `trouble` explains missing or outdated data."""

    id: str
    address: str
    trouble: str | None = None
    second: int | None = None
    age_s: float | None = None
    queues: int | None = None
    busy_share: float | None = None
    cpu_share: float | None = None
    memory_bytes: int | None = None
    memory_max_bytes: int | None = None
    written_bytes_per_s: float | None = None
    connections: int | None = None


async def stores_of(coordinator: Coordinator, verifier: Verifier) -> tuple[ServerAddress, ...]:
    """The stores of all queues, by their entries; none if the coordinator does not answer."""
    from shoal.plan.keys import entries_prefix
    from shoal.plan.queue_entry import QueueEntry

    found: dict[str, ServerAddress] = {}
    try:
        for stored in (await coordinator.list(entries_prefix(QUEUE))).values():
            found.update((store.id, store) for store in verifier.line(stored.value, QueueEntry).stores)
    except (CoordinatorError, ForgedEntryError):
        return ()
    return tuple(found[store] for store in sorted(found))


def store_row(store: ServerAddress, record: TelemetryRecord, age_s: float, stale_s: float) -> StoreRow:
    """The row of a store."""
    row: Mapping[str, Any] = record.host
    return StoreRow(
        id=store.id,
        address=f"{store.host}:{store.port}",
        trouble=f"no data for {age_s:.0f} s" if age_s >= stale_s else None,
        second=record.id.second,
        age_s=round(max(age_s, 0.0), 3),
        queues=row["queues"],
        busy_share=row["busy_share"],
        cpu_share=row["cpu_share"],
        memory_bytes=row["memory_bytes"],
        memory_max_bytes=int(row["memory_max_bytes"]) or None,
        written_bytes_per_s=row["written_bytes_per_s"],
        connections=row["connections"],
    )


def render_queues(stores: Iterable[StoreRow], queues: Iterable[QueueRow]) -> list[RenderableType]:
    """Tables of stores and queues; nothing in a cluster without stores."""
    from rich.text import Text

    shown = list(stores)
    if not shown:
        return []
    figures = ("busy", "CPU", "memory", "written", "clients", "queues")
    hosts = table(plural(len(shown), "store"), ("store",), figures)
    for store in shown:
        memory = size_text(store.memory_bytes)
        hosts.add_row(
            store.id,
            *(share_text(store.busy_share), share_text(store.cpu_share), memory),
            size_text(store.written_bytes_per_s, "/s"),
            *(count_text(store.connections), count_text(store.queues)),
        )
    troubles = [Text(f"{store.id} ({store.address}): {store.trouble}") for store in shown if store.trouble]
    columns = ("msgs", "oldest", "put/s", "done/s", "held", "cons.", "dead", "halt")
    rows = table("queues with most messages", ("queue", "store"), columns)
    for queue in queues:
        rows.add_row(
            Text(queue.queue),
            queue.stores[0] if len(queue.stores) == 1 else f"{queue.stores[0]} +{len(queue.stores) - 1}",
            *(short_count(queue.messages), age_text(queue.oldest_s)),
            *map(short_count, (queue.puts_per_s, queue.dones_per_s, queue.held)),
            *map(short_count, (queue.consumers, queue.dead, queue.halted)),
        )
    return [hosts, *troubles, Text(), rows, Text()]
