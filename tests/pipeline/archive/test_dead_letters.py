"""Dead letters in a table of their own, from real stores: each once, also after a move, a second job and a second
death."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import polars
import pytest
import redis
from tests.pipeline.source.test_dead_letters import bury
from tests.support.queue_store import client_of, store_server
from tests.support.redis_server import RedisServer

from shoal.errors import ArchiveError
from shoal.history.server_reader import Login
from shoal.pipeline.archive import dead_letters
from shoal.pipeline.archive.dead_letters import DeadLetterArchive, DeadLettersAdded
from shoal.pipeline.kept_windows import WindowKeeper
from shoal.pipeline.source.cluster_address import SourceAddress
from shoal.pipeline.source.options import SourceOptions, read_options
from shoal.plan.ring import ServerAddress


@pytest.fixture(scope="module")
def stores() -> Iterator[tuple[RedisServer, RedisServer]]:
    with store_server() as one, store_server() as two:
        yield one, two


class Places:
    """A cluster whose plan names the queues of each store."""

    login = Login(None, None)
    name = "places"

    def __init__(self, stores: Sequence[RedisServer], queues: tuple[str, ...]) -> None:
        self._stores = {
            ServerAddress(f"q{number}", store.host, store.port): queues for number, store in enumerate(stores, start=1)
        }

    def stores(self) -> dict[ServerAddress, tuple[str, ...]]:
        return self._stores


def options(stores: Sequence[RedisServer], *queues: str, pattern: str = "*") -> SourceOptions:
    listed = ",".join(f"q{number}={store.host}:{store.port}" for number, store in enumerate(stores, start=1))
    found = read_options({"servers": listed, "kind": "dead", "queue": pattern, "serverWait": "0"})
    return replace(found, cluster=cast(SourceAddress, Places(stores, queues)))


def archived(place: Path, asked: SourceOptions, batch_rows: int = 100) -> list[DeadLettersAdded]:
    with DeadLetterArchive(place, asked, batch_rows) as job:
        return list(iter(job.batch, None))


def rows_of(place: Path) -> list[dict[str, Any]]:
    return polars.read_delta(str(place)).sort("queue", "put_at", "dead_at").to_dicts()


def move_letters(one: RedisServer, two: RedisServer, queue: str) -> None:
    """Copies the letters of a queue to another store as a move of its shards does: with other entry ids."""
    key = f"__shoal:q:{queue}:dead"
    with redis.Redis(host=one.host, port=one.port) as source, redis.Redis(host=two.host, port=two.port) as target:
        for number, (_, fields) in enumerate(source.xrange(key), start=777_000):
            target.xadd(key, fields, id=f"{number}-0")
        source.delete(key)


async def test_letters_of_all_queues_are_added_once(stores: tuple[RedisServer, RedisServer], tmp_path: Path) -> None:
    async with client_of(stores[0]) as client:
        for name in ("a.one", "a.two", "b"):
            await client.create(name, shards=2)
            await bury(client, name, 5)
        asked = options(stores, "a.one", "a.two", "b")
        done = archived(tmp_path / "t", asked, batch_rows=4)
        assert sum(batch.rows for batch in done) == 15
        assert len(done) > 1
        assert sum(batch.rows for batch in archived(tmp_path / "t", asked)) == 0
        rows = rows_of(tmp_path / "t")
        assert [(row["queue"], row["payload"]) for row in rows] == [
            (name, b"%d" % number) for name in ("a.one", "a.two", "b") for number in range(5)
        ]
        first = rows[0]
        assert (first["key"], first["id"], first["reason"], first["attempts"], first["store"]) == (
            *("eu", "order 0", "no such customer", 1, "q1"),
        )
        assert first["day"] == first["dead_at"].date()
    archived(tmp_path / "some", options(stores, "a.one", "a.two", "b", pattern="a.*"))
    assert {row["queue"] for row in rows_of(tmp_path / "some")} == {"a.one", "a.two"}


async def test_a_moved_letter_is_not_added_again_and_a_second_death_is(
    stores: tuple[RedisServer, RedisServer], tmp_path: Path
) -> None:
    async with client_of(stores[0]) as client:
        queue = await client.create("moved", shards=2)
        await bury(client, "moved", 3)
        asked = options(stores, "moved")
        with DeadLetterArchive(tmp_path / "t", asked) as job:
            first = job.batch()
            assert first is not None
            assert first.rows == 3
            letters = await queue.dead()
            assert await queue.replay(letters[0].entry)
            async with queue.take(max_in_flight=1) as jobs:
                async for taken in jobs:
                    await taken.fail("again", dead=True)
                    break
            move_letters(*stores, "moved")
            second = job.batch()
            assert second is not None
            assert (second.read, second.rows) == (3, 1)
            assert job.batch() is None
            assert job.rows == 4
        rows = rows_of(tmp_path / "t")
        assert [(row["payload"], row["reason"], row["store"]) for row in rows if row["payload"] == b"0"] == [
            (b"0", "no such customer", "q1"),
            (b"0", "again", "q2"),
        ]
        assert len({row["number"] for row in rows}) == 3


async def test_damaged_letters_are_counted_and_stay(stores: tuple[RedisServer, RedisServer], tmp_path: Path) -> None:
    async with client_of(stores[0]) as client:
        await client.create("broken", shards=2)
        await bury(client, "broken", 1)
        with redis.Redis(host=stores[0].host, port=stores[0].port) as connection:
            connection.xadd("__shoal:q:broken:dead", {"key": "eu", "body": "?"})
        (done,) = archived(tmp_path / "t", options(stores, "broken"))
        assert (done.read, done.rows, done.unreadable) == (2, 1, 1)
        assert len(await client.queue("broken").dead(1)) == 1


async def test_many_files_of_a_day_become_one(
    stores: tuple[RedisServer, RedisServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "COMPACT_FILES_MIN", 3)
    async with client_of(stores[0]) as client:
        await client.create("many", shards=2)
        await bury(client, "many", 5)
    asked = options(stores, "many")
    assert len(archived(tmp_path / "t", asked, batch_rows=1)) == 5
    assert [row["payload"] for row in rows_of(tmp_path / "t")] == [b"%d" % number for number in range(5)]
    assert polars.scan_delta(str(tmp_path / "t")).collect().height == 5
    assert sum(batch.rows for batch in archived(tmp_path / "t", asked)) == 0


def test_a_silent_store_does_not_hold_up_the_others(stores: tuple[RedisServer, RedisServer], tmp_path: Path) -> None:
    class Gone:
        host, port = "127.0.0.1", 1

    asked = options((stores[0], cast(RedisServer, Gone)), "none")
    with DeadLetterArchive(tmp_path / "t", asked) as job:
        assert job.batch() is None
        assert job.silent == ["q2"]


def test_other_tables_and_a_second_job_are_refused(stores: tuple[RedisServer, RedisServer], tmp_path: Path) -> None:
    WindowKeeper(tmp_path / "windows").commit()
    with pytest.raises(ArchiveError, match="not one of dead letters"):
        archived(tmp_path / "windows", options(stores, "a"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    with pytest.raises(ArchiveError, match="has other files"):
        archived(tmp_path / "full", options(stores, "a"))
    busy = pytest.raises(ArchiveError, match="another job writes")
    with DeadLetterArchive(tmp_path / "t", options(stores, "a")), busy:
        archived(tmp_path / "t", options(stores, "a"))
