"""An archive in an object store: written, read, compacted and continued as in a directory, on a real S3 server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable
from tests.support.agent_site import SOURCE, agent_site
from tests.support.object_store import BUCKET, object_store
from tests.support.records import Recording, sequences
from tests.support.redis_server import RedisServer

from shoal import cli
from shoal.errors import ArchiveError, ConfigError, MissingExtraError
from shoal.history.archive import read_archive
from shoal.history.archive_location import ArchiveLocation
from shoal.history.server_reader import Login
from shoal.history.table import to_items
from shoal.pipeline import event_archive, generated_windows
from shoal.pipeline.archive.job import ArchiveJob, run_here
from shoal.pipeline.kept_windows import WindowKeeper, open_windows
from shoal.plan.ring import ServerAddress

NOBODY = Login(None, None)


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    with object_store() as environment:
        yield environment


@pytest.fixture
def environment(store: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name, value in store.items():
        monkeypatch.setenv(name, value)
    return store


def archived(url: str) -> list[int]:
    return sorted(sequences(to_items(read_archive(url, "orders.eu")[1])))


@pytest.mark.usefixtures("environment")
def test_load_windows_are_kept_in_an_object_store() -> None:
    windows = generated_windows.make_windows(1, 1, starts=range(0, 10, 2))
    for some in (windows[:3], windows[2:]):
        with WindowKeeper(f"s3://{BUCKET}/load", day_s=generated_windows.DAY_S) as keeper:
            keeper.take(0, some)
    found = list(open_windows(f"s3a://{BUCKET}/load").windows())
    assert [window.start_s for window in found] == [0, 2, 4, 6, 8]
    assert [window.hosts["bytes_out"] for window in found] == [window.hosts["bytes_out"] for window in windows]


@pytest.mark.usefixtures("environment")
def test_an_archive_in_an_object_store_is_written_read_and_compacted() -> None:
    url = f"s3a://{BUCKET}/x/archive/"
    with RedisServer() as server:
        recording = Recording(server)
        servers = [ServerAddress("s1", server.host, server.port)]
        for numbers in (range(1, 11), range(11, 13)):
            recording.write(*numbers)
            with ArchiveJob(url, NOBODY, 4) as job:
                while job.batch(servers, run_here) is not None:
                    pass
                assert archived(url) == list(range(1, recording.number + 1))
                job.compact(run_here, 2)
                job.vacuum()
    assert archived(url) == list(range(1, 13))
    plain = f"s3://{BUCKET}/x/archive"
    assert sorted(pl.read_delta(plain)["sequence"]) == list(range(1, 13))
    assert DeltaTable(plain).to_pyarrow_dataset().count_rows() == 12
    assert sum(batch.num_rows for batch in event_archive.open_archive(plain).read(["sequence"])) == 12


@pytest.mark.usefixtures("environment")
def test_of_two_writers_in_an_object_store_one_loses_without_harm() -> None:
    url = f"s3://{BUCKET}/two"
    with RedisServer() as server:
        Recording(server).write(1, 2)
        servers = [ServerAddress("s1", server.host, server.port)]
        with ArchiveJob(url, NOBODY) as first, ArchiveJob(url, NOBODY) as second:
            assert first.batch(servers, run_here) is not None
            with pytest.raises(ArchiveError, match="another job has written to the archive"):
                second.batch(servers, run_here)
    assert archived(url) == [1, 2]


@pytest.mark.usefixtures("environment")
def test_a_place_without_an_archive_is_said() -> None:
    with pytest.raises(ArchiveError, match=f"no archive at s3://{BUCKET}/nothing"):
        read_archive(f"s3://{BUCKET}/nothing", None)


@pytest.mark.usefixtures("environment")
def test_an_object_store_that_does_not_answer_is_an_error_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for use in (lambda: read_archive(f"s3://{BUCKET}/x", None), ArchiveJob(f"s3://{BUCKET}/x", NOBODY).__enter__):
        with pytest.raises(ArchiveError, match=r"Connection refused .* check the place, and the credentials") as told:
            use()
        assert str(told.value).isprintable()


@pytest.mark.spark
async def test_the_command_archives_to_an_object_store_on_spark(environment: dict[str, str], tmp_path: Path) -> None:
    async with agent_site() as site:
        Recording(site.server).write(*range(1, 101))
        words = ["pipeline", "archive", "--once", "--json", "--archive", f"s3a://{BUCKET}/spark", "--url", site.url]
        job = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "shoal.cli", *words),
            env={**os.environ, **environment, "PYTHONPATH": str(SOURCE)},
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await job.communicate()
    assert job.returncode == 0
    assert json.loads(output.splitlines()[-1])["archived_rows"] == 100
    assert not os.listdir(tmp_path), "no folder s3a:"
    assert archived(f"s3://{BUCKET}/spark") == list(range(1, 101))


@pytest.mark.parametrize("place", ["hdfs://host/x", "s3:/bucket/x", "s3a:///x", "file://host/x"])
def test_other_urls_are_refused_and_never_become_folders(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"is not the location of an archive: give a directory, or a URL \(s3://"):
        ArchiveLocation.of(place)
    assert cli.main(["pipeline", "archive", "--once", "--archive", place]) == 1
    assert "is not the location of an archive" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_locations_are_paths_or_urls(tmp_path: Path) -> None:
    assert ArchiveLocation.of(tmp_path).folder == tmp_path
    assert ArchiveLocation.of(f"file://{tmp_path}").folder == tmp_path
    assert ArchiveLocation.of("~/archive").folder == Path.home() / "archive"
    assert ArchiveLocation.of("s3a://bucket/x/").url == "s3://bucket/x"
    assert ArchiveLocation.of("gs://bucket/x").folder is None


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(MissingExtraError, match=r"needs the package deltalake: pip install 'shoal\[archive\]'"):
        read_archive(tmp_path, None)
