"""`shoal bench queue`, so small that only the form of its result can be judged."""

from __future__ import annotations

import asyncio
import json
from typing import cast

import msgspec
import pytest

from shoal import cli
from shoal.cluster.servers import free_port
from shoal.coordination.interface import Coordinator, Versioned
from shoal.errors import ConflictError
from shoal.lab.bench import queue, queue_store
from shoal.lab.bench.queue import AT_LEAST, AT_MOST, missed
from shoal.lab.bench.queue_moves import move_shard
from shoal.lab.bench.queue_store import BenchStore
from shoal.plan.keys import move_key
from shoal.plan.kinds import QUEUE
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_settings import QueueSettings
from shoal.plan.ring import ServerAddress
from shoal.plan.signature import Signer, Verifier


def test_a_small_run_has_a_row_for_every_part_and_contender(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--messages", "2000", "--keys", "500", "--rounds", "1", "--pairs", "1", "--json")
    parts = [word for part in ("throughput", "latency", "stall", "moves", "memory") for word in ("--only", part)]
    status = cli.main(("bench", "queue", *words, *parts))
    output = capsys.readouterr()
    assert output.out, output.err
    facts = json.loads(output.out)
    assert {"name", "workload", "machine", "rows", "ratios"} <= facts.keys()
    assert facts["name"] == "queue"
    rows = {(row["part"], row["contender"]): row for row in facts["rows"]}
    assert rows.keys() - {("throughput", "arq")} == {
        *(("throughput", name) for name in ("shoal", "streams", "dramatiq")),
        *(("latency", name) for name in ("shoal", "streams")),
        ("stall", "healthy"),
        ("stall", "stalled key"),
        ("moves", "shoal"),
        ("memory", "shoal"),
    }
    for name in ("shoal", "streams"):
        row = rows["throughput", name]
        assert row["messages"] == 2000
        assert min(value for value in row.values() if isinstance(value, float)) > 0
        assert rows["latency", name]["latency_us_p50"] > 0
    assert rows["moves", "shoal"]["moves"] == 2
    assert rows["moves", "shoal"]["move_pause_ms_p99"] > 0
    assert rows["memory", "shoal"]["bytes_per_key"] > 100  # the payload alone
    known = {*AT_LEAST, *AT_MOST} - {"join_share_s", "throughput_vs_arq"}
    flow = {"flow_server_cpu_vs_streams", "flow_throughput_vs_streams", "flow_throughput_vs_dramatiq"}
    flow |= {"small_puts_server_cpu_vs_streams", "small_puts_throughput_vs_streams"}
    assert facts["ratios"].keys() - {"throughput_vs_arq", "flow_throughput_vs_arq"} == known | flow
    assert not flow & facts["goals"].keys(), "flow and small puts are reported without a goal"
    assert facts["missed"] == missed(facts["ratios"])
    assert status == (1 if facts["missed"] else 0)


def test_goals_are_judged_in_their_direction() -> None:
    good = {"throughput_vs_streams": 0.7, "server_cpu_vs_streams": 1.0}
    assert missed(good) == []
    assert missed({"throughput_vs_streams": 0.69, "server_cpu_vs_streams": 1.01}) == [*good]


def test_a_part_of_another_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(("bench", "queue", "--only", "sink")) != 0
    assert "throughput" in capsys.readouterr().err
    assert queue.PARTS


class BusyCluster:
    """A coordinator whose leader drops the first requests, because the store is away, and then carries one out."""

    def __init__(self, signer: Signer, dropped: int) -> None:
        stores = (ServerAddress("q1", "127.0.0.1", 1), ServerAddress("q2", "127.0.0.1", 2))
        settings = QueueSettings(shards=2)
        self._signer = signer
        self._dropped = dropped
        self._entry = QueueEntry(b"bench", 1, 1, settings, stores, (0, 1))
        self._others = 1
        """Requests of somebody else that are under way."""
        self.asked = 0

    async def get(self, key: str) -> Versioned | None:
        if key != move_key(b"bench", QUEUE):
            return Versioned(self._signer.line(self._entry), 1)
        return None

    async def put(self, key: str, value: bytes, expect: int | None = None) -> int:
        if self._others:
            self._others -= 1
            raise ConflictError("another request is under way")
        self.asked += 1
        if self.asked > self._dropped:
            self._entry = msgspec.structs.replace(self._entry, stores=self._entry.stores[1:], places=(0, 0))
        return 1


def test_a_move_that_a_busy_cluster_gives_up_is_asked_for_again() -> None:
    signer = Signer(Signer.generate())
    cluster = BusyCluster(signer, dropped=2)
    asyncio.run(move_shard(cast(Coordinator, cluster), Verifier(signer.public), 0, "q2"))
    assert cluster.asked == 3


def test_a_store_whose_port_is_taken_meanwhile_starts_on_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start() -> None:
        async with BenchStore() as other:
            ports = iter((other.port, free_port(100)))
            monkeypatch.setattr(queue_store, "free_port", lambda *_: next(ports))
            async with BenchStore() as store:
                assert store.port != other.port
                assert (await store.info("server"))["process_id"] == str(store.pid)

    asyncio.run(start())
