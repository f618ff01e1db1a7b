"""Records of servers are read in pages whose size adapts to the messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.support.records import STREAM, Recording
from tests.support.redis_server import RedisServer

from shoal.errors import ProtocolError
from shoal.history import server_reader as bounds
from shoal.history.record_reader import RecordReader
from shoal.history.server_reader import Login
from shoal.plan.ring import ServerAddress
from shoal.runtime import PRODUCTION
from shoal.wire.address_book import Endpoint
from shoal.wire.dial import tcp
from shoal.wire.envelope import HEADER, MAGIC
from shoal.wire.record_entry import message_fields

CHANNEL = b"orders.eu"


@pytest.fixture
def recording() -> Iterator[Recording]:
    with RedisServer() as server:
        yield Recording(server)


@pytest.fixture
def reader(recording: Recording) -> Iterator[RecordReader]:
    place = recording.redis.connection_pool.connection_kwargs
    with RecordReader(ServerAddress("s1", place["host"], place["port"]), Login(None, None)) as reader:
        yield reader


def write(recording: Recording, count: int, size: int) -> None:
    for _ in range(count):
        recording.number += 1
        blob = HEADER.pack(MAGIC, 0, 1, STREAM, recording.number, 1) + b"x" * size
        recording._add(message_fields(recording.number, blob), None)


def pages(reader: RecordReader, count_max: int | None = None) -> list[int]:
    return [len(page) for page in reader.pages(CHANNEL, "0-0", count_max)]


def test_pages_grow_while_entries_are_small(recording: Recording, reader: RecordReader) -> None:
    write(recording, 1000, 10)
    assert pages(reader) == [64, 128, 256, 512, 40]
    assert pages(reader, 100) == [64, 36]
    assert pages(reader, 64) == [64]


def test_pages_shrink_to_the_size_of_a_reply(recording: Recording, reader: RecordReader) -> None:
    write(recording, 100, 1_000_000)
    assert pages(reader)[:3] == [64, 4, 4]
    assert sum(pages(reader)) == 100


def test_a_reply_that_is_too_large_is_read_in_parts(
    recording: Recording, reader: RecordReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "FRAME_BYTES_MAX", 300_000)
    reader.reconnect()
    write(recording, 200, 10)
    write(recording, 200, 100_000)
    assert sum(pages(reader)) == 400
    assert reader.ends(CHANNEL) == {STREAM: 400}
    write(recording, 1, 1_000_000)
    with pytest.raises(ProtocolError, match="a frame of more than"):
        pages(reader)


def test_the_end_of_a_record_of_large_messages_is_read(recording: Recording, reader: RecordReader) -> None:
    write(recording, 40, 1_000_000)
    assert reader.ends(CHANNEL) == {STREAM: 40}


def test_a_server_is_reached_by_the_route_of_the_runtime(recording: Recording) -> None:
    """As `subscribe(since=...)` reads records: with the address book of its bus."""
    write(recording, 3, 10)
    place = recording.redis.connection_pool.connection_kwargs
    runtime = replace(PRODUCTION, routes={"s1": Endpoint(place["host"], place["port"], tcp)}, wall=lambda: 0.0)
    with RecordReader(ServerAddress("s1", "announced.invalid", 1), Login(None, None), runtime) as reader:
        assert pages(reader) == [3]
