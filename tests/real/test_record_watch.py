"""A drained server with records stays until its records are archived; on a real server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.connections import ask

from shoal.cluster.acl import AGENT, PIPELINE, READER
from shoal.cluster.local import LocalCluster
from shoal.history.archive_table import Positions
from shoal.history.server_reader import Login
from shoal.leader.record_watch import RecordWatch
from shoal.limits import DEFAULT_LIMITS
from shoal.pipeline.archive.archived_mark import mark_archived
from shoal.pipeline.archive.job import ArchiveJob, run_here
from shoal.plan.ring import ServerAddress
from shoal.runtime import PRODUCTION
from shoal.wire.record_entry import ARCHIVED_KEY, INDEX_KEY, record_key

WAIT_S = 60.0


async def until(watch: RecordWatch, wanted: set[str]) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            if watch.holding == wanted:
                return
            await asyncio.sleep(0.05)


async def test_a_server_holds_records_until_they_are_archived(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with LocalCluster(1, agents=False) as cluster:
        (server,) = cluster.servers
        passwords = cluster.state.passwords

        def say(role: str, *words: bytes | str) -> object:
            return ask(server.host, server.port, role, passwords[role], *words)

        watch = RecordWatch(READER, passwords[READER], DEFAULT_LIMITS, PRODUCTION.address_book)
        assert watch.holding == set()
        watch.follow([server])
        assert watch.holding == {server.id}, "nobody knows yet"
        try:
            await until(watch, set())
            say(AGENT, b"SADD", INDEX_KEY, b"orders")
            say(AGENT, b"XADD", record_key(b"orders"), b"*", b"n", b"1")
            await until(watch, {server.id})
            login = Login(PIPELINE, passwords[PIPELINE])
            reader = Login(READER, passwords[READER])
            assert mark_archived([server], login, Positions()) == []
            with ArchiveJob(tmp_path, login) as job:
                job.batch([server], run_here)
                refusing: set[str] = set()
                for _ in range(2):
                    assert mark_archived([server], reader, job.positions, refusing) == []
                assert refusing == {server.id}
                assert caplog.text.count("server refuses the archived mark") == 1
                assert mark_archived([server], login, job.positions) == [server.id]
            await until(watch, set())
            say(AGENT, b"XADD", record_key(b"orders"), b"*", b"n", b"2")
            await until(watch, {server.id})
            say(AGENT, b"SET", ARCHIVED_KEY, b"soon")
            await asyncio.sleep(0.1)
            assert watch.holding == {server.id}
            say(AGENT, b"SET", ARCHIVED_KEY, b"%d" % (4_000_000_000 * 1000))
            await until(watch, set())
            for key in (record_key(b"orders"), INDEX_KEY):
                with pytest.raises(Exception, match=r"NOPERM|No permissions"):
                    say(PIPELINE, b"SET", key, b"x")
            watch.follow([])
            assert watch.holding == set()
        finally:
            await watch.close()


async def test_a_server_that_does_not_answer_counts_as_one_that_holds_records() -> None:
    watch = RecordWatch(None, None, DEFAULT_LIMITS, PRODUCTION.address_book)
    watch.follow([ServerAddress("s9", "127.0.0.1", 1)])
    await asyncio.sleep(0.3)
    assert watch.holding == {"s9"}
    await watch.close()
