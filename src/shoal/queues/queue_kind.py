"""The telemetry of queues: the columns of the kinds `queue` and `store`, and what a shard costs its store.

Owns the two kinds. A unit of kind `queue` is one shard of a queue, because shards are placed; `shoal.plan.shard_names`
has its name. `shoal.load.record` encodes the figures, `shoal.queues.agent.meter` derives them.
"""

from __future__ import annotations

from typing import Final

from shoal.load.kinds import Column, Cost, Folding, HostColumn, HostKind, Type, UnitKind
from shoal.plan import kinds

PUT_WORK: Final = 3.0
DONE_WORK: Final = 2.0
"""The work of a store for one message that is put, and for one that is given out and done. Only the ratio counts."""

QUEUE: Final = UnitKind(
    kinds.QUEUE,
    columns=(
        Column("puts", folding=Folding.RATE),  # delayed messages count when they are due
        Column("dones", folding=Folding.RATE),
        Column("bytes_in", folding=Folding.RATE),  # messages as they are stored
        Column("messages", folding=Folding.PEAK),  # waiting, delayed and in flight
        Column("bytes_stored", folding=Folding.PEAK),
        Column("oldest_s", Type.FLOAT, Folding.PEAK),  # age of the message that is next, by its producer's clock
        Column("held", folding=Folding.PEAK),  # keys that consumers hold, or whose head has failed
        Column("ready"),  # keys that wait for a consumer
        Column("delayed"),
        # Of the whole queue on this store, the same in all its rows:
        Column("consumers"),
        Column("dead"),
        Column("halted"),
    ),
    costs=(Cost("busy_share", (("puts", PUT_WORK), ("dones", DONE_WORK))),),
)
"""A shard of a queue. `messages`, `bytes_stored`, `puts` and `dones` of a queue are exact on each store; its shards get
parts of them by samples."""

STORE: Final = HostKind(
    kinds.STORE,
    columns=(
        # Rates are null when there is nothing to compare with: the agent's or the store's first second.
        HostColumn("busy_share", nullable=True, figure="busy_share"),  # time of the event loop, with waits for the disk
        HostColumn("cpu_share", nullable=True, figure="cpu_share"),  # of one core; threads may push it above 1
        HostColumn("memory_bytes", Type.INT, figure="memory_bytes", folding=Folding.PEAK),
        HostColumn("memory_max_bytes", figure="memory_max_bytes", folding=Folding.LAST),  # 0: no limit
        HostColumn("written_bytes_per_s", nullable=True, figure="written_bytes_per_s"),  # growth of its file
        HostColumn("connections", Type.INT, figure="connections", folding=Folding.PEAK),
        HostColumn("queues", Type.INT),
    ),
)
"""A Redis server that syncs its append-only file, with its agent. `busy_share` is the CPU share on servers before Redis
7.2, which do not count the time of their event loop."""
