"""The names of shards in telemetry and load windows: `<queue>/<shard>`.

Owns the form. Names of queues contain no slash.
"""

from __future__ import annotations


def shard_name(queue: bytes, shard: int) -> bytes:
    """The name of a shard."""
    return b"%b/%d" % (queue, shard)


def read_shard_name(unit: bytes) -> tuple[bytes, int] | None:
    """The queue and the shard that a name means; None if it means none."""
    queue, slash, shard = unit.rpartition(b"/")
    return (queue, int(shard)) if slash and queue and shard.isdigit() else None
