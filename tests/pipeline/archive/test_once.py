"""`shoal pipeline archive --once` ends when all that there was is archived, and ends however busy a channel is."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from tests.support.records import Recording
from tests.support.redis_server import RedisServer

from shoal import cli
from shoal.cli.pipeline_archive import _archive, _Cluster, _Done
from shoal.history.server_reader import Login
from shoal.pipeline.archive.job import ArchiveJob, run_here
from shoal.pipeline.spark.tasks import Task
from shoal.plan.keys import unit_text as record_name
from shoal.plan.ring import ServerAddress

BATCHES_MAX = 20


class _OneServer:
    def __init__(self, server: ServerAddress) -> None:
        self._server = server

    def servers(self) -> tuple[ServerAddress, ...]:
        return (self._server,)


def test_once_is_all_that_there_was_and_no_more(tmp_path: Path) -> None:
    with RedisServer() as server, ArchiveJob(tmp_path, Login(None, None), 10) as job:
        busy, quiet = Recording(server, b"busy"), Recording(server, b"quiet")
        busy.write(*range(1, 11))
        quiet.write(*range(1, 36))
        done, ended = _Done(), threading.Event()

        def grows(function: Task, rows: pa.Table) -> pa.Table:
            busy.write(*range(busy.number + 1, busy.number + 21))
            if done.batches > BATCHES_MAX:
                ended.set()
            return run_here(function, rows)

        cluster = cast(_Cluster, _OneServer(ServerAddress("s1", server.host, server.port)))
        _archive(job, grows, cluster, ended, done, once=True)
        assert not ended.is_set(), "a busy channel keeps it for ever"
        assert job.positions.of("s1", record_name(b"quiet")).number == 35
        assert job.positions.of("s1", record_name(b"busy")).number >= 10
        assert done.batches == 4


def test_a_batch_that_can_read_nothing_is_not_tried_again_at_once(tmp_path: Path) -> None:
    with RedisServer() as server, ArchiveJob(tmp_path, Login(None, None)) as job:
        Recording(server).write(1)

        def refused(function: Task, rows: pa.Table) -> pa.Table:
            places = [{**row, "port": 1} for row in rows.to_pylist()]
            return run_here(function, pa.Table.from_pylist(places, schema=rows.schema))

        done = _Done()
        cluster = cast(_Cluster, _OneServer(ServerAddress("s1", server.host, server.port)))
        _archive(job, refused, cluster, threading.Event(), done, once=False)
        assert (done.batches, [*job.unreachable], job.table.delta.version()) == (1, ["s1"], 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--vacuum", "10m"), "--vacuum is 10m: give at least 1h"),
        (("--retain", "2100-01-01"), "--retain is 2100-01-01: give an age"),
        (("--retain", "soon"), "'soon' is not a time"),
    ],
)
def test_ages_are_checked_before_anything_starts(
    words: tuple[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["pipeline", "archive", "--once", "--archive", str(tmp_path / "new"), *words]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
