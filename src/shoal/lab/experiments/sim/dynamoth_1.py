"""Experiments 1a and 1b of the Dynamoth paper (V.C, figure 4) in the flow simulator: one channel on one server, and on
three.

Owns both micro-benchmarks: their sizes, the model of the paper's server, and the claims.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from shoal.balance.columns import ALL_PUBLISHERS, ALL_SUBSCRIBERS, SINGLE, Placements
from shoal.flow import FlowSimulator, Latencies, Models, PoolModel, ServerModel
from shoal.lab.experiments import ExperimentOptions
from shoal.lab.experiments.paper import PAPER, RESPONSE_LIMIT_MS, figure_4, latencies_of, response_text
from shoal.lab.experiments.result import Drawing, ExperimentResult, Line, Table
from shoal.lab.experiments.sim.one_channel import OneChannel, many_publishers, many_subscribers
from shoal.lab.experiments.sim.verdict import median

SECONDS: Final = 60
"""How long each size runs. Response times are averages over the second half."""
SHOWN: Final = tuple(range(100, 801, 50))
"""Sizes in the figure."""
TRIED: Final = tuple(range(100, 801, 10))
"""Sizes among which the largest supported one is found."""
REPLICAS: Final = 3

SERVER: Final = ServerModel(
    capacity_bytes_per_s=12.5e6,
    publication_cpu_s=20e-6,
    delivery_cpu_s=190e-6,
    connection_messages_per_s=2000.0,
    connection_buffer_bytes=1e6,
    output_buffer_bytes=8e6,
)
"""The paper's server as figure 4 shows it. Its core is full at 500 subscribers with 10 messages a second (so a delivery
takes 190 us), and one connection at 200 publishers with 10 messages a second (2,000 messages a second)."""


@dataclass(frozen=True, slots=True)
class MicroBenchmark:
    """One of the two experiments: which clients grow in number, and how three servers share them."""

    name: str
    figure: str
    grows: str
    mode: int
    mode_name: str
    ratio_min: float
    """Three servers must support at least this multiple of the clients of one."""

    def workload(self, count: int, latencies: Latencies, seed: int) -> OneChannel:
        """The channel with `count` of the clients whose number grows."""
        make = many_subscribers if self.mode == ALL_PUBLISHERS else many_publishers
        return make(count, SECONDS, latencies, seed)


MICRO_A: Final = MicroBenchmark("dynamoth-1a", "4a", "subscribers", ALL_PUBLISHERS, "all_publishers", 1.0)
MICRO_B: Final = MicroBenchmark("dynamoth-1b", "4b", "publishers", ALL_SUBSCRIBERS, "all_subscribers", 2.7)


def run_a(options: ExperimentOptions) -> ExperimentResult:
    """One publisher, up to 800 subscribers."""
    return _run(MICRO_A, options)


def run_b(options: ExperimentOptions) -> ExperimentResult:
    """Up to 800 publishers, one subscriber."""
    return _run(MICRO_B, options)


def _run(micro: MicroBenchmark, options: ExperimentOptions) -> ExperimentResult:
    latencies = latencies_of(options)
    response_ms: dict[str, list[float]] = {}
    largest: dict[str, float] = {}
    for label, servers in (("1 server", 1), (f"{REPLICAS} servers", REPLICAS)):
        options.note(f"{micro.name}: {label}")
        by_seed = [_sizes(micro, servers, latencies, seed) for seed in range(options.seeds)]
        response_ms[label] = [median([sizes[count] for sizes in by_seed]) for count in SHOWN]
        largest[label] = median([_largest(sizes) for sizes in by_seed])
    ratio = largest[f"{REPLICAS} servers"] / largest["1 server"]
    return ExperimentResult(
        name=micro.name,
        paper=PAPER,
        parameters={
            "mode": "sim",
            "seeds": options.seeds,
            "latencies": latencies.source,
            "seconds": SECONDS,
            "publications_per_s_each": 10,
            "replication": micro.mode_name,
            "response_limit_ms": RESPONSE_LIMIT_MS,
            "server": msgspec.to_builtins(SERVER),
        },
        series={micro.grows: list(SHOWN), "response_ms": response_ms},
        headline={
            f"{micro.grows}_supported": largest,
            "ratio_replicated_vs_single": ratio,
            "response_ms_at_100": {label: values[0] for label, values in response_ms.items()},
        },
        tables=[_table(micro, response_ms, largest)],
        drawings=[_drawing(micro, response_ms)],
        paragraph=_paragraph(micro, response_ms, largest, ratio),
        claims=_claims(micro, response_ms, largest, ratio),
    )


def _sizes(micro: MicroBenchmark, servers: int, latencies: Latencies, seed: int) -> dict[int, float]:
    """The response time of every size: the average of the second half, infinite if a message was not delivered."""
    mode = micro.mode if servers > 1 else SINGLE
    placements = Placements.build([mode], [tuple(range(servers))])
    models = Models(server=SERVER, pool=PoolModel(servers_first=servers, servers_max=servers))
    found = {}
    for count in TRIED:
        workload = micro.workload(count, latencies, seed)
        series = FlowSimulator(
            workload, None, models=models, seed=seed * len(TRIED) + count, placements=placements
        ).run()
        response, undelivered = series.column("response_ms"), series.column("undelivered")
        found[count] = float("inf") if undelivered.any() else float(np.mean(response[len(response) // 2 :]))
    return found


def _largest(sizes: dict[int, float]) -> int:
    """The largest size that is under the limit together with all smaller ones."""
    largest = 0
    for count, response_ms in sizes.items():
        if response_ms >= RESPONSE_LIMIT_MS:
            break
        largest = count
    return largest


def _claims(
    micro: MicroBenchmark, response_ms: dict[str, list[float]], largest: dict[str, float], ratio: float
) -> dict[str, bool]:
    single, several = response_ms.values()
    claims = {f"3 servers support {micro.ratio_min:g} times the {micro.grows} of one": ratio >= micro.ratio_min}
    if micro is MICRO_A:
        at = {count: (one, three) for count, one, three in zip(SHOWN, single, several, strict=True)}
        below = [one for count, one in zip(SHOWN, single, strict=True) if count <= 500]
        claims["one server's response time grows with the subscribers"] = below == sorted(below)
        claims["one server collapses above 500 subscribers"] = at[550][0] > 10 * at[100][0]
        claims["three servers stay under the limit with 800 subscribers"] = at[800][1] < RESPONSE_LIMIT_MS
        claims["at 100 subscribers both are alike"] = abs(at[100][0] - at[100][1]) < 0.25 * at[100][1]
    else:
        claims["one server supports about 200 publishers"] = 150 <= largest["1 server"] <= 250
    return claims


def _table(micro: MicroBenchmark, response_ms: dict[str, list[float]], largest: dict[str, float]) -> Table:
    rows = [
        (str(count), *(response_text(values[index]) for values in response_ms.values()))
        for index, count in enumerate(SHOWN)
        if count % 100 == 0
    ]
    rows.append(("supported", *(f"{largest[label]:.0f}" for label in response_ms)))
    return Table(f"{micro.name}: response time", (micro.grows, *response_ms), rows)


def _drawing(micro: MicroBenchmark, response_ms: dict[str, list[float]]) -> Drawing:
    lines = [Line(label, [float(count) for count in SHOWN], values) for label, values in response_ms.items()]
    title = f"Response time with and without replication ({micro.mode_name})"
    return figure_4(f"figure-{micro.figure}", title, micro.grows, lines)


def _paragraph(
    micro: MicroBenchmark, response_ms: dict[str, list[float]], largest: dict[str, float], ratio: float
) -> str:
    at: dict[str, dict[int, str]] = {
        label: {count: response_text(value) for count, value in zip(SHOWN, values, strict=True)}
        for label, values in response_ms.items()
    }
    one, three = at["1 server"], at[f"{REPLICAS} servers"]
    if micro is MICRO_A:
        return (
            f"The paper (figure 4a): alike with 100 subscribers; one server's response time grows and collapses above "
            f"500; three servers stay low. Here: {one[100]} and {three[100]} with 100 subscribers, {one[400]} and "
            f"{three[400]} with 400, {one[600]} and {three[600]} with 600, {one[800]} and {three[800]} with 800. One "
            f"server stays under {RESPONSE_LIMIT_MS:.0f} ms up to {largest['1 server']:.0f} subscribers, three up to "
            f"{largest[f'{REPLICAS} servers']:.0f}."
        )
    return (
        f"The paper (figure 4b): one server supports 200 publishers, then the subscriber's output buffer overflows; "
        f"three support nearly 600. Here: {largest['1 server']:.0f} and {largest[f'{REPLICAS} servers']:.0f}, "
        f"{ratio:.2f} times as many: publishers choose their server at random, so the busiest of the three has a "
        f"little more than a third of them."
    )
