"""`flow-check`: response times of the flow simulator beside those of a real server, at the same load.

Owns the comparison: one channel with some subscribers, on one server, whose publishers speak faster and faster, at
random moments. The simulator's model of the server is given what a delivery was seen to take of the link, and the limit
of the link; the rest is its own. Wide-area latency is left out on both sides: it would hide the difference.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from shoal.errors import ConfigError
from shoal.experiments import Options
from shoal.experiments.real.clients import MeasuringClients, Window
from shoal.experiments.real.meters import CpuMeter
from shoal.experiments.real.network import Network, run_on_network
from shoal.experiments.real.rig import Link, limited_cluster
from shoal.experiments.result import Drawing, Line, Panel, Result, Table
from shoal.experiments.sim.parameters import PAPER
from shoal.limits import DEFAULT_LIMITS
from shoal.sim.flow import FlowSimulator, Models, PoolModel, ServerModel, Traffic

CHANNEL: Final = "c"
LINK: Final = Link(bytes_per_s=1.5e6, wire_share=1.36)
PUBLISHERS: Final = 8
SUBSCRIBERS: Final = 20
PAYLOAD_BYTES: Final = 100
DELIVERY_BYTES: Final = 255.0
"""What a delivery is expected to take of the link at first."""
RATIOS: Final = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Loads that are aimed at: of what the link carries to what it can carry."""
SECONDS: Final = 4
LATE_S: Final = 5.0
FACTOR_MAX: Final = 2.0
"""The median of measured by modelled response times may be at most this, and at least its reciprocal."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One load, measured and modelled. Times are from `publish` to the subscriber."""

    load_ratio: float
    """What publishers gave to the link, by what it can carry."""
    publications_per_s: float
    delivery_bytes: float
    """What one delivery took of the link, with headers and everything that is said beside it."""
    measured_p50_ms: float
    measured_ms: float
    modelled_ms: float
    undelivered: int
    machine_cpu_share: float

    @property
    def difference_ms(self) -> float:
        """How much longer than modelled it took, on average."""
        return self.measured_ms - self.modelled_ms


class Steady:
    """The same channel as a workload of the flow simulator."""

    def __init__(self, publications_per_s: float, message_bytes: float, seconds: int) -> None:
        self.names = pa.array([CHANNEL.encode()], pa.binary())
        self.seconds = seconds
        self._traffic = Traffic(
            publications=np.array([publications_per_s]),
            publishers=np.array([PUBLISHERS]),
            subscribers=np.array([SUBSCRIBERS]),
            message_bytes=message_bytes,
            responses=np.array([publications_per_s * SUBSCRIBERS]),
            latency_ms=0.0,
            clients=PUBLISHERS + SUBSCRIBERS,
        )

    def at(self, second: int) -> Traffic:
        """The same in every second."""
        return self._traffic


def run(options: Options) -> Result:
    """Measures, models, and compares."""
    if LINK.limit is None:
        raise ConfigError(
            "flow-check needs servers behind links that are really limited",
            do="run it as root, with ip and tc installed",
        )

    async def work(network: Network) -> list[Compared]:
        return await compare(network, RATIOS, SECONDS, options)

    return _result(run_on_network(LINK.limit, work))


async def compare(network: Network, ratios: tuple[float, ...], seconds: int, options: Options) -> list[Compared]:
    """Every load beside its model."""
    async with limited_cluster(network, LINK, 1) as cluster, MeasuringClients(network.clients_prefix) as clients:
        await clients.begin(cluster.url, DEFAULT_LIMITS, CHANNEL, PAYLOAD_BYTES, np.zeros(1))
        await clients.join(PUBLISHERS, SUBSCRIBERS)
        rows: list[Compared] = []
        weight = DELIVERY_BYTES
        for ratio in (ratios[0], *ratios):  # the first time is practice
            rate = ratio * LINK.bytes_per_s / (SUBSCRIBERS * weight)
            cpu, before = CpuMeter(), sum(network.sent().values())
            window = await clients.measure(seconds, rate / PUBLISHERS, LATE_S, steady=False)
            weight = (sum(network.sent().values()) - before) / max(len(window.delays_ms), 1)
            rows.append(_compared(window, weight, seconds, cpu.look(clients.pids).machine))
            options.note(
                f"  load ratio {rows[-1].load_ratio:.2f}: {rows[-1].measured_ms:.1f} ms, "
                f"modelled {rows[-1].modelled_ms:.1f} ms"
            )
    return rows[1:]


def _compared(window: Window, weight: float, seconds: int, machine: float) -> Compared:
    rate = window.messages / seconds
    return Compared(
        load_ratio=rate * SUBSCRIBERS * weight / LINK.bytes_per_s,
        publications_per_s=rate,
        delivery_bytes=weight,
        measured_p50_ms=float(np.median(window.delays_ms)),
        measured_ms=float(window.delays_ms.mean()),
        modelled_ms=modelled_ms(rate, weight, seconds),
        undelivered=window.undelivered,
        machine_cpu_share=machine,
    )


def modelled_ms(rate: float, weight: float, seconds: int) -> float:
    """The response time that the simulator gives to the same load on the same link."""
    server = ServerModel(capacity_bytes_per_s=LINK.bytes_per_s, fail_ratio=1.0)
    models = Models(server=server, pool=PoolModel(servers_first=1, servers_max=1))
    series = FlowSimulator(Steady(rate, weight, seconds), None, models=models).run()
    return float(np.mean(series.column("response_ms")))


def _result(rows: list[Compared]) -> Result:
    difference = float(np.median([row.difference_ms for row in rows]))
    ratio = float(np.median([row.measured_ms / row.modelled_ms for row in rows]))
    return Result(
        name="flow-check",
        paper=PAPER,
        parameters={
            "mode": "real",
            "publishers": PUBLISHERS,
            "subscribers": SUBSCRIBERS,
            "payload_bytes": PAYLOAD_BYTES,
            "seconds": SECONDS,
            "model": msgspec.to_builtins(ServerModel(capacity_bytes_per_s=LINK.bytes_per_s, fail_ratio=1.0)),
            **LINK.facts(limited=True),
        },
        series={"loads": [asdict(row) for row in rows]},
        headline={
            "median_difference_ms": difference,
            "ratio": ratio,
            "cpu_share": {"machine": max(row.machine_cpu_share for row in rows)},
        },
        tables=[_table(rows)],
        drawings=[_drawing(rows)],
        paragraph=(
            f"One channel, {PUBLISHERS} publishers, {SUBSCRIBERS} subscribers, a link of "
            f"{LINK.bytes_per_s / 1e6:g} MB/s: the median difference between measured and modelled average response "
            f"times is {difference:+.1f} ms, and the median of measured by modelled {ratio:.2f}. The model is that of "
            "a queue in its steady state, which a few seconds near a load ratio of 1 do not reach; and it leaves out "
            "clients and the processors that they share."
        ),
        claims={
            f"measured and modelled differ by a factor of at most {FACTOR_MAX:g}": 1 / FACTOR_MAX
            <= ratio
            <= FACTOR_MAX,
            "everything is delivered": not any(row.undelivered for row in rows),
        },
    )


def _table(rows: list[Compared]) -> Table:
    shown: list[tuple[str, ...]] = [
        (
            f"{row.load_ratio:.2f}",
            f"{row.publications_per_s:.0f}",
            f"{row.measured_p50_ms:.1f} ms",
            f"{row.measured_ms:.1f} ms",
            f"{row.modelled_ms:.1f} ms",
            f"{row.difference_ms:+.1f} ms",
        )
        for row in rows
    ]
    headings = ("load", "publications/s", "measured p50", "measured mean", "modelled", "difference")
    return Table("flow simulator against a real server", headings, shown)


def _drawing(rows: list[Compared]) -> Drawing:
    ratios = [row.load_ratio for row in rows]
    lines = [
        Line("measured, mean", ratios, [row.measured_ms for row in rows]),
        Line("measured, median", ratios, [row.measured_p50_ms for row in rows]),
        Line("modelled, mean", ratios, [row.modelled_ms for row in rows], dashed=True),
    ]
    return Drawing("flow-check", [Panel("One channel on one server", "load ratio", "response time (ms)", lines)])
