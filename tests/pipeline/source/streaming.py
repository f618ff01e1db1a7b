"""Telemetry on real servers, and sources that read it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pytest
from tests.load.telemetry_samples import record
from tests.support.redis_server import RedisServer

from shoal.load.record import DATA_FIELD, ID_FIELD, TelemetryRecord, encode
from shoal.pipeline.source import parts
from shoal.pipeline.source.kinds import Kind
from shoal.pipeline.source.offset_planner import OffsetPlanner
from shoal.pipeline.source.offsets import ServerOffset
from shoal.pipeline.source.options import SourceOptions, read_options
from shoal.wire.blocking_connection import BlockingConnection
from shoal.wire.commands import Request
from shoal.wire.dial import tcp
from shoal.wire.envelope import HEADER, MAGIC, TELEMETRY_KEY, stream_id
from shoal.wire.record_entry import INDEX_KEY, message_fields, record_key

BASE_S = 1_763_240_000
"""The first second of made-up telemetry."""


def entry(host: str, second: int, *, channels: int = 2, **more: object) -> TelemetryRecord:
    """A record with some channels."""
    rows = {
        b"c%d" % number: {"publications": second % 7 + number, "bytes_out": 100 * number} for number in range(channels)
    }
    return record(host, second, rows, **more)  # type: ignore[arg-type]


class Stream:
    """The telemetry stream of one server, written with ids of our choice: record by record, or bytes that are none."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server

    def ask(self, *words: bytes | str | int) -> object:
        with BlockingConnection(self._server.host, self._server.port, None, None, dial=tcp) as asking:
            return asking.ask(*words)

    def add(self, records: Iterable[TelemetryRecord], late_ms: int = 50) -> None:
        """Appends each record a little after the end of its second."""
        for one in records:
            self.add_raw((one.id.second + 1) * 1000 + late_ms, one.id.encode(), encode(one))

    def add_raw(self, ms: int, id: bytes, data: bytes) -> None:
        self.ask("XADD", TELEMETRY_KEY, f"{ms}-*", ID_FIELD, id, DATA_FIELD, data)

    def trim(self, keep: int) -> None:
        self.ask("XTRIM", TELEMETRY_KEY, "MAXLEN", keep)

    def clear(self) -> None:
        self.ask("FLUSHALL")


def listed(*servers: RedisServer) -> str:
    """The option `servers`."""
    return ",".join(f"s{number}={server.host}:{server.port}" for number, server in enumerate(servers, start=1))


def options(*servers: RedisServer, **more: str) -> SourceOptions:
    """Options of a source; of telemetry it reads records."""
    rows = {} if more.get("kind") == "channel" else {"rows": "records"}
    return read_options({"servers": listed(*servers), **rows, **more})


@pytest.fixture(scope="module")
def one() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def two() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(autouse=True)
def empty(one: RedisServer, two: RedisServer) -> None:
    for server in (one, two):
        Stream(server).clear()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PAUSE_S", 0.01)


def table_of(read: Sequence[parts.Part], kind: Kind) -> pa.Table:
    """The rows of some parts."""
    return pa.Table.from_batches([batch for part in read for batch in parts.read_part(part)], kind.schema)


def seconds_of(
    planning: OffsetPlanner, asked: SourceOptions, start: dict[str, ServerOffset], end: dict[str, ServerOffset]
) -> list[tuple[str, int]]:
    """What is between two offsets: host and second of each record."""
    table = table_of(planning.parts(start, end), asked.kind)
    return sorted(zip(table["host"].to_pylist(), table["second"].to_pylist(), strict=True))


def write_record(server: RedisServer, channel: bytes, times_ms: Iterable[int]) -> None:
    """Appends messages to the record of a channel, recorded and published at these times, as its agent does."""
    with BlockingConnection(server.host, server.port, None, None, dial=tcp) as asking:
        asking.ask("SADD", INDEX_KEY, channel)
        key = record_key(channel)
        written = int(str(asking.ask("XLEN", key)))
        requests: list[Request] = []
        for number, ms in enumerate(times_ms, start=written + 1):
            blob = HEADER.pack(MAGIC, 0, 1, stream_id(1, 1), number, ms * 1000) + b"m%d" % number
            requests.append((b"XADD", key, f"{ms}-*", *message_fields(number, blob)))
        for first in range(0, len(requests), 1_000):
            asking.ask_all(requests[first : first + 1_000])
