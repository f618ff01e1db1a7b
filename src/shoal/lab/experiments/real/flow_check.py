"""`flow-check`: response times of the flow simulator compared with those of a real server, at the same load.

Owns the comparison: one channel on one server, whose publishers publish faster and faster at random times. The
simulator's model of the server is given the limit of the link and the measured size of a delivery on it; everything
else is its own. Both sides leave out wide-area latency, which would hide the difference.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from shoal.errors import ConfigError
from shoal.flow import FlowSimulator, Models, PoolModel, ServerModel, Traffic
from shoal.lab.experiments import ExperimentOptions
from shoal.lab.experiments.paper import PAPER
from shoal.lab.experiments.real.clients import Window, start_clients
from shoal.lab.experiments.real.limited_cluster import LinkLimit, limited_cluster
from shoal.lab.experiments.real.network import ExperimentNetwork, run_on_network
from shoal.lab.experiments.result import Drawing, ExperimentResult, Line, Panel, Table
from shoal.lab.machine import MachineMeter
from shoal.limits import DEFAULT_LIMITS

CHANNEL: Final = "c"
LINK: Final = LinkLimit(bytes_per_s=1.5e6, wire_share=1.36)
PUBLISHERS: Final = 8
SUBSCRIBERS: Final = 20
PAYLOAD_BYTES: Final = 100
DELIVERY_BYTES: Final = 255.0
"""First estimate of the size of a delivery on the link."""
RATIOS: Final = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Loads to measure, as shares of what the link can carry."""
SECONDS: Final = 4
LATE_S: Final = 5.0
FACTOR_MAX: Final = 2.0
"""Measured and modelled response times may differ by this factor (the median of their ratios)."""


@dataclass(frozen=True, slots=True)
class LoadComparison:
    """One load, measured and modelled. Times are from `publish` to the subscriber."""

    load_ratio: float
    """Traffic offered to the link, divided by what it can carry."""
    publications_per_s: float
    delivery_bytes: float
    """Size of one delivery on the link, with headers and all other traffic."""
    measured_p50_ms: float
    measured_ms: float
    modelled_ms: float
    undelivered: int
    machine_cpu_share: float

    @property
    def difference_ms(self) -> float:
        """Measured minus modelled time, on average."""
        return self.measured_ms - self.modelled_ms


class SteadyChannel:
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
        """The same traffic in every second."""
        return self._traffic


def run(options: ExperimentOptions) -> ExperimentResult:
    """Measures, models, and compares."""
    if LINK.limit is None:
        raise ConfigError("flow-check needs limited links", do="run it as root, with ip and tc installed")

    async def work(network: ExperimentNetwork) -> list[LoadComparison]:
        return await compare(network, RATIOS, SECONDS, options)

    return _result(run_on_network(LINK.limit, work))


async def compare(
    network: ExperimentNetwork, ratios: tuple[float, ...], seconds: int, options: ExperimentOptions
) -> list[LoadComparison]:
    """Measures and models each load."""
    async with limited_cluster(network, LINK, 1) as cluster, start_clients(network) as clients:
        await clients.open(cluster.url, DEFAULT_LIMITS, CHANNEL, PAYLOAD_BYTES, np.zeros(1))
        await clients.set_clients(PUBLISHERS, SUBSCRIBERS)
        rows: list[LoadComparison] = []
        weight = DELIVERY_BYTES
        for ratio in (ratios[0], *ratios):  # the first one warms up
            rate = ratio * LINK.bytes_per_s / (SUBSCRIBERS * weight)
            machine, before = MachineMeter(), sum(network.sent().values())
            window = await clients.measure(seconds, rate / PUBLISHERS, LATE_S, steady=False)
            weight = (sum(network.sent().values()) - before) / max(len(window.delays_ms), 1)
            rows.append(_compared(window, weight, seconds, machine.share()))
            options.note(
                f"  load ratio {rows[-1].load_ratio:.2f}: {rows[-1].measured_ms:.1f} ms, "
                f"modelled {rows[-1].modelled_ms:.1f} ms"
            )
    return rows[1:]


def _compared(window: Window, weight: float, seconds: int, machine_cpu_share: float) -> LoadComparison:
    rate = window.messages / seconds
    return LoadComparison(
        load_ratio=rate * SUBSCRIBERS * weight / LINK.bytes_per_s,
        publications_per_s=rate,
        delivery_bytes=weight,
        measured_p50_ms=float(np.median(window.delays_ms)),
        measured_ms=float(window.delays_ms.mean()),
        modelled_ms=modelled_ms(rate, weight, seconds),
        undelivered=window.undelivered,
        machine_cpu_share=machine_cpu_share,
    )


def modelled_ms(rate: float, weight: float, seconds: int) -> float:
    """The response time in the simulator, with the same load on the same link."""
    server = ServerModel(capacity_bytes_per_s=LINK.bytes_per_s, fail_ratio=1.0)
    models = Models(server=server, pool=PoolModel(servers_first=1, servers_max=1))
    series = FlowSimulator(SteadyChannel(rate, weight, seconds), None, models=models).run()
    return float(np.mean(series.column("response_ms")))


def _result(rows: list[LoadComparison]) -> ExperimentResult:
    difference = float(np.median([row.difference_ms for row in rows]))
    ratio = float(np.median([row.measured_ms / row.modelled_ms for row in rows]))
    return ExperimentResult(
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
            f"times is {difference:+.1f} ms, and the median of their ratios is {ratio:.2f}. The model is a queue in "
            "its steady state, which a few seconds near a load ratio of 1 do not reach. It does not model clients or "
            "the processors that they share."
        ),
        claims={
            f"measured and modelled differ by a factor of at most {FACTOR_MAX:g}": 1 / FACTOR_MAX
            <= ratio
            <= FACTOR_MAX,
            "everything is delivered": not any(row.undelivered for row in rows),
        },
    )


def _table(rows: list[LoadComparison]) -> Table:
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
    return Table("flow simulator and real server", headings, shown)


def _drawing(rows: list[LoadComparison]) -> Drawing:
    ratios = [row.load_ratio for row in rows]
    lines = [
        Line("measured, mean", ratios, [row.measured_ms for row in rows]),
        Line("measured, median", ratios, [row.measured_p50_ms for row in rows]),
        Line("modelled, mean", ratios, [row.modelled_ms for row in rows], dashed=True),
    ]
    return Drawing("flow-check", [Panel("One channel on one server", "load ratio", "response time (ms)", lines)])
