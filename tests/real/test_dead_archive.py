"""`shoal pipeline archive --dead` on a real cluster: dead letters are archived once, also when their shards move."""

from __future__ import annotations

from pathlib import Path

import polars
import pytest
from tests.pipeline.source.test_dead_letters import bury_in
from tests.support.cluster_queues import ClusterQueues
from tests.support.command import run_command, run_json_process

from shoal.cluster.acl import ADMIN, PIPELINE
from shoal.cluster.local import LocalCluster
from shoal.plan.queue_request import MoveShards


async def test_dead_letters_are_archived_once_before_and_after_a_move(tmp_path: Path) -> None:
    async with LocalCluster(1, stores=2) as cluster, ClusterQueues(cluster.url_for(ADMIN)) as queues:
        entry = await queues.create("orders", shards=4)
        await queues.create("mails", shards=2)
        for name in ("orders", "mails"):
            async with queues.queue(name) as queue:
                await bury_in(queue, 6)
        place = ("--archive", str(tmp_path / "dead"), "--url", cluster.url_for(PIPELINE))
        words = ("pipeline", "archive", "--dead", "--once", *place)
        status, facts = await run_json_process(*words)
        assert (status, facts["rows"], facts["archived_rows"], facts["unreachable"]) == (0, 12, 12, [])

        target = next(store for store in ("q1", "q2") if store != entry.stores[0].id)
        await queues.request(MoveShards(b"orders", dict.fromkeys(range(4), target), "test"))
        await queues.ended("orders", 120.0)
        status, facts = await run_json_process(*words)
        assert (status, facts["read"], facts["rows"], facts["archived_rows"]) == (0, 12, 0, 12)

        async with queues.queue("orders") as queue:
            assert all(letter.entry.endswith(f"@{target}") for letter in await queue.dead())
            await bury_in(queue, 1, first=6)
        status, facts = await run_json_process(*words, "--queue", "ord*")
        assert (status, facts["read"], facts["rows"], facts["archived_rows"]) == (0, 7, 1, 13)
    found = polars.read_delta(str(tmp_path / "dead"))
    assert sorted(found.filter(polars.col("queue") == "orders")["payload"]) == [b"%d" % number for number in range(7)]
    assert found.filter(polars.col("queue") == "mails").height == 6
    assert set(found["reason"]) == {"no such customer"}


async def test_flags_that_do_not_belong_to_dead_letters_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, complaint in (
        (("--dead",), "dead letters need a table of their own"),
        (("--dead", "--archive", str(tmp_path), "--retain", "3d"), "--retain is not for dead letters"),
        (("--dead", "--archive", str(tmp_path), "--master", "local[2]"), "--master is not for dead letters"),
        (("--queue", "orders", "--archive", str(tmp_path)), "--queue is for dead letters"),
    ):
        status, _, err = await run_command(capsys, "pipeline", "archive", *words)
        assert status == 1
        assert complaint in err
