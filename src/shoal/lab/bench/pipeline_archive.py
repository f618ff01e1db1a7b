"""The archive job on Spark, compared with the same function in one process: the same records, the same files.

Owns the records, the two contenders and their figures. In each round both archive everything that servers hold into an
empty directory. The first round is a warm-up and does not count. The start of Spark is not included.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shoal.cluster.acl import AGENT, PIPELINE
from shoal.cluster.local import LocalCluster
from shoal.history.server_reader import Login
from shoal.lab.bench.contender import BenchError
from shoal.limits import DEFAULT_LIMITS
from shoal.pipeline.archive.job import ArchiveJob, Runner, on_spark, run_here
from shoal.plan.ring import ServerAddress
from shoal.runtime import PRODUCTION
from shoal.wire.commands import Request
from shoal.wire.connection import Connection
from shoal.wire.envelope import ATTRIBUTES, HEADER, MAGIC, encode_attributes, stream_id
from shoal.wire.record_entry import INDEX_KEY, message_fields, record_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ON_SPARK: Final = "archive"
ONE_CORE: Final = "archive, one core"
FIRST_US: Final = 1_793_534_400_000_000
"""When the first message was published."""
STEP_US: Final = 1_000
SAMPLE: Final[dict[str, str | int | float]] = {"class": "STOCK", "symbol": "YHOO", "volume": 310_000, "price": 18.25}
"""The attributes of every message."""
_PIPELINED: Final = 2_000


class ArchiveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the measurement."""

    servers: int = 2
    channels: int = 4
    messages: int = 100_000
    """Of each channel."""
    payload_bytes: int = 100
    attributes: bool = True
    """Whether messages have attributes, which the archive turns into JSON."""
    rounds: int = 3
    note: Callable[[str], None] = lambda _: None


def measure(spark: SparkSession, options: ArchiveOptions) -> list[dict[str, Any]]:
    """The rows of both."""
    return asyncio.run(_measure(spark, options))


async def _measure(spark: SparkSession, options: ArchiveOptions) -> list[dict[str, Any]]:
    async with LocalCluster(options.servers, agents=False, tls=False) as cluster:
        servers, passwords = cluster.servers, cluster.state.passwords
        rows = options.channels * options.messages
        options.note(f"writing records: {options.servers} servers, {rows:,} messages")
        for place, server in enumerate(servers):
            channels = [b"bench.%d" % channel for channel in range(place, options.channels, options.servers)]
            await write_records(server, passwords[AGENT], channels, options)
        login = Login(PIPELINE, passwords[PIPELINE])
        runners: dict[str, Runner] = {ON_SPARK: on_spark(spark), ONE_CORE: run_here}
        speeds: dict[str, list[float]] = {name: [] for name in runners}
        for number in range(options.rounds + 1):
            for name in list(speeds)[:: 1 if number % 2 == 0 else -1]:
                options.note(f"archive, round {number} of {options.rounds}: {name}")
                seconds = await asyncio.to_thread(_archive, servers, login, runners[name], rows)
                if number:
                    speeds[name].append(rows / seconds)
    return [_row(name, found) for name, found in speeds.items()]


def _archive(servers: Sequence[ServerAddress], login: Login, runner: Runner, wanted: int) -> float:
    """Archives everything; returns the seconds that it took."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as directory:
        began, rows = time.perf_counter(), 0
        with ArchiveJob(Path(directory), login) as job:
            while (progress := job.batch(servers, runner)) is not None:
                rows += progress.rows
        seconds = time.perf_counter() - began
    if rows != wanted:
        raise BenchError(f"archived {rows:,} messages of {wanted:,}")
    return seconds


async def write_records(
    server: ServerAddress, password: str, channels: Sequence[bytes], options: ArchiveOptions
) -> None:
    """Writes the records of some channels, as the agent of a server does."""
    flags, body = (ATTRIBUTES, encode_attributes(SAMPLE, DEFAULT_LIMITS)) if options.attributes else (0, b"")
    body += b"x" * options.payload_bytes
    to = PRODUCTION.address_book.reach(server)
    async with Connection(
        to.host, to.port, username=AGENT, password=password, name="shoal-bench", dial=to.dial
    ) as connection:
        for channel in channels:
            await connection.ask((b"SADD", INDEX_KEY, channel))
            for first in range(1, options.messages + 1, _PIPELINED):
                numbers = range(first, min(first + _PIPELINED, options.messages + 1))
                await connection.ask(*(_record_entry(channel, number, flags, body) for number in numbers))


def _record_entry(channel: bytes, number: int, flags: int, body: bytes) -> Request:
    at_us = FIRST_US + STEP_US * number
    fields = message_fields(number, HEADER.pack(MAGIC, flags, 1, stream_id(1, 1), number, at_us) + body)
    return (b"XADD", record_key(channel), f"{at_us // 1000}-{number}", *fields)


def _row(name: str, speeds: list[float]) -> dict[str, Any]:
    return {
        "contender": name,
        "rows_per_s": round(median(speeds)),
        "rows_per_s_min": round(min(speeds)),
        "rows_per_s_max": round(max(speeds)),
        "rounds": len(speeds),
    }
