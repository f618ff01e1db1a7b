"""`shoal bench recording`: the rate that the recorder of one server sustains, and the burst that it absorbs.

Owns the measurements and their figures. A publisher in its own process publishes faster than the agent records, so the
agent works without a pause from the first message to the last one. Messages that it has not read yet wait in the
server's output buffer for it (`client-output-buffer-limit pubsub`): that buffer is the size of a burst. Bursts double
until one has gaps; each has a cluster of its own.

Every message is looked for in the records. A burst is absorbed if all of them are there and there is no gap.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.cluster.acl import ADMIN, PIPELINE
from shoal.cluster.local import LocalCluster
from shoal.cluster.servers import OUTPUT_BUFFER_LIMIT
from shoal.history.entry_decoder import decode_entries
from shoal.history.record_reader import BEGINNING, RecordReader
from shoal.history.recording_switch import switch_recording
from shoal.history.server_reader import Login
from shoal.lab.bench import recording_worker
from shoal.lab.bench.contender import BenchError
from shoal.lab.bench.recording_worker import Burst, Published
from shoal.lab.harness import LoadProcess
from shoal.lab.machine import machine, process_cpu_s

SUSTAINED: Final = "sustained"
BURST: Final = "burst"
WORDS: Final = {
    SUSTAINED: "messages of one publisher, as fast as the server confirms them, on recorded channels; rows_per_s: from "
    "the first publication to the last entry",
    BURST: "the same, twice as many each time until some are missing from the records",
}
CHANNELS: Final = 8
"""A record holds 1,000,000 entries, so a large burst needs several."""
PUBLISH_S_MAX: Final = 600.0
IDLE_S_MAX: Final = 30.0
"""After this time without another entry the recorder is done: it gives up what it asked publishers for after 15 s."""
POLL_S: Final = 0.1


class RecordingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the measurement."""

    messages: int = 300_000
    """Of each sustained run."""
    burst_first: int = 250_000
    burst_max: int = 2_000_000
    """No larger burst is tried."""
    payload_bytes: int = 100
    rounds: int = 3


class BurstResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one burst."""

    messages: int
    recorded: int
    """Different messages in the records."""
    gaps: int
    publish_s: float
    record_s: float
    agent_cpu_s: float
    server_cpu_s: float

    @property
    def is_absorbed(self) -> bool:
        """Whether everything is recorded."""
        return self.recorded == self.messages and not self.gaps


async def measure(options: RecordingOptions, note: Callable[[str], None]) -> dict[str, Any]:
    """All rows and ratios."""
    sustained = []
    for number in range(options.rounds):
        note(f"sustained, round {number + 1} of {options.rounds}")
        found = await _publish(options.messages, options.payload_bytes)
        if not found.is_absorbed:
            raise BenchError(f"recorded {found.recorded:,} of {found.messages:,} messages, {found.gaps} gaps")
        sustained.append(found)
    rows = [_sustained_row(sustained)]
    absorbed, messages = max(found.messages for found in sustained), options.burst_first
    while messages <= options.burst_max:
        note(f"a burst of {messages:,} messages")
        found = await _publish(messages, options.payload_bytes)
        rows.append(_burst_row(found))
        if not found.is_absorbed:
            break
        absorbed, messages = max(absorbed, found.messages), 2 * messages
    words = {"all": f"1 server, {CHANNELS} channels, payloads of {options.payload_bytes} bytes", **WORDS}
    return {
        "name": "recording",
        "workload": words,
        "machine": machine(),
        "rows": rows,
        "ratios": {},
        "rows_per_s": rows[0]["rows_per_s"],
        "burst_messages": absorbed,
        "burst_is_limit": messages <= options.burst_max,
        "burst_bytes_max": OUTPUT_BUFFER_LIMIT[0],
    }


async def _publish(messages: int, payload_bytes: int) -> BurstResult:
    """Publishes a burst on a new cluster; returns when the recorder is done with it."""
    process = LoadProcess("publisher", "shoal.lab.bench.recording_worker", recording_worker.REPORTS)
    async with LocalCluster(1, tls=False) as cluster, process:
        (server,), (agent,) = cluster.state.servers, cluster.state.agents
        assert server.process is not None
        assert agent.process is not None
        _, waiting = await switch_recording(cluster.url_for(ADMIN), b"bench.*", True)
        if waiting:
            raise BenchError("the agent does not record")
        channels = [f"bench.{number}" for number in range(CHANNELS)]
        order = Burst(url=cluster.url, channels=channels, messages=1, payload_bytes=payload_bytes)
        records = _Records(cluster, channels)
        await process.ask(order, Published, PUBLISH_S_MAX)  # connections, streams and records are open
        await records.until(1)
        each = messages // CHANNELS
        before = process_cpu_s(agent.process.pid), process_cpu_s(server.process.pid)
        order = msgspec.structs.replace(order, messages=each)
        published = await process.ask(order, Published, PUBLISH_S_MAX)
        done_at = await records.until(1 + each)
        after = process_cpu_s(agent.process.pid), process_cpu_s(server.process.pid)
        recorded, gaps = await asyncio.to_thread(records.count)
    return BurstResult(
        messages=each * CHANNELS,
        recorded=recorded - CHANNELS,
        gaps=gaps,
        publish_s=published.ended_at - published.began_at,
        record_s=done_at - published.began_at,
        agent_cpu_s=after[0] - before[0],
        server_cpu_s=after[1] - before[1],
    )


class _Records:
    """The records of one server, read without the agent's knowledge."""

    def __init__(self, cluster: LocalCluster, channels: list[str]) -> None:
        (self._server,) = cluster.servers
        self._login = Login(PIPELINE, cluster.state.passwords[PIPELINE])
        self._channels = [channel.encode() for channel in channels]

    async def until(self, last: int) -> float:
        """Waits until the newest message of each channel has the number `last`, or until the recorder is idle; returns
        when the last entry came."""
        ends, changed_at = await asyncio.to_thread(self._ends), time.monotonic()
        while min(ends) < last and time.monotonic() < changed_at + IDLE_S_MAX:
            await asyncio.sleep(POLL_S)
            before, ends = ends, await asyncio.to_thread(self._ends)
            if ends != before:
                changed_at = time.monotonic()
        return changed_at

    def _ends(self) -> list[int]:
        with RecordReader(self._server, self._login) as reader:
            return [max(reader.ends(channel).values(), default=0) for channel in self._channels]

    def count(self) -> tuple[int, int]:
        """The number of different messages, and that of gaps."""
        messages = gaps = 0
        with RecordReader(self._server, self._login) as reader:
            for channel in self._channels:
                numbers: set[int] = set()
                for page in reader.pages(channel, BEGINNING.entry):
                    rows = decode_entries(channel.decode(), self._server.id, page)
                    numbers.update(rows["sequence"].to_numpy(zero_copy_only=False)[~_flags(rows, "is_gap")].tolist())
                    gaps += int(_flags(rows, "is_gap").sum())
                messages += len(numbers)
        return messages, gaps


def _flags(rows: pa.RecordBatch, name: str) -> npt.NDArray[np.bool_]:
    flags: npt.NDArray[np.bool_] = rows[name].to_numpy(zero_copy_only=False).astype(bool)
    return flags


def _sustained_row(found: list[BurstResult]) -> dict[str, Any]:
    per_s = [one.messages / one.record_s for one in found]
    return {
        "contender": SUSTAINED,
        "messages": found[0].messages,
        "rows_per_s": round(median(per_s)),
        "rows_per_s_min": round(min(per_s)),
        "rows_per_s_max": round(max(per_s)),
        "published_per_s": round(median(one.messages / one.publish_s for one in found)),
        "cpu_us_agent": round(median(one.agent_cpu_s / one.messages for one in found) * 1e6, 2),
        "cpu_us_server": round(median(one.server_cpu_s / one.messages for one in found) * 1e6, 2),
        "rounds": len(found),
    }


def _burst_row(found: BurstResult) -> dict[str, Any]:
    return {
        "contender": BURST,
        "messages": found.messages,
        "recorded": found.recorded,
        "gaps": found.gaps,
        "publish_s": round(found.publish_s, 2),
        "record_s": round(found.record_s, 2),
        "rows_per_s": round(found.recorded / found.record_s),
    }
