"""The Spark source in one process, beside a bare XRANGE reader and the same rows in a Parquet file.

Owns the contenders and their figures. The source makes the rows that Spark gets: it plans, reads and decodes into
Arrow. The bare reader is redis-py with hiredis, XRANGE with COUNT 10000; it does not even split the fields of entries.
All read the same records, in turn; the first round is a warm-up and does not count. CPU time is that of the reading
process.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import redis

from shoal.cluster.acl import AGENT, PIPELINE
from shoal.cluster.local import LocalCluster
from shoal.lab.bench.contender import BenchError
from shoal.lab.bench.pipeline_archive import ArchiveOptions, write_records
from shoal.pipeline.source.offset_planner import OffsetPlanner
from shoal.pipeline.source.options import SourceOptions, read_options
from shoal.pipeline.source.parts import read_part
from shoal.plan.ring import ServerAddress
from shoal.wire.record_entry import record_key

SOURCE: Final = "source"
XRANGE: Final = "source, bare XRANGE"
PARQUET: Final = "source, Parquet"
WORDS: Final = {
    SOURCE: "recorded messages of a real server, in one process, to the Arrow rows that Spark gets",
    XRANGE: "the same entries by redis-py with hiredis, XRANGE COUNT 10000, values discarded",
    PARQUET: "the same rows from a Parquet file",
}
CHANNEL: Final = b"bench"
COUNT: Final = 10_000
"""Entries in one answer to the bare reader."""


class SourceBenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the measurement."""

    messages: int = 200_000
    payload_bytes: int = 100
    rounds: int = 3
    note: Callable[[str], None] = lambda _: None


def measure(options: SourceBenchOptions) -> list[dict[str, Any]]:
    """The rows of all contenders."""
    return asyncio.run(_measure(options))


async def _measure(options: SourceBenchOptions) -> list[dict[str, Any]]:
    async with LocalCluster(1, agents=False, tls=False) as cluster:
        (server,), passwords = cluster.servers, cluster.state.passwords
        options.note(f"writing a record: {options.messages:,} messages")
        written = ArchiveOptions(messages=options.messages, payload_bytes=options.payload_bytes, attributes=False)
        await write_records(server, passwords[AGENT], [CHANNEL], written)
        return await asyncio.to_thread(_compare, server, passwords[PIPELINE], options)


def _compare(server: ServerAddress, password: str, options: SourceBenchOptions) -> list[dict[str, Any]]:
    source = read_options(
        {"servers": f"{server.host}:{server.port}", "kind": "channel", "user": PIPELINE, "password": password}
    )
    bare = redis.Redis(host=server.host, port=server.port, username=PIPELINE, password=password)
    bare.set_response_callback("XRANGE", lambda reply, **_: reply)
    with bare, tempfile.TemporaryDirectory(prefix="shoal-bench-") as directory:
        file = Path(directory) / "rows.parquet"
        pq.write_table(pa.Table.from_batches(_batches(source)), file)
        contenders: dict[str, Callable[[], int]] = {
            SOURCE: lambda: sum(batch.num_rows for batch in _batches(source)),
            XRANGE: lambda: _read_bare(bare),
            PARQUET: lambda: int(pq.read_table(file, use_threads=False).num_rows),
        }
        speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
        for number in range(options.rounds + 1):
            for name in list(contenders)[:: 1 if number % 2 == 0 else -1]:
                options.note(f"source, round {number} of {options.rounds}: {name}")
                speed = _speed(name, contenders[name], options.messages)
                if number:
                    speeds[name].append(speed)
    return [_row(name, found) for name, found in speeds.items()]


def _batches(source: SourceOptions) -> list[pa.RecordBatch]:
    planner = OffsetPlanner(source, complete=True)
    return [batch for part in planner.parts({}, planner.next({})) for batch in read_part(part)]


def _read_bare(bare: redis.Redis) -> int:
    rows, after = 0, b"-"
    while page := cast(list[tuple[bytes, Any]], bare.xrange(record_key(CHANNEL), after, b"+", count=COUNT)):
        rows += len(page)
        after = b"(" + page[-1][0]
    return rows


def _speed(name: str, read: Callable[[], int], wanted: int) -> tuple[float, float]:
    """Rows per second, and per second of CPU time."""
    began, began_cpu = time.perf_counter(), time.process_time()
    rows = read()
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    if rows != wanted:
        raise BenchError(f"{name} read {rows:,} messages of {wanted:,}")
    return rows / seconds, rows / cpu_s


def _row(name: str, speeds: list[tuple[float, float]]) -> dict[str, Any]:
    per_s = [speed for speed, _ in speeds]
    return {
        "contender": name,
        "rows_per_s": round(median(per_s)),
        "rows_per_s_min": round(min(per_s)),
        "rows_per_s_max": round(max(per_s)),
        "rows_per_cpu_s": round(median(speed for _, speed in speeds)),
        "rounds": len(speeds),
    }
