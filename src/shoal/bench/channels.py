"""`shoal bench channels`: the bus beside redis-py and beside a bare client, on one real server with its agent.

Owns the workloads, the order of the runs and the ratios. In each round every contender runs each workload,
one after the other, so that what happens on the machine meanwhile happens to all; what is reported is the
median of the rounds. Publishers and subscribers are processes of their own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any, Final

import msgspec

from shoal.bench import agent_cost
from shoal.bench.contender import CONTENDERS, RAW, REDIS_PY, SHOAL, Target
from shoal.bench.machine import machine
from shoal.bench.worker import Order
from shoal.bench.workers import Worker
from shoal.cluster.acl import CLIENT
from shoal.cluster.local import LocalCluster

CONFIRMED: Final = "confirmed"
CONFIRMED_FEW: Final = "confirmed_few"
PIPELINED: Final = "pipelined"
FANOUT: Final = "fanout"
LATENCY: Final = "latency"
LATENCY_FREE: Final = "latency_free"
WORKLOADS: Final = (CONFIRMED, CONFIRMED_FEW, PIPELINED, FANOUT, LATENCY, LATENCY_FREE)

EXPECTED_PER_S: Final = {
    CONFIRMED: {REDIS_PY: 20_000, RAW: 200_000, SHOAL: 120_000},
    CONFIRMED_FEW: {REDIS_PY: 20_000, RAW: 150_000, SHOAL: 100_000},
    PIPELINED: {REDIS_PY: 30_000, RAW: 250_000, SHOAL: 150_000},
    FANOUT: {REDIS_PY: 400, RAW: 5_000, SHOAL: 3_000},
    LATENCY: {REDIS_PY: 8_000, RAW: 16_000, SHOAL: 16_000},
    LATENCY_FREE: {REDIS_PY: 5_000, RAW: 8_000, SHOAL: 8_000},
}
"""Messages a second, roughly: only for how many messages a run of each contender gets."""

RUN_BYTES_MAX: Final = 24 << 20
"""What one run may publish: below what a server buffers for a slow subscriber before it cuts it off."""
FRAMING_BYTES: Final = 100
"""What a message takes on the wire beside its payload, at the most."""
AGENT_MESSAGES_PER_S: Final = 500_000

Figures = dict[str, float]
Samples = dict[tuple[str, str], list[Figures]]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    rounds: int = 5
    run_s: float = 0.8
    payload_bytes: int = 100
    tasks: int = 256
    batch: int = 100
    connections: int = 200
    tasks_few: int = 64

    def messages(self, workload: str, contender: str) -> int:
        """How many messages one run publishes."""
        fitting = RUN_BYTES_MAX // (self.payload_bytes + FRAMING_BYTES)
        expected = int(EXPECTED_PER_S[workload][contender] * self.run_s)
        return max(self.tasks, min(expected, fitting))


async def measure(options: Options, note: Callable[[str], None]) -> dict[str, Any]:
    """Runs everything on a cluster of its own; returns what `shoal bench channels --json` prints."""
    note("starting a cluster of one server and its agent")
    async with LocalCluster(servers=1) as cluster, contextlib.AsyncExitStack() as stack:
        pairs: dict[str, tuple[Worker, Worker]] = {}
        for contender in CONTENDERS:
            pairs[contender] = (await Worker.start(contender), await Worker.start(contender))
            for worker in pairs[contender]:
                stack.push_async_callback(worker.close)
        target = _target(cluster)
        samples: Samples = {}
        for number in range(options.rounds):
            for workload in WORKLOADS:
                note(f"round {number + 1} of {options.rounds}: {workload}")
                for contender in _rotated(number):
                    if workload in (LATENCY, LATENCY_FREE):
                        figures = await _round_trips(workload, pairs[contender][0], cluster, options, number)
                    else:
                        figures = await _run(workload, *pairs[contender], target, options, number)
                    samples.setdefault((workload, contender), []).append(figures)
        note("what the agent costs (it is killed at the end, to compare)")
        flood = Order("flood", target, "", int(AGENT_MESSAGES_PER_S * options.run_s), 0, options.payload_bytes)
        agent = await agent_cost.measure(cluster, pairs[RAW][0], flood)
    rows: list[dict[str, Any]] = [
        {"contender": contender, "workload": workload, **_medians(samples[workload, contender])}
        for workload in WORKLOADS
        for contender in CONTENDERS
    ]
    return {
        "name": "channels",
        "workload": describe(options),
        "machine": machine(),
        "rows": [*rows, agent],
        "ratios": ratios({(row["workload"], row["contender"]): row for row in rows}),
    }


def _target(cluster: LocalCluster) -> Target:
    (server,) = cluster.servers
    return Target(server.host, server.port, CLIENT, cluster.state.passwords[CLIENT], cluster.url)


def _rotated(number: int) -> tuple[str, ...]:
    """The contenders, another one first in each round."""
    first = number % len(CONTENDERS)
    return CONTENDERS[first:] + CONTENDERS[:first]


async def _run(
    workload: str, publisher: Worker, subscriber: Worker, target: Target, options: Options, number: int
) -> Figures:
    """One run of one contender on a channel of its own."""
    contender = publisher.contender
    messages = options.messages(workload, contender)
    connections = options.connections if workload == FANOUT else 1
    publish = Order(
        do="pipeline" if workload == PIPELINED else "confirm",
        target=target,
        channel=f"bench.{workload}.{contender}.{number}",
        messages=messages,
        warmup=max(options.tasks, messages // 10),
        payload_bytes=options.payload_bytes,
        tasks={PIPELINED: options.batch, CONFIRMED: options.tasks}.get(workload, options.tasks_few),
        connections=connections,
    )
    await subscriber.begin(msgspec.structs.replace(publish, do="listen"))
    await publisher.begin(publish)
    await subscriber.stop()
    publisher.go_on()
    published, received = await publisher.end(), await subscriber.end()
    deliveries = messages * connections
    seconds = max(published.ended_at, received.ended_at) - published.began_at
    return {
        "messages": messages,
        "seconds": seconds,
        "messages_per_s": messages / seconds,
        "deliveries_per_s": deliveries / seconds,
        "cpu_us_publisher": 1e6 * published.cpu_s / messages,
        "cpu_us_subscriber": 1e6 * received.cpu_s / deliveries,
    }


async def _round_trips(workload: str, worker: Worker, cluster: LocalCluster, options: Options, number: int) -> Figures:
    """One run of one contender, alone with the server: both on one core, or where the scheduler puts them."""
    (server,) = cluster.state.servers
    assert server.process is not None
    messages = options.messages(workload, worker.contender)
    cores = os.sched_getaffinity(server.process.pid)
    order = Order(
        do="ping",
        target=_target(cluster),
        channel=f"bench.{workload}.{worker.contender}.{number}",
        messages=messages,
        warmup=max(10, messages // 10),
        payload_bytes=options.payload_bytes,
        core=min(cores) if workload == LATENCY else None,
    )
    if workload == LATENCY:
        os.sched_setaffinity(server.process.pid, {min(cores)})
    try:
        answer = await worker.do(order)
    finally:
        os.sched_setaffinity(server.process.pid, cores)
    percentiles = quantiles(answer.latencies_us, n=100)
    seconds = answer.ended_at - answer.began_at
    return {
        "messages": messages,
        "seconds": seconds,
        "messages_per_s": messages / seconds,
        "cpu_us": 1e6 * answer.cpu_s / messages,
        "latency_us_p50": percentiles[49],
        "latency_us_p99": percentiles[98],
    }


def _medians(runs: list[Figures]) -> Figures:
    return {name: median(run[name] for run in runs) for name in runs[0]}


def ratios(rows: dict[tuple[str, str], dict[str, Any]]) -> Figures:
    """The bus against the others. Those without a workload in their name are of `confirmed`."""

    def compare(name: str, workload: str, other: str) -> float:
        return float(rows[workload, SHOAL][name] / rows[workload, other][name])

    def compare_cpu(workload: str, other: str) -> float:
        ours, theirs = rows[workload, SHOAL], rows[workload, other]
        return float(
            (ours["cpu_us_publisher"] + ours["cpu_us_subscriber"])
            / (theirs["cpu_us_publisher"] + theirs["cpu_us_subscriber"])
        )

    return {
        "throughput_vs_redis_py": compare("messages_per_s", CONFIRMED, REDIS_PY),
        "throughput_few_vs_redis_py": compare("messages_per_s", CONFIRMED_FEW, REDIS_PY),
        "fanout_vs_redis_py": compare("deliveries_per_s", FANOUT, REDIS_PY),
        "cpu_vs_redis_py": compare_cpu(CONFIRMED, REDIS_PY),
        "cpu_vs_raw": compare_cpu(CONFIRMED, RAW),
        "latency_p50_vs_redis_py": compare("latency_us_p50", LATENCY, REDIS_PY),
        "throughput_vs_raw": compare("messages_per_s", CONFIRMED, RAW),
        "fanout_vs_raw": compare("deliveries_per_s", FANOUT, RAW),
        "fanout_cpu_subscriber_vs_redis_py": compare("cpu_us_subscriber", FANOUT, REDIS_PY),
        "fanout_cpu_subscriber_vs_raw": compare("cpu_us_subscriber", FANOUT, RAW),
        "latency_p50_vs_raw": compare("latency_us_p50", LATENCY, RAW),
        "latency_free_p50_vs_redis_py": compare("latency_us_p50", LATENCY_FREE, REDIS_PY),
        "latency_free_p50_vs_raw": compare("latency_us_p50", LATENCY_FREE, RAW),
        "pipelined_throughput_vs_redis_py": compare("messages_per_s", PIPELINED, REDIS_PY),
        "pipelined_cpu_vs_redis_py": compare_cpu(PIPELINED, REDIS_PY),
        "pipelined_cpu_vs_raw": compare_cpu(PIPELINED, RAW),
    }


def describe(options: Options) -> dict[str, str]:
    """What each contender does, in words."""
    return {
        "all": (
            f"{options.payload_bytes} byte payloads on one server of a cluster, its agent running and observing; "
            "publisher and subscriber are two processes, each with uvloop; every contender runs every workload "
            f"in each of {options.rounds} rounds, on new connections, after a warm-up; figures are medians of the "
            "rounds; CPU is user and system time of the process, per message (of the subscriber: per delivery)"
        ),
        CONFIRMED: (
            f"one publisher process, {options.tasks} tasks that each publish a message and wait until the server "
            "has confirmed it; one subscriber; a run ends when the subscriber has taken the last message"
        ),
        CONFIRMED_FEW: f"the same with {options.tasks_few} tasks",
        PIPELINED: (
            f"the same with one task and batches of {options.batch}, each batch when the last one is confirmed: "
            "redis-py pipeline(transaction=False), raw one write, shoal publish() without confirm and drain()"
        ),
        FANOUT: (
            f"as confirmed, with {options.tasks_few} tasks and {options.connections} subscribing connections in the "
            "subscriber process"
        ),
        LATENCY: (
            "nothing else runs: one process publishes a message, waits until it is confirmed and until its own "
            "subscription has handed it the message, and publishes the next; server and process share a core, since "
            "elsewhere the time is that of waking a sleeping core, by the whim of the scheduler"
        ),
        LATENCY_FREE: "the same, and the scheduler chooses the cores: most of the time goes into waking them",
        REDIS_PY: ("redis.asyncio with hiredis, a connection for each publishing task, pubsub.listen(), no timeouts"),
        RAW: "hiredis in a bare asyncio.Protocol: no Shoal code, no loss detection, no order, no reconnecting",
        SHOAL: "Bus.publish(confirm=True) and `async for` over a subscription: every promise of the bus",
        "observed": (
            "one connection publishes as fast as the server takes it on 1000 channels without subscribers; the "
            "agent kept up if its telemetry tells of every message; then the same with the agent killed"
        ),
    }
