"""Experiments 1a and 1b of the Dynamoth paper (V.C, figure 4) on real servers: one channel, one server or three.

Owns their sizes, how each size is measured, and what must come out. The links are such that one server is full where
the paper's was: above 500 subscribers, or 200 publishers (times `scale`).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from shoal.cluster.server_meter import ServerMeter, ServerSecond
from shoal.experiments import Options
from shoal.experiments.real.clients import MeasuringClients, Window
from shoal.experiments.real.meters import CpuMeter
from shoal.experiments.real.network import Network, run_on_network
from shoal.experiments.real.rig import FAIL_RATIO, Link, limited_cluster, place
from shoal.experiments.result import Drawing, Line, Panel, Result, Table
from shoal.experiments.sim.judging import RESPONSE_LIMIT_MS
from shoal.experiments.sim.parameters import PAPER, latencies_of
from shoal.limits import DEFAULT_LIMITS
from shoal.plan.placement import Mode, Placement
from shoal.sim.flow import Latencies

CHANNEL: Final = "c"
PUBLICATIONS_PER_S: Final = 10.0
REPLICAS: Final = 3
SECONDS: Final = 2.0
"""How long each size publishes."""
WARM_UP_S: Final = 0.5
"""How long clients that have just joined publish before that: a publisher learns where a channel is when it publishes.
"""
LATE_S: Final = 2.5
"""How long after that a delivery may take. Then it is undelivered."""
REPORT_S: Final = 0.8
"""How long the last reports of agents may take."""
TIMES: Final = 3
"""How often every size of every configuration is measured. The result in the middle counts, whatever it is: something
else on the machine may have been in the way of one of them."""
SERVERS: Final = (1, REPLICAS)


@dataclass(frozen=True, slots=True)
class Micro:
    """One of the two: what grows, how three servers share it, and how it is scaled to one machine."""

    name: str
    figure: str
    grows: str
    mode: Mode
    payload_bytes: int
    link: Link
    scale: float
    sizes: dict[int, tuple[int, ...]]
    """By number of servers."""
    ratio_min: float
    """How many times the clients of one server three must support."""

    def counts(self, size: int) -> tuple[int, int]:
        """Publishers and subscribers of a size."""
        return (1, size) if self.mode is Mode.ALL_PUBLISHERS else (size, 1)


MICRO_A: Final = Micro(
    name="dynamoth-1a",
    figure="4a",
    grows="subscribers",
    mode=Mode.ALL_PUBLISHERS,
    payload_bytes=100,
    link=Link(bytes_per_s=0.7e6, wire_share=1.36),
    scale=0.5,
    sizes=dict.fromkeys(SERVERS, (50, 100, 150, 200, 250, 300, 400)),
    ratio_min=1.4,
)
MICRO_B: Final = Micro(
    name="dynamoth-1b",
    figure="4b",
    grows="publishers",
    mode=Mode.ALL_SUBSCRIBERS,
    payload_bytes=400,
    link=Link(bytes_per_s=0.7e6, wire_share=1.33),
    scale=0.5,
    sizes={1: (25, 50, 75, 100, 125, 150, 200), REPLICAS: (100, 200, 250, 300, 350, 400)},
    ratio_min=2.0,
)


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured of one size."""

    size: int
    response_ms: float
    """The average, wide-area latency included."""
    delay_p50_ms: float
    delay_p99_ms: float
    """Without it."""
    expected: int
    undelivered: int
    load_ratio: float
    """Of the busiest server, the average of the seconds in which all published."""
    link_share: float
    """Of the fullest link, over the time of publishing."""
    server_cpu_share: float
    machine_cpu_share: float

    @property
    def judged_ms(self) -> float:
        """The response time by the experiment's rule: infinite if something was not delivered."""
        return float("inf") if self.undelivered else self.response_ms


def run_a(options: Options) -> Result:
    """One publisher, up to 400 subscribers."""
    return run_micro(MICRO_A, options)


def run_b(options: Options) -> Result:
    """Up to 400 publishers, one subscriber."""
    return run_micro(MICRO_B, options)


def run_micro(micro: Micro, options: Options) -> Result:
    """Both configurations, one after the other."""
    latencies, limit = latencies_of(options), micro.link.limit
    points: dict[str, list[Point]] = {}
    for servers in SERVERS:
        label = "1 server" if servers == 1 else f"{servers} servers"
        options.note(f"{micro.name}: {label}")

        async def work(network: Network, servers: int = servers) -> list[Point]:
            return await measure_sizes(micro, servers, network, latencies, options)

        points[label] = run_on_network(limit, work)
    return _result(micro, points, limit is not None, latencies)


async def measure_sizes(
    micro: Micro, servers: int, network: Network, latencies: Latencies, options: Options
) -> list[Point]:
    """One size after the other; none beyond the first that was not delivered, since it would be worse."""
    found: list[Point] = []
    async with (
        limited_cluster(network, micro.link, servers) as cluster,
        MeasuringClients(network.clients_prefix) as clients,
        ServerMeter(cluster) as meter,
    ):
        mode = Mode.SINGLE if servers == 1 else micro.mode
        await place(cluster, CHANNEL, Placement(1, mode, tuple(server.id for server in cluster.servers)))
        await clients.begin(cluster.url, DEFAULT_LIMITS, CHANNEL, micro.payload_bytes, latencies.samples_ms)
        for size in micro.sizes[servers]:
            await clients.join(*micro.counts(size))
            found.append(middle([await _measure(micro, size, clients, meter, network) for _ in range(TIMES)]))
            options.note(f"  {size} {micro.grows}: {_text(found[-1].judged_ms)}, load ratio {found[-1].load_ratio:.2f}")
            if found[-1].undelivered:
                break
    return found


def middle(points: list[Point]) -> Point:
    """The one whose response time is the median; what was not delivered counts as infinite."""
    return sorted(points, key=lambda point: point.judged_ms)[len(points) // 2]


async def _measure(micro: Micro, size: int, clients: MeasuringClients, meter: ServerMeter, network: Network) -> Point:
    await clients.measure(WARM_UP_S, PUBLICATIONS_PER_S, LATE_S)
    meter.take()
    cpu, before, began_s = CpuMeter(), network.sent(), time.time()
    watching = asyncio.create_task(_watch(network, before))
    window = await clients.measure(SECONDS, PUBLICATIONS_PER_S, LATE_S)
    used = cpu.look(clients.pids)
    sent = await watching
    await asyncio.sleep(REPORT_S)
    seconds = meter.take()
    return Point(
        size=size,
        response_ms=window.response_ms,
        delay_p50_ms=_percentile(window, 50),
        delay_p99_ms=_percentile(window, 99),
        expected=window.expected,
        undelivered=window.undelivered,
        load_ratio=mean_load_ratio(seconds, began_s, began_s + SECONDS),
        link_share=sent / (micro.link.bytes_per_s * SECONDS),
        server_cpu_share=max((second.cpu_share for second in seconds), default=0.0),
        machine_cpu_share=used.machine,
    )


async def _watch(network: Network, before: dict[str, int]) -> int:
    """The most that one link carried while publishers published."""
    await asyncio.sleep(SECONDS)
    return max((sent - before[server] for server, sent in network.sent().items()), default=0)


def mean_load_ratio(seconds: list[ServerSecond], from_s: float, to_s: float) -> float:
    """The average load ratio of the busiest server, of seconds that lie between two moments of the wall clock."""
    ratios: dict[str, list[float]] = {}
    for second in seconds:
        if second.second >= from_s and second.second + 1 <= to_s:
            ratios.setdefault(second.server, []).append(second.load_ratio)
    return max((sum(found) / len(found) for found in ratios.values()), default=0.0)


def _percentile(window: Window, share: float) -> float:
    return float(np.percentile(window.delays_ms, share)) if len(window.delays_ms) else float("inf")


# -- what came out -------------------------------------------------------------------------------------------


def supported(points: list[Point], limited: bool) -> float:
    """Up to which size the response time stays under the limit; between two sizes on the straight line that joins
    their response times. Where nothing is limited, servers must stay below the ratio at which they would fail, too."""
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


def _result(micro: Micro, points: dict[str, list[Point]], limited: bool, latencies: Latencies) -> Result:
    largest = {label: supported(found, limited) for label, found in points.items()}
    single, several = points.values()
    ratio = largest[f"{REPLICAS} servers"] / max(largest["1 server"], 1.0)
    busiest = {
        "server": max(point.server_cpu_share for found in points.values() for point in found),
        "machine": max(point.machine_cpu_share for found in points.values() for point in found),
    }
    return Result(
        name=micro.name,
        paper=PAPER,
        parameters={
            "mode": "real",
            "latencies": latencies.source,
            "scale": micro.scale,
            "seconds": SECONDS,
            "times": TIMES,
            "late_s": LATE_S,
            "payload_bytes": micro.payload_bytes,
            "publications_per_s_each": PUBLICATIONS_PER_S,
            "replication": micro.mode.value,
            "response_limit_ms": RESPONSE_LIMIT_MS,
            **micro.link.facts(limited),
        },
        series={label: [asdict(point) for point in found] for label, found in points.items()},
        headline={
            f"{micro.grows}_supported": largest,
            "ratio_replicated_vs_single": ratio,
            "undelivered": {label: sum(point.undelivered for point in found) for label, found in points.items()},
            "cpu_share": busiest,
        },
        tables=[_table(micro, points, largest)],
        drawings=[_drawing(micro, points)],
        paragraph=_paragraph(micro, points, largest, ratio),
        claims={
            f"3 servers support {micro.ratio_min:g} times the {micro.grows} of one": ratio >= micro.ratio_min,
            "with the fewest clients both are alike": abs(single[0].response_ms - several[0].response_ms)
            < 0.25 * several[0].response_ms,
            "no more is undelivered with 3 servers than with one": several[-1].undelivered <= single[-1].undelivered,
        },
    )


def _text(value: float) -> str:
    return f"{value:,.0f} ms" if np.isfinite(value) else "not delivered"


def _table(micro: Micro, points: dict[str, list[Point]], largest: dict[str, float]) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            str(point.size),
            label,
            _text(point.judged_ms),
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
        micro.grows, "", "response", "without WAN p50/p99", "undelivered", "load ratio", "link", "CPU server/machine"
    )  # fmt: skip
    return Table(f"{micro.name} on real servers", headings, rows)


def _drawing(micro: Micro, points: dict[str, list[Point]]) -> Drawing:
    lines = [
        Line(label, [float(point.size) for point in found], [point.judged_ms for point in found])
        for label, found in points.items()
    ]
    panel = Panel(
        f"Response time with and without replication ({micro.mode.value}), real servers",
        micro.grows,
        "response time (ms)",
        lines,
        y_max=1000.0,
        level=RESPONSE_LIMIT_MS,
    )
    return Drawing(f"figure-{micro.figure}-real", [panel])


def _paragraph(micro: Micro, points: dict[str, list[Point]], largest: dict[str, float], ratio: float) -> str:
    shown: dict[str, Any] = {
        label: ", ".join(f"{point.size}: {_text(point.judged_ms)}" for point in found)
        for label, found in points.items()
    }
    paper = (
        "one server collapses above 500 subscribers, three stay low"
        if micro is MICRO_A
        else "one server supports 200 publishers, three nearly 600"
    )
    times = " ".join(f"With {label}: {words}." for label, words in shown.items())
    one, three = (largest[label] for label in points)
    return (
        f"The paper (figure {micro.figure}): {paper}. Here, with {micro.scale:g} times the {micro.grows} and links of "
        f"{micro.link.bytes_per_s / 1e6:g} MB/s: one server stays under {RESPONSE_LIMIT_MS:.0f} ms up to {one:.0f} "
        f"{micro.grows}, three up to {three:.0f}, {ratio:.2f} times as many (medians of {TIMES}). {times}"
    )
