"""`shoal bench queue`: our queues beside a plain group of Redis Streams, Dramatiq and arq, on real durable stores.

Owns the parts, the order of the runs, the ratios and their goals. Contenders alternate, each run has a new store
(`appendonly yes`, `appendfsync always`, no rewrite of the file), and a ratio is the median of the ratios of the rounds.
Producers and consumers are separate processes with uvloop.

    throughput  one producer and `consumers` consumers; "backlog": all messages are put, then all are taken and ended;
                "flow": both at once, with consumers that wait before the first put. The ratios with goals are those of
                the backlog: only there do both sides have the same batches. Flow has ratios of its own, and so has a
                backlog that is put in small batches.
    latency     from before a single put to the handler of a waiting consumer
    stall       messages of healthy keys, with and without one key whose handler stalls; the consumers are busy
    join        a consumer joins while many messages wait: time until it processes its share
    moves       shards of a real cluster move between two stores: the longest put into a shard while it moves
    memory      memory of the store for one message in each of many keys

Equal for all: messages, payloads, store, durability (each put and each end of a message is confirmed after a sync), and
the number of consumers. Equal for us and Streams: connections, connection class, event loop, and batches, which are
those that a queue uses by itself: puts of 256, and consumers that hold 64. Dramatiq and arq cannot batch; they put from
many threads or tasks at once, so that puts share syncs, and they get fewer messages because they are slower. Not equal:
we keep the order of each key, and have leases, limits and attempts; a Streams group has none of them, Dramatiq and arq
have retries.
"""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import msgspec

import shoal
from shoal.extras import require
from shoal.lab.bench import queue_worker
from shoal.lab.bench.queue_contender import ARQ, DRAMATIQ, PUT_BATCH, SHOAL, STREAMS, TAKE_BATCH, QueueWorkload
from shoal.lab.bench.queue_moves import measure_pauses
from shoal.lab.bench.queue_store import BenchStore
from shoal.lab.bench.queue_worker import Consume, Create, Drain, Join, Joined, Produce, ProduceTimed, Ran
from shoal.lab.harness import LoadProcess, Ready
from shoal.lab.machine import machine
from shoal.plan.queue_settings import QueueSettings

THROUGHPUT: Final = "throughput"
LATENCY: Final = "latency"
STALL: Final = "stall"
JOIN: Final = "join"
MOVES: Final = "moves"
MEMORY: Final = "memory"
PARTS: Final = (THROUGHPUT, LATENCY, STALL, JOIN, MOVES, MEMORY)

AT_LEAST: Final = {"throughput_vs_streams": 0.7, "throughput_vs_dramatiq": 5.0, "throughput_vs_arq": 5.0}
AT_MOST: Final = {
    "server_cpu_vs_streams": 1.0,
    "latency_p50_vs_streams": 1.5,
    "healthy_slowdown_with_stalled_key": 0.10,
    "join_share_s": 2.0,
    "move_pause_ms_p99": 250.0,
    "bytes_per_key_1M": 500.0,
}
"""The goals of the ratios. Those of flow have none: a waiting consumer gets what there is, so batches differ."""

SLOW_SHARE: Final = 20
"""Dramatiq and arq get one message for this many of the others."""
SLOW_MESSAGES_MAX: Final = 1000
SMALL_PUTS: Final = 64
"""Messages of a put in the backlog with small batches."""
WAIT_S: Final = 0.5
"""Pause after which consumers wait for messages."""
JOIN_KEYS: Final = (200, 18)
"""Keys while a consumer joins: many keys that wait, and two for each consumer, which all have owners."""
STALL_MESSAGES_SHARE: Final = 5
RUN_S_MAX: Final = 600.0

Note = Callable[[str], None]
Row = dict[str, Any]


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    parts: tuple[str, ...] = PARTS
    messages: int = 100_000
    keys: int = 200
    consumers: int = 8
    rounds: int = 5
    pairs: int = 15
    """Pairs of runs with and without a stalled key."""
    timed: int = 300
    """Messages of one run for latency."""
    moves: int = 32
    memory_keys: int = 1_000_000
    arq_python: str | None = None
    """An interpreter that has arq, if this one does not: arq needs an older redis-py."""


class Workers:
    """The two processes of a contender."""

    def __init__(self, producer: LoadProcess, consumer: LoadProcess) -> None:
        self.producer = producer
        self.consumer = consumer


@asynccontextmanager
async def _workers(python: str) -> AsyncIterator[Workers]:
    source = str(Path(shoal.__file__).parents[1])
    path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])

    def child(name: str) -> LoadProcess:
        module = "shoal.lab.bench.queue_worker"
        prefix = () if python == sys.executable else ("env", f"PYTHONPATH={path}")
        return LoadProcess(name, module, queue_worker.REPORTS, prefix=prefix, python=python)

    async with child("producer") as producer, child("consumer") as consumer:
        yield Workers(producer, consumer)


async def measure(options: QueueOptions, note: Note) -> dict[str, Any]:
    """Runs the parts; returns what `shoal bench queue --json` prints."""
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    spreads: dict[str, list[float]] = {}
    async with _workers(sys.executable) as ours:
        if THROUGHPUT in options.parts:
            python = _arq_python(options, note)
            if python is None:
                await _throughput(options, dict.fromkeys((SHOAL, STREAMS, DRAMATIQ), ours), note, rows, spreads)
            else:
                async with _workers(python) as others:
                    all_of_them = {SHOAL: ours, STREAMS: ours, DRAMATIQ: ours, ARQ: others}
                    await _throughput(options, all_of_them, note, rows, spreads)
        if LATENCY in options.parts:
            await _latency(options, ours, note, rows, spreads)
        if STALL in options.parts:
            await _stall(options, ours, note, rows, spreads)
        if JOIN in options.parts:
            await _join(options, ours, note, rows, spreads)
        if MOVES in options.parts:
            await _moves(options, note, rows, ratios)
        if MEMORY in options.parts:
            await _memory(options, ours, note, rows, ratios)
    ratios = {name: median(values) for name, values in spreads.items()} | ratios
    return {
        "name": "queue",
        "workload": describe(options),
        "machine": machine(),
        "rows": rows,
        "ratios": ratios,
        "spreads": {name: [min(values), max(values)] for name, values in spreads.items()},
        "goals": {name: goal for name in ratios if (goal := _goal(name))},
        "missed": missed(ratios),
    }


def _goal(name: str) -> str:
    """The goal of a ratio; empty if it has none."""
    if name in AT_LEAST:
        return f">= {AT_LEAST[name]:g}"
    return f"<= {AT_MOST[name]:g}" if name in AT_MOST else ""


def missed(ratios: dict[str, float]) -> list[str]:
    """The ratios that do not meet their goals."""
    low = [name for name, goal in AT_LEAST.items() if name in ratios and ratios[name] < goal]
    return low + [name for name, goal in AT_MOST.items() if name in ratios and ratios[name] > goal]


def describe(options: QueueOptions) -> dict[str, str]:
    """A description of the measurement."""
    return {
        "all": (
            f"payloads of 100 bytes, {options.keys} keys, 1 producer with puts of {PUT_BATCH}, {options.consumers} "
            f"consumers that hold {TAKE_BATCH}, append-only file synced before each answer; "
            f"medians of {options.rounds} rounds"
        ),
        "backlog": "all messages are put, then all are taken and ended; rates are those of both phases together",
        "small puts": f"a backlog with puts of {SMALL_PUTS}",
        "flow": "puts and takes at the same time; consumers wait before the first put",
    }


def _arq_python(options: QueueOptions, note: Note) -> str | None:
    """An interpreter that has arq: the one that the caller names, or the one that `./shoal` has made."""
    made = Path(sys.prefix, "arq", "bin", "python")
    python = options.arq_python or (str(made) if made.exists() else sys.executable)
    found = subprocess.run([python, "-c", "import arq, msgspec, uvloop"], capture_output=True, check=False)
    if found.returncode == 0:
        return python
    note(f"arq is not measured: {python} does not have it; name another interpreter with --arq-python")
    return None


# Throughput


async def _throughput(
    options: QueueOptions, workers: dict[str, Workers], note: Note, rows: list[Row], spreads: dict[str, list[float]]
) -> None:
    require("bench queue", "dramatiq")
    names = [*workers]
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(options.rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            note(f"throughput, round {number + 1} of {options.rounds}: {name}")
            messages = options.messages
            if name not in (SHOAL, STREAMS):
                messages = min(max(messages // SLOW_SHARE, 1), SLOW_MESSAGES_MAX)
            run = await _backlog(options, name, workers[name], messages)
            run |= await _flow(options, name, workers[name], messages)
            if name in (SHOAL, STREAMS):
                small = await _backlog(options, name, workers[name], messages, SMALL_PUTS)
                run |= {f"small_puts_{field}": small[field] for field in ("backlog_per_s", "backlog_server_us")}
            runs[name].append(run)
    for name in names:
        figures = {key: median(run[key] for run in runs[name]) for key in runs[name][0]}
        rows.append({"part": THROUGHPUT, "contender": name, "rounds": options.rounds, **figures})

    def each(field: str, other: str) -> list[float]:
        pairs = zip(runs[SHOAL], runs[other], strict=True)
        return [mine[field] / theirs[field] for mine, theirs in pairs]

    for other in names[1:]:
        spreads[f"throughput_vs_{other}"] = each("backlog_per_s", other)
        spreads[f"flow_throughput_vs_{other}"] = each("flow_per_s", other)
    spreads["server_cpu_vs_streams"] = each("backlog_server_us", STREAMS)
    spreads["flow_server_cpu_vs_streams"] = each("flow_server_us", STREAMS)
    spreads["small_puts_throughput_vs_streams"] = each("small_puts_backlog_per_s", STREAMS)
    spreads["small_puts_server_cpu_vs_streams"] = each("small_puts_backlog_server_us", STREAMS)


def _load(options: QueueOptions, store: BenchStore, messages: int, keys: int | None = None) -> QueueWorkload:
    return QueueWorkload(
        port=store.port,
        queue="bench",
        messages=messages,
        keys=keys or options.keys,
        consumers=options.consumers,
    )


async def _backlog(
    options: QueueOptions, name: str, workers: Workers, messages: int, put_batch: int = PUT_BATCH
) -> dict[str, float]:
    async with BenchStore() as store:
        load = msgspec.structs.replace(_load(options, store, messages), put_batch=put_batch)
        await workers.producer.ask(Create(name, load), Ready, RUN_S_MAX)
        cpu = [await store.cpu_s()]
        put = await workers.producer.ask(Produce(name, load), Ran, RUN_S_MAX)
        cpu.append(await store.cpu_s())
        taken = await workers.consumer.ask(Consume(name, load), Ran, RUN_S_MAX)
        cpu.append(await store.cpu_s())
    put_s, take_s = put.ended_at - put.began_at, taken.ended_at - taken.began_at
    return {
        "messages": messages,
        "backlog_per_s": messages / (put_s + take_s),
        "put_per_s": messages / put_s,
        "take_per_s": messages / take_s,
        "backlog_server_us": (cpu[2] - cpu[0]) / messages * 1e6,
        "put_server_us": (cpu[1] - cpu[0]) / messages * 1e6,
        "take_server_us": (cpu[2] - cpu[1]) / messages * 1e6,
        "put_client_us": put.cpu_s / messages * 1e6,
        "take_client_us": taken.cpu_s / messages * 1e6,
    }


async def _flow(options: QueueOptions, name: str, workers: Workers, messages: int) -> dict[str, float]:
    async with BenchStore() as store:
        load = _load(options, store, messages)
        await workers.producer.ask(Create(name, load), Ready, RUN_S_MAX)
        workers.consumer.send(Consume(name, load))
        await asyncio.sleep(WAIT_S)
        cpu = await store.cpu_s()
        put = await workers.producer.ask(Produce(name, load), Ran, RUN_S_MAX)
        taken = await workers.consumer.answer(Ran, RUN_S_MAX)
        cpu = await store.cpu_s() - cpu
    return {
        "flow_per_s": messages / (taken.ended_at - put.began_at),
        "flow_server_us": cpu / messages * 1e6,
        "flow_client_us": (put.cpu_s + taken.cpu_s) / messages * 1e6,
    }


# Latency


async def _latency(
    options: QueueOptions, workers: Workers, note: Note, rows: list[Row], spreads: dict[str, list[float]]
) -> None:
    names = [SHOAL, STREAMS]
    runs: dict[str, list[list[float]]] = {name: [] for name in names}
    for number in range(options.rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            note(f"latency, round {number + 1} of {options.rounds}: {name}")
            async with BenchStore() as store:
                load = msgspec.structs.replace(_load(options, store, options.timed, 1), consumers=1)
                await workers.producer.ask(Create(name, load), Ready, RUN_S_MAX)
                workers.consumer.send(Consume(name, load, timed=True))
                await asyncio.sleep(WAIT_S)
                await workers.producer.ask(ProduceTimed(name, load), Ran, RUN_S_MAX)
                runs[name].append((await workers.consumer.answer(Ran, RUN_S_MAX)).latencies_us)
    for name in names:
        p50s, p99s = [median(run) for run in runs[name]], [quantiles(run, n=100)[98] for run in runs[name]]
        figures = {"latency_us_p50": median(p50s), "latency_us_p99": median(p99s), "messages": options.timed}
        rows.append({"part": LATENCY, "contender": name, "rounds": options.rounds, **figures})
    pairs = zip(runs[SHOAL], runs[STREAMS], strict=True)
    spreads["latency_p50_vs_streams"] = [median(mine) / median(theirs) for mine, theirs in pairs]


# Sharing


async def _stall(
    options: QueueOptions, workers: Workers, note: Note, rows: list[Row], spreads: dict[str, list[float]]
) -> None:
    messages = max(options.messages // STALL_MESSAGES_SHARE, 1)
    runs: dict[bool, list[Ran]] = {False: [], True: []}
    for number in range(options.pairs):
        note(f"stall, pair {number + 1} of {options.pairs}")
        for stalled in (False, True) if number % 2 == 0 else (True, False):
            async with BenchStore() as store:
                load = _load(options, store, messages)
                await workers.producer.ask(Create(SHOAL, load), Ready, RUN_S_MAX)
                await workers.producer.ask(Produce(SHOAL, load), Ran, RUN_S_MAX)
                runs[stalled].append(await workers.consumer.ask(Drain(load, stalled), Ran, RUN_S_MAX))
    for stalled, name in ((False, "healthy"), (True, "stalled key")):
        took = [one.ended_at - one.began_at for one in runs[stalled]]
        rows.append(
            {
                "part": STALL,
                "contender": name,
                "pairs": options.pairs,
                "messages": messages,
                "take_per_s": messages / median(took),
                "take_client_us": median(one.cpu_s for one in runs[stalled]) / messages * 1e6,
            }
        )
    pairs = zip(runs[True], runs[False], strict=True)
    slower = [(bad.ended_at - bad.began_at) / (good.ended_at - good.began_at) - 1 for bad, good in pairs]
    spreads["healthy_slowdown_with_stalled_key"] = slower


async def _join(
    options: QueueOptions, workers: Workers, note: Note, rows: list[Row], spreads: dict[str, list[float]]
) -> None:
    found: dict[int, list[Joined]] = {keys: [] for keys in JOIN_KEYS}
    for number in range(options.rounds):
        for keys in JOIN_KEYS:
            note(f"join, round {number + 1} of {options.rounds}: {keys} keys")
            async with BenchStore() as store:
                load = _load(options, store, options.messages, keys)
                await workers.producer.ask(Create(SHOAL, load), Ready, RUN_S_MAX)
                await workers.producer.ask(Produce(SHOAL, load), Ran, RUN_S_MAX)
                found[keys].append(await workers.consumer.ask(Join(load), Joined, RUN_S_MAX))
    for keys, joined in found.items():
        share_s = median(one.share_s for one in joined)
        row = {"part": JOIN, "contender": f"{keys} keys", "rounds": options.rounds, "messages": options.messages}
        rows.append({**row, "join_share_s": share_s, "join_share_s_max": max(one.share_s for one in joined)})
    spreads["join_share_s"] = max(([one.share_s for one in joined] for joined in found.values()), key=median)


# Memory


async def _moves(options: QueueOptions, note: Note, rows: list[Row], ratios: dict[str, float]) -> None:
    note(f"moves: {options.moves} shards, {options.messages // QueueSettings().shards} messages each")
    pauses = sorted(await measure_pauses(options.messages, options.keys, options.moves))
    p99 = pauses[math.ceil(0.99 * len(pauses)) - 1]
    figures = {"move_pause_ms_p50": median(pauses), "move_pause_ms_p99": p99, "moves": len(pauses)}
    rows.append({"part": MOVES, "contender": SHOAL, "messages": options.messages, **figures})
    ratios["move_pause_ms_p99"] = p99


async def _memory(
    options: QueueOptions, workers: Workers, note: Note, rows: list[Row], ratios: dict[str, float]
) -> None:
    note(f"memory, {options.memory_keys:,} keys")
    async with BenchStore() as store:
        load = _load(options, store, options.memory_keys, options.memory_keys)
        await workers.producer.ask(Create(SHOAL, load), Ready, RUN_S_MAX)
        before = await store.memory_bytes()
        put = await workers.producer.ask(Produce(SHOAL, load), Ran, RUN_S_MAX)
        each = (await store.memory_bytes() - before) / options.memory_keys
    row = {"part": MEMORY, "contender": SHOAL, "messages": options.memory_keys, "bytes_per_key": each}
    rows.append({**row, "put_per_s": options.memory_keys / (put.ended_at - put.began_at)})
    ratios["bytes_per_key_1M"] = each
