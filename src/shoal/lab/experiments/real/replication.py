"""Experiments 1a and 1b of the Dynamoth paper (V.C, figure 4) on real servers: one channel on one server, and on three.

Owns their sizes, how each size is measured, and their claims. Links are chosen so that one server is full where the
paper's was: above 500 subscribers, or 200 publishers (times `scale`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from shoal.cluster.server_meter import ServerMeter
from shoal.flow import Latencies
from shoal.lab.experiments import ExperimentOptions
from shoal.lab.experiments.paper import PAPER, RESPONSE_LIMIT_MS, figure_4, latencies_of, response_text
from shoal.lab.experiments.real.clients import MeasuringClients, start_clients
from shoal.lab.experiments.real.limited_cluster import FAIL_RATIO, LinkLimit, limited_cluster, place_channels
from shoal.lab.experiments.real.network import ExperimentNetwork, run_on_network
from shoal.lab.experiments.real.observation import observe
from shoal.lab.experiments.result import Drawing, ExperimentResult, Line, Table
from shoal.limits import DEFAULT_LIMITS
from shoal.plan.placement import Mode, Placement

CHANNEL: Final = "c"
PUBLICATIONS_PER_S: Final = 10.0
REPLICAS: Final = 3
SECONDS: Final = 2.0
"""How long clients of each size publish."""
WARM_UP_S: Final = 0.5
"""How long new clients publish before that: a publisher learns where a channel lives when it first publishes."""
LATE_S: Final = 2.5
"""A delivery that takes longer than this after the end of publishing counts as undelivered."""
REPORT_S: Final = 0.8
"""How long the agents' last reports may take."""
TIMES: Final = 3
"""How often each size is measured. The median counts, since other work on the machine may disturb one measurement."""
SERVERS: Final = (1, REPLICAS)


@dataclass(frozen=True, slots=True)
class ReplicationSetup:
    """One of the two experiments: which clients grow in number, how three servers share them, and how it is scaled."""

    name: str
    figure: str
    grows: str
    mode: Mode
    payload_bytes: int
    link: LinkLimit
    scale: float
    sizes: dict[int, tuple[int, ...]]
    """By number of servers."""
    ratio_min: float
    """Three servers must support at least this multiple of the clients of one."""

    def counts(self, size: int) -> tuple[int, int]:
        """Publishers and subscribers of a size."""
        return (1, size) if self.mode is Mode.ALL_PUBLISHERS else (size, 1)


SETUP_A: Final = ReplicationSetup(
    name="dynamoth-1a",
    figure="4a",
    grows="subscribers",
    mode=Mode.ALL_PUBLISHERS,
    payload_bytes=100,
    link=LinkLimit(bytes_per_s=0.7e6, wire_share=1.36),
    scale=0.5,
    sizes=dict.fromkeys(SERVERS, (50, 100, 150, 200, 250, 300, 400)),
    ratio_min=1.4,
)
SETUP_B: Final = ReplicationSetup(
    name="dynamoth-1b",
    figure="4b",
    grows="publishers",
    mode=Mode.ALL_SUBSCRIBERS,
    payload_bytes=400,
    link=LinkLimit(bytes_per_s=0.7e6, wire_share=1.33),
    scale=0.5,
    sizes={1: (25, 50, 75, 100, 125, 150, 200), REPLICAS: (100, 200, 250, 300, 350, 400)},
    ratio_min=2.0,
)


@dataclass(frozen=True, slots=True)
class SizePoint:
    """The measurements for one size."""

    size: int
    response_ms: float
    """The average, wide-area latency included."""
    delay_p50_ms: float
    delay_p99_ms: float
    """Without latency."""
    expected: int
    undelivered: int
    load_ratio: float
    """Of the busiest server, the average of the seconds in which clients published."""
    link_share: float
    """Of the busiest link, while clients published."""
    server_cpu_share: float
    machine_cpu_share: float

    @property
    def judged_ms(self) -> float:
        """The response time by the experiment's rule: infinite if a message was not delivered."""
        return float("inf") if self.undelivered else self.response_ms


def run_a(options: ExperimentOptions) -> ExperimentResult:
    """One publisher, up to 400 subscribers."""
    return _run(SETUP_A, options)


def run_b(options: ExperimentOptions) -> ExperimentResult:
    """Up to 400 publishers, one subscriber."""
    return _run(SETUP_B, options)


def _run(setup: ReplicationSetup, options: ExperimentOptions) -> ExperimentResult:
    """One server, then three."""
    latencies, limit = latencies_of(options), setup.link.limit
    points: dict[str, list[SizePoint]] = {}
    for servers in SERVERS:
        label = "1 server" if servers == 1 else f"{servers} servers"
        options.note(f"{setup.name}: {label}")

        async def work(network: ExperimentNetwork, servers: int = servers) -> list[SizePoint]:
            return await measure_sizes(setup, servers, network, latencies, options)

        points[label] = run_on_network(limit, work)
    return _result(setup, points, limit is not None, latencies)


async def measure_sizes(
    setup: ReplicationSetup,
    servers: int,
    network: ExperimentNetwork,
    latencies: Latencies,
    options: ExperimentOptions,
) -> list[SizePoint]:
    """Measures one size after the other, up to the first with undelivered messages."""
    found: list[SizePoint] = []
    async with (
        limited_cluster(network, setup.link, servers) as cluster,
        start_clients(network) as clients,
        ServerMeter(cluster) as meter,
    ):
        mode = Mode.SINGLE if servers == 1 else setup.mode
        await place_channels(cluster, {CHANNEL: Placement(1, mode, tuple(server.id for server in cluster.servers))})
        await clients.open(cluster.url, DEFAULT_LIMITS, CHANNEL, setup.payload_bytes, latencies.samples_ms)
        for size in setup.sizes[servers]:
            await clients.set_clients(*setup.counts(size))
            point = median_point([await _measure(setup, size, clients, meter, network) for _ in range(TIMES)])
            found.append(point)
            response = response_text(point.judged_ms)
            options.note(f"  {size} {setup.grows}: {response}, load ratio {point.load_ratio:.2f}")
            if point.undelivered:
                break
    return found


def median_point(points: list[SizePoint]) -> SizePoint:
    """The point with the median response time; undelivered messages make it infinite."""
    return sorted(points, key=lambda point: point.judged_ms)[len(points) // 2]


async def _measure(
    setup: ReplicationSetup, size: int, clients: MeasuringClients, meter: ServerMeter, network: ExperimentNetwork
) -> SizePoint:
    await clients.measure(WARM_UP_S, PUBLICATIONS_PER_S, LATE_S)
    seen = await observe(
        network,
        clients,
        meter,
        seconds=SECONDS,
        per_s=PUBLICATIONS_PER_S,
        wait_s_max=LATE_S,
        report_s=REPORT_S,
    )
    return SizePoint(
        size=size,
        response_ms=seen.window.response_ms,
        delay_p50_ms=seen.window.delay_ms(50),
        delay_p99_ms=seen.window.delay_ms(99),
        expected=seen.window.expected,
        undelivered=seen.window.undelivered,
        load_ratio=seen.load_ratio,
        link_share=seen.link_bytes / (setup.link.bytes_per_s * SECONDS),
        server_cpu_share=seen.server_cpu_share,
        machine_cpu_share=seen.machine_cpu_share,
    )


# -- the result ----------------------------------------------------------------------------------------------


def supported(points: list[SizePoint], limited: bool) -> float:
    """The size up to which the response time stays under the limit, interpolated between two measured sizes. Where
    links are not limited, servers must also stay below the load ratio at which they would fail."""
    most, before_ms = 0.0, 0.0
    for point in points:
        if point.judged_ms < RESPONSE_LIMIT_MS and (limited or point.load_ratio <= FAIL_RATIO):
            most, before_ms = float(point.size), point.judged_ms
            continue
        if np.isfinite(point.judged_ms) and point.judged_ms > RESPONSE_LIMIT_MS and most:
            share = (RESPONSE_LIMIT_MS - before_ms) / (point.judged_ms - before_ms)
            return most + share * (point.size - most)
        break
    return most


def _result(
    setup: ReplicationSetup, points: dict[str, list[SizePoint]], limited: bool, latencies: Latencies
) -> ExperimentResult:
    largest = {label: supported(found, limited) for label, found in points.items()}
    single, several = points.values()
    ratio = largest[f"{REPLICAS} servers"] / max(largest["1 server"], 1.0)
    busiest = {
        "server": max(point.server_cpu_share for found in points.values() for point in found),
        "machine": max(point.machine_cpu_share for found in points.values() for point in found),
    }
    return ExperimentResult(
        name=setup.name,
        paper=PAPER,
        parameters={
            "mode": "real",
            "latencies": latencies.source,
            "scale": setup.scale,
            "seconds": SECONDS,
            "times": TIMES,
            "late_s": LATE_S,
            "payload_bytes": setup.payload_bytes,
            "publications_per_s_each": PUBLICATIONS_PER_S,
            "replication": setup.mode.value,
            "response_limit_ms": RESPONSE_LIMIT_MS,
            **setup.link.facts(limited),
        },
        series={label: [asdict(point) for point in found] for label, found in points.items()},
        headline={
            f"{setup.grows}_supported": largest,
            "ratio_replicated_vs_single": ratio,
            "undelivered": {label: sum(point.undelivered for point in found) for label, found in points.items()},
            "cpu_share": busiest,
        },
        tables=[_table(setup, points, largest)],
        drawings=[_drawing(setup, points)],
        paragraph=_paragraph(setup, points, largest, ratio),
        claims={
            f"3 servers support {setup.ratio_min:g} times the {setup.grows} of one": ratio >= setup.ratio_min,
            "with the fewest clients both are alike": abs(single[0].response_ms - several[0].response_ms)
            < 0.25 * several[0].response_ms,
            "no more is undelivered with 3 servers than with one": several[-1].undelivered <= single[-1].undelivered,
        },
    )


def _table(setup: ReplicationSetup, points: dict[str, list[SizePoint]], largest: dict[str, float]) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            str(point.size),
            label,
            response_text(point.judged_ms),
            f"{point.delay_p50_ms:,.0f} / {point.delay_p99_ms:,.0f} ms",
            f"{point.undelivered:,} of {point.expected:,}",
            f"{point.load_ratio:.2f}",
            f"{point.link_share:.2f}",
            f"{point.server_cpu_share:.2f} / {point.machine_cpu_share:.2f}",
        )
        for label, found in points.items()
        for point in found
    ]
    rows += [("supported", label, f"{size:.0f}", "", "", "", "", "") for label, size in largest.items()]
    headings = (
        setup.grows, "", "response", "without WAN p50/p99", "undelivered", "load ratio", "link", "CPU server / machine"
    )  # fmt: skip
    return Table(f"{setup.name} on real servers", headings, rows)


def _drawing(setup: ReplicationSetup, points: dict[str, list[SizePoint]]) -> Drawing:
    lines = [
        Line(label, [float(point.size) for point in found], [point.judged_ms for point in found])
        for label, found in points.items()
    ]
    title = f"Response time with and without replication ({setup.mode.value}), real servers"
    return figure_4(f"figure-{setup.figure}-real", title, setup.grows, lines)


def _paragraph(
    setup: ReplicationSetup, points: dict[str, list[SizePoint]], largest: dict[str, float], ratio: float
) -> str:
    shown: dict[str, Any] = {
        label: ", ".join(f"{point.size}: {response_text(point.judged_ms)}" for point in found)
        for label, found in points.items()
    }
    paper = (
        "one server collapses above 500 subscribers, three stay low"
        if setup is SETUP_A
        else "one server supports 200 publishers, three nearly 600"
    )
    times = " ".join(f"With {label}: {words}." for label, words in shown.items())
    one, three = (largest[label] for label in points)
    return (
        f"The paper (figure {setup.figure}): {paper}. Here, with {setup.scale:g} times the {setup.grows} and links of "
        f"{setup.link.bytes_per_s / 1e6:g} MB/s: one server stays under {RESPONSE_LIMIT_MS:.0f} ms up to {one:.0f} "
        f"{setup.grows}, three up to {three:.0f}, {ratio:.2f} times as many (medians of {TIMES}). {times}"
    )
