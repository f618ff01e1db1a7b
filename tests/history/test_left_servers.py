"""Unarchived records of a server that has left are lost: the history reports a gap."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.connections import ask
from tests.support.records import DAY_US, NOON_US, Recording, sequences
from tests.support.redis_server import RedisServer

from shoal.history.archive_location import ArchiveLocation
from shoal.history.archive_table import Positions, open_table
from shoal.history.channel_history import ChannelHistory
from shoal.history.server_reader import Login
from shoal.history.table import to_items
from shoal.message import Gap, Item
from shoal.pipeline.archive.job import ArchiveJob, run_here
from shoal.plan.ring import ServerAddress

NOBODY = Login(None, None)


@pytest.fixture
def servers() -> Iterator[tuple[ServerAddress, ServerAddress]]:
    with RedisServer() as first, RedisServer() as second:
        Recording(first).write(1, 2)
        Recording(second).write(3, 4)
        yield ServerAddress("s1", first.host, first.port), ServerAddress("s2", second.host, second.port)


def archive(directory: Path, *servers: ServerAddress) -> None:
    with ArchiveJob(directory, NOBODY) as job:
        while job.batch(servers, run_here) is not None:
            pass


def positions(directory: Path) -> Positions:
    return open_table(ArchiveLocation.of(directory)).positions


def history(
    directory: Path, *servers: ServerAddress, since_us: int = NOON_US, channel: bytes = b"orders.eu"
) -> list[Item]:
    reading = ChannelHistory(servers, NOBODY, channel, since_us, directory)
    reading.read()
    return list(to_items(reading.joined()))


def test_unarchived_records_of_a_server_that_left_are_a_gap(
    servers: tuple[ServerAddress, ServerAddress], tmp_path: Path
) -> None:
    archive(tmp_path, *servers)
    assert not [item for item in history(tmp_path, *servers) if isinstance(item, Gap)]
    items = history(tmp_path, servers[0])
    assert sequences(items) == [1, 2, 3, 4]
    (gap,) = (item for item in items if isinstance(item, Gap))
    assert gap.reason.startswith(
        f"records of server s2, which has left, were not archived beyond {(NOON_US + 4_000_000) // 1000}-0"
    )
    assert items[-1] == gap
    (still,) = history(tmp_path, servers[0], since_us=NOON_US + DAY_US)
    assert isinstance(still, Gap)
    assert not history(tmp_path, servers[0], channel=b"others")


def test_a_job_notes_when_a_server_left_and_later_times_have_no_gap(
    servers: tuple[ServerAddress, ServerAddress], tmp_path: Path
) -> None:
    archive(tmp_path, *servers)
    archive(tmp_path, servers[0])
    now_us = int(time.time() * 1_000_000)
    noted = positions(tmp_path)
    assert now_us - 10_000_000 < noted.left["s2"] <= now_us
    archive(tmp_path, servers[0])
    assert positions(tmp_path) == noted
    assert any(isinstance(item, Gap) for item in history(tmp_path, servers[0], since_us=min(NOON_US, now_us)))
    assert not history(tmp_path, servers[0], since_us=max(NOON_US, now_us) + DAY_US)
    archive(tmp_path, *servers)
    assert positions(tmp_path).left == {}


def test_a_record_lost_by_a_present_server_is_a_gap(tmp_path: Path) -> None:
    with RedisServer() as server:
        address = ServerAddress("s1", server.host, server.port)
        Recording(server).write(1, 2)
        archive(tmp_path, address)
        ask(server.host, server.port, None, None, b"FLUSHALL")
        items = history(tmp_path, address)
        assert sequences(items) == [1, 2]
        (gap,) = (item for item in items if isinstance(item, Gap))
        last = f"{(NOON_US + 2_000_000) // 1000}-0"
        assert gap.reason.startswith(f"server s1 has lost its record, which was archived up to {last}")
        archive(tmp_path, address)
        assert history(tmp_path, address) == items, "the job has nothing to add"
        later_us = int(time.time() * 1_000_000) + DAY_US
        assert history(tmp_path, address, since_us=later_us) == [], "it was lost before the server was started"
        Recording(server).write(3)
        (reported,) = (item for item in history(tmp_path, address) if isinstance(item, Gap))
        assert "begun another one" in reported.reason, "the new record reports it"
