"""Stores and queues in `shoal top`: the last second of each store, and the queues with most messages.

Owns reading the stores from the plan, the rows and their tables. `shoal.cli.top` shows them beside the servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.cli.output import plural
from shoal.cli.top_balance import table
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


def queue_rows(records: Iterable[TelemetryRecord], queues_max: int) -> tuple[QueueRow, ...]:
    """The queues in the last records of stores, those with most messages first."""
    from shoal.plan.shard_names import read_shard_name

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


def render_queues(stores: Iterable[StoreRow], queues: Iterable[QueueRow]) -> list[RenderableType]:
    """Tables of stores and queues; nothing in a cluster without stores."""
    from rich.text import Text

    shown = list(stores)
    if not shown:
        return []
    figures = ("busy", "CPU", "memory", "written", "clients", "queues")
    hosts = table(plural(len(shown), "store"), ("store",), figures)
    for store in shown:
        memory = "-" if store.memory_bytes is None else _size(store.memory_bytes)
        hosts.add_row(
            store.id,
            *(_share(store.busy_share), _share(store.cpu_share), memory),
            "-" if store.written_bytes_per_s is None else f"{_size(store.written_bytes_per_s)}/s",
            *(_count(store.connections), _count(store.queues)),
        )
    troubles = [Text(f"{store.id} ({store.address}): {store.trouble}") for store in shown if store.trouble]
    columns = ("msgs", "oldest", "put/s", "done/s", "held", "cons.", "dead", "halt")
    rows = table("queues with most messages", ("queue", "store"), columns)
    for queue in queues:
        rows.add_row(
            Text(queue.queue),
            queue.stores[0] if len(queue.stores) == 1 else f"{queue.stores[0]} +{len(queue.stores) - 1}",
            *(_short(queue.messages), _age(queue.oldest_s), _short(queue.puts_per_s), _short(queue.dones_per_s)),
            *(_short(queue.held), _short(queue.consumers), _short(queue.dead), _short(queue.halted)),
        )
    return [hosts, *troubles, Text(), rows, Text()]


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _short(value: float) -> str:
    """A number of at most six characters."""
    if value < 100_000:
        return f"{value:,.0f}"
    return f"{value / 1e3:.0f} k" if value < 1e6 else f"{value / 1e6:.3g} M"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _age(seconds: float) -> str:
    return "-" if not seconds else f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _size(value: float) -> str:
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"
