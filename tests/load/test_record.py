"""A telemetry record survives encoding and Redis, and invalid bytes are refused."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.load.telemetry_samples import record as server_record
from tests.support.lamp_kind import BOTH, LAMP, SHELF, shelf_record
from tests.support.redis_server import RedisServer

from shoal.channels.telemetry.channel_kind import CHANNEL, SERVER
from shoal.errors import ProtocolError
from shoal.load.kinds import Kinds
from shoal.load.record import NARROW_ROWS_MIN, RecordId, TelemetryRecord, decode, encode, xadd
from shoal.load.table import UnitTable
from shoal.load_kinds import KINDS

ID = RecordId("redis://host:1/x", "f00", 1_700_000_000, 7)


def make_record(channels: int, record_id: RecordId = ID) -> TelemetryRecord:
    rows = {
        b"\xff%d" % number: {
            "publications": number,
            "bytes_out": number << number % 40,
            "publisher_ids": [number << 16] * (number % 3),
            "complete": number % 7 > 0,
        }
        for number in range(channels)
    }
    return server_record("one", 1, rows, site="hall")._replace(id=record_id)


def same(one: TelemetryRecord, two: TelemetryRecord) -> bool:
    tables = [{kind: table.rows() for kind, table in record.tables.items()} for record in (one, two)]
    return one._replace(tables={}) == two._replace(tables={}) and tables[0] == tables[1]


@pytest.mark.parametrize("channels", [0, 1, NARROW_ROWS_MIN - 1, NARROW_ROWS_MIN, 500])
def test_round_trip(channels: int) -> None:
    record = make_record(channels)
    again = decode(encode(record), KINDS)
    assert again.id == ID
    assert again.site == "hall"
    assert (again.host_kind, again.tables["channel"].kind) == (SERVER, CHANNEL)
    assert same(again, record)
    assert len(again.tables["channel"]) == channels


numbers = st.integers(0, 2**63 - 1) | st.integers(0, 300)
amounts = st.floats(0, 1e300, allow_nan=False)
lamps = st.dictionaries(
    st.binary(max_size=12),
    st.fixed_dictionaries(
        {},
        optional={
            "lit_s": amounts,
            "flashes": numbers,
            "hottest": amounts,
            "screws": numbers,
            "watchers": st.lists(st.integers(0, 2**64 - 1), max_size=4),
            "complete": st.booleans(),
        },
    ),
    max_size=5,
)
records = st.builds(
    shelf_record,
    shelf=st.text(max_size=20),
    second=st.integers(0, 2**62),
    lamps=lamps,
    watts=st.none() | amounts,
    site=st.text(max_size=10),
)


@given(record=records, copies=st.sampled_from([0, NARROW_ROWS_MIN]))
@settings(deadline=None)
def test_every_record_of_every_kind_survives(record: TelemetryRecord, copies: int) -> None:
    rows = record.tables["lamp"].rows()
    rows |= {b"%d %b" % (number, name): row for name, row in rows.items() for number in range(copies)}
    record = record._replace(tables={"lamp": UnitTable.of_rows(LAMP, rows)})
    again = decode(encode(record), BOTH)
    assert same(again, record)
    assert encode(again) == encode(record)


def test_a_record_can_have_tables_of_several_kinds() -> None:
    channels = make_record(3).tables
    record = shelf_record("one", 1, {b"l": {"flashes": 3}})
    record = record._replace(tables={**channels, **record.tables})
    assert same(decode(encode(record), BOTH), record)


def test_some_columns_can_be_read_without_the_others() -> None:
    record = make_record(500)
    data = encode(record)
    again = decode(data, KINDS, folded_only=True).tables["channel"]
    assert set(again.columns) == {column.name for column in CHANNEL.columns if column.folding is not None}
    for name in again.columns:
        assert again[name].tolist() == record.tables["channel"][name].tolist()
    assert again.complete.tolist() == record.tables["channel"].complete.tolist()


def test_the_id_tells_duplicates_restarts_and_holes_apart() -> None:
    other = RecordId("redis://host:1/x", "f01", 1_700_000_000, 0)
    assert decode(encode(make_record(1)), KINDS).id == ID
    assert decode(encode(make_record(1, other)), KINDS).id == other
    assert RecordId.decode(ID.encode()) == ID
    for text in (b"", b"a/b/c/d", b"a/1/2", b"\xff/b/1/2"):
        with pytest.raises(ProtocolError):
            RecordId.decode(text)


def arrow_record() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("channel", pa.binary())])):
        pass
    data: bytes = sink.getvalue().to_pybytes()
    return data


def test_another_version_is_refused_with_what_to_do() -> None:
    newer = bytearray(encode(make_record(1)))
    newer[2] = 3
    with pytest.raises(ProtocolError, match="version 3; this process knows version 2: upgrade this process"):
        decode(bytes(newer), KINDS)
    with pytest.raises(ProtocolError, match="version 1; this process knows version 2: upgrade the agent"):
        decode(arrow_record(), KINDS)


def test_unknown_kinds_and_other_columns_are_refused() -> None:
    data = encode(shelf_record("one", 1, {b"l": {}}))
    with pytest.raises(ProtocolError, match=r"a host of kind 'shelf'; this process knows server, store: upgrade"):
        decode(data, KINDS)
    with pytest.raises(ProtocolError, match=r"units of kind 'lamp'; this process knows channel, queue: upgrade"):
        decode(data, Kinds(KINDS.units, (SHELF,)))
    fewer = Kinds((type(LAMP)("lamp", LAMP.columns[:-1], LAMP.costs),), (SHELF,))
    with pytest.raises(ProtocolError, match="other columns for units of kind 'lamp'"):
        decode(data, fewer)
    with pytest.raises(ProtocolError, match="other columns for hosts of kind 'shelf'"):
        decode(data, Kinds((LAMP,), (type(SHELF)("shelf", SHELF.columns[1:]),)))


@pytest.mark.parametrize("channels", [20, 200])
def test_every_cut_and_every_extra_byte_is_refused(channels: int) -> None:
    data = encode(make_record(channels))
    for at in range(0, len(data), 1 + channels // 50):
        with pytest.raises(ProtocolError):
            decode(data[:at], KINDS)
    with pytest.raises(ProtocolError, match="too many"):
        decode(data + b"x", KINDS)


@given(st.data(), st.sampled_from([0, 3, 200]))
@settings(max_examples=100, deadline=None)
def test_damaged_bytes_are_refused_or_still_a_record(data: st.DataObject, channels: int) -> None:
    blob = ENCODED[channels]
    at = data.draw(st.integers(0, min(len(blob), 250)) | st.integers(0, len(blob)))
    junk = data.draw(st.binary(max_size=8))
    damaged = blob[:at] + junk + blob[at + data.draw(st.sampled_from([0, len(junk), len(blob)])) :]
    try:
        record = decode(damaged, KINDS)
    except ProtocolError:
        return
    for table in record.tables.values():
        assert all(value >= 0 for row in table.rows().values() for value in row.values() if isinstance(value, int))


ENCODED = {channels: encode(make_record(channels)) for channels in (0, 3, 200)}


def forged(rows: int, widths: bytes, counts: list[int], body: bytes = b"") -> bytes:
    """A record with a table whose head does not match its body."""
    plain = encode(make_record(0))
    length = struct.unpack_from("<I", plain, 4)[0]
    head = msgspec.msgpack.decode(plain[8 : 8 + length])
    head[-1] = [["channel", CHANNEL.layout, rows, widths, counts]]
    new = msgspec.msgpack.encode(head)
    return plain[:4] + struct.pack("<I", len(new)) + new + plain[8 + length :] + body


BUFFERS = len(CHANNEL.columns) + 4
"""Widths in the head of a table: two for each of two lists, one for the lengths of names, one for `complete`."""
HUGE = [2**31 - 1, 2**40, 2**62, 2**64 - 1, -1]


@pytest.mark.parametrize("huge", HUGE)
def test_wrong_lengths_are_refused(huge: int) -> None:
    nothing = bytes(BUFFERS)
    forgeries = [
        forged(huge, nothing, [huge, 0, 0]),
        forged(huge, nothing, [0, 0, 0]),
        forged(huge, b"", []),
        forged(1, nothing, [huge, 0, 0]),
        forged(1, nothing, [0, huge, 0]),
        forged(1, nothing[:3] + b"\1" + nothing[4:], [0, huge, 0]),
        forged(1, b"\4" + nothing[1:], [0, 0, 0], struct.pack("<I", huge & 0xFFFFFFFF or 1)),
        forged(1, b"\x08" + nothing[1:], [0, 0, 0], struct.pack("<Q", huge & (2**64 - 1))),
    ]
    tracemalloc.start()
    try:
        for data in forgeries:
            with pytest.raises(ProtocolError):
                decode(data, KINDS)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_negative_and_infinite_numbers_are_refused() -> None:
    assert decode(forged(1, bytes(BUFFERS), [0, 0, 0]), KINDS).tables["channel"].rows().keys() == {b""}
    for widths, body in ((bytes(BUFFERS - 1) + b"\1", b"\2"), (bytes([0, 3]) + bytes(BUFFERS - 2), b"abc")):
        with pytest.raises(ProtocolError):
            decode(forged(1, widths, [0, 0, 0], body), KINDS)
    for amount in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ProtocolError, match="lit_s"):
            decode(encode(shelf_record("one", 1, {b"l": {"lit_s": amount}})), BOTH)
    record = shelf_record("one", 1, {})
    dusty = encode(record._replace(host={**record.host, "dust_g": float("nan")}))
    with pytest.raises(ProtocolError, match=r"dust_g = nan"):
        decode(dusty, BOTH)
    for rows in (1, NARROW_ROWS_MIN):
        table = UnitTable.of_rows(CHANNEL, {b"%d" % number: {"publications": -1} for number in range(rows)})
        with pytest.raises(ProtocolError, match="number"):
            decode(encode(make_record(0)._replace(tables={"channel": table})), KINDS)


def test_numbers_take_no_more_room_than_they_need() -> None:
    assert len(encode(make_record(0))) < 300
    names = {b"channel.%d" % number: {"publications": number % 250} for number in range(1000)}
    plain = len(encode(server_record("one", 1, names)))
    assert plain < 20_000
    names[b"channel.7"] = {"publications": 2**40}
    assert 6900 < len(encode(server_record("one", 1, names))) - plain < 7100


def test_columns_are_read_without_a_copy() -> None:
    table = UnitTable.of_rows(LAMP, {b"12345678": {"flashes": 2**50}})
    data = encode(shelf_record("one", 1, {})._replace(tables={"lamp": table}))
    units = decode(data, BOTH).tables["lamp"].units
    assert np.shares_memory(units.values, np.frombuffer(data, np.uint8))


def test_the_command_appends_to_a_real_stream_and_bounds_it() -> None:
    with RedisServer() as server, redis.Redis(host=server.host, port=server.port) as client:
        for sequence in range(300):
            client.execute_command(*xadd(make_record(20, ID._replace(sequence=sequence)), 50))
        entries: Any = client.xrange(b"__shoal:telemetry")
        assert 50 <= len(entries) < 300
        newest = entries[-1][1]
        assert newest[b"id"] == ID._replace(sequence=299).encode()
        assert decode(newest[b"data"], KINDS).id.sequence == 299
