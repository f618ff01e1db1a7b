"""Load windows on Spark: rows of telemetry a second through source and fold, and the time of a micro-batch.

Owns the telemetry, the two runs and their figures. `backlog` reads waiting entries from the streams of real servers as
fast as possible, in micro-batches of `batch_rows`. The first micro-batch of each round, which plans and warms up, does
not count. `live` reads what agents would write, a micro-batch a second. The start of Spark is not included.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from shoal.balance.settings import BalanceSettings
from shoal.channels.telemetry.channel_kind import CHANNEL, SERVER
from shoal.cluster.acl import AGENT, READER
from shoal.cluster.local import LocalCluster
from shoal.load.kinds import UNCOUNTED, Type
from shoal.load.record import DATA_FIELD, ID_FIELD, RecordId, TelemetryRecord, encode, xadd
from shoal.load.table import Ragged, UnitTable
from shoal.pipeline.load_job import LoadFacts, LoadJob, run_once, start
from shoal.pipeline.session import activate
from shoal.plan.ring import ServerAddress
from shoal.runtime import PRODUCTION
from shoal.wire.blocking_connection import BlockingConnection
from shoal.wire.envelope import TELEMETRY_KEY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BACKLOG: Final = "load windows, backlog"
LIVE: Final = "load windows, live"
FIRST_S: Final = 1_763_240_000
"""The first second of the backlog."""
WARM_BATCHES: Final = 5
"""Micro-batches of the live run that do not count."""
RECORDS_MAX: Final = 1000


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the measurement."""

    servers: int = 2
    channels: int = 5_000
    """Rows of a record."""
    seconds: int = 400
    """Waiting records of each server."""
    batch_rows: int = 500_000
    rounds: int = 3
    live_s: float = 20.0
    note: Callable[[str], None] = lambda _: None


def measure(spark: SparkSession, options: LoadOptions) -> list[dict[str, Any]]:
    """The rows of both runs."""
    return asyncio.run(_measure(spark, options))


async def _measure(spark: SparkSession, options: LoadOptions) -> list[dict[str, Any]]:
    async with LocalCluster(options.servers, agents=False, tls=False) as cluster:
        servers, passwords = cluster.servers, cluster.state.passwords
        agents = Agents(servers, passwords[AGENT], options.channels)
        options.note(
            f"writing telemetry: {options.servers} servers, {options.seconds} s, {options.channels:,} channels"
        )
        await asyncio.to_thread(agents.write_backlog, options.seconds)
        source = {
            "servers": ",".join(f"{server.id}={server.host}:{server.port}" for server in servers),
            "user": READER,
            "password": passwords[READER],
        }
        backlog = await asyncio.to_thread(_backlog, spark, source, options)
        live = await asyncio.to_thread(_live, spark, source, agents, options)
    return [backlog, live]


def _backlog(spark: SparkSession, source: dict[str, str], options: LoadOptions) -> dict[str, Any]:
    """Reads all waiting records, several times."""
    activate(spark)
    records = max(1, options.batch_rows // options.channels)
    speeds: list[float] = []
    batches_ms: list[float] = []
    for number in range(options.rounds + 1):
        options.note(f"backlog, round {number} of {options.rounds}" + (" (warm-up)" if number == 0 else ""))
        with _job({**source, "maxRowsPerBatch": str(records)}) as job:
            facts = run_once(spark, job)
        counted = [facts.batch_ms[batch] for batch in sorted(facts.batch_ms)][1:]
        if number and counted:
            batches_ms += counted
            speeds.append(1000 * options.batch_rows * len(counted) / sum(counted))
    return {
        "contender": BACKLOG,
        "rows_per_s": round(median(speeds)),
        "rows_per_s_min": round(min(speeds)),
        "rows_per_s_max": round(max(speeds)),
        "batch_rows": options.batch_rows,
        "batch_ms_p50": round(median(batches_ms), 1),
        "batch_ms_max": round(max(batches_ms), 1),
    }


def _live(spark: SparkSession, source: dict[str, str], agents: Agents, options: LoadOptions) -> dict[str, Any]:
    """Reads records as they are written, a micro-batch a second."""
    options.note(f"live, {options.live_s:g} s")
    activate(spark)
    delays_s: list[float] = []
    facts = LoadFacts()
    with _job({**source, "startingOffsets": "latest"}) as job:
        query = start(
            spark,
            job,
            lambda batch, windows: delays_s.extend(time.time() - window.end_s for window in windows),
            facts,
            once=False,
        )
        try:
            agents.write_until(time.time() + options.live_s)
            facts.add_durations(query)
        finally:
            query.stop()
    batches_ms = [facts.batch_ms[batch] for batch in sorted(facts.batch_ms)][WARM_BATCHES:]
    return {
        "contender": LIVE,
        "rows_per_s": options.servers * options.channels,
        "batch_ms_p50": round(median(batches_ms), 1) if batches_ms else None,
        "batch_ms_max": round(max(batches_ms), 1) if batches_ms else None,
        "delay_s_p50": round(median(delays_s[WARM_BATCHES:]), 2) if delays_s[WARM_BATCHES:] else None,
    }


@contextlib.contextmanager
def _job(source: dict[str, str]) -> Iterator[LoadJob]:
    """A job with an empty checkpoint directory."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as directory:
        yield LoadJob(Path(directory), source, BalanceSettings())


class Agents:
    """Writes telemetry as the agents of some servers do, with the same number of channels in each second."""

    def __init__(self, servers: tuple[ServerAddress, ...], password: str, channels: int) -> None:
        self._servers = servers
        self._password = password
        self._records = {server.id: _record(server.id, channels, place) for place, server in enumerate(servers)}

    def write_backlog(self, seconds: int) -> None:
        """Writes a number of seconds from `FIRST_S` on, each as if it had been written just after its end."""
        for place, server in enumerate(self._servers):
            with self._asking(server) as asking:
                for second in range(FIRST_S, FIRST_S + seconds):
                    record = self._record_of(server, second)
                    entry = f"{(second + 1) * 1000 + 50 + place}-0"
                    asking.ask("XADD", TELEMETRY_KEY, entry, ID_FIELD, record.id.encode(), DATA_FIELD, encode(record))

    def write_until(self, end_s: float) -> None:
        """Writes each second just after its end."""
        with contextlib.ExitStack() as stack:
            asking = {server: stack.enter_context(self._asking(server)) for server in self._servers}
            while time.time() < end_s:
                time.sleep(1.05 - time.time() % 1)
                for server, link in asking.items():
                    link.ask(*xadd(self._record_of(server, int(time.time()) - 1), RECORDS_MAX))

    def _asking(self, server: ServerAddress) -> BlockingConnection:
        to = PRODUCTION.address_book.reach(server)
        return BlockingConnection(to.host, to.port, AGENT, self._password, dial=to.dial)

    def _record_of(self, server: ServerAddress, second: int) -> TelemetryRecord:
        record = self._records[server.id]
        return record._replace(id=RecordId(server.id, "bench", second, second))


def _record(server: str, channels: int, seed: int) -> TelemetryRecord:
    """The record of one second of a server with a number of channels."""
    random = np.random.default_rng(seed)
    clients = Ragged.of_lists([[1, 2, 3]] * channels)
    columns = {
        column.name: clients if column.type is Type.IDS else random.integers(0, 1000, channels)
        for column in CHANNEL.columns
    }
    names = Ragged.of_names(b"channel.%d" % number for number in range(channels))
    table = UnitTable(CHANNEL, names, columns, np.ones(channels, np.bool_))
    host: dict[str, float | int | None] = {column.name: 1 for column in SERVER.row}
    return TelemetryRecord(RecordId(server, "bench", 0, 0), SERVER, {**host, UNCOUNTED.name: 0}, {CHANNEL.name: table})
