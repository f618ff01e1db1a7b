"""One measurement on a limited network: clients publish, and links, servers and processors are observed meanwhile.

Owns the readings before, during and after a window. The caller decides what is published and judges the figures.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from shoal.cluster.server_meter import ServerMeter, ServerSecond
from shoal.lab.experiments.real.clients import MeasuringClients, Window
from shoal.lab.experiments.real.network import ExperimentNetwork
from shoal.lab.machine import MachineMeter


@dataclass(frozen=True, slots=True)
class Observation:
    """The observations of one window."""

    window: Window
    link_bytes: int
    """What the busiest link carried while clients published; 0 where links are not limited."""
    sent_bytes: int
    """What all links carried until everything was delivered."""
    load_ratio: float
    """Of the busiest server: the average of the seconds in which clients published."""
    server_cpu_share: float
    """Of one core, by the busiest server."""
    machine_cpu_share: float
    """Of all cores, by any process."""


async def observe(
    network: ExperimentNetwork,
    clients: MeasuringClients,
    meter: ServerMeter,
    *,
    seconds: float,
    per_s: float,
    wait_s_max: float,
    report_s: float,
) -> Observation:
    """Each publisher publishes `per_s` messages a second. It waits up to `report_s` for the agents' last reports."""
    meter.take()
    machine, before, began_s = MachineMeter(), network.sent(), time.time()
    link = asyncio.create_task(_busiest_link(network, before, seconds))
    window = await clients.measure(seconds, per_s, wait_s_max)
    machine_cpu_share, sent = machine.share(), sum(network.sent().values()) - sum(before.values())
    link_bytes = await link
    await asyncio.sleep(report_s)
    reports = meter.take()
    return Observation(
        window=window,
        link_bytes=link_bytes,
        sent_bytes=sent,
        load_ratio=mean_load_ratio(reports, began_s, began_s + seconds),
        server_cpu_share=max((report.cpu_share for report in reports), default=0.0),
        machine_cpu_share=machine_cpu_share,
    )


async def _busiest_link(network: ExperimentNetwork, before: dict[str, int], seconds: float) -> int:
    await asyncio.sleep(seconds)
    return max((sent - before[server] for server, sent in network.sent().items()), default=0)


def mean_load_ratio(seconds: list[ServerSecond], from_s: float, to_s: float) -> float:
    """The average load ratio of the busiest server, over whole seconds between two moments of the wall clock."""
    ratios: dict[str, list[float]] = {}
    for second in seconds:
        if second.second >= from_s and second.second + 1 <= to_s:
            ratios.setdefault(second.server, []).append(second.load_ratio)
    return max((sum(found) / len(found) for found in ratios.values()), default=0.0)
