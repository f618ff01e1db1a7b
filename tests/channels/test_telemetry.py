"""A telemetry record survives the way through Redis, and nothing else passes for one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.channels.observed import FRAME_BYTES_MAX, envelope, observed
from tests.support.redis_server import RedisServer

from shoal.channels.telemetry import telemetry_record as telemetry
from shoal.channels.telemetry.analyzer import Analyzer, ServerSample
from shoal.channels.telemetry.scanner import Scanner
from shoal.channels.telemetry.telemetry_record import Record, RecordId
from shoal.errors import ProtocolError

ID = RecordId("redis://host:1/x", "f00", 1_700_000_000, 7)


def make_record(channels: int, record_id: RecordId = ID) -> Record:
    scanner = Scanner(FRAME_BYTES_MAX)
    analyzer = Analyzer(scanner, listed_max=10)
    for number in range(channels):
        scanner.feed(observed(b"\xff%d" % number, envelope(number << 16, 1)), 0)
        scanner.scan()
    register = {b"\xff%d" % number: {number} for number in range(0, channels, 2)}
    second = analyzer.close_second(0, register, {}, ServerSample(0.0, "life", 1, 2, 3.0, 4, 5, 6.0))
    return Record(record_id, second.channels, second.server)


@pytest.mark.parametrize("channels", [0, 1, 500])
def test_round_trip(channels: int) -> None:
    record = make_record(channels)
    again = telemetry.decode(telemetry.encode(record))
    assert again.id == ID
    assert again.channels.equals(record.channels)
    assert again.server.equals(record.server)
    assert again.channels.num_rows == channels


def test_some_columns_can_be_read_without_the_others() -> None:
    record = make_record(50)
    data = telemetry.encode(record)
    again = telemetry.decode(data, ("bytes_out", "channel"))
    assert again.channels.equals(record.channels.select(["channel", "bytes_out"]))
    assert again.server.equals(record.server)
    for at in range(0, len(data), 97):
        with pytest.raises(ProtocolError):
            telemetry.decode(data[:at], ("channel",))


def test_the_id_tells_duplicates_restarts_and_holes_apart() -> None:
    other = RecordId("redis://host:1/x", "f01", 1_700_000_000, 0)
    assert telemetry.decode(telemetry.encode(make_record(1))).id == ID
    assert telemetry.decode(telemetry.encode(make_record(1, other))).id == other
    assert RecordId.decode(ID.encode()) == ID
    for text in (b"", b"a/b/c/d", b"a/1/2", b"\xff/b/1/2"):
        with pytest.raises(ProtocolError):
            RecordId.decode(text)


def test_another_version_is_refused_by_name() -> None:
    record = make_record(1)
    metadata = {
        **record.channels.schema.metadata,
        telemetry.VERSION_KEY: b"99",
        telemetry.ID_KEY: ID.encode(),
    }
    schema = record.channels.schema.with_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(record.channels.replace_schema_metadata(metadata))
    with pytest.raises(ProtocolError, match="99"):
        telemetry.decode(sink.getvalue().to_pybytes())


def test_parts_of_two_records_are_refused() -> None:
    one, two = (telemetry.encode(make_record(1, ID._replace(sequence=n))) for n in (1, 2))
    cut = pa.BufferReader(one)
    with pa.ipc.open_stream(cut) as reader:
        reader.read_all()
    at = cut.tell()
    with pytest.raises(ProtocolError, match="belong together"):
        telemetry.decode(one[:at] + two[at:])
    with pytest.raises(ProtocolError):
        telemetry.decode(one[at:] + one[:at])


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_bytes_are_refused_or_still_a_record(data: st.DataObject) -> None:
    blob = ENCODED
    at = data.draw(st.integers(0, len(blob)))
    junk = data.draw(st.binary(max_size=8))
    damaged = blob[:at] + junk + blob[at + data.draw(st.sampled_from([0, len(junk), len(blob)])) :]
    try:
        record = telemetry.decode(damaged)
    except ProtocolError:
        return
    assert record.server.num_rows == 1


ENCODED = telemetry.encode(make_record(20))


def test_the_command_appends_to_a_real_stream_and_bounds_it() -> None:
    with RedisServer() as server, redis.Redis(host=server.host, port=server.port) as client:
        for sequence in range(300):
            client.execute_command(*telemetry.xadd(make_record(20, ID._replace(sequence=sequence)), 50))
        entries: Any = client.xrange(b"__shoal:telemetry")
        assert 50 <= len(entries) < 300
        newest = entries[-1][1]
        assert newest[b"id"] == ID._replace(sequence=299).encode()
        assert telemetry.decode(newest[b"data"]).id.sequence == 299
