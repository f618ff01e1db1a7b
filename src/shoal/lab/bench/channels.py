"""`shoal bench channels`: the bus, redis-py and a bare client on one real server with its agent.

Owns the workloads, the order of the runs and the ratios. In each round every contender runs each workload, one after
the other, so that other work on the machine affects all of them. The results are medians over the rounds. Publishers
and subscribers are separate processes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any, Final

import msgspec

from shoal.cluster.acl import CLIENT
from shoal.cluster.local import LocalCluster
from shoal.lab.bench import agent_cost
from shoal.lab.bench.contender import CONTENDERS, RAW, REDIS_PY, SHOAL, BenchTarget
from shoal.lab.bench.contender_worker import REPORTS, Flood, Measured, Publish, Receive, RoundTrips, UseContender
from shoal.lab.harness import Go, LoadProcess, Ready
from shoal.lab.machine import machine

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
"""Approximate messages a second, to choose the number of messages of a run."""

RUN_BYTES_MAX: Final = 24 << 20
"""What one run may publish: less than a server buffers for a slow subscriber before it disconnects it."""
FRAMING_BYTES: Final = 100
"""Largest size of a message on the wire without its payload."""
AGENT_MESSAGES_PER_S: Final = 500_000
ANSWER_S_MAX: Final = 120.0
"""How long one run may take. Then the measurement fails: something is stuck."""

Figures = dict[str, float]
Samples = dict[tuple[str, str], list[Figures]]


class ChannelsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    rounds: int = 5
    run_s: float = 0.8
    payload_bytes: int = 100
    tasks: int = 256
    batch: int = 100
    connections: int = 200
    tasks_few: int = 64
    tls: bool = False
    """Whether all contenders, the server and its agent use TLS."""

    def messages(self, workload: str, contender: str) -> int:
        """The number of messages of one run."""
        fitting = RUN_BYTES_MAX // (self.payload_bytes + FRAMING_BYTES)
        expected = int(EXPECTED_PER_S[workload][contender] * self.run_s)
        return max(self.tasks, min(expected, fitting))


async def measure(options: ChannelsOptions, note: Callable[[str], None]) -> dict[str, Any]:
    """Runs everything on a new cluster; returns what `shoal bench channels --json` prints."""
    note("starting a cluster of one server and its agent")
    async with LocalCluster(servers=1, tls=options.tls) as cluster, contextlib.AsyncExitStack() as stack:
        pairs: dict[str, tuple[LoadProcess, LoadProcess]] = {}
        for contender in CONTENDERS:
            pairs[contender] = await _start(contender, stack), await _start(contender, stack)
        target = _target(cluster)
        samples: Samples = {}
        for number in range(options.rounds):
            for workload in WORKLOADS:
                note(f"round {number + 1} of {options.rounds}: {workload}")
                for contender in _rotated(number):
                    channel = f"bench.{workload}.{contender}.{number}"
                    messages = options.messages(workload, contender)
                    if workload in (LATENCY, LATENCY_FREE):
                        figures = await _round_trips(
                            workload, pairs[contender][0], cluster, channel, messages, options.payload_bytes
                        )
                    else:
                        figures = await _run(workload, *pairs[contender], target, channel, messages, options)
                    samples.setdefault((workload, contender), []).append(figures)
        note("cost of the agent (it is killed for comparison)")
        flood = Flood(
            target=target,
            messages=int(AGENT_MESSAGES_PER_S * options.run_s),
            payload_bytes=options.payload_bytes,
        )
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


async def _start(contender: str, stack: contextlib.AsyncExitStack) -> LoadProcess:
    process = LoadProcess(f"process of {contender}", "shoal.lab.bench.contender_worker", REPORTS)
    await stack.enter_async_context(process)
    await process.ask(UseContender(contender), Ready, ANSWER_S_MAX)
    return process


def _target(cluster: LocalCluster) -> BenchTarget:
    (server,) = cluster.servers
    return BenchTarget(server.host, server.port, CLIENT, cluster.state.passwords[CLIENT], cluster.url)


def _rotated(number: int) -> tuple[str, ...]:
    """The contenders, another one first in each round."""
    first = number % len(CONTENDERS)
    return CONTENDERS[first:] + CONTENDERS[:first]


async def _run(
    workload: str,
    publisher: LoadProcess,
    subscriber: LoadProcess,
    target: BenchTarget,
    channel: str,
    messages: int,
    options: ChannelsOptions,
) -> Figures:
    """One run of one contender on a new channel."""
    connections = options.connections if workload == FANOUT else 1
    warmup = max(options.tasks, messages // 10)
    receive = Receive(target=target, channel=channel, messages=messages, warmup=warmup, connections=connections)
    publish = Publish(
        target=target,
        channel=channel,
        messages=messages,
        warmup=warmup,
        payload_bytes=options.payload_bytes,
        tasks={PIPELINED: options.batch, CONFIRMED: options.tasks}.get(workload, options.tasks_few),
        pipelined=workload == PIPELINED,
    )
    await subscriber.ask(receive, Ready, ANSWER_S_MAX)
    await publisher.ask(publish, Ready, ANSWER_S_MAX)
    await subscriber.answer(Ready, ANSWER_S_MAX)
    publisher.send(Go())
    published = await publisher.answer(Measured, ANSWER_S_MAX)
    received = await subscriber.answer(Measured, ANSWER_S_MAX)
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


async def _round_trips(
    workload: str, process: LoadProcess, cluster: LocalCluster, channel: str, messages: int, payload_bytes: int
) -> Figures:
    """One run of one contender, alone with the server: both on one core, or where the scheduler puts them."""
    (server,) = cluster.state.servers
    assert server.process is not None
    cores = os.sched_getaffinity(server.process.pid)
    order = RoundTrips(
        target=_target(cluster),
        channel=channel,
        messages=messages,
        warmup=max(10, messages // 10),
        payload_bytes=payload_bytes,
        core=min(cores) if workload == LATENCY else None,
    )
    if workload == LATENCY:
        os.sched_setaffinity(server.process.pid, {min(cores)})
    try:
        measured = await process.ask(order, Measured, ANSWER_S_MAX)
    finally:
        os.sched_setaffinity(server.process.pid, cores)
    percentiles = quantiles(measured.latencies_us, n=100)
    seconds = measured.ended_at - measured.began_at
    return {
        "messages": messages,
        "seconds": seconds,
        "messages_per_s": messages / seconds,
        "cpu_us": 1e6 * measured.cpu_s / messages,
        "latency_us_p50": percentiles[49],
        "latency_us_p99": percentiles[98],
    }


def _medians(runs: list[Figures]) -> Figures:
    return {name: median(run[name] for run in runs) for name in runs[0]}


def ratios(rows: dict[tuple[str, str], dict[str, Any]]) -> Figures:
    """The bus compared with the others. Ratios without a workload in their name are those of `confirmed`."""

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


def describe(options: ChannelsOptions) -> dict[str, str]:
    """What each workload and contender does, in words."""
    return {
        "all": (
            f"{options.payload_bytes} byte payloads on one server of a cluster, observed by its agent"
            f"{', all with TLS and client certificates' if options.tls else ''}; publisher and "
            "subscriber are two processes, each with uvloop; every contender runs every workload in each of "
            f"{options.rounds} rounds, on new connections, after a warm-up; figures are medians over the rounds; CPU "
            "is user and system time of the process, per message (of the subscriber: per delivery)"
        ),
        CONFIRMED: (
            f"one publisher process, {options.tasks} tasks that each publish a message and wait until the server "
            "has confirmed it; one subscriber; a run ends when the last message is delivered"
        ),
        CONFIRMED_FEW: f"the same with {options.tasks_few} tasks",
        PIPELINED: (
            f"the same with one task and batches of {options.batch}, each when the last one is confirmed: redis-py "
            "pipeline(transaction=False), raw one write, shoal publish() without confirm and drain()"
        ),
        FANOUT: (
            f"as confirmed, with {options.tasks_few} tasks and {options.connections} subscribing connections in the "
            "subscriber process"
        ),
        LATENCY: (
            "nothing else runs: one process publishes a message, waits until it is confirmed and delivered to its own "
            "subscription, and publishes the next; server and process share a core, since otherwise most of the time "
            "goes into waking a sleeping core"
        ),
        LATENCY_FREE: "the same, but the scheduler chooses the cores: most of the time goes into waking them",
        REDIS_PY: ("redis.asyncio with hiredis, a connection for each publishing task, pubsub.listen(), no timeouts"),
        RAW: "hiredis in a bare asyncio.Protocol: no Shoal code, no loss detection, no order, no reconnecting",
        SHOAL: "Bus.publish(confirm=True) and `async for` over a subscription, with all promises of the bus",
        "observed": (
            "one connection publishes as fast as the server accepts it on 1000 channels without subscribers; the "
            "agent kept up if its telemetry contains every message; then the same with the agent killed"
        ),
    }
